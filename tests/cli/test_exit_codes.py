"""Exit codes are those of docs/reference/command-line.md, for every command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel import cli as command_line
from perfmodel.base import tables
from perfmodel.base.errors import nearest
from perfmodel.cli import cli, main
from tests.cli.test_shared import commands
from tests.settings import thinned
from tests.terminals import perfmodel

PAGE = Path(__file__).parents[2] / "docs/reference/command-line.md"
JOB = ("predict", "--model", "resnet18")


def code(patch: pytest.MonkeyPatch, *words: str) -> object:
    """Exit code of a command line, run in this process."""
    patch.setattr(sys, "argv", ["perfmodel", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def table() -> dict[int, str]:
    """The exit codes of the page, with their meanings."""
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(number): meaning for number, meaning in rows}


def test_the_page_and_the_help_have_these_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(table()) == {0, 1, 2, 130, command_line.BROKEN_PIPE}
    cli.main(["--help"], standalone_mode=False)
    message = " ".join(capsys.readouterr().out.split())
    for number in table():
        assert re.search(rf"\b{number} \w", message.partition("Exit codes: ")[2])


@pytest.mark.parametrize("words", [(), ("--help",), ("--version",), ("list", "devices"), JOB])
def test_0_where_it_is_done(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    assert code(monkeypatch, *words) == 0


@pytest.mark.parametrize(("tolerance", "expected"), [("1%", 1), ("10%", 0)])
def test_1_where_a_validation_is_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tolerance: str, expected: int
) -> None:
    path = tmp_path / "cases.toml"
    path.write_text(
        """schema = "perfmodel.cases/1"
name = "test"
[source]
kind = "measured"
text = "a test"
[[cases]]
name = "slow by 4 %"
group = "test"
job = {model = "resnet18", workers = 1, batch_size = 32}
measured = {step_s = 2.44}
"""
    )
    words = ("validate", str(path), "--tolerance", tolerance, "--fidelity", "coarse")
    assert code(monkeypatch, *words) == expected


@pytest.mark.parametrize(
    "words",
    [
        "predict",  # nothing to predict
        "predict --nope",
        "predict --workers",
        "predict --model resnet18 --workers many",
        "predict --model resnet18 --fidelity rough",
        "predict --model resnte18",
        "predict --model resnet18 --tolerance 5%",
        "predict --workload missing.json",
        "predict --model resnet18 --trace /nowhere/trace.json",
        "predict --model resnet50 --device v100 --workers 64 --max-ops 100 --fidelity fine",
        "predict --model resnet18 --workload - --cluster -",
        "-q predict --model resnet18 --verbose",
        "predcit",
        "measure",
        "calibrate nothing",
        "list modles",
        "show",
        "require bandwidth --model resnet18",
        "validate missing.toml",
        "import missing.json",
        "list clusters --cluster x",
    ],
)
def test_2_where_it_cannot_be_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert code(monkeypatch, *words.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("perfmodel: error: ")


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_2_where_a_flag_of_any_command_is_misspelt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, command: object
) -> None:
    groups = {"network": "measure", "training": "measure", "runs": "calibrate",
              "server": "calibrate"}  # fmt: skip
    path = [*filter(None, [groups.get(name)]), *([] if name == "perfmodel" else [name])]
    assert code(monkeypatch, *path, "--no-such-flag") == 2
    assert capsys.readouterr().err.startswith("perfmodel: error: ")


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("converge --processes 2", "--processes: use --jobs"),
        ("profile --model nets:net --accumulate 2", "--accumulate: use --accumulation"),
        ("predict --start together", "--start: use start in a job file"),
        ("list --no-config", "--no-config: use an empty PERFMODEL_CONFIG"),
    ],
)
def test_the_error_of_an_old_flag_names_the_new_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, instead: str
) -> None:
    assert code(monkeypatch, *words.split()) == 2
    assert capsys.readouterr().err == f"perfmodel: error: {instead}\n"


@pytest.mark.parametrize("given", ["predcit", "measrue"])
def test_a_misspelt_command_is_suggested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    assert code(monkeypatch, given) == 2
    expected = nearest(given, command_line.COMMANDS)
    assert f"unknown command '{given}'; did you mean '{expected}'?" in capsys.readouterr().err


def test_2_where_an_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "has_parquet", lambda: False)
    assert code(monkeypatch, "sweep", "--model", "resnet18", "--parquet", "x.parquet") == 2


def test_2_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("perfmodel.api.predict", fail)
    assert code(monkeypatch, *JOB) == 2
    assert "does not fit into this machine's memory" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_130_where_it_is_interrupted() -> None:
    words = (*JOB, "--arch", "asp", "--workers", "256", "--jitter", "0.3")
    with subprocess.Popen(
        [sys.executable, "-c", ANNOUNCED, *words, "--rel-ci", "0.001%", "--max-ops", "1e12"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "perfmodel: interrupted"


ANNOUNCED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
from perfmodel import api
predict = api.predict
# Python loses interrupts at some moments of an import, so all modules are imported before.
predict(api.make_job(model="resnet18", arch="asp", workers=2, jitter=0.3))
def announced(*given, **named):
    print("begins", flush=True)
    return predict(*given, **named)
api.predict = announced
from perfmodel.__main__ import run
run()
"""


@pytest.mark.skipif(os.name != "posix", reason="breaks a pipe")
@pytest.mark.parametrize(
    "words",
    thinned(["list", "predict --model resnet18 --json", "sweep --model resnet18 --csv -"], 3),
)
def test_141_where_the_reader_has_gone(words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(
            perfmodel(*words.split()), stdin=subprocess.DEVNULL, stdout=pipe,
            stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (command_line.BROKEN_PIPE, b"")
