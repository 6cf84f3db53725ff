"""Sharded language models of llm-foundry, predicted from the catalogue alone.

The measurements are not part of the repository; tests that need them are skipped if they are
missing. Tests on synthetic folders always run.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import llm_foundry
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError, predict
from tests.measured import measured

ROW: dict[str, Any] = {
    "model": "1b", "seq_len": 2048, "num_gpus": 8, "gpu": "a100_80gb", "micro_batch": 4,
    "grad_accum": 2, "tokens_per_s": 131072.0, "precision": "amp_bf16", "sharding": "FULL_SHARD",
    "act_ckpt": "False",
}  # fmt: skip


def table(folder: Path, *changes: dict[str, Any]) -> Path:
    """A folder with one row for each change."""
    with (folder / llm_foundry.FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(ROW | change for change in changes)
    return folder


@pytest.mark.slow
def test_published_rows_are_predicted_without_a_fit() -> None:
    found = summarise(llm_foundry.cases(measured(llm_foundry.ABOUT.folder)))["llm_foundry/none"]
    assert found["median"] < 0.10
    assert found["p90"] < 0.30
    assert 0.85 <= found["coverage90"] <= 0.97


def test_a_row_by_hand(tmp_path: Path) -> None:
    """8 devices with 4 sequences of 2048 tokens in a pass, at 131072 tokens/s: half a second."""
    (case,) = llm_foundry.cases(table(tmp_path, {}))
    assert case.measured == 0.5
    assert case.group == "llm_foundry/none/a100_80gb"
    row = llm_foundry.Row(**ROW)
    assert case.predicted == predict(llm_foundry.job(row)).iteration_s


def test_jobs_match_their_rows() -> None:
    one = llm_foundry.job(llm_foundry.Row(**ROW))
    w = one.workload
    assert (w.name, w.device, w.precision, w.batch_size) == ("mpt-1b", "a100-80", "mixed", 4)
    assert (w.sequence_length, one.workers, one.cluster.name) == (2048, 8, "dgx-a100")
    rare = llm_foundry.job(llm_foundry.Row(**ROW | {"grad_accum": 4}))
    assert rare.workload.optimizer_s == w.optimizer_s / 2
    again = llm_foundry.job(llm_foundry.Row(**ROW | {"act_ckpt": "True"}))
    assert again.workload.backward_s > 1.4 * w.backward_s


def test_rows_without_a_job_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = [
        {}, {"precision": "amp_fp8"}, {"gpu": "b300"}, {"model": "8b"}, {"sharding": "HYBRID"},
    ]  # fmt: skip
    assert len(llm_foundry.cases(table(tmp_path, *changes))) == 1
    said = capsys.readouterr().err
    for text in ("precision amp_fp8", "b300", "model 8b", "sharding HYBRID"):
        assert text in said


def test_mistakes_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row that there is a job of"):
        llm_foundry.cases(table(tmp_path, {"gpu": "b300"}))
    with pytest.raises(InputError, match=r"line 2: num_gpus: must be at least 1"):
        llm_foundry.cases(table(tmp_path, {"num_gpus": 0}))
