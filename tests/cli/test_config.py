"""The configuration file gives values to flags that are not on the command line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli, config
from tests.terminals import perfmodel

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a configuration file, which commands read."""

    def to_file(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text)
        monkeypatch.setenv(config.VARIABLE, str(path))
        return path

    return to_file


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def predicted(*words: str) -> dict[str, Any]:
    """The JSON object of a prediction."""
    done = run("predict", "--json", *words)
    assert done.exit_code == 0, str(done.exception)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def acting(*words: str) -> str:
    """What is said of the configuration, without the name of the file."""
    done = run(*words)
    assert done.exit_code == 0, str(done.exception)
    lines = [line for line in done.stderr.splitlines() if "defaults from" in line]
    assert len(lines) <= 1
    return lines[0].partition("config.toml: ")[2] if lines else ""


def error(*words: str) -> str:
    """The error of a command, without the file."""
    done = run(*words)
    assert isinstance(done.exception, InputError), done.stdout
    return str(done.exception).partition("config.toml: ")[2] or str(done.exception)


MODEL = ("--model", "resnet18")


def test_a_configured_value_is_as_good_as_a_flag(write: Write) -> None:
    expected = predicted(*MODEL, "--workers", "4", "--arch", "ring", "--bandwidth", "1Gbps")
    write('[all]\nworkers = 4\narch = "ring"\n[predict]\nbandwidth = "1Gbps"\n')
    assert predicted(*MODEL) == expected
    assert acting("predict", *MODEL) == "--bandwidth 1Gbps --workers 4 --arch ring"


def test_a_flag_comes_before_a_job_file_before_the_configuration(
    write: Write, tmp_path: Path
) -> None:
    write("[all]\nworkers = 8\nbatch-size = 8\naccumulation = 2\nseed = 7\n")
    job = tmp_path / "job.toml"
    job.write_text('schema = "perfmodel.job/1"\nmodel = "resnet18"\nworkers = 4\nbatch_size = 16\n')
    result = predicted("--job", str(job), "--workers", "2")
    assert (result["workers"], result["batch_size"]) == (2, 16)
    expected = "--batch-size 8 --accumulation 2 --seed 7"
    assert acting("predict", "--job", str(job), "--workers", "2") == expected


def test_each_job_file_of_a_comparison_takes_what_it_lacks(write: Write, tmp_path: Path) -> None:
    write("[all]\nworkers = 8\n")
    for name, text in (("a", "workers = 2\n"), ("b", "")):
        header = 'schema = "perfmodel.job/1"\nmodel = "resnet18"\n'
        (tmp_path / f"{name}.toml").write_text(header + text)
    words = [w for name in "ab" for w in ("--job", str(tmp_path / f"{name}.toml"))]
    result = json.loads(run("compare", *words, "--json").stdout)
    assert [row["workers"] for row in result["rows"]] == [2, 8]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ('workload = "mine.json"', MODEL, ""),
        ("batch-size = 8", (*MODEL, "--workers", "2", "--global-batch-size", "64"), ""),
        ("global-batch-size = 8", (*MODEL, "--batch-size", "16"), ""),
        ("one-device-speed = 9", (*MODEL, "--step-time", "1s"), ""),
        ('step-time = "1s"', (*MODEL, "--one-device-speed", "9"), ""),
        ("one-device-speed = 9", (*MODEL, "--workers", "2"), "--one-device-speed 9"),
        ("global-batch-size = 64", (*MODEL, "--workers", "2"), "--global-batch-size 64"),
        ("overlap = false", MODEL, "--no-overlap"),
        ("overlap = false", (*MODEL, "--overlap"), ""),
        ('straggler = ["0:2"]', (*MODEL, "--workers", "2"), "--straggler 0:2"),
        ('tolerance = "3%"', (*MODEL, "--fidelity", "auto"), "--tolerance 3%"),
        ('island-devices = 4\nisland-option = ["algorithm=ring"]', (*MODEL, "--workers", "8"),
         "--island-devices 4 --island-option algorithm=ring"),
    ],
)  # fmt: skip
def test_what_the_command_line_says_replaces_what_it_contradicts(
    write: Write, text: str, words: tuple[str, ...], expected: str
) -> None:
    without = predicted(*words)
    write(f"[all]\n{text}\n")
    if expected == "":
        assert predicted(*words) == without
    assert acting("predict", *words) == expected


