"""Options that every command has: --quiet and --verbose."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from perfmodel import cli as command_line
from perfmodel.base.errors import PerfmodelWarning
from perfmodel.cli import cli
from perfmodel.cli.jobs import SECTIONS
from perfmodel.cli.verbosity import remark, verbosity

JOB = ["--model", "resnet18", "--arch", "ps"]


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command, those of groups too."""
    context = click.Context(cli)
    yield "perfmodel", cli
    for name in command_line.COMMANDS:
        result = cli.get_command(context, name)
        assert result is not None
        yield name, result
        if isinstance(result, click.Group):
            yield from result.commands.items()


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_has_the_shared_options_once(name: str, command: click.Command) -> None:
    flags = [flag for option in command.params for flag in option.opts]
    for flag in ("-q", "--quiet", "-v", "--verbose"):
        assert flags.count(flag) == 1, name
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    assert "--quiet" in command.get_help(context)


def test_help_has_sections_with_each_option_once() -> None:
    context = click.Context(cli, info_name="perfmodel")
    predict = cli.get_command(context, "predict")
    assert predict is not None
    text = predict.get_help(click.Context(predict, info_name="predict", max_content_width=200))
    heads = [line.rstrip(":") for line in text.splitlines() if re.match(r"[A-Z].*:$", line)]
    last = ["How it is predicted", "Length and failures of a training", "Options"]
    assert heads == [*SECTIONS.values(), *last]
    shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, flags=re.M)
    flags = [p.opts[-1] for p in predict.params if isinstance(p, click.Option)]
    assert sorted(shown) == sorted([*flags, "--help"])
    assert text.index("--pipeline N") > text.index("that divide a model:")


@pytest.fixture
def level() -> Iterator[list[int]]:
    """The verbosity that a command saw, of a command added for the test."""
    seen: list[int] = []

    @click.command()
    def look() -> None:
        seen.append(verbosity())
        remark("a remark")
        warnings.showwarning("a warning", PerfmodelWarning, "", 0)

    saved = dict(command_line.COMMANDS)
    command_line.COMMANDS["look"] = ("predict", "")
    from perfmodel.cli.commands import predict

    predict.look = look  # type: ignore[attr-defined]
    yield seen
    del predict.look  # type: ignore[attr-defined]
    cli.commands.pop("look", None)
    command_line.COMMANDS.clear()
    command_line.COMMANDS.update(saved)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["look"], 0),
        (["look", "-q"], -1),
        (["--quiet", "look"], -1),
        (["-q", "look", "--quiet"], -1),
        (["look", "--verbose"], 1),
        (["-v", "look"], 1),
    ],
)
def test_verbosity_is_seen_before_and_after_the_command(
    level: list[int], monkeypatch: pytest.MonkeyPatch, words: list[str], expected: int
) -> None:
    monkeypatch.setattr(warnings, "showwarning", command_line._show_warning)
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.stderr
    assert level == [expected]
    message = ["a remark", "perfmodel: warning: a warning"] if expected >= 0 else []
    assert done.stderr.splitlines() == message


def test_outside_of_a_command_nothing_is_quiet() -> None:
    assert verbosity() == 0


@pytest.mark.parametrize(
    "words", [["list", "-q", "-v"], ["-q", "list", "-v"], ["-v", "list", "--quiet"]]
)
def test_quiet_and_verbose_exclude_each_other(words: list[str]) -> None:
    done = CliRunner().invoke(cli, words)
    assert str(done.exception) == "--quiet and --verbose: give only one of them"


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_keeps_the_answer_and_leaves_out_what_was_written(
    tmp_path: Path, quiet: bool
) -> None:
    path = tmp_path / "trace.json"
    words = ["predict", *JOB, "--trace", str(path), *(["--quiet"] if quiet else [])]
    done = CliRunner().invoke(cli, words)
    assert done.stdout.startswith("resnet18 on 1 x ")
    assert ("wrote" in done.stderr) is not quiet
    assert (done.stderr == "") is quiet
    assert path.exists()


def test_quiet_keeps_errors() -> None:
    done = CliRunner().invoke(cli, ["-q", "predict", "--model", "resnet17"])
    assert "resnet17" in str(done.exception)
