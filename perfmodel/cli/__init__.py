"""The command line: one function per command, no arithmetic.

Only click is imported here, and a command when it is asked for; commands import what they need when
they run, so that help is instant.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

import click

from perfmodel import __version__
from perfmodel.base.errors import PerfmodelError, PerfmodelWarning
from perfmodel.base.errors import message as one_line

COMMANDS = {
    "predict": ("predict", "Predict how fast a training job runs, and why."),
    "sweep": ("predict", "Predict every combination of lists of values."),
    "compare": ("predict", "Put jobs side by side, and say why one is faster than another."),
    "report": ("report", "Write a page about a job, to be looked at in any browser."),
    "explain": ("predict", "Say which phase of an iteration rules, and where it stops ruling."),
    "advise": ("advise", "Say what would make a job faster: options, architectures, hardware."),
    "require": (
        "require",
        "Find the bandwidth, the workers, or another VARIABLE that an aim needs.",
    ),
    "plan": ("plan", "Choose instances, workers, architecture and batch size for a training."),
    "converge": (
        "converge",
        "Train a small task in the order of a job, and read accuracy against predicted time.",
    ),
    "list": ("catalogue", "List architectures, models, devices and clusters."),
    "show": ("catalogue", "Show an architecture, model, device or cluster."),
    "profile": ("profile", "Measure the training steps of a PyTorch model, layer by layer."),
    "import": ("traces", "Import the trace of a PyTorch profiler as a workload."),
    "measure": ("measure", "Measure a network, or a real training run."),
    "calibrate": ("calibrate", "Fit a cluster or a workload to what was measured."),
    "validate": (
        "validate",
        "Predict jobs that were measured, and say how far off the predictions are.",
    ),
}
"""The module of each command, and what it does."""


class Commands(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Names of all commands, in the order of help."""
        return list(COMMANDS)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does, without importing it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """The command of a name, None if there is none."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"perfmodel.cli.commands.{COMMANDS[name][0]}")
        named = {c.name: c for c in vars(module).values() if isinstance(c, click.Command)}
        return named[name]


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
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


def main() -> NoReturn:
    """Run the command line; a user's mistake is one line and exit code 2."""
    gc.set_threshold(100_000)  # one short run: frequent collections only cost time
    if sys.stderr is None:  # closed by the parent process
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdout is None:
        _fail("standard output: is closed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "±" still gets its answer
    warnings.showwarning = _show_warning
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _fail(error.format_message())
    except PerfmodelError as error:
        _fail(str(error))
    except OSError as error:  # files raise errors of their own: this is standard output
        # what is still buffered would fail once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        _fail(f"standard output: cannot write: {error.strerror}")
    except MemoryError:
        _fail("the job does not fit into this machine's memory")
    except (click.Abort, KeyboardInterrupt):
        click.echo("perfmodel: interrupted", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **to: Any) -> None:
    if issubclass(category, PerfmodelWarning):
        click.echo(f"perfmodel: warning: {one_line(str(message))}", err=True)
    else:
        _show_any_warning(message, category, *where, **to)


_show_any_warning = warnings.showwarning


def _fail(text: str) -> NoReturn:
    click.echo(f"perfmodel: error: {one_line(text)}", err=True)
    sys.exit(2)
