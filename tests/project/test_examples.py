"""Every example runs without output on standard error and prints what its .out file says."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfmodel import plan

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("[0-9]*.py"))
UPDATE = os.environ.get("PERFMODEL_UPDATE_OUTPUTS") == "1"


def test_there_are_examples_and_each_has_an_output() -> None:
    assert EXAMPLES
    assert {e.stem for e in EXAMPLES} == {o.stem for o in FOLDER.glob("*.out")} or UPDATE


@pytest.mark.parametrize("example", EXAMPLES if UPDATE else EXAMPLES[:1], ids=lambda e: e.stem)
def test_example_prints_its_output(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        encoding="utf-8",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()
    expected = example.with_suffix(".out")
    if UPDATE:
        expected.write_text(done.stdout, encoding="utf-8")
        drawn(example, FOLDER / "pictures" / f"{example.stem}.png")
    assert done.stdout == expected.read_text(encoding="utf-8")
    assert not list(tmp_path.iterdir())  # an example leaves nothing behind


def drawn(example: Path, path: Path) -> None:
    """Run an example that draws a figure; it prints the same as without."""
    pytest.importorskip("matplotlib")
    printed = subprocess.run(
        [sys.executable, "-W", "error", str(example), str(path)],
        cwd=path.parent,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        encoding="utf-8",
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    assert printed == example.with_suffix(".out").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.family("pages")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_example_draws_its_picture_and_prints_its_output(example: Path, tmp_path: Path) -> None:
    committed = FOLDER / "pictures" / f"{example.stem}.png"
    drawn(example, tmp_path / "picture.png")
    header = (tmp_path / "picture.png").read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert header == committed.read_bytes()[:24]  # signature, width and height
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_example_is_short_and_listed(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 75
    assert f"python examples/{example.name} [PICTURE.png]" in text
    gallery = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"]({example.name})" in gallery
    assert f"](pictures/{example.stem}.png)" in gallery


def loaded(name: str) -> Any:
    """An example that is meant to be extended, as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_scheduler_ends_jobs_sooner_than_equal_shares(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loaded("scheduler").main(jobs=20, gpus=60, seconds=20)
    plan_line, ended, sooner = capsys.readouterr().out.splitlines()
    assert plan_line.startswith("a plan for about 20 jobs on 60 GPUs: ")
    now, before = (int(part.split()[-1]) for part in ended.split(","))
    assert now > before
    earlier, later = (int(sooner.split()[k].strip(";")) for k in (1, 4))
    assert earlier > 2 * later


def test_the_scheduler_allocates_gpus_optimally() -> None:
    """Against all allocations of six GPUs to three jobs."""
    scheduler = loaded("scheduler")
    alone = np.array([[0.0, 1.0, 1.9, 2.7, 3.4, 4.0, 4.5], [0.0, 5.0, 5.5, 5.8, 6, 6, 6],
                      [0.0, 2.0, 2.0, 5.0, 5.0, 5.0, 5.0]])  # fmt: skip
    goodput = np.pad(alone, ((0, 0), (0, scheduler.MOST - 6)), mode="edge")
    given = scheduler.marginal(goodput, 6)
    worth = {
        (a, b, c): sum(alone[i, k] / alone[i, 1] for i, k in enumerate((a, b, c)))
        for a in range(7)
        for b in range(7 - a)
        for c in [6 - a - b]
    }
    assert given.sum() <= 6
    assert worth[tuple(given.tolist())] == max(worth.values())
    assert worth[6, 0, 0] < max(worth.values())


@pytest.mark.slow
def test_the_time_for_skypilot_equals_that_of_a_plan() -> None:
    """The stand-in for `sky.Resources` has the attributes that the estimator reads."""
    module = loaded("skypilot_time_estimator")
    estimate = module.time_estimator("resnet50", dataset_size=1281167, epochs=90, nodes=2)

    def seconds(name: str | None, accelerators: dict[str, float] | None) -> int:
        found: int = estimate(SimpleNamespace(instance_type=name, accelerators=accelerators))
        return found

    planned = plan(
        model="resnet50", instance=["p3.16xlarge"], arch="allreduce", workers=16, batch_size=64,
        dataset_size=1281167, epochs=90, fidelity="coarse",
    )  # fmt: skip
    assert seconds("p3.16xlarge", {"V100": 8}) == round(planned.first.time_s)
    assert seconds("n1-standard-8", {"V100": 1}) < seconds("n1-standard-8", {"P100": 1})
    unknown = ("m5.large", None), ("p3.16xlarge", {}), (None, {"V100": 8}), ("x", {"T4": 1})
    for name, has in unknown:
        assert seconds(name, has) == module.NEVER_S
