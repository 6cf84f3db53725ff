"""Steps on one H100 of which nothing is in the catalogue: the page shows how far off they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel.cli import cli
from perfmodel.validation import read_cases, validate

ROOT = Path(__file__).parents[2]
CASES = ROOT / "benchmarks" / "one_h100.toml"
PAGE = ROOT / "docs" / "explanation" / "measured-and-estimated.md"


def test_the_page_shows_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command = ["validate", str(CASES.relative_to(ROOT))]
    printed = CliRunner().invoke(cli, command, catch_exceptions=False).output
    lines = [line.rstrip() for line in printed.splitlines()]
    before, shown = PAGE.read_text(encoding="utf-8").split("perfmodel validate benchmarks/one_h100")
    assert before
    assert shown.split("```text\n")[1].split("```")[0].splitlines() == lines


def test_intervals_hold_most_steps_of_decoders() -> None:
    found = validate(read_cases(CASES))
    assert found.summaries()["decoders"]["step_s"].n == 8
    assert found.coverage()["decoders"] >= 0.85
