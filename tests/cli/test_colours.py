"""Styles are for terminals that know them, and can be turned off."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.terminals import ESCAPE, STYLE, environment, on_terminal, perfmodel, printed_here

JOB = "--model resnet18 --arch ps"
COMMANDS = [
    f"predict {JOB}",
    f"predict {JOB} --fidelity both",
    f"sweep {JOB} --workers 1,2",
    f"compare {JOB} --workers 1,2",
    pytest.param(f"explain {JOB}", marks=pytest.mark.slow),
    f"require bandwidth --to throughput>30 {JOB}",
    "show ps",
    "show v100",
    "show resnet18",
    "list",
    pytest.param("validate", marks=pytest.mark.slow),
    pytest.param(f"advise {JOB}", marks=pytest.mark.slow),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_no_escape_codes_where_they_are_turned_off(
    monkeypatch: pytest.MonkeyPatch, command: str, variable: str
) -> None:
    seen = printed_here(monkeypatch, command.split(), **{variable: "dumb"})
    assert len(seen) > 50
    assert ESCAPE.findall(seen) == []


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "show v100"])  # that is JSON
def test_canary_a_terminal_gets_styles(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    assert STYLE.search(printed_here(monkeypatch, command.split(), NO_COLOR=""))


@pytest.mark.slow
def test_processes_on_a_terminal_do_the_same() -> None:
    assert STYLE.search(on_terminal(perfmodel("show", "ps")))
    assert not ESCAPE.search(on_terminal(perfmodel("show", "ps"), NO_COLOR="1"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "command", ["show ps", pytest.param(f"predict {JOB}", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("forced", ["", "1"])
def test_a_pipe_gets_styles_only_when_they_are_forced(command: str, forced: str) -> None:
    done = subprocess.run(
        perfmodel(*command.split()), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        env=environment(FORCE_COLOR=forced), check=True,
    )  # fmt: skip
    assert bool(ESCAPE.search(done.stdout + done.stderr)) is bool(forced)


PROGRESS = """
import itertools, time
time.monotonic = itertools.count(0.0, 2.0).__next__
from perfmodel.cli.options import progress
with progress() as advance:
    if advance is not None:
        advance(1, 2)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("variable", "bar", "styles"),
    [("NO_COLOR=", True, True), ("NO_COLOR=1", True, False), ("TERM=dumb", False, False)],
)
def test_progress_needs_a_terminal_with_a_cursor(variable: str, bar: bool, styles: bool) -> None:
    name, _, value = variable.partition("=")
    if not value and int(version("rich").partition(".")[0]) < 14:
        pytest.skip("this version of Rich takes an empty NO_COLOR for a value")
    seen = on_terminal([sys.executable, "-c", PROGRESS], **{name: value})
    assert ("50%" in seen) is bar, seen
    assert bool(STYLE.search(seen)) is styles
    assert bool(ESCAPE.search(seen)) is bar
