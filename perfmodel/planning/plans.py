"""A plan: ranked candidates, the Pareto front of time and cost, and the reasons."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perfmodel.base.tables import csv_text, parquet
from perfmodel.reporting.contents import INK, Axis, Figure, Page, Panel, Section, Series
from perfmodel.reporting.drawn import Paged
from perfmodel.reporting.panels import colour
from perfmodel.reporting.rows import table
from perfmodel.results.prediction import Prediction
from perfmodel.studies.sensitivity import Effect

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.plan/1"

HOUR_S = 3600.0

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
    batch_size, global_batch_size : samples of one worker and of all workers.
    price_usd_per_h : price of all nodes, including dedicated servers.
    time_s, cost_usd, samples_per_usd : for the whole training, or for a million samples.
    ..._interval : 90 % intervals.
    probability_best : probability of being the best of all candidates predicted one by one.
    probability_within : probability of meeting deadline and budget.
    fidelity, bottleneck : those of the prediction.
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
    options: dict[str, Any]
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

    @property
    def kind(self) -> tuple[str, str, str]:
        """Instance type, accelerator and architecture."""
        return self.instance, self.accelerator, self.architecture

    @property
    def label(self) -> str:
        """The candidate as text."""
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return (
            f"{self.nodes} x {self.instance} ({self.workers} x {self.accelerator}), "
            f"{self.architecture}{options}{said_of(self)}, batch {self.batch_size}"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-like values, without the full prediction."""
        values: dict[str, Any] = msgspec.to_builtins(
            {name: getattr(self, name) for name in self.__struct_fields__ if name != "prediction"}
        )
        return values


