"""``-`` is standard input, and standard output instead of the answer."""

from __future__ import annotations

import csv
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from perfmodel import cli as command_line
from perfmodel.base import files
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli
from perfmodel.cli.types import files_of
from tests.schemas import breaches
from tests.terminals import on_terminal, perfmodel
from tests.traces.test_traces import data_parallel

JOB = '{"schema": "perfmodel.job/1", "model": "resnet18", "workers": 2}'
JOB_TOML = 'schema = "perfmodel.job/1"\nmodel = "resnet18"\nworkers = 2\n'
TWO = ["predict", "--model", "resnet18", "--workers", "2", "--json"]


def run(*words: str, given: str | bytes = "") -> Result:
    return CliRunner().invoke(cli, words, input=given)


def answer(*words: str, given: str | bytes = "") -> str:
    done = run(*words, given=given)
    assert done.exit_code == 0, str(done.exception)
    return done.stdout


def error(*words: str, given: str | bytes = "") -> str:
    done = run(*words, given=given)
    assert isinstance(done.exception, InputError)
    assert done.stdout == ""
    return str(done.exception)


@pytest.mark.parametrize("text", [JOB, JOB_TOML, "\n " + JOB])
def test_a_job_is_read_as_json_or_toml_by_what_it_begins_with(text: str) -> None:
    assert answer("predict", "--job", "-", "--json", given=text) == answer(*TWO)


def test_a_job_on_standard_input_finds_files_from_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_bytes((catalogue.folder() / "models/resnet18.json").read_bytes())
    text = JOB_TOML.replace('model = "resnet18"', 'workload = "mine.json"')
    assert answer("predict", "--job", "-", "--json", given=text) == answer(*TWO)


def test_a_cluster_and_a_workload_are_read() -> None:
    shown = answer("show", "ethernet-25g")
    expected = answer(*TWO, "--cluster", "ethernet-25g")
    assert answer(*TWO, "--cluster", "-", given=shown) == expected
    profile = (catalogue.folder() / "models/resnet18.json").read_bytes()
    words = ["predict", "--workload", "-", "--workers", "2", "--json"]
    assert answer(*words, given=profile) == answer(*TWO)
    table = ["sweep", "--workload", "-", "--workers", "1,2"]
    assert "samples/s" in answer(*table, given=profile)
    swept = ["sweep", "--workload", "-", "--workers", "1,2", "--csv", "-"]
    assert answer(*swept, given=profile) == answer(
        "sweep", "--model", "resnet18", "--workers", "1,2", "--csv", "-"
    )


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_measurements_are_a_table_or_a_file_by_what_they_begin_with(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"stdin.{ending}"
    cells = [(2, n, n / 1.25e9 + 50e-6) for n in (1e3, 1e4, 1e5, 1e6, 1e7)]
    if ending == "csv":
        rows = "".join(f"ping_pong,{r},{n:.0f},{s}\n" for r, n, s in cells)
        path.write_text("operation,ranks,bytes,seconds\n" + rows)
    else:
        measured = [
            {"operation": "ping_pong", "ranks": r, "bytes": n, "seconds": [s, s]}
            for r, n, s in cells
        ]
        path.write_text(
            json.dumps(
                {
                    "schema": "perfmodel.measurements/1", "name": "stdin", "backend": "tcp",
                    "measurements": measured, "source": {"kind": "measured", "text": "a test"},
                }
            )
        )  # fmt: skip
    words = ["calibrate", "network", "--json"]
    known = json.loads(answer(*words, str(path)))
    assert breaches("calibration-network", known) == []
    result = json.loads(answer(*words, "-", given=path.read_bytes()))
    assert str(result).replace("table <stdin>", "table stdin.csv") == str(known)


def test_runs_are_read_twice_but_given_once() -> None:
    table = "workers,arch,step_s\n" + "".join(f"{n},ring,{2.4 + n / 100}\n" for n in (1, 2, 4, 8))
    words = ["calibrate", "runs", "--model", "resnet18", "--fit", "compute_factor"]
    assert "compute factor" in answer(*words, "-", given=table)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("predict --workload - --cluster -",
         "--workload and --cluster: standard input can be read only once; give - once"),
        ("validate - -", "CASES: standard input can be read only once; give - once"),
        ("predict --model resnet18 --trace - --update-order -",
         "--trace - and --update-order -: both print; give one of them"),
        ("predict --model resnet18 --trace - --json",
         "--trace - and --json: both print; give one of them"),
        ("sweep --model resnet18 --csv - --json",
         "--csv - and --json: both print; give one of them"),
        ("predict --model resnet18 --plot -",
         "--plot: the ending of the file's name tells the format (png, svg or pdf), "
         "and - has none"),
        ("predict --cluster - --model resnet18", "<stdin>: schema: expected 'perfmodel.cluster/1', "
         "got 'perfmodel.job/1'"),
    ],
)  # fmt: skip
def test_mistakes(words: str, reason: str) -> None:
    assert error(*words.split(), given=JOB) == reason


