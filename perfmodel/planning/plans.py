"""A plan: ranked candidates, the Pareto front of time and cost, and the reasons."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from perfmodel.base.units import HOUR_S, show
from perfmodel.planning.layout_map import LayoutPoint, layout_map
from perfmodel.reporting.contents import INK, REFERENCE, Axis, Figure, Page, Panel, Section, Series
from perfmodel.reporting.drawn import Paged
from perfmodel.reporting.panels import colour
from perfmodel.reporting.rows import table
from perfmodel.results.effects import Effect
from perfmodel.results.prediction import Prediction
from perfmodel.results.training import LongRun
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.tables import Tabular, fields

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.plan/1"

OF_RUNS = ("failures", "goodput_fraction", "checkpoint_interval_s")
"""Columns of a run with failures; None without."""

WHOLE = ("rank", "nodes", "workers", "servers", "batch_size", "global_batch_size")
"""Integer columns."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted way to train.

    Attributes
    ----------
    instance, accelerator, device, precision : the machine, and the device profile and precision
        that its compute times are from.
    nodes, workers, servers : their numbers; ``nodes`` counts workers' nodes only, ``servers`` is
        None for an architecture without servers.
    server_instance : instance type of a dedicated server; None if servers share workers' nodes.
    architecture, options : as for :func:`perfmodel.make_job`.
    layout : how the devices of a worker, which is a replica then, divide the model; None for
        workers that are single devices.
    batch_size, global_batch_size : samples of one worker and of all workers.
    price_usd_per_h : price of all nodes, including dedicated servers.
    time_s, cost_usd, samples_per_usd : for the whole training, or for a million samples.
    ..._interval : 90 % intervals.
    probability_best : probability of being the best of all candidates predicted one by one.
    probability_within : probability of meeting deadline and budget.
    fidelity, bottleneck : those of the prediction.
    statistical_efficiency : progress per sample relative to a batch of reference, by the noise
        scale; None without.
    with_failures : the training with failures, whose expected time is ``time_s``; None without.
    """

    instance: str
    accelerator: str
    device: str
    precision: str
    nodes: int
    workers: int
    servers: int | None
    server_instance: str | None
    architecture: str
    options: dict[str, object]
    layout: dict[str, object] | None
    batch_size: int
    global_batch_size: int
    price_usd_per_h: float
    throughput_samples_per_s: float
    throughput_interval: tuple[float, float]
    time_s: float
    time_interval_s: tuple[float, float]
    cost_usd: float
    cost_interval_usd: tuple[float, float]
    samples_per_usd: float
    idle_fraction: float
    staleness: float | None
    probability_best: float
    probability_within: float
    fidelity: str
    bottleneck: str
    prediction: Prediction
    with_failures: LongRun | None = None
    statistical_efficiency: float | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """Instance type, accelerator and architecture; of layouts also tensor, context and expert
        parallelism, and the number of stages."""
        layout = self.layout or {}
        divided = (layout.get(name) for name in ("tensor", "context", "expert", "pipeline"))
        return (self.instance, self.accelerator, self.architecture, *divided)

    @property
    def label(self) -> str:
        """The candidate as text."""
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return (
            f"{self.nodes} x {self.instance} ({devices_text(self)} x {self.accelerator}), "
            f"{self.architecture}{options}{servers_text(self)}{layout_text(self)}"
        )

    def to_dict(self) -> Row:
        """JSON-like values, without the full prediction."""
        return fields(self, "prediction")


class Trade(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate on the Pareto front of time and cost."""

    instance: str
    accelerator: str
    nodes: int
    workers: int
    servers: int | None
    server_instance: str | None
    architecture: str
    options: dict[str, object]
    layout: dict[str, object] | None
    batch_size: int
    time_s: float
    cost_usd: float
    fidelity: str


def servers_text(candidate: Candidate | Trade) -> str:
    """The servers of a candidate as text."""
    home = candidate.server_instance
    on = f" on {home}" if home else ""
    return f", {show(candidate.servers, 'servers')}{on}" if candidate.servers else ""


def devices_text(candidate: Candidate | Trade) -> str:
    """The number of devices of a candidate as text; of replicas also that of each."""
    layout = candidate.layout or {}
    devices = math.prod(int(str(layout.get(name, 1))) for name in ("tensor", "context", "pipeline"))
    return f"{candidate.workers} x {devices}" if devices > 1 else f"{candidate.workers}"


def layout_text(candidate: Candidate | Trade) -> str:
    """The batch of a candidate, and how devices divide the model, as text."""
    if candidate.layout is None:
        return f", batch {candidate.batch_size}"
    return shape_text(candidate.layout)


