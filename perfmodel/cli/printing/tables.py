"""Tables that stay readable on narrow terminals, their cells, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, isfinite
from typing import Literal, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from perfmodel.base.units import dimension_of, show as quantity, words_and_unit
from perfmodel.cli.printing.text import styled
from perfmodel.results.memory import SURE
from perfmodel.sweeping.comparison import WORDS
from perfmodel.sweeping.labels import Row

WIDTH = 160
"""Width of tables in a file or a pipe."""


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    justify: Literal["left", "right"] = "left",
) -> None:
    """Print a table without lines, with heads where there are names; the first column is bold.

    Parameters
    ----------
    justify : of all columns but the first.
    """
    table = FittingTable(*heads)
    for column in table.columns[1:]:
        column.justify = justify
    for row in rows:
        table.add_row(*map(Text, row))
    _console(sys.stdout, None if sys.stdout.isatty() else WIDTH).print(table)


def _console(stream: TextIO, width: int | None = None) -> Console:
    colours: Literal["auto"] | None = "auto" if styled(stream) else None
    return Console(file=stream, width=width, color_system=colours, highlight=False)


HEADS = {
    "throughput_samples_per_s": "samples/s",
    "iteration_s": "iteration",
    "idle_fraction": "idle",
    "memory_fits": "fits",
    "staleness_mean": "staleness",
    "scaling_efficiency": "scaling",
    "statistical_efficiency": "of samples",
    "goodput_samples_per_s": "goodput",
}
"""Names of figures in a table."""

ASIDE = (
    *("throughput_ci_fraction", "of_best_fraction", "busiest_link_fraction"),
    *("error_p90_fraction", "low_samples_per_s", "high_samples_per_s"),
)
"""Figures that a table shows beside others, or not at all."""


def head_text(name: str) -> str:
    """The words for a column.

    >>> head_text("bandwidth_bytes_per_s"), head_text("idle_network_s"), head_text("idle_fraction")
    ('bandwidth', 'waiting for the network', 'idle')
    """
    if name in HEADS:
        return HEADS[name]
    cause = name.removeprefix("idle_").removesuffix("_s")
    return WORDS[cause] if cause in WORDS and name.startswith("idle_") else words_and_unit(name)[0]


def cell_text(name: str, row: Row) -> str:
    """A value of a row the way people write it.

    >>> row = {"idle_fraction": 0.25, "iteration_s": 0.1, "servers": None}
    >>> [cell_text(name, row) for name in row]
    ['25.0%', '100 ms', '-']
    """
    value = row[name]
    if value is None:
        return "-"
    if name == "fidelity":
        return f"{value}{_error(row['error_p90_fraction'])}" if value == "coarse" else str(value)
    if name == "memory_fits":
        return "yes" if value >= SURE else "no" if value < 0.5 else f"{value:.0%}"
    if name == "busiest_link":
        return f"{value}, {row['busiest_link_fraction']:.1%}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if name == "throughput_samples_per_s":
        ci = row.get("throughput_ci_fraction")
        return f"{value:.5g} ± {ci:.1%}" if ci else f"{value:.5g}"
    if name == "goodput_samples_per_s":
        return f"{value:.5g}"
    if name.endswith(("_fraction", "_efficiency")):
        return f"{value:.1%}"
    unit = dimension_of(name)
    return quantity(value, unit) if unit and isfinite(value) else f"{value:.4g}"


def _error(p90: float | None) -> str:
    """The error of a coarse prediction, behind the word coarse."""
    if p90 is None:
        return ", error unknown"
    return f" ± {p90:.1%}" if p90 else ", exact"


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, shown once the work has taken a second."""
    from time import monotonic

    begin, bar = monotonic(), None

    def advance(done: int, of: int) -> None:
        nonlocal bar
        if bar is None and monotonic() - begin > 1.0:
            from rich.progress import Progress

            # time left by the speed of all the time: a chunk of jobs may take minutes
            bar = Progress(console=_console(sys.stderr), transient=True, speed_estimate_period=inf)
            bar.add_task("simulating", total=of, completed=done)
            bar.start()
        elif bar is not None:
            bar.update(bar.task_ids[0], completed=done, total=of)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


GAP = 2
"""Blanks between columns."""

UNBROKEN = 16
"""Cells of up to this many characters, such as "1.25 ms ± 3.1%", are not wrapped."""

MOST_LINES = 6
"""A row with more lines than this is easier to read as a record."""

Texts = Sequence[Sequence[Text]]
"""The header of each column, if there are headers, and its cells."""


class FittingTable(Table):
    """A table without lines, as wide as the terminal at most.

    Where the columns do not fit, the longest texts are wrapped between words. Where that is not
    enough, each row becomes a record: a line for each column.
    """

    def __init__(self, *columns: str) -> None:
        """Name the columns; a name may be empty."""
        super().__init__(box=None, pad_edge=False, show_header=any(columns), header_style="dim")
        for i, column in enumerate(columns):
            self.add_column(column, style="bold" if i == 0 else "", overflow="fold")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the table out for the width of a terminal; elsewhere as Rich does."""
        columns = [[Text(str(cell)) for cell in (c.header, *c.cells)] for c in self.columns]
        natural = [max(text.cell_len for text in column) for column in columns]
        gaps = GAP * (len(columns) - 1)
        if not console.is_terminal or sum(natural) + gaps <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        widths = shrunk(columns, options.max_width - gaps)
        if widths is None:
            yield from self._records(columns, options.max_width)
            return
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _records(self, columns: Texts, width: int) -> RenderResult:
        """Each row as lines of a column's name and its value; empty cells are left out."""
        heads = [column[0] for column in columns]
        names = min(max(head.cell_len for head in heads), width // 2 - GAP)
        for number, row in enumerate(zip(*(column[1:] for column in columns), strict=True)):
            if number and self.show_header:
                yield Text()
            row[0].stylize("bold")
            if row[0] and not heads[0]:
                yield row[0]
            record = Table(box=None, pad_edge=False, show_header=False)
            record.add_column(style="dim", width=names, overflow="fold")
            record.add_column(width=width - names - GAP, overflow="fold")
            for head, text in zip(heads, row, strict=True):
                if text and (head or text is not row[0]):
                    record.add_row(head, text)
            if record.rows:
                yield record


def shrunk(columns: Texts, room: int) -> list[int] | None:
    """Widths of columns that fit into ``room`` together, None if they would not be readable.

    The widest columns give way first, and none gets narrower than its longest word.
    """
    natural = [max(text.cell_len for text in column) for column in columns]
    least = [max(map(_least, column)) for column in columns]
    if sum(least) > room:
        return None
    level = max(natural)
    while sum(widths := _levelled(natural, least, level)) > room:
        level -= 1
    lines = (n / width for n, width in zip(natural, widths, strict=True) if width)
    return widths if max(lines) <= MOST_LINES else None


def _levelled(natural: Sequence[int], least: Sequence[int], level: int) -> list[int]:
    return [max(low, min(full, level)) for full, low in zip(natural, least, strict=True)]


def _least(text: Text) -> int:
    """The narrowest column in which a text is readable."""
    if text.cell_len <= UNBROKEN:
        return text.cell_len
    indent = len(text.plain) - len(text.plain.lstrip())
    return max(UNBROKEN, *(indent + len(word) for word in text.plain.split()))
