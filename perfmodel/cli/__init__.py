"""The command line: one function per command, no arithmetic.

Only click is imported here; the rest is imported when a command runs, so that help is instant.
"""

from __future__ import annotations

import gc
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
from perfmodel.cli.commands.calibrate import calibrate
from perfmodel.cli.commands.catalogue import list_, show
from perfmodel.cli.commands.measure import measure
from perfmodel.cli.commands.predict import compare, explain, predict, sweep
from perfmodel.cli.commands.profile import profile
from perfmodel.cli.commands.traces import import_
from perfmodel.cli.commands.validate import validate


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from perfmodel.predicting.installation import how_it_simulates

        click.echo(f"perfmodel, version {__version__}\n{how_it_simulates()}")
        context.exit()


@click.group(
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


COMMANDS = (
    *(predict, sweep, compare, explain, list_, show),
    *(profile, import_, measure, calibrate, validate),
)

for _command in COMMANDS:
    cli.add_command(_command)


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
