"""Every example runs, without a word on standard error, and prints what its .out file says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("[0-9]*.py"))
UPDATE = os.environ.get("PERFMODEL_UPDATE_OUTPUTS") == "1"


def test_there_are_examples_and_each_has_an_output() -> None:
    assert EXAMPLES
    assert {e.stem for e in EXAMPLES} == {o.stem for o in FOLDER.glob("*.out")} or UPDATE


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_example_prints_its_output(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "utf-8"}, encoding="utf-8",
        capture_output=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()
    expected = example.with_suffix(".out")
    if UPDATE:
        expected.write_text(done.stdout, encoding="utf-8")
    assert done.stdout == expected.read_text(encoding="utf-8")
    assert not list(tmp_path.iterdir())  # an example leaves nothing behind


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.stem)
def test_example_is_short(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40
