"""Shared by commands: parsing options, checking and writing files, progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import click

from perfmodel.base.errors import InputError

Command = Callable[..., Any]
Callback = Callable[[click.Context, click.Parameter, Any], Any]
Reader = Callable[[str, str], Any]
"""Reads the text of an option, whose flag comes second, for errors."""


def read_text(text: str, _: str) -> str:
    """Take the text as it is."""
    return text


def read_whole(text: str, flag: str) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{flag}: expected a whole number, got {text!r}") from None


def read_count(text: str, _: str) -> int | str:
    """Read a number, or text such as ``8+8+4`` or ``equal:100``."""
    return int(text) if text.isdecimal() else text


def read_number(text: str, flag: str) -> float:
    """Read a number, or inf."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{flag}: expected a number, got {text!r}") from None


def read_quantity(dimension: str) -> Reader:
    """Read text with a unit as SI."""

    def read(text: str, flag: str) -> float:
        from perfmodel.base.units import parse

        return parse(text, dimension, flag)

    return read


def read_jitter(text: str, _: str) -> Any:
    """Read ``0.1``, ``gamma:0.1`` or ``measured``."""
    from perfmodel.inputs.job import Jitter

    return Jitter.parse(text)


def read_stragglers(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Read each ``WORKER:FACTOR``."""
    from perfmodel.inputs.job import Straggler

    return tuple(Straggler.parse(text) for text in texts)


def read_fraction(text: str, flag: str) -> float:
    """Read ``1%`` or ``0.01``."""
    from perfmodel.base.units import fraction

    return fraction(text, flag)


def one(read: Reader) -> Callback:
    """Read a value."""
    return lambda _, option, text: None if text is None else read(text, option.opts[0])


def list_of(read: Reader, *, ranges: bool) -> Callback:
    """Read a list of values, or a single one."""

    def callback(_: click.Context, option: click.Parameter, text: str | None) -> Any:
        flag = option.opts[0]
        return None if text is None else items(text, flag, read, ranges=ranges)

    return callback


def items(text: str, flag: str, read: Reader = read_text, *, ranges: bool = True) -> Any:
    """Read values with commas between them, or a single one."""
    from perfmodel.studies.grids import values

    found = [read(part, flag) for part in values(text, flag, ranges=ranges)]
    return found if len(found) > 1 else found[0]


def all_of(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Give a command several options, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


executor_options = all_of(
    (
        click.option(
            "--jobs",
            "processes",
            type=int,
            metavar="N",
            help="Processes of this machine.  [default: one; all cores after 5 s]",
        ),
        click.option(
            "--dask",
            metavar="ADDRESS",
            help="Scheduler of a running Dask cluster, instead (extra: dask).",
        ),
    )
)
"""What predicts the jobs of a study: :func:`perfmodel.studies.executors.opened`."""


def ending(path: str) -> str:
    """The ending of a file's name, in lower case and without its dot."""
    return path.rpartition(".")[2].lower()


def check_files(plot: str | None, *others: str | None) -> None:
    """Refuse files that cannot be written, before the work is done."""
    from perfmodel.base import files

    for path in filter(None, (plot, *others)):
        files.check_writable(path)
    if plot is not None:
        from perfmodel.results.style import check

        check(ending(plot))


def write_files(written: Sequence[tuple[str, bytes, str]]) -> None:
    """Write files, each with a remark to print."""
    from perfmodel.base import files
    from perfmodel.base.errors import plain

    for path, data, hint in written:
        files.write(path, data)
        click.echo(plain(f"wrote {path}{hint}"), err=True)


page_option = click.option(
    "--report",
    "page",
    metavar="FILE",
    help="Write it as a page for a browser (extra: report).",
)


class Paged(Protocol):
    """A result with a page."""

    def report(self) -> str:
        """The page as text."""


def check_page(path: str | None) -> None:
    """Refuse a page that cannot be made or written, before the work is done."""
    if path is not None:
        from perfmodel.reporting import page

        page.check()
        check_files(None, path)


def write_page(found: Paged, path: str | None) -> None:
    """Write the page of a result, if it was asked for."""
    if path is not None:
        write_files([(path, found.report().encode(), "; open it in a browser")])


class Picture(Protocol):
    """A result with a figure."""

    def to_image(self, ending: str) -> bytes:
        """The figure as a file."""


def drawn(found: Picture, plot: str | None) -> list[tuple[str, bytes, str]]:
    """The figure as a file to write, if one was asked for."""
    return [] if plot is None else [(plot, found.to_image(ending(plot)), "")]


class Tabular(Picture, Protocol):
    """A result with a table and JSON as well."""

    def to_csv(self) -> str:
        """The table as CSV text."""

    def to_json(self) -> str:
        """The whole as JSON text."""


def check_outputs(
    csv: str | None, as_json: bool, plot: str | None, parquet: str | None = None
) -> None:
    """Refuse two things to print, and files that cannot be written, before the work is done."""
    if csv == "-" and as_json:
        raise InputError("--csv - and --json: both print; give one of them")
    if parquet is not None:
        from perfmodel.base.tables import need_parquet

        need_parquet()
    check_files(plot, csv if csv != "-" else None, parquet)


def put_out(found: Tabular, csv: str | None, as_json: bool, plot: str | None) -> bool:
    """Write the files that were asked for; print CSV or JSON. Whether neither was to be printed."""
    written = []
    if csv is not None and csv != "-":
        written.append((csv, found.to_csv().encode(), ""))
    write_files([*written, *drawn(found, plot)])
    if csv == "-":
        click.echo(found.to_csv(), nl=False)
    elif as_json:
        click.echo(found.to_json())
    return csv != "-" and not as_json


def progress() -> AbstractContextManager[Callable[[int, int], None] | None]:
    """A progress bar on a terminal's standard error; nothing elsewhere."""
    if not sys.stderr.isatty():
        return nullcontext()
    from perfmodel.cli.printing import console

    return console.progress()
