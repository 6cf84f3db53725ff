"""Shared by commands: parsing options, checking and writing files, progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import click

from perfmodel.base.errors import InputError
from perfmodel.cli.verbosity import remark as remark
from perfmodel.cli.verbosity import verbosity as verbosity

Command = Callable[..., Any]
Callback = Callable[[click.Context, click.Parameter, Any], Any]
Reader = Callable[[str, str], Any]
"""Reads the text of an option; the second argument is its flag, for errors."""


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


def read_speed(text: str, flag: str) -> float | str:
    """Read samples per second as a number; text in another unit stays text."""
    from perfmodel.inputs import one_device

    speed = one_device.read_speed(text, flag)
    return speed.value if speed.unit == one_device.UNITS[0] else text.strip()


def read_jitter(text: str, _: str) -> Any:
    """Read ``0.1``, ``gamma:0.1`` or ``measured``."""
    from perfmodel.inputs.job import Jitter

    return Jitter.parse(text)


def read_stragglers(context: click.Context, _: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Read each ``WORKER:FACTOR``."""
    if _unread(context, texts):
        return texts
    from perfmodel.inputs.job import Straggler

    return tuple(Straggler.parse(text) for text in texts)


def read_fraction(text: str, flag: str) -> float:
    """Read ``1%`` or ``0.01``."""
    from perfmodel.base.units import fraction

    return fraction(text, flag)


def one(read: Reader) -> Callback:
    """Read a value."""

    def callback(context: click.Context, option: click.Parameter, text: str | None) -> Any:
        return text if _unread(context, text) else read(str(text), option.opts[0])

    return callback


def _unread(context: click.Context, text: Any) -> bool:
    """Whether there is no text, or a shell only asks for completions."""
    return text is None or context.resilient_parsing


def list_of(read: Reader, *, ranges: bool) -> Callback:
    """Read a list of values, or a single one."""

    def callback(context: click.Context, option: click.Parameter, text: str | None) -> Any:
        flag = option.opts[0]
        return text if _unread(context, text) else items(str(text), flag, read, ranges=ranges)

    return callback


def items(text: str, flag: str, read: Reader = read_text, *, ranges: bool = True) -> Any:
    """Read values with commas between them, or a single one."""
    from perfmodel.studies.grids import values

    found = [read(part, flag) for part in values(text, flag, ranges=ranges)]
    return found if len(found) > 1 else found[0]


def all_of(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Add several options to a command, in this order."""

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
            help="Number of local processes.  [default: 1; all cores after 5 s]",
        ),
        click.option(
            "--dask",
            metavar="ADDRESS",
            help="Use a Dask cluster, by the address of its scheduler (extra: dask).",
        ),
    )
)
"""Options for :func:`perfmodel.studies.executors.opened`, which predicts the jobs of a study."""


def ending(path: str) -> str:
    """The ending of a file's name, in lower case and without its dot."""
    return path.rpartition(".")[2].lower()


def check_files(plot: str | None, *others: str | None) -> None:
    """Refuse files that cannot be written, before the work starts."""
    from perfmodel.base import files

    for path in filter(None, (plot, *others)):
        files.check_writable(path)
    if plot is not None:
        from perfmodel.reporting.images import check

        check(ending(plot))


def write_files(written: Sequence[tuple[str, bytes, str]]) -> None:
    """Write files, each with a hint to print."""
    from perfmodel.base import files

    for path, data, hint in written:
        files.write(path, data)
        say_written(path, hint)


def say_written(path: str, hint: str = "") -> None:
    """Print that a file was written; nothing for standard output."""
    from perfmodel.base import files
    from perfmodel.base.errors import plain

    if path != files.STDOUT:
        remark(plain(f"wrote {path}{hint}"))


page_option = click.option(
    "--report",
    "page",
    metavar="FILE",
    help="Write an HTML page (extra: report).",
)


class Paged(Protocol):
    """A result with a page."""

    def report(self) -> str:
        """The page as text."""


def check_page(path: str | None) -> None:
    """Refuse a page that cannot be made or written, before the work starts."""
    if path is not None:
        from perfmodel.reporting import page

        page.check()
        check_files(None, path)


def write_page(found: Paged, path: str | None) -> None:
    """Write the page of a result, if --report is given."""
    if path is not None:
        write_files([(path, found.report().encode(), "; open it in a browser")])


class Picture(Protocol):
    """A result with a figure."""

    def to_image(self, ending: str) -> bytes:
        """The figure as a file."""


def drawn(found: Picture, plot: str | None) -> list[tuple[str, bytes, str]]:
    """The figure as a file to write, if --plot is given."""
    return [] if plot is None else [(plot, found.to_image(ending(plot)), "")]


class Tabular(Picture, Protocol):
    """A result with a table and JSON as well."""

    def to_csv(self) -> str:
        """The table as CSV text."""

    def to_json(self) -> str:
        """All of it as JSON text."""


def check_outputs(csv: str | None, plot: str | None, parquet: str | None = None) -> None:
    """Refuse files that cannot be written, before the work starts."""
    if parquet is not None:
        from perfmodel.base.tables import need_parquet

        need_parquet()
    check_files(plot, csv, parquet)


def put_out(found: Tabular, csv: str | None, as_json: bool, plot: str | None) -> bool:
    """Write the given files, and print JSON. Return whether to print text instead."""
    from perfmodel.base import files

    written = [] if csv is None else [(csv, found.to_csv().encode(), "")]
    write_files([*written, *drawn(found, plot)])
    if as_json:
        click.echo(found.to_json())
    return csv != files.STDOUT and not as_json


def progress() -> AbstractContextManager[Callable[[int, int], None] | None]:
    """A progress bar on a terminal's standard error; none elsewhere, and none with --quiet."""
    from perfmodel.cli.printing.text import moves_cursor

    if verbosity() < 0 or not moves_cursor(sys.stderr):
        return nullcontext()
    from perfmodel.cli.printing import console

    return console.progress()