class Trade(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate on the Pareto front of time and cost."""

    instance: str
    accelerator: str
    nodes: int
    workers: int
    servers: int | None
    server_instance: str | None
    architecture: str
    options: dict[str, Any]
    batch_size: int
    time_s: float
    cost_usd: float
    fidelity: str


def said_of(each: Candidate | Trade) -> str:
    """The servers of a candidate as text."""
    on = f" on {each.server_instance}" if each.server_instance else ""
    return f", {each.servers} servers{on}" if each.servers else ""


class Lever(msgspec.Struct, frozen=True):
    """A change, and how many times better the objective of the best candidate becomes with it,
    according to the formulas."""

    change: str
    gain: float


class Price(msgspec.Struct, frozen=True):
    """A line of the price catalogue used by a plan."""

    instance: str
    accelerator: str
    price_usd_per_h: float
    region: str
    date: str
    place: str
    source: str


class Plan(Paged, frozen=True, kw_only=True):
    """A decision and its reasons.

    Attributes
    ----------
    objective, samples : what is optimised, and the number of samples that times and costs are for.
    limited : whether there is a deadline or a budget.
    candidates, feasible : number of candidates evaluated by formulas, and of those within the
        limits.
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
    effects : sensitivity of the first candidate to its assumptions, see
        :class:`perfmodel.studies.sensitivity.Effect`.
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

    def __repr__(self) -> str:
        return f"Plan({self.objective}: {self.first.label}; {self.candidates} candidates)"

    @property
    def first(self) -> Candidate:
        """The best candidate."""
        return self.ranked[0]

    def rows(self) -> list[dict[str, Any]]:
        """One row per ranked candidate, then one per remaining candidate of the Pareto front.

        ``rank`` is None for the latter; intervals have a column for each bound.
        """
        rows = []
        for rank, each in enumerate(self.ranked, 1):
            row: dict[str, Any] = {"rank": rank}
            for name, value in each.to_dict().items():
                if isinstance(value, (list, tuple)):
                    row |= {f"{name}_low": value[0], f"{name}_high": value[1]}
                else:
                    row[name] = json.dumps(value) if name == "options" else value
            rows.append(row)
        ranked = [_key(each) for each in self.ranked]
        rest = [each for each in self.front if _key(each) not in ranked]
        for trade in rest:
            values = msgspec.to_builtins(trade)
            values["options"] = json.dumps(values["options"])
            values["global_batch_size"] = trade.workers * trade.batch_size
            rows.append({**dict.fromkeys(rows[0]), **values})
        best = {_key(each) for each in self.front}
        keys = [*ranked, *map(_key, rest)]
        return [{**row, "pareto": key in best} for row, key in zip(rows, keys, strict=True)]

    def to_frame(self) -> pd.DataFrame:
        """The rows as a data frame; integer columns stay integer beside missing values."""
        import pandas as pd

        return pd.DataFrame(self.rows()).astype(dict.fromkeys(WHOLE, "Int64"))

    def to_csv(self, path: str | Path | None = None) -> str:
        """The rows as CSV text, also written to ``path`` if given.

        Raises
        ------
        InputError : ``path`` cannot be written.
        """
        return csv_text(self.to_frame(), path)

    def to_parquet(self, path: str | Path | None = None) -> bytes:
        """The rows as a Parquet file (extra ``parquet``), also written to ``path`` if given.

        Raises
        ------
        InputError : pyarrow is not installed, or ``path`` cannot be written.
        """
        return parquet(self.to_frame(), path)

    def to_dict(self) -> dict[str, Any]:
        """JSON-like values."""
        values = {
            name: msgspec.to_builtins(getattr(self, name))
            for name in self.__struct_fields__
            if name not in ("ranked", "runner_up")
        }
        other = self.runner_up
        values["ranked"] = [each.to_dict() for each in self.ranked]
        values["runner_up"] = other.to_dict() if other is not None else None
        return values

    def to_json(self) -> str:
        """The result as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def figure(self) -> Figure:
        """The Pareto front of time and cost, and the ranked candidates."""

        def points(some: Sequence[Candidate | Trade]) -> list[tuple[float, float, str, str]]:
            return [
                (e.time_s / HOUR_S, e.cost_usd, e.instance, f"{e.nodes} nodes, {e.architecture}")
                for e in some
            ]

        return trade(points(self.front), points(self.ranked), self.first.label)

    def page(self) -> Page:
        """The contents of the page."""
        first = self.first
        reasons = [self.why, *self.notes]
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
                    table("Prices", [msgspec.to_builtins(each) for each in self.prices]),
                    table("Left out", [{"reason": each} for each in self.left_out]),
                ],
            ),
        ]
        low, high = first.cost_interval_usd
        soon, late = (f"{end / HOUR_S:.4g} h" for end in first.time_interval_s)
        answer = [
            ("Cost", f"{first.cost_usd:.4g} USD", f"{low:.4g} to {high:.4g} in 9 of 10 runs"),
            ("Time", f"{first.time_s / HOUR_S:.4g} h", f"{soon} to {late} in 9 of 10 runs"),
            ("Best choice", f"{self.probability:.0%}", "probability, among those predicted"),
        ]
        title = f"Plan for {self.objective}: {first.nodes} x {first.instance}"
        return Page(title=title, answer=answer, sections=parts)


def _key(each: Candidate | Trade) -> tuple[Any, ...]:
    """The fields that identify a candidate."""
    options = json.dumps(each.options, sort_keys=True)
    sizes = (each.workers, each.servers, each.server_instance, each.batch_size)
    return each.instance, each.architecture, options, *sizes


def trade(
    front: Sequence[tuple[float, float, str, str]],
    ranked: Sequence[tuple[float, float, str, str]],
    title: str,
) -> Figure:
    """A figure of cost over time, on logarithmic axes.

    Parameters
    ----------
    front, ranked : hours, USD, instance type and a description of each candidate on the Pareto
        front, and of the ranked ones, the choice first.
    title : the choice in words.
    """

    def points(some: Sequence[tuple[float, float, str, str]], name: str, **look: Any) -> Series:
        x, y, instances, words = zip(*some, strict=True)
        labels = [f"{a}, {b}" for a, b in zip(instances, words, strict=True)]
        return Series(name, x, y, labels=labels, **{"style": "points", **look})

    groups = [
        points([one for one in front if one[2] == name], name, colour=colour(k), marker="o")
        for k, name in enumerate(dict.fromkeys(one[2] for one in front))
    ]
    marks = [
        points(front, "Pareto front", style="steps"),
        *groups,
        points(ranked, "ranked", colour=INK, marker="x"),
        points(ranked[:1], "choice", colour=INK, marker="o", hollow=True, size=12.0),
    ]
    x, y = Axis("time (h)", log=True), Axis("cost (USD)", log=True)
    return Figure([[Panel(marks, x, y, "xy")]], title)
