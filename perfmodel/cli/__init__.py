"""The command line: one function per command, no arithmetic.

Only Click is imported here, and a command when it is used. Commands import what they need when they
run, so that help is instant.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from inspect import cleandoc
from typing import NoReturn, TextIO

import click

from perfmodel import __version__
from perfmodel.base.errors import PerfmodelError, PerfmodelWarning, message as one_line
from perfmodel.cli.groups import CommandGroup
from perfmodel.cli.shared import COMPLETE, add_shared
from perfmodel.cli.verbosity import verbosity

COMMANDS = {
    "predict": ("predict", "Predict how fast a training job runs, and why."),
    "sweep": ("studies", "Predict every combination of lists of values."),
    "compare": ("studies", "Put jobs side by side, and say why one is faster than another."),
    "report": ("predict", "Write a page about a job, to be opened in any browser."),
    "explain": ("studies", "Say which phase of an iteration rules, and where it stops ruling."),
    "advise": (
        "studies",
        "Suggest what makes a job faster: options, architectures, hardware.",
    ),
    "diagnose": ("diagnose", "Find why a measured run is slower than it should be."),
    "require": (
        "studies",
        "Find the bandwidth, the workers or another VARIABLE needed to reach an aim.",
    ),
    "plan": ("plan", "Choose instances, workers, architecture and batch size for a training run."),
    "converge": (
        "converge",
        "Train a small task in the predicted order of a job's updates, to see accuracy over time.",
    ),
    "list": ("catalogue", "List architectures, models, devices and clusters."),
    "show": ("catalogue", "Show an architecture, model, device or cluster."),
    "profile": ("profile", "Measure the training steps of a PyTorch model, layer by layer."),
    "import": ("traces", "Import a PyTorch profiler trace as a workload."),
    "what-if": (
        "what_if",
        "Replay traces of a job that may divide its model, on other links or devices.",
    ),
    "measure": ("measure", "Measure a network, or a real training run."),
    "calibrate": ("calibrate", "Fit a cluster or a workload to measurements."),
    "validate": ("validate", "Predict measured jobs, and report how far off the predictions are."),
}
"""Module and summary of each command; its docstring holds the rest of its help."""

REPLACED = {
    "--accumulate": "--accumulation",
    "--no-config": "an empty PERFMODEL_CONFIG",
    "--processes": "--jobs",
    "--start": "start in a job file",
}
"""What is used instead of flags that are no more."""

EXAMPLE = "perfmodel predict --model resnet50 --device a100 --arch ddp --workers 16"
"""Shown by help."""

BROKEN_PIPE = 141
"""Exit code where the reader of the output has gone: that of programs that SIGPIPE ends."""


class Commands(CommandGroup):
    """Imports a command when it is used."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Names of all commands, in the order of help."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of a name."""
        if name in COMMANDS and name not in self.commands:
            module, summary = COMMANDS[name]
            values = vars(importlib.import_module(f"perfmodel.cli.commands.{module}")).values()
            command = {c.name: c for c in values if isinstance(c, click.Command)}[name]
            more = None if isinstance(command, click.Group) else cleandoc(command.help or "")
            command.help = "\n\n".join(filter(None, (summary, more)))
            self.add_command(add_shared(command))
        return super().get_command(context, name)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does, without importing it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def format_epilog(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write an example, and what holds for all commands."""
        with formatter.section("Example"):
            formatter.write_text(EXAMPLE)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(
                "FILE may be -: standard input, or standard output instead of the answer."
            )
            formatter.write_text(
                "Exit codes: 0 done, 1 validate --tolerance exceeded, 2 error, 130 interrupted, "
                f"{BROKEN_PIPE} output closed by its reader."
            )


def _version(context: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested:
        from perfmodel.predicting.installation import how_it_simulates

        click.echo(f"perfmodel, version {__version__}\n{how_it_simulates()}")
        context.exit()


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and how it simulates, and exit.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Predict throughput, idleness and staleness of distributed deep-learning training."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


add_shared(cli)


def main() -> NoReturn:
    """Run the command line; an error is one line and exit code 2."""
    if sys.stderr is None:  # closed by the parent process
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stdout is None:
        _fail("standard output: is closed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "±" still gets its answer
    warnings.showwarning = _show_warning
    try:
        code = cli.main(standalone_mode=False, complete_var=COMPLETE)
        sys.stdout.flush()
    except click.NoSuchOption as error:
        instead = REPLACED.get(error.option_name)
        _fail(f"{error.option_name}: use {instead}" if instead else error.format_message())
    except click.ClickException as error:
        _fail(error.format_message())
    except PerfmodelError as error:
        _fail(str(error))
    except SystemExit as end:  # completion has an exit code; Click and Rich end broken pipes with 1
        if COMPLETE in os.environ or end.code != 1:
            raise
        _drop_output()
        sys.exit(BROKEN_PIPE)
    except OSError as error:  # files raise errors of their own: this is standard output
        _drop_output()
        if isinstance(error, BrokenPipeError):
            sys.exit(BROKEN_PIPE)
        _fail(f"standard output: cannot write: {error.strerror}")
    except MemoryError:
        _fail("the job does not fit into this machine's memory")
    except (click.Abort, KeyboardInterrupt):
        click.echo("perfmodel: interrupted", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _drop_output() -> None:
    """Let what is still buffered go nowhere: it would fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if verbosity() < 0:
        return
    if issubclass(category, PerfmodelWarning):
        click.echo(f"perfmodel: warning: {one_line(str(message))}", err=True)
    else:
        _show_any_warning(message, category, filename, lineno, file, line)


_show_any_warning = warnings.showwarning


def _fail(text: str) -> NoReturn:
    click.echo(f"perfmodel: error: {one_line(text)}", err=True)
    sys.exit(2)