@pytest.mark.parametrize(
    ("text", "words", "same"),
    [
        ("servers = 3", ("--option", "servers=2"), ()),
        ('option = ["servers=3"]', ("--servers", "2"), ()),
        ('option = ["servers=3", "overlap=false"]', ("--servers", "2"), ("--no-overlap",)),
        ('option = ["servers=3", "algorithm=tree"]', (), ("--servers", "3")),
        ('option = ["algorithm=tree"]\nsync = "asp"', ("--arch", "ring"), ()),
        ('sync = "bsp"', ("--arch", "asp"), ()),
        ('tolerance = "3%"', (), ()),
    ],
)  # fmt: skip
def test_options_that_are_given_or_do_not_apply_are_left_out(
    write: Write, text: str, words: tuple[str, ...], same: tuple[str, ...]
) -> None:
    expected = predicted(*MODEL, "--workers", "2", *words, *same)
    write(f"[all]\n{text}\n")
    assert predicted(*MODEL, "--workers", "2", *words) == expected


def test_a_configured_speed_is_replaced_by_the_step_time_of_a_job_file(
    write: Write, tmp_path: Path
) -> None:
    write("[all]\none-device-speed = 9\n")
    job = tmp_path / "job.toml"
    job.write_text(
        'schema = "perfmodel.job/1"\nmodel = "resnet18"\narch = "ring"\none_device_step_s = "2s"\n'
    )
    assert predicted("--job", str(job))["compute_s"] == pytest.approx(2.0)
    assert predicted("--job", str(job), "--step-time", "3s")["compute_s"] == pytest.approx(3.0)
    assert predicted("--job", str(job), "--one-device-speed", "8", "--batch-size", "16")[
        "compute_s"
    ] == pytest.approx(2.0)


def test_paths_are_relative_to_the_file_and_names_are_names(write: Write) -> None:
    path = write('[all]\ncluster = "sub/mine.toml"\n')
    (path.parent / "sub").mkdir()
    shipped = catalogue.folder() / "clusters/ethernet-25g.toml"
    place = path.parent / "sub/mine.toml"
    place.write_bytes(shipped.read_bytes())
    words = (*MODEL, "--workers", "2")
    assert acting("predict", *words) == f"--cluster {place}"
    result = predicted(*words)
    assert result == predicted(*words, "--cluster", "ethernet-25g")
    write('[all]\ncluster = "ethernet-25g"\n')
    assert predicted(*words) == result


@pytest.mark.slow
def test_the_table_of_a_command_comes_before_that_of_all(write: Write) -> None:
    write("[all]\nworkers = 2\nbatch-size = 8\n[predict]\nworkers = 4\nglobal-batch-size = 64\n")
    assert acting("predict", *MODEL) == "--global-batch-size 64 --workers 4"
    assert acting("explain", *MODEL) == "--batch-size 8 --workers 2"


def test_a_command_takes_of_all_what_it_has_and_means(write: Write) -> None:
    write('[all]\ncluster = "ethernet-25g"\njobs = 1\ndataset-size = 1000\ntolerance = "1%"\n')
    words = ("sweep", *MODEL, "--fidelity", "coarse", "--workers", "1,2")
    assert acting(*words) == "--cluster ethernet-25g --tolerance 1% --jobs 1"
    assert acting("list", "devices") == ""
    table = "--workload and --cluster: runs need both"
    write('[all]\ncluster = "ethernet-25g"\n[validate]\ncluster = "ethernet-25g"\n')
    assert error("validate", "runs.json") == table
    write('[all]\ncluster = "ethernet-25g"\n')
    assert "runs.json" in error("validate", "runs.json")


