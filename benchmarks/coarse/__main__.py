"""``python -m benchmarks.coarse``: compare formulas with simulations of random jobs."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from benchmarks.coarse import page
from benchmarks.coarse.classes import FEWEST, grown
from benchmarks.coarse.draw import Cell
from benchmarks.coarse.measure import (
    MANY_FROM,
    REPLICAS_FROM,
    Row,
    Store,
    by_group,
    cell,
    known,
    rows,
    simulate,
)
from benchmarks.coarse.speed import speeds
from perfmodel.architectures.ps import MANY
from perfmodel.cli.printing import tables
from perfmodel.predicting import bands, coarse
from perfmodel.predicting.bands import BandClass, BandTable

MEASURING, CHECKING = 1, 2
"""Seeds of the jobs that measure the bands, and of those that check them."""

PAGES = Path(__file__).parents[2] / "docs"


class Kind(msgspec.Struct, frozen=True):
    """What is drawn: the page about it, how many jobs measure the bands by default, what to add to
    seeds, and the groups that are drawn by themselves, none for all others."""

    page: str
    jobs: int
    seeds: int = 0
    alone: frozenset[str] = frozenset()


OF_DEVICES = Kind("formulas-against-simulation.md", 4800)
OF_REPLICAS = Kind("formulas-of-replicas.md", 2000, REPLICAS_FROM, frozenset({bands.REPLICAS}))
OF_MANY = Kind("formulas-of-many-workers.md", 192, MANY_FROM, frozenset(MANY.values()))


@click.command()
@click.option("--measure", is_flag=True, help="Write the table of bands, and the page about it.")
@click.option("--worst", type=int, default=0, metavar="N", help="Print the N worst jobs as well.")
@click.option("--jobs", type=click.IntRange(24), default=None,
              help="Jobs that measure the bands; half as many check them. By default "
              f"{OF_DEVICES.jobs}, of replicas {OF_REPLICAS.jobs}, of many workers "
              f"{OF_MANY.jobs}.")  # fmt: skip
@click.option("--group", default=None, metavar="NAME",
              help="Measure the bands of this group alone again.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--store", type=click.Path(path_type=Path), default=Path("build/coarse.jsonl"),
              show_default=True, help="Cache file of simulations.")  # fmt: skip
@click.option(
    "--replicas",
    is_flag=True,
    help="Draw jobs whose workers are replicas of several devices instead.",
)
@click.option("--many", is_flag=True, help="Draw jobs of many asynchronous workers instead.")
@click.option("--speed", is_flag=True, help="Measure how fast formulas are evaluated instead.")
def main(
    measure: bool,
    worst: int,
    jobs: int | None,
    group: str | None,
    processes: int,
    store: Path,
    replicas: bool,
    many: bool,
    speed: bool,
) -> None:
    """Compare both routes on random jobs.

    --measure measures the bands again. A job that is not in the cache takes about 0.13 s of one
    core, one of replicas 0.05 s, one of many workers a second; an interrupted run continues
    where it stopped.
    """
    if speed:
        reference = 0.0  # of the first case: the machine's noise affects all cases alike
        for name, per_s, scalar_s in speeds():
            reference = reference or per_s
            click.echo(
                f"{name:36} {per_s / 1e6:6.2f} million/s  {per_s / reference:5.3f} of the first"
                f"  one alone {scalar_s * 1e6:7.1f} us"
            )
        return
    store.parent.mkdir(parents=True, exist_ok=True)
    kept = Store(store)
    kind = OF_MANY if many else OF_REPLICAS if replicas else OF_DEVICES
    jobs = kind.jobs if jobs is None else jobs
    measuring = [cell(MEASURING + kind.seeds, k) for k in range(jobs)] if measure else []
    if group is not None:
        measuring = [one for one in measuring if one.group == group]
    checking = [cell(CHECKING + kind.seeds, k) for k in range(jobs // 2)]
    wanted = [*(measuring if measure else ()), *checking]
    with tables.progress() as advance:
        simulate(filter(known, wanted), kept, processes, advance)
    if measure:
        found = by_group(rows(measuring, kept))
        groups = {name: grown(some) for name, some in found.items() if len(some) >= 2 * FEWEST}
        table = _joined(groups, jobs, kind is not OF_DEVICES or group is not None)
        text = msgspec.json.format(msgspec.json.encode(table), indent=1)
        bands.PATH.write_bytes(text + b"\n")
        bands.table.cache_clear()
    checked = rows(checking, kept)
    text = page.page(bands.table(), checked, checking, alone=kind.alone, measured=jobs)
    if measure:
        (PAGES / kind.page).write_text(text)
    click.echo(text)
    by_name = {one.name: one for one in checking}
    for each in sorted(checked, key=lambda each: -abs(each.error))[:worst]:
        click.echo(_line(each, by_name[each.name]))


def _joined(groups: dict[str, BandClass], jobs: int, partly: bool) -> BandTable:
    """Return the table with new groups, and those that were not measured this time."""
    known = bands.table()
    others = {k: g for k, g in known.groups.items() if partly or k in page.ALONE}
    return BandTable(
        seed=known.seed if partly else MEASURING,
        drawn=known.drawn if partly else jobs,
        groups=dict(sorted((others | groups).items())),
    )


def _line(found: Row, one: Cell) -> str:
    such = ", ".join(sorted(found.traits))
    times = f"{found.coarse_s:9.4g} s coarse {found.fine_s:9.4g} s fine"
    band = coarse.error_band(one.job).p90 or 0.0
    return f"{found.error:+7.1%} (band {band:.1%}) {times}  {found.name} {found.group}: {such}"


if __name__ == "__main__":
    main()
