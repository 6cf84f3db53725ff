"""The page about the bands: how they were measured, and how well they hold on other jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.coarse.classes import FEWEST
from benchmarks.coarse.draw import Cell
from benchmarks.coarse.measure import Row, known
from perfmodel.api import TOLERANCE
from perfmodel.architectures.ps import MANY
from perfmodel.predicting.bands import REPLICAS, BandClass, BandTable, narrowest

TEMPLATES = {
    frozenset({REPLICAS}): "page_replicas.md",
    frozenset(MANY.values()): "page_many.md",
}
"""Pages of groups that are drawn by themselves."""

ALONE = frozenset().union(*TEMPLATES)
"""Groups with a draw and a page of their own."""


def page(
    table: BandTable,
    found: Sequence[Row],
    drawn: Sequence[Cell],
    *,
    alone: frozenset[str] = frozenset(),
    measured: int | None = None,
) -> str:
    """Return the text of the page for the results ``found`` of the ``drawn`` jobs.

    ``alone`` are groups that were drawn by themselves. ``measured`` is the number of jobs that were
    drawn for the bands; by default the table's.
    """
    shown = alone or table.groups.keys() - ALONE
    groups = {name: one for name, one in table.groups.items() if name in shown}
    table = msgspec.structs.replace(table, groups=groups)
    exact = [row for row in found if row.exact]
    return (
        Path(__file__)
        .with_name(TEMPLATES.get(alone, "page.md"))
        .read_text()
        .format(
            jobs=table.drawn if measured is None else measured,
            checked=len(drawn),
            tolerance=TOLERANCE,
            fewest=FEWEST,
            exact=len(exact),
            farthest=max((abs(row.error) for row in exact), default=0.0),
            groups=_markdown(_groups(table, found, drawn)),
            classes=_markdown(_classes(table, found)),
        )
    )


def _markdown(rows: Iterator[Sequence[str]]) -> str:
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _groups(
    table: BandTable, found: Sequence[Row], drawn: Sequence[Cell]
) -> Iterator[Sequence[str]]:
    yield (
        *("group", "jobs", "left out", "exact", "median", "p90", "worst", "within band"),
        *("by formula", "near enough"),
    )
    names = sorted({one.group for one in drawn})
    for name in [*names, "all"]:
        mine = [one for one in drawn if name in (one.group, "all")]
        rows = [row for row in found if name in (row.group, "all")]
        left_out = sum(not known(one) for one in mine)
        rough = [row for row in rows if not row.exact]
        trusted = [row for row in rows if row.band(dict(table.groups)) <= TOLERANCE]
        wrong = sum(abs(row.error) > TOLERANCE for row in trusted)
        yield (
            name,
            str(len(mine)),
            str(left_out),
            str(len(rows) - len(rough)),
            *_sizes(rough),
            f"{max((abs(row.error) for row in rough), default=0.0):.1%}",
            _within(rough, table),
            f"{len(trusted) / len(mine):.0%}",
            f"{1.0 - wrong / len(mine):.1%}",
        )


def _sizes(rows: Sequence[Row]) -> tuple[str, str]:
    if not rows:
        return "", ""
    size = np.abs([row.error for row in rows])
    return f"{np.median(size):.1%}", f"{np.quantile(size, 0.9):.1%}"


def _within(rows: Sequence[Row], table: BandTable) -> str:
    if not rows:
        return ""
    held = [abs(row.error) <= row.band(dict(table.groups)) for row in rows]
    return f"{np.mean(held):.0%}"


def _classes(table: BandTable, found: Sequence[Row]) -> Iterator[Sequence[str]]:
    yield "class", "measured", "band", "jobs", "median", "p90", "within"
    members: dict[str, list[Row]] = {}
    for row in found:
        if not row.exact and row.group in table.groups:
            name = narrowest(table.groups[row.group], row.group, row.traits)[1]
            members.setdefault(name, []).append(row)
    for group, whole in table.groups.items():
        for name, leaf in _leaves(whole, group):
            rows = members.get(name, [])
            yield (
                name,
                str(leaf.jobs),
                f"{leaf.p90:.1%}",
                str(len(rows)),
                *_sizes(rows),
                _within(rows, table),
            )


def _leaves(one: BandClass, name: str) -> Iterator[tuple[str, BandClass]]:
    if one.with_trait is None or one.without_trait is None:
        yield name, one
        return
    yield from _leaves(one.with_trait, f"{name}, {one.trait}")
    yield from _leaves(one.without_trait, f"{name}, not {one.trait}")
