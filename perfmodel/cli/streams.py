"""``-`` for files: standard input, and standard output instead of the answer as text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, BinaryIO

import click

from perfmodel.base.errors import InputError

READ = frozenset(
    (
        *("--job", "--workload", "--cluster", "--base", "--instances", "--replay"),
        *("trace", "cases", "paths", "table"),
    )
)
"""Options and arguments with files that are read."""

WRITTEN = frozenset(
    ("--output", "--workload-output", "--csv", "--parquet", "--trace", "--schedule", "--report")
)
"""Options with files that are written."""

BINARY = frozenset(("--parquet", "--schedule"))
"""Options with files that a terminal cannot show."""


@contextmanager
def standard_streams(context: click.Context, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Let ``-`` be standard input and standard output; gives the values that a command gets.

    Raises
    ------
    InputError : standard input is asked for twice, or two things would be printed.
    """
    readers = list(_given(context, values, READ))
    writers = list(_given(context, values, WRITTEN))
    _check(readers, writers, values)
    if not readers and not writers:
        yield values
        return
    from perfmodel.base import files

    changed = dict(values)
    for names, stream in ((readers, files.STDIN), (writers, files.STDOUT)):
        for name, _ in names:
            changed[name] = _replaced(values[name], stream)
    with ExitStack() as stack:
        stack.enter_context(files.standard_streams(_bytes(sys.stdin), _bytes(sys.stdout)))
        if writers:
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(redirect_stdout(nowhere))
        yield changed


def _given(
    context: click.Context, values: dict[str, Any], flags: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """The name and the flag of each parameter that is ``-``, as often as it is."""
    for parameter in context.command.params:
        if parameter.opts[0] in flags or parameter.opts[0] == "--plot":
            value = values.get(str(parameter.name))
            count = value.count("-") if isinstance(value, (tuple, list)) else value == "-"
            if count and parameter.opts[0] == "--plot":
                raise InputError(
                    "--plot: the ending of the file's name tells the format (png, svg or pdf), "
                    "and - has none"
                )
            label = parameter.opts[0]
            if isinstance(parameter, click.Argument):
                label = parameter.make_metavar(context).strip("[].")
            yield from [(str(parameter.name), label)] * count


def _check(
    readers: list[tuple[str, str]], writers: list[tuple[str, str]], values: dict[str, Any]
) -> None:
    if len(readers) > 1:
        flags = " and ".join(dict.fromkeys(flag for _, flag in readers))
        raise InputError(f"{flags}: standard input can be read only once; give - once")
    printing = [f"{flag} -" for _, flag in writers] + ["--json"] * bool(values.get("as_json"))
    if writers and len(printing) > 1:
        raise InputError(f"{printing[0]} and {printing[1]}: both print; give one of them")
    for _, flag in writers:
        if flag in BINARY and sys.stdout.isatty():
            raise InputError(f"{flag}: standard output is a terminal, and the file is binary")


def _replaced(value: Any, name: str) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(name if each == "-" else each for each in value)
    return name


def _bytes(stream: Any) -> BinaryIO | None:
    """The stream of bytes below a stream of text."""
    if stream is None:
        return None
    if stream.writable():
        stream.flush()
    found: BinaryIO = stream.buffer
    return found