def test_an_empty_standard_input_is_an_error() -> None:
    text = error("predict", "--job", "-")
    assert text.startswith(
        "<stdin>: expected a job file (schema = 'perfmodel.job/1'), or one of a "
    )


def test_a_table_is_printed_instead_of_the_answer(tmp_path: Path) -> None:
    words = ["sweep", "--model", "resnet18", "--workers", "1,2"]
    printed = answer(*words, "--csv", "-")
    assert [row["workers"] for row in csv.DictReader(io.StringIO(printed))] == ["1", "2"]
    run(*words, "--csv", str(tmp_path / "table.csv"))
    assert (tmp_path / "table.csv").read_text() == printed


@pytest.mark.slow
def test_a_trace_and_a_schedule_are_printed_instead_of_the_answer(tmp_path: Path) -> None:
    job = ["predict", "--model", "alexnet", "--iterations", "3"]
    for flag, name in (("--trace", "trace.json"), ("--update-order", "schedule.npz")):
        path = tmp_path / name
        assert f"wrote {path}" in run(*job, flag, str(path)).stderr
        done = run(*job, flag, "-")
        assert done.stdout_bytes == path.read_bytes()
        assert "wrote" not in done.stderr


def test_names_in_angle_brackets_are_plain_names_elsewhere() -> None:
    with pytest.raises(InputError, match="cannot read: No such file"):
        files.read_bytes(files.STDIN)


def test_nothing_is_left_of_a_command() -> None:
    with files.standard_streams(io.BytesIO(b"x"), None):
        assert files.read_bytes(files.STDIN) == files.read_bytes(files.STDIN) == b"x"
    with pytest.raises(InputError):
        files.read_bytes(files.STDIN)


def parameters() -> Iterator[tuple[str, click.Parameter]]:
    context = click.Context(cli)
    for name in command_line.COMMANDS:
        one = cli.get_command(context, name)
        for each in one.commands.values() if isinstance(one, click.Group) else [one]:
            assert each is not None
            for parameter in each.params:
                yield name, parameter


def test_every_file_has_the_type_of_a_file() -> None:
    for command, parameter in parameters():
        if "FILE" in parameter.make_metavar(click.Context(cli)):
            assert files_of([parameter]), (command, parameter.opts)


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell, in which perfmodel is this one."""
    command = shlex.join(perfmodel())
    root = Path(command_line.__file__).parents[2]
    return subprocess.run(
        ["sh", "-c", line.replace("perfmodel ", f"{command} ")], cwd=folder,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "PERFMODEL_CONFIG": ""},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="runs sh")
def test_an_imported_trace_is_predicted_through_a_pipe(tmp_path: Path) -> None:
    data_parallel().to(tmp_path / "trace.json")
    piped = shell(
        "perfmodel import trace.json --output - "
        "| perfmodel predict --workload - --arch ring --workers 4 --json",
        tmp_path,
    )
    assert piped.stderr == ""
    shell("perfmodel import trace.json --output mine.json", tmp_path)
    by_file = shell(
        "perfmodel predict --workload mine.json --arch ring --workers 4 --json", tmp_path
    )
    assert json.loads(piped.stdout)["model"] == "trace"
    assert piped.stdout == by_file.stdout


def test_a_terminal_is_no_place_for_binary_files() -> None:
    words = perfmodel("predict", "--model", "resnet18", "--update-order", "-")
    assert on_terminal(words) == (
        "perfmodel: error: --update-order: standard output is a terminal, and the file is binary\n"
    )
