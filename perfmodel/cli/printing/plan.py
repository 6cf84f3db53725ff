"""A plan as text: the ranked candidates, the trade of time and money, and the reasons."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from perfmodel.cli.printing.console import new_console, new_table
from perfmodel.cli.printing.prediction import assumed
from perfmodel.cli.printing.text import bold, dim, show
from perfmodel.cli.verbosity import verbosity
from perfmodel.planning.plans import HOUR_S, Candidate, Plan, Price, Trade, servers_text

WORDS = {
    "cost": "lowest cost",
    "time": "shortest time",
    "throughput": "highest throughput",
    "samples-per-usd": "most samples per USD",
}


def plan(found: Plan) -> None:
    """Print a plan."""
    first = found.first
    show(f"{bold(first.label)}: {WORDS[found.objective]} of {found.candidates} candidates")
    settled = "settled" if found.settled else "not settled: others may be better by more than 1 %"
    show(
        f"{found.feasible} meet the limits; {found.finalists} predicted one by one, "
        f"{found.simulated} simulated; order {settled}"
    )
    show(f"\n{found.samples:,} samples, 90 % intervals in brackets:\n")
    head = ("", "candidate", "time (h)", "cost (USD)", "samples/s", "idle", "by")
    _table([head, *(_row(rank, each) for rank, each in enumerate(found.ranked, 1))])
    show(f"\n{dim('why')}      {found.why}")
    show(f"{dim('sure')}     {_sure(found)}")
    if found.change is not None:
        change = f"{found.change.change}: {found.change.gain:.2f} times as good"
        show(f"{dim('change')}   the single change that would help most: {change}")
    everything = verbosity() > 0
    if everything:
        show("\nNone is both faster and cheaper than these:\n")
        _table([("", "candidate", "time (h)", "cost (USD)"), *map(_trade, found.front)])
    elif len(found.front) > 1:
        show(f"{dim('trade')}    {_span(found.front)}")
    named = {(each.instance, each.accelerator) for each in found.ranked}
    named |= {(each.server_instance or "", "") for each in found.ranked}
    prices = [p for p in found.prices if everything or (p.instance, p.accelerator) in named]
    show("\nPrices, of the catalogue on their date:\n")
    _table([("", "instance", "USD/h", "region", "date", "line"), *map(_price, prices)])
    for name, texts in (("left out", _out(found.left_out)), ("note", found.notes)):
        for text in texts:
            show(f"\n{dim(name)}: {text}")
    assumed(found.effects, " of the first")


def _row(rank: int, each: Candidate) -> tuple[str, ...]:
    hours = [value / HOUR_S for value in (each.time_s, *each.time_interval_s)]
    costs = (each.cost_usd, *each.cost_interval_usd)
    return (
        str(rank),
        each.label,
        "{:.3g} ({:.3g} to {:.3g})".format(*hours),
        "{:.4g} ({:.4g} to {:.4g})".format(*costs),
        f"{each.throughput_samples_per_s:.4g}",
        f"{each.idle_fraction:.1%}",
        each.fidelity,
    )


def _trade(each: Trade) -> tuple[str, ...]:
    label = (
        f"{each.nodes} x {each.instance} ({each.workers} x {each.accelerator}), "
        f"{each.architecture}{servers_text(each)}, batch {each.batch_size}"
    )
    return "", label, f"{each.time_s / HOUR_S:.3g}", f"{each.cost_usd:.4g}"


def _span(front: Sequence[Trade]) -> str:
    """Return the fastest and the cheapest candidate of the front."""
    fast, cheap = (
        f"{each.time_s / HOUR_S:.3g} h for {each.cost_usd:.4g} USD"
        for each in (front[0], front[-1])
    )
    return f"{len(front)} candidates, from {fast} to {cheap}; --verbose lists them"


def _price(each: Price) -> tuple[str, ...]:
    return (
        "",
        f"{each.instance} ({each.accelerator})" if each.accelerator else each.instance,
        f"{each.price_usd_per_h:g}",
        each.region,
        each.date or "-",
        each.place,
    )


def _sure(found: Plan) -> str:
    said = (
        f"first of the {found.finalists} with probability {found.probability:.0%}; one of its "
        f"instance type and architecture is with {found.probability_kind:.0%}"
    )
    if found.runner_up is not None:
        said += f"; it beats the best of another kind with {found.probability_over_runner_up:.0%}"
    if found.limited:
        said += f"; it keeps deadline and budget with {found.first.probability_within:.0%}"
    return said


def _out(texts: Sequence[str]) -> list[str]:
    """What is left out, together by reason."""
    names: dict[str, list[str]] = {}
    for text in texts:
        name, _, reason = text.partition(": ")
        names.setdefault(reason, []).append(name)
    return [f"{', '.join(some)}: {reason}" for reason, some in names.items()]


def _table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the first has their names."""
    names, *others = rows
    table = new_table(*names)
    for row in others:
        table.add_row(*map(escape, row))
    new_console().print(table)
