"""A plan as text: the ranked candidates, the trade of time and money, and the reasons."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.units import HOUR_S, show as quantity
from perfmodel.cli.printing.prediction import assumed
from perfmodel.cli.printing.tables import print_table
from perfmodel.cli.printing.text import bold, dim, show
from perfmodel.cli.verbosity import verbosity
from perfmodel.planning.plans import (
    Candidate,
    Plan,
    Price,
    Trade,
    devices_text,
    layout_text,
    servers_text,
)
from perfmodel.results.training import LongRun

WORDS = {
    "cost": "lowest cost",
    "time": "shortest time",
    "throughput": "highest throughput",
    "samples-per-usd": "most samples per USD",
}


def plan(result: Plan) -> None:
    """Print a plan."""
    first = result.first
    show(f"{bold(first.label)}: {WORDS[result.objective]} of {result.candidates} candidates")
    settled = "settled" if result.settled else "not settled: others may be better by more than 1 %"
    show(
        f"{result.feasible} meet the limits; {result.finalists} predicted one by one, "
        f"{result.simulated} simulated; order {settled}"
    )
    lasting = ", with failures" if first.with_failures is not None else ""
    show(f"\n{result.samples:,} samples{lasting}, 90 % intervals in brackets:\n")
    heads: tuple[str, ...] = ("", "candidate", "time (h)", "cost (USD)", "samples/s", "idle", "by")
    if first.statistical_efficiency is not None:
        heads += ("efficiency",)
    if first.with_failures is not None:
        heads += ("goodput", "checkpoint")
    table = [heads, *(_row(rank, c) for rank, c in enumerate(result.ranked, 1))]
    if not any(c.price_usd_per_h for c in result.ranked):  # a cluster of one's own
        table = [(*row[:3], *row[4:]) for row in table]
    print_table(table[0], table[1:])
    show(f"\n{dim('why')}      {result.why}")
    show(f"{dim('sure')}     {_sure(result)}")
    if result.target is not None:
        show(f"{dim('loss')}     {result.target}")
    if result.change is not None:
        change = f"{result.change.change}: {result.change.gain:.2f} times as good"
        show(f"{dim('change')}   the single change that would help most: {change}")
    everything = verbosity() > 0
    if everything:
        show("\nNone is both faster and cheaper than these:\n")
        print_table(("", "candidate", "time (h)", "cost (USD)"), map(_trade, result.front))
    elif len(result.front) > 1 and any(trade.cost_usd for trade in result.front):
        show(f"{dim('trade')}    {_span(result.front)}")
    named = {(c.instance, c.accelerator) for c in result.ranked}
    named |= {(c.server_instance or "", "") for c in result.ranked}
    prices = [p for p in result.prices if everything or (p.instance, p.accelerator) in named]
    if any(price.price_usd_per_h for price in prices):
        show("\nPrices, of the catalogue on their date:\n")
        print_table(("", "instance", "USD/h", "region", "date", "line"), map(_price, prices))
    for name, texts in (("left out", _out(result.left_out)), ("note", result.notes)):
        for text in texts:
            show(f"\n{dim(name)}: {text}")
    assumed(result.effects, " of the first")


def _row(rank: int, candidate: Candidate) -> tuple[str, ...]:
    hours = [value / HOUR_S for value in (candidate.time_s, *candidate.time_interval_s)]
    costs = (candidate.cost_usd, *candidate.cost_interval_usd)
    return (
        str(rank),
        candidate.label,
        "{:.3g} ({:.3g} to {:.3g})".format(*hours),
        "{:.4g} ({:.4g} to {:.4g})".format(*costs),
        f"{candidate.throughput_samples_per_s:.4g}",
        f"{candidate.idle_fraction:.1%}",
        candidate.fidelity,
        *_lasting(candidate.statistical_efficiency, candidate.with_failures),
    )


def _lasting(efficiency: float | None, run: LongRun | None) -> tuple[str, ...]:
    """Return what is known: progress per sample, goodput, and time between checkpoints."""
    progress = () if efficiency is None else (f"{efficiency:.1%}",)
    if run is None:
        return progress
    return (
        *progress,
        f"{run.goodput_fraction:.1%}",
        f"every {quantity(run.checkpoint_interval_s, 's')}",
    )


def _trade(trade: Trade) -> tuple[str, ...]:
    label = (
        f"{trade.nodes} x {trade.instance} ({devices_text(trade)} x {trade.accelerator}), "
        f"{trade.architecture}{servers_text(trade)}{layout_text(trade)}"
    )
    return "", label, f"{trade.time_s / HOUR_S:.3g}", f"{trade.cost_usd:.4g}"


def _span(front: Sequence[Trade]) -> str:
    """Return the fastest and the cheapest candidate of the front."""
    fast, cheap = (
        f"{trade.time_s / HOUR_S:.3g} h for {trade.cost_usd:.4g} USD"
        for trade in (front[0], front[-1])
    )
    return f"{len(front)} candidates, from {fast} to {cheap}; --verbose lists them"


def _price(price: Price) -> tuple[str, ...]:
    return (
        "",
        f"{price.instance} ({price.accelerator})" if price.accelerator else price.instance,
        f"{price.price_usd_per_h:g}",
        price.region,
        price.date or "-",
        price.place,
    )


def _sure(result: Plan) -> str:
    text = (
        f"first of the {result.finalists} with probability {result.probability:.0%}; one of its "
        f"instance type and architecture is with {result.probability_kind:.0%}"
    )
    if result.runner_up is not None:
        text += f"; it beats the best of another kind with {result.probability_over_runner_up:.0%}"
    if result.limited:
        text += f"; it keeps deadline and budget with {result.first.probability_within:.0%}"
    return text


def _out(texts: Sequence[str]) -> list[str]:
    """What is left out, together by reason."""
    names_by_reason: dict[str, list[str]] = {}
    for text in texts:
        name, _, reason = text.partition(": ")
        names_by_reason.setdefault(reason, []).append(name)
    return [f"{', '.join(names)}: {reason}" for reason, names in names_by_reason.items()]
