"""Components of memory on the command line: flags, rows with --verbose, JSON and job files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel import Job, make_job
from perfmodel.cli import cli

GIVEN = (
    "--model gpt2-xl --device a100 --batch-size 2 --workers 4 --arch zero2 --optimizer lion "
    "--precision-policy bf16_master --recompute selective:2 --offload-optimizer "
    "--fidelity coarse"
)


def printed(command: str) -> str:
    done = CliRunner().invoke(cli, command.split(), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_flags_and_a_job_file_make_the_same_job(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        'schema = "perfmodel.job/1"\nmodel = "gpt2-xl"\ndevice = "a100"\nbatch_size = 2\n'
        'workers = 4\narch = "zero2"\noptimizer = "lion"\nprecision_policy = "bf16_master"\n'
        'recompute = "selective:2"\noffload_optimizer = true\n',
        encoding="utf-8",
    )
    made = make_job(
        model="gpt2-xl", device="a100", batch_size=2, workers=4, arch="zero2", optimizer="lion",
        precision_policy="bf16_master", recompute="selective:2", offload_optimizer=True,
    )  # fmt: skip
    assert Job.from_file(path) == made
    memory = json.loads(printed(f"predict {GIVEN} --json"))["memory"]
    parameters = 4 * made.workload.gradient_bytes / 4
    assert memory["worker"]["host_bytes"] == pytest.approx((4 + 4) / 4 * parameters / 4)
    assert memory["worker"]["copies_bytes"] == memory["worker"]["optimizer_states_bytes"] == 0.0


def test_verbose_lists_components_that_exist() -> None:
    text = printed(f"predict {GIVEN} --verbose")
    rows = [line[2:].split("  ")[0] for line in text.splitlines() if line.startswith("- ")]
    assert rows == [
        *("parameters", "gradients", "activations", "logits and loss"),
        *("temporary tensors", "gathered units", "on the host", "reserved"),
    ]
    assert "- parameters" not in printed(f"predict {GIVEN}")
