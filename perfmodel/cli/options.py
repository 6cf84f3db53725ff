"""Options that several commands have, and what the commands do with them: files and progress."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import click

from perfmodel.cli.types import (
    BINARY,
    FIGURE,
    OUTPUT,
    Reader,
    label,
    read_jitter as read_jitter,
    read_quantity as read_quantity,
    read_whole as read_whole,
)
from perfmodel.cli.verbosity import remark as remark, verbosity as verbosity

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def one(read: Reader) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Read a value, in the callback of an option."""

    def callback(context: click.Context, option: click.Parameter, text: Any) -> Any:
        unread = isinstance(text, str) and not context.resilient_parsing
        return read(text, label(option)) if unread else text

    return callback


def items(text: str, flag: str, read: Reader | None = None, *, ranges: bool = True) -> Any:
    """Read values with commas between them, or a single one."""
    from perfmodel.sweeping.grids import values

    parts = values(text, flag, ranges=ranges)
    several = [part if read is None else read(part, flag) for part in parts]
    return several if len(several) > 1 else several[0]


def all_of(options: Sequence[Decorator]) -> Decorator:
    """Add several options to a command, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def gathered(name: str, fields: Sequence[str], make: Callable[..., Any]) -> Decorator:
    """Pass those of a command's values that are ``fields`` as one argument ``name``."""

    def around(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            some = {field: values.pop(field) for field in fields if field in values}
            return command(**values, **{name: make(**some)})

        return run

    return around


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
"""Options for :func:`perfmodel.sweeping.executors.opened`, which predicts the jobs of a study."""


def whole_option(flag: str, text: str, **more: Any) -> Decorator:
    """An option that is a whole number."""
    return click.option(flag, type=int, metavar="N", help=text, **more)


training_options = all_of(
    (
        whole_option("--dataset-size", "Samples per epoch, for training time."),
        whole_option("--epochs", "Epochs of the training time.  [default: 1]"),
    )
)
"""How long a training is."""

run_options = all_of(
    (
        whole_option("--iterations", "Predict the first N iterations, not the long run."),
        whole_option("--run-iterations", "Give the interval for a run of N iterations."),
        training_options,
    )
)
"""Which part of a run a prediction is about, and how long the training is."""


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


class Picture(Protocol):
    """A result with a figure."""

    def to_image(self, ending: str) -> bytes:
        """The figure as a file."""


def drawn(found: Picture, plot: str | None) -> list[tuple[str, bytes, str]]:
    """The figure as a file to write, if --plot is given."""
    return [] if plot is None else [(plot, found.to_image(ending(plot)), "")]


class Outputs(NamedTuple):
    """Where the answer of a command goes, besides its text."""

    csv: str | None = None
    parquet: str | None = None
    as_json: bool = False
    plot: str | None = None
    page: str | None = None

    def check(self, *others: str | None) -> None:
        """Refuse files that cannot be made or written, before the work starts."""
        if self.parquet is not None:
            from perfmodel.base.tables import need_parquet

            need_parquet()
        if self.page is not None:
            from perfmodel.reporting import page

            page.check()
        check_files(self.plot, self.csv, self.parquet, self.page, *others)

    def put(
        self,
        answer: Any,
        written: Sequence[tuple[str, bytes, str]] = (),
        as_json: Callable[[], str] | None = None,
    ) -> bool:
        """Write the files, those ``written`` first, and print JSON; returns whether to print text.

        ``as_json`` makes it of answers whose ``to_json`` does not.
        """
        from perfmodel.base import files

        more = []
        if self.csv is not None:
            more.append((self.csv, answer.to_csv().encode(), ""))
        if self.parquet is not None:
            more.append((self.parquet, answer.to_parquet(), ""))
        if self.page is not None:
            more.append((self.page, answer.report().encode(), "; open it in a browser"))
        write_files([*written, *more, *drawn(answer, self.plot)])
        if self.as_json:
            click.echo((as_json or answer.to_json)())
        return self.csv != files.STDOUT and not self.as_json


OUTPUTS = {
    "csv": click.option("--csv", type=OUTPUT, help="Write the table as CSV."),
    "parquet": click.option("--parquet", type=BINARY, help="Write it as Parquet (extra: parquet)."),
    "json": click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    "plot": click.option("--plot", type=FIGURE, help="Draw it as png, svg or pdf (extra: plot)."),
    "report": click.option(
        "--report", "page", type=OUTPUT, help="Write it as an HTML page (extra: report)."
    ),
}
"""Options of :class:`Outputs`, by their names."""


def outputs(*names: str) -> Decorator:
    """Add some of :data:`OUTPUTS`; the command gets them as ``out``."""
    return all_of((*(OUTPUTS[name] for name in names), gathered("out", Outputs._fields, Outputs)))


def progress() -> AbstractContextManager[Callable[[int, int], None] | None]:
    """A progress bar on a terminal's standard error; none elsewhere, and none with --quiet."""
    from perfmodel.cli.printing.text import moves_cursor

    if verbosity() < 0 or not moves_cursor(sys.stderr):
        return nullcontext()
    from perfmodel.cli.printing import console

    return console.progress()
