"""Steps on one H100 and one H200 that the catalogue does not have: the page shows how far off they
are."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel.cli import cli
from perfmodel.validation import read_cases, validate

ROOT = Path(__file__).parents[2]
H100, H200 = (ROOT / "benchmarks" / f"one_{name}.toml" for name in ("h100", "h200"))
PAGE = ROOT / "docs" / "explanation" / "measured-and-estimated.md"


@pytest.mark.parametrize("cases", [H100, H200], ids=["h100", "h200"])
def test_the_page_shows_what_the_command_prints(
    cases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    command = ["validate", str(cases.relative_to(ROOT))]
    printed = CliRunner().invoke(cli, command, catch_exceptions=False).output
    lines = [line.rstrip() for line in printed.splitlines()]
    name = f"perfmodel validate benchmarks/{cases.name}"
    _, shown = PAGE.read_text(encoding="utf-8").split(name)
    assert shown.split("```text\n")[1].split("```")[0].splitlines() == lines


def test_recent_software_holds_on_a_device_that_it_was_not_fitted_to() -> None:
    found = validate(read_cases(H200))
    decoders = found.summaries()["decoders"]["step_s"]
    assert decoders.n == 11
    assert decoders.median < 0.08
    assert decoders.p90 < 0.15
    assert found.coverage()["decoders"] >= 0.9


def test_intervals_hold_most_steps_of_decoders() -> None:
    found = validate(read_cases(H100))
    assert found.summaries()["decoders"]["step_s"].n == 8
    assert found.coverage()["decoders"] >= 0.85
