"""Tables, their cells, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, isfinite
from typing import Literal, TextIO

from rich.console import Console
from rich.text import Text

from perfmodel.base.units import dimension_of, show as quantity
from perfmodel.cli.printing.tables import FittingTable
from perfmodel.cli.printing.text import styled
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
    name = name.removesuffix(f"_{dimension_of(name)}")
    cause = name.removeprefix("idle_")
    return WORDS[cause] if cause in WORDS and name != cause else name.replace("_", " ")


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
