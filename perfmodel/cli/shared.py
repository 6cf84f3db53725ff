"""Options that every command has. They are added here, not command by command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from perfmodel.base.errors import InputError
from perfmodel.cli import config
from perfmodel.cli.help import Formatter
from perfmodel.cli.streams import standard_streams
from perfmodel.cli.verbosity import VERBOSITY

COMPLETE = "_PERFMODEL_COMPLETE"
"""Environment variable by which a shell's script asks how words can be completed."""


def _set_verbosity(context: click.Context, option: click.Parameter, given: bool) -> None:
    if not given:
        return
    level = -1 if option.name == "quiet" else 1
    if context.meta.setdefault(VERBOSITY, level) != level:
        raise InputError("--quiet and --verbose: give only one of them")


def _ignore_config(context: click.Context, _: click.Parameter, given: bool) -> None:
    if given:
        context.meta[config.IGNORED] = True


def _flag(
    names: Sequence[str],
    callback: Callable[[click.Context, click.Parameter, bool], None],
    text: str,
) -> click.Option:
    """A flag whose effect is its callback's."""
    return click.Option(
        names, is_flag=True, is_eager=True, expose_value=False, callback=callback, help=text
    )


SHARED = (
    _flag(
        ("-q", "--quiet"),
        _set_verbosity,
        "Print only the answer and errors: no notes, warnings or progress.",
    ),
    _flag(("-v", "--verbose"), _set_verbosity, "Print more details, such as all assumptions."),
    _flag(("--no-config",), _ignore_config, "Ignore the configuration file."),
)


class Context(click.Context):
    """What every command does: help that fits the terminal, configured values, - for files."""

    formatter_class = Formatter

    def invoke(self, callback: Any, /, *args: Any, **values: Any) -> Any:
        """Run the command."""
        if not isinstance(self.command, click.Group):
            values = config.completed(self, values)
        with standard_streams(self, values) as given:
            return super().invoke(callback, *args, **given)


def add_shared(command: click.Command) -> click.Command:
    """Give a command, and the commands of a group, the shared options; again changes nothing."""
    if SHARED[0] not in command.params:
        command.params.extend(SHARED)
        command.context_class = Context
    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_shared(each)
    return command
