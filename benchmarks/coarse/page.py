"""The page about the bands: how they were measured, and how they hold on other jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.coarse.draw import Cell
from benchmarks.coarse.measure import Row, known
from perfmodel.api import TOLERANCE
from perfmodel.bands import Class, Table, narrowest

TEXT = """\
# Formulas against the simulation

The [coarse route](explanation/coarse.md) against the fine one, not against real runs. Jobs are drawn at random from
what users vary: the architecture and its options, 1 to 128 workers, 1 to 400 Gbps, latencies, one to eight devices
on a node, the number of servers and their update threads, models of one layer to a hundred, unequal devices and
links, jitter, data loading, measured collectives. Ways of training have as many jobs each. {jobs} jobs of one draw
measured the bands; {checked} jobs of another one, which nothing was chosen by, check them here.

    python -m benchmarks.coarse --measure

This simulates them all, draws the classes, and writes [the table of bands](../perfmodel/bands.json) and this page. It
takes about 40 minutes on two cores; simulations are kept in `build/` for next time, and an interrupted run goes on
where it was. Errors are of the iteration time, relative to the simulated one, without sign.

## By group

A job is *left out* where it has something that the formulas do not know; `auto` simulates these. *Exact* are those
that the formulas are declared exact for. The rest is what median, 90th percentile and worst error are of. *Within
band*: their part within the declared "9 in 10". *By formula*: the part of all jobs that `auto` does not simulate at
its default tolerance, {tolerance:.0%}; *near enough*: the part of all jobs whose answer it then has within that
tolerance of the simulation.

{groups}

{exact} jobs are declared exact; the farthest of them is {farthest:.0e} off. Random simulations are themselves known
to about 1 %, and to less where the start decides.

## By class

`auto` and `coarse` look up a job's class. Each group is split by the trait that narrows its bands most, as long as
{fewest} jobs are on either side. Every other job of the first draw chose the traits, the rest measured the bands:
*measured* and *band* are of these. A band is the error that one more job is within with a probability of 0.9, by the
rank of the errors alone ([decision 0023](decisions/0023-bands-by-class.md)). *Jobs*, *median*, *p90* and *within* are
of the second draw.

{classes}
"""


def page(table: Table, found: Sequence[Row], drawn: Sequence[Cell]) -> str:
    """The text of the page: for ``found``, of the jobs that were ``drawn``."""
    from benchmarks.coarse.classes import FEWEST

    exact = [row for row in found if row.exact]
    return TEXT.format(
        jobs=table.drawn,
        checked=len(drawn),
        tolerance=TOLERANCE,
        fewest=FEWEST,
        exact=len(exact),
        farthest=max((abs(row.error) for row in exact), default=0.0),
        groups=_markdown(_groups(table, found, drawn)),
        classes=_markdown(_classes(table, found)),
    )


def _markdown(rows: Iterator[Sequence[str]]) -> str:
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _groups(table: Table, found: Sequence[Row], drawn: Sequence[Cell]) -> Iterator[Sequence[str]]:
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


def _within(rows: Sequence[Row], table: Table) -> str:
    if not rows:
        return ""
    held = [abs(row.error) <= row.band(dict(table.groups)) for row in rows]
    return f"{np.mean(held):.0%}"


def _classes(table: Table, found: Sequence[Row]) -> Iterator[Sequence[str]]:
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


def _leaves(one: Class, name: str) -> Iterator[tuple[str, Class]]:
    if one.having is None or one.lacking is None:
        yield name, one
        return
    yield from _leaves(one.having, f"{name}, {one.trait}")
    yield from _leaves(one.lacking, f"{name}, not {one.trait}")