def shape_text(given: Mapping[str, object]) -> str:
    """How devices divide a model and its batch, as text."""
    stages, chunks = given["pipeline"], given["virtual_stages"]
    parts = [f"tensor {given['tensor']}"]
    parts += [f"{name} {given[name]}" for name in ("context", "expert") if given.get(name, 1) != 1]
    if stages != 1:
        several = f" x {chunks}" if chunks != 1 else ""
        parts.append(f"pipeline {stages}{several} {given['schedule']}")
    passes = show(int(str(given["micro_batches"])), "micro-batches")
    parts.append(f"{passes} of {given['micro_batch_size']}")
    if given["recompute"] != "none":
        parts.append(f"recompute {given['recompute']}")
    return "".join(f", {part}" for part in parts)


def _key(candidate: Candidate | Trade) -> tuple[object, ...]:
    """The fields that identify a candidate."""
    c, options = candidate, json.dumps(candidate.options, sort_keys=True)
    sizes = (c.workers, c.servers, c.server_instance, c.batch_size, str(c.layout))
    return c.instance, c.architecture, options, *sizes


class Lever(msgspec.Struct, frozen=True):
    """A change, and how many times better the objective of the best candidate becomes with it,
    according to the formulas."""

    change: str
    gain: float


class LossTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The loss that a plan is for, and its tokens by a scaling law.

    Attributes
    ----------
    loss, lowest_loss : in nats per token: asked for, and what the model tends to with more tokens.
    law, source : name or file of the law, and where its constants are from.
    parameters, tokens : of the model, and of the training.
    percent_per_hundredth : more tokens in percent for 0.01 less loss, to first order.
    """

    loss: float
    lowest_loss: float
    law: str
    source: str
    parameters: float
    tokens: float
    percent_per_hundredth: float

    def __str__(self) -> str:
        return (
            f"{self.loss:g} takes {self.tokens:.4g} tokens with {self.parameters:.4g} parameters "
            f"({self.tokens / self.parameters:.3g} for each), by {self.law}; 0.01 less takes about "
            f"{self.percent_per_hundredth:.2g}% more, and the lowest is {self.lowest_loss:.4f}"
        )


class Price(msgspec.Struct, frozen=True):
    """A line of the price catalogue used by a plan."""

    instance: str
    accelerator: str
    price_usd_per_h: float
    region: str
    date: str
    place: str
    source: str


class Plan(Paged, Tabular, frozen=True, kw_only=True):
    """A decision and its reasons.

    Attributes
    ----------
    objective, samples : what is optimised, and the number of samples that times and costs are for.
    limited : whether there is a deadline or a budget.
    candidates, feasible : number of candidates evaluated by formulas, or ruled out by their memory
        or a bound of their time, and of those within the limits.
    finalists, simulated : number of candidates within the limits that were predicted one by one,
        and number of candidates that were simulated.
    settled : whether no other candidate can be better, given the error bands of the formulas.
    ranked : the candidates, best first.
    runner_up : the best candidate of another instance type or architecture; None if there is none.
    front : Pareto front of time and cost, fastest first.
    why : why the first candidate wins.
    probability, probability_kind : probability that the first is the best of the finalists, and
        that the best is a candidate with its instance type and architecture.
    probability_over_runner_up : probability that the first is better than the runner-up.
    change : the single change that would help most; None if none helps.
    prices : the catalogue lines used.
    left_out : instance types that were not evaluated, and why.
    places : layouts on a map of throughput over memory; empty for single devices.
    effects : sensitivity of the first candidate to its assumptions, see
        :class:`perfmodel.results.effects.Effect`.
    target : the loss that ``samples`` are for; None if they were given.
    """

    schema: str = SCHEMA
    objective: str
    samples: int
    limited: bool
    candidates: int
    feasible: int
    finalists: int
    simulated: int
    settled: bool
    ranked: tuple[Candidate, ...]
    runner_up: Candidate | None
    front: tuple[Trade, ...]
    why: str
    probability: float
    probability_kind: float
    probability_over_runner_up: float
    change: Lever | None
    prices: tuple[Price, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    effects: tuple[Effect, ...] = ()
    target: LossTarget | None = None
    places: tuple[LayoutPoint, ...] = ()

    def __repr__(self) -> str:
        return f"Plan({self.objective}: {self.first.label}; {self.candidates} candidates)"

    @property
    def first(self) -> Candidate:
        """The best candidate."""
        return self.ranked[0]

    def rows(self) -> list[Row]:
        """One row per ranked candidate, then one per remaining candidate of the Pareto front.

        ``rank`` is None for the latter; intervals have a column for each bound.
        """
        rows: list[Row] = []
        best = [_key(trade) for trade in self.front]
        for rank, candidate in enumerate(self.ranked, 1):
            row: Row = {"rank": rank}
            values = candidate.to_dict()
            run = values.pop("with_failures") or {}
            values |= {name: run.get(name) for name in OF_RUNS}
            for name, value in values.items():
                if isinstance(value, (list, tuple)):
                    row |= {f"{name}_low": value[0], f"{name}_high": value[1]}
                else:
                    row[name] = json.dumps(value) if name in ("options", "layout") else value
            rows.append({**row, "pareto": _key(candidate) in best})
        ranked = [_key(candidate) for candidate in self.ranked]
        for trade in self.front:
            if _key(trade) not in ranked:
                row = dict.fromkeys(rows[0]) | fields(trade)
                row |= {"options": json.dumps(trade.options), "pareto": True}
                row["layout"] = json.dumps(trade.layout)
                rows.append({**row, "global_batch_size": trade.workers * trade.batch_size})
        return rows

    def to_frame(self) -> pd.DataFrame:
        """The rows as a data frame; integer columns stay integer beside missing values."""
        return super().to_frame().astype(dict.fromkeys(WHOLE, "Int64"))

    def to_dict(self) -> Row:
        """JSON-like values."""
        runner_up = self.runner_up
        return fields(self, "ranked", "runner_up") | {
            "ranked": [candidate.to_dict() for candidate in self.ranked],
            "runner_up": runner_up.to_dict() if runner_up is not None else None,
        }

    def figure(self) -> Figure:
        """The Pareto front of time and cost, and the ranked candidates."""

        def points(candidates: Sequence[Candidate | Trade]) -> list[TradePoint]:
            return [
                (
                    c.time_s / HOUR_S,
                    c.cost_usd,
                    c.instance,
                    f"{show(c.nodes, 'nodes')}, {c.architecture}",
                )
                for c in candidates
            ]

        return trade(points(self.front), points(self.ranked), self.first.label)

    def page(self) -> Page:
        """The contents of the page."""
        first = self.first
        reasons = [self.why, *self.notes]
        if self.target is not None:
            reasons.append(f"A loss of {self.target}.")
        if self.change is not None:
            helps = f"{self.change.change}, {self.change.gain:.3g} times as good"
            reasons.append(f"The single change that would help most: {helps}.")
        parts = [
            Section(name="why", title="The best candidate", text=[f"{first.label}.", *reasons]),
            Section(
                name="front",
                title="Time against cost",
                figure=self.figure().rows[0][0],
                tables=[table("Candidates", self.rows())],
            ),
            Section(
                name="prices",
                title="Prices",
                tables=[
                    table("Prices", [fields(price) for price in self.prices]),
                    table("Left out", [{"reason": reason} for reason in self.left_out]),
                ],
            ),
        ]
        if self.places:
            has = first.prediction.memory.device_bytes
            section = Section(
                name="layouts",
                title="Layouts",
                text=["Throughput over the memory that a device needs, by formulas."],
                figure=layout_map(self.places, has),
            )
            parts.insert(1, section)
        low, high = first.cost_interval_usd
        soon, late = (f"{end / HOUR_S:.4g} h" for end in first.time_interval_s)
        run = first.with_failures
        answer = [
            ("Cost", f"{first.cost_usd:.4g} USD", f"{low:.4g} to {high:.4g} in 9 of 10 runs"),
            ("Time", f"{first.time_s / HOUR_S:.4g} h", f"{soon} to {late} in 9 of 10 runs"),
            ("Best choice", f"{self.probability:.0%}", "probability, among those predicted"),
        ]
        if run is not None:
            every = f"a checkpoint every {show(run.checkpoint_interval_s, 's')}"
            remark = f"of the time; {run.failures:.3g} failures, {every}"
            answer.append(("Goodput", f"{run.goodput_fraction:.1%}", remark))
        title = f"Plan for {self.objective}: {first.nodes} x {first.instance}"
        return Page(title=title, answer=answer, sections=parts)


TradePoint = tuple[float, float, str, str]
"""Hours, USD, instance type and a description of a candidate."""


def trade(front: Sequence[TradePoint], ranked: Sequence[TradePoint], title: str) -> Figure:
    """A figure of cost over time, on logarithmic axes.

    ``front`` has the candidates on the Pareto front, ``ranked`` those of the list, the choice
    first, and ``title`` says the choice in words.
    """

    def points(name: str, points: Sequence[TradePoint], line: str = REFERENCE) -> Series:
        x, y, instances, words = zip(*points, strict=True)
        labels = [f"{instance}, {text}" for instance, text in zip(instances, words, strict=True)]
        return Series(name, x, y, line, "points", "o", labels=labels)

    replace = msgspec.structs.replace
    groups = dict.fromkeys(instance for _, _, instance, _ in front)
    marks = [
        replace(points("Pareto front", front), style="steps", marker=""),
        *(points(g, [p for p in front if p[2] == g], colour(k)) for k, g in enumerate(groups)),
        replace(points("ranked", ranked, INK), marker="x"),
        replace(points("choice", ranked[:1], INK), hollow=True, size=12.0),
    ]
    x, y = Axis("time (h)", log=True), Axis("cost (USD)", log=True)
    return Figure([[Panel(marks, x, y, "xy")]], title)
