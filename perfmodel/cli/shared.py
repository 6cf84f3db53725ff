"""What every command does: -q and -v, configured values, and ``-`` for files."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, redirect_stdout
from typing import Any, BinaryIO, TextIO

import click
from click.core import ParameterSource

from perfmodel.base.errors import InputError
from perfmodel.cli.types import files_of, label
from perfmodel.cli.verbosity import VERBOSITY

COMPLETE = "_PERFMODEL_COMPLETE"
"""Environment variable by which a shell's script asks how words can be completed."""


def _set_verbosity(context: click.Context, option: click.Parameter, on: bool) -> None:
    level = -1 if option.name == "quiet" else 1
    configured = context.get_parameter_source(str(option.name)) is ParameterSource.DEFAULT_MAP
    if not on or (configured and VERBOSITY in context.meta):
        return
    if context.meta.setdefault(VERBOSITY, level) != level:
        raise InputError("--quiet and --verbose: give only one of them")


SHARED = tuple(
    click.Option(
        names,
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_set_verbosity,
        help=text,
    )
    for *names, text in (
        ("-q", "--quiet", "Print only the answer and errors: no notes, warnings or progress."),
        ("-v", "--verbose", "Print more details, such as all assumptions."),
    )
)


class Context(click.Context):
    """Takes defaults from the configuration file, and lets ``-`` be a stream."""

    def lookup_default(self, name: str, call: bool = True) -> object:
        """The configured value of a parameter; the file is read when the first is asked for."""
        is_group = isinstance(self.command, click.Group)
        if self.default_map is None and not is_group and not self.resilient_parsing:
            from perfmodel.cli import config

            self.default_map = config.default_map(self)
        return super().lookup_default(name, call)  # type: ignore[call-overload]

    def invoke(self, callback: Any, /, *args: Any, **values: Any) -> Any:
        """Run the command."""
        with ExitStack() as stack:
            if not isinstance(self.command, click.Group):
                if self.default_map:
                    from perfmodel.cli import config

                    config.tell(self, values)
                self._lend_streams(values, stack)
            return super().invoke(callback, *args, **values)

    def _lend_streams(self, values: dict[str, object], stack: ExitStack) -> None:
        """Lend standard input and output to the command if a file is ``-``.

        Raises
        ------
        InputError : standard input is asked for twice, or two things would be printed.
        """
        paths = []
        for parameter in files_of(self.command.params):
            value = values.get(str(parameter.name))
            several = value if isinstance(value, (tuple, list)) else (value,)
            paths += [(label(parameter), path) for path in several if path is not None]
        if not paths:
            return
        from perfmodel.base import files

        readers = [flag for flag, path in paths if path == files.STDIN]
        writers = [flag for flag, path in paths if path == files.STDOUT]
        if len(readers) > 1:
            flags = " and ".join(dict.fromkeys(readers))
            raise InputError(f"{flags}: standard input can be read only once; give - once")
        printing = [f"{flag} -" for flag in writers] + ["--json"] * bool(values.get("as_json"))
        if writers and len(printing) > 1:
            raise InputError(f"{printing[0]} and {printing[1]}: both print; give one of them")
        if readers or writers:
            lent = files.standard_streams(_bytes(sys.stdin), _bytes(sys.stdout))
            stack.enter_context(lent)
        if writers:
            nowhere = stack.enter_context(click.open_file(os.devnull, "w"))
            stack.enter_context(redirect_stdout(nowhere))


def _bytes(stream: TextIO | None) -> BinaryIO | None:
    """The stream of bytes below a stream of text."""
    if stream is None:
        return None
    if stream.writable():
        stream.flush()
    return stream.buffer


def add_shared(command: click.Command) -> click.Command:
    """Give a command, and the commands of a group, what is shared; again changes nothing."""
    if SHARED[0] not in command.params:
        command.params.extend(SHARED)
        command.context_class = Context
    if isinstance(command, click.Group):
        for member in command.commands.values():
            add_shared(member)
    return command