def test_subcommands_have_tables_in_tables(write: Write) -> None:
    write('[calibrate.runs]\nfits = "jitter"\n')
    reason = error("calibrate", "runs", "runs.csv")
    assert reason.startswith("[calibrate.runs] fits: unknown key; did you mean 'fit'?")
    path = write('[calibrate.network]\nnominal = "10Gbps"\nname = "lab"\n')
    table = path.with_name("network.csv")
    rows = "".join(f"ping_pong,2,{n},{n / 1e9 + 5e-5}\n" for n in (1000, 10**5, 10**7))
    table.write_text("operation,ranks,bytes,seconds\n" + rows)
    assert acting("calibrate", "network", str(table)) == "--nominal 10Gbps --name lab"


def test_quiet_can_be_configured_and_is_quiet_about_it(write: Write) -> None:
    write("[all]\nquiet = true\nworkers = 2\n")
    assert run("predict", *MODEL).stderr == ""
    assert "--workers 2" in run("predict", *MODEL, "-v").stderr


def test_an_empty_variable_ignores_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = predicted(*MODEL)
    for text in ("[all]\nworkers = 2\n", "no TOML"):
        write(text)
        monkeypatch.setenv(config.VARIABLE, "")
        assert predicted(*MODEL) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[all", "not valid TOML: "),
        ("workers = 2", "workers: expected a table, such as [all] or [predict]"),
        ("[predct]", "[predct]: unknown table; did you mean 'predict'? (allowed: all, predict, "),
        ("[all]\nworker = 2", "[all] worker: unknown key; did you mean 'workers'? (allowed: "),
        ("[predict]\nclustr = 1", "[predict] clustr: unknown key; did you mean 'cluster'? "),
        ("[predict]\njobs = 2", "[predict] jobs: unknown key; did you mean 'job'? "),
        ("[predict]\nhelp = true", "[predict] help: unknown key"),
        ('[all]\nworkers = "x"', "[all] workers: expected a whole number, got 'x'"),
        ("[all]\nworkers = true", "[all] workers: expected a whole number, got 'True'"),
        ("[all]\nworkers = [2, 4]", "[all] workers: expected a whole number, got '2,4'"),
        ("[all]\nbandwidth = 10", "[all] bandwidth: a unit is missing in '10'"),
        ('[all]\noverlap = "never"', "[all] overlap: 'never' is not a valid boolean."),
        (
            '[all]\nfidelity = "fien"',
            "[all] fidelity: unknown --fidelity 'fien'; did you mean 'fine'? ",
        ),
        ('[all]\noption = ["srevers=2"]', "unknown option 'srevers'; did you mean 'servers'?"),
        ('[predict]\nepochs = "x"', "[predict] epochs: expected a whole number, got 'x'"),
        ("predict = 2", "predict: expected a table"),
    ],
)
def test_mistakes_say_where_they_are(write: Write, text: str, reason: str) -> None:
    write(text)
    assert error("predict", *MODEL).startswith(reason)


def test_help_needs_no_configuration(write: Write) -> None:
    write("no TOML")
    for words in ([], ["--help"], ["predict", "--help"], ["--version"]):
        assert run(*words).exit_code == 0


def test_a_file_that_was_named_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(config.VARIABLE, "/nowhere/config.toml")
    assert error("predict", *MODEL) == "PERFMODEL_CONFIG: /nowhere/config.toml is no file"


def test_a_broken_file_is_a_line_and_exit_code_2(write: Write) -> None:
    path = write("[all]\nworker = 2\n")
    done = subprocess.run(
        perfmodel("predict", *MODEL), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"perfmodel: error: {path}: [all] worker: unknown key")


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "HOME"])
def test_the_users_file_is_in_the_users_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.delenv(config.VARIABLE)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert config.location() is None
    folder = tmp_path / ("perfmodel" if variable == "XDG_CONFIG_HOME" else ".config/perfmodel")
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("[all]\nworkers = 2\n")
    assert config.location() == folder / "config.toml"
    assert predicted(*MODEL)["workers"] == 2
    if variable == "HOME":
        assert "from ~/.config/perfmodel/config.toml: " in run("predict", *MODEL).stderr
    monkeypatch.setenv(config.VARIABLE, "")
    assert config.location() is None


def test_tests_read_no_file_of_the_developer() -> None:
    assert os.environ[config.VARIABLE] == ""
