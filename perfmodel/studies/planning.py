"""From predictions to a decision: the best instances, workers, architecture and batch size.

:func:`plan` evaluates a whole space by formulas, predicts the best candidates one by one, and
simulates them until no other can be better, given the error bands of the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from perfmodel import api
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, TooLargeError, number, unknown_name, whole_number
from perfmodel.inputs import catalogue, instances
from perfmodel.inputs.instances import Instance
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import Profile
from perfmodel.predicting import gains
from perfmodel.results.plan import HOUR_S, Candidate, Lever, Plan, Price, Trade
from perfmodel.results.prediction import Prediction
from perfmodel.studies.advice import advise
from perfmodel.studies.plan_space import Axes, Space, space
from perfmodel.studies.sweeps import Progress

Objective = Literal["cost", "time", "throughput", "samples-per-usd"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)

UNIT_SAMPLES = 1_000_000
"""Samples that times and costs are of where no amount of training is given."""

UNKNOWN_ERROR = 0.25
"""Error of a formula that is taken into account where its error is not known, and the largest of
those that were measured."""

MOST_CONSIDERED, MOST_SIMULATED = 100, 24
"""Candidates that are predicted one by one, and simulated."""

MAX_OPS = 1_000_000.0
"""Operations of the simulation of one candidate: about a second."""

NEAREST = 3
"""Candidates that are named where no candidate meets the limits."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate must not exceed; None for no limit. The memory of the devices always counts.

    Raises
    ------
    InputError : a limit that is negative, or zero where nothing would be left.
    """

    budget_usd: float | None = None
    deadline_s: float | None = None
    max_idle_fraction: float | None = None
    max_staleness: float | None = None
    max_workers: int | None = None
    max_global_batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("budget_usd", "deadline_s"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), above=0.0)
        if self.max_idle_fraction is not None:
            number("max_idle_fraction", self.max_idle_fraction, at_most=1.0)
        if self.max_staleness is not None:
            number("max_staleness", self.max_staleness)
        for name in ("max_workers", "max_global_batch_size"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is for: the objective, the limits, and the amount of training."""

    objective: str
    limits: Limits
    dataset_size: int | None
    epochs: int

    @property
    def samples(self) -> int:
        """Samples of the whole training, or those that times are of."""
        return UNIT_SAMPLES if self.dataset_size is None else self.dataset_size * self.epochs

    def seconds(self, step_s: Any, batch: Any) -> Any:
        """Time of the training; ``batch`` is that of all workers."""
        if self.dataset_size is None:
            return self.samples / batch * step_s
        return self.epochs * np.ceil(self.dataset_size / batch) * step_s

    def worth(self, seconds: Any, usd_per_h: Any) -> Any:
        """The objective as a value of which more is better."""
        if self.objective in ("time", "throughput"):
            return self.samples / seconds
        return self.samples / (seconds / HOUR_S * usd_per_h)

    def excess(self, seconds: Any, usd: Any, idle: Any, stale: Any) -> dict[str, Any]:
        """How many times the value each limit is that depends on predictions: above 1 exceeds it.

        A limit of 0 is one of a millionth.
        """
        given = self.limits
        pairs = {
            "deadline": (seconds, given.deadline_s),
            "budget": (usd, given.budget_usd),
            "idle": (idle, given.max_idle_fraction),
            "staleness": (stale, given.max_staleness),
        }
        return {
            name: value / max(most, 1e-6) for name, (value, most) in pairs.items() if most is not None
        }


def plan(
    *,
    model: str | None = None,
    workload: Profile | str | Path | None = None,
    objective: Objective = "cost",
    dataset_size: int | None = None,
    epochs: int | None = None,
    limits: Limits | None = None,
    catalogue_file: str | Path | None = None,
    instance: Sequence[str] = (),
    region: str | None = None,
    spot: bool = False,
    top: int = 10,
    fidelity: Literal["auto", "coarse"] = "auto",
    max_ops: float = MAX_OPS,
    progress: Progress | None = None,
    **varied: Any,
) -> Plan:
    """Choose instances, workers, architecture and batch size for a training.

    It has so many parameters because users vary each of them by itself; all have a default.

    Parameters
    ----------
    model, workload : one of them, as for :func:`perfmodel.make_job`.
    objective : *cost* or *time* of the training, *throughput*, or *samples-per-usd*.
    dataset_size, epochs : samples per epoch and epochs (1); times and costs are of a million
        samples without.
    limits : see :class:`Limits`.
    catalogue_file : a catalogue of instances (CSV); by default the shipped one.
    instance, region, spot : see :func:`perfmodel.inputs.instances.choose`.
    top : candidates of the ranked list.
    fidelity : *auto* simulates the best until their order is settled; *coarse* never does.
    max_ops : operations that the simulation of one candidate may take.
    progress : called with (done, most) while candidates are predicted.
    varied : ``arch``, ``workers``, ``servers``, ``batch_size``, ``precision``: a value or a list;
        ``options`` of which each may be a list; ``jitter`` and ``seed``.

    Raises
    ------
    InputError : nothing meets the limits (the text names the nearest candidates and what they
        miss), unknown names, numbers out of range, a price that is missing, or a deadline or budget
        without ``dataset_size``.

    >>> plan(model="resnet50", instance=["p3.16xlarge"], arch="ring", workers=[8, 16],
    ...      batch_size=64).first.workers
    8
    """
    if objective not in OBJECTIVES:
        raise unknown_name("objective", objective, OBJECTIVES)
    if fidelity not in ("auto", "coarse"):
        raise unknown_name("fidelity", fidelity, ("auto", "coarse"))
    limits = limits or Limits()
    goal = _goal(objective, limits, dataset_size, epochs)
    whole_number("top", top, at_most=MOST_CONSIDERED)
    rows, out = instances.choose(
        instances.read_instances(catalogue_file), types=instance, region=region, spot=spot
    )
    if not rows:
        raise InputError(f"plan: no instance type is left: {'; '.join(out)}")
    axes, common = _axes(varied)
    among = space(
        [(row, row.price(spot) or 0.0) for row in rows],
        _profile(model, workload),
        axes,
        most_workers=limits.max_workers,
        common=common,
    )
    search = _Search(goal, among, common, max_ops, progress)
    search.settle(simulate=fidelity == "auto", top=top)
    return _answer(search, top, out)


def _goal(objective: str, limits: Limits, dataset_size: int | None, epochs: int | None) -> Goal:
    for name, value in (("dataset_size", dataset_size), ("epochs", epochs)):
        if value is not None:
            whole_number(name, value)
    if dataset_size is None:
        for name in ("deadline_s", "budget_usd"):
            if getattr(limits, name) is not None:
                raise InputError(f"{name}: needs dataset_size, the samples of an epoch")
        if epochs is not None:
            raise InputError("epochs: needs dataset_size too")
    return Goal(
        objective=objective, limits=limits, dataset_size=dataset_size, epochs=epochs or 1
    )


def _axes(varied: Mapping[str, Any]) -> tuple[Axes, dict[str, Any]]:
    """The axes, and what is the same for all jobs."""
    known = (*Axes._fields, "jitter", "seed")
    for name in varied:
        if name not in known:
            raise unknown_name("argument", name, known)
    common = {name: varied[name] for name in ("jitter", "seed") if name in varied}
    axes: dict[str, Any] = {"options": varied.get("options") or {}}
    for name in Axes._fields:
        value = varied.get(name)
        if name != "options" and value is not None:
            several = isinstance(value, Iterable) and not isinstance(value, str)
            axes[name] = tuple(value) if several else (value,)
    return Axes(**axes), common


def _profile(model: str | None, workload: Profile | str | Path | None) -> Profile:
    if (model is None) == (workload is None):
        raise InputError(
            f"model or workload: one of them is needed (models: {', '.join(catalogue.model_names())})"
        )
    if isinstance(workload, Profile):
        return workload
    return catalogue.model(model) if model is not None else catalogue.profile(Path(str(workload)))


class _Search:
    """The candidates, and predictions of the best of them, each made once."""

    def __init__(
        self,
        goal: Goal,
        among: Space,
        common: Mapping[str, Any],
        max_ops: float,
        progress: Progress | None,
    ) -> None:
        self.goal, self.among, self.common = goal, among, common
        self.max_ops, self.progress = max_ops, progress
        self.jobs: dict[int, Job] = {}
        self.found: dict[int, Prediction] = {}
        self.settled, self.simulated = False, 0
        self.too_large = 0
        batch = among.workers * among.batch_size
        self.seconds: Floats = goal.seconds(among.step_s, batch)
        self.usd: Floats = self.seconds / HOUR_S * among.price
        self.worth: Floats = goal.worth(self.seconds, among.price)
        self.idle, self.stale = among.idle.copy(), among.staleness.copy()
        self.possible = among.worker_bytes <= among.device_bytes
        most = goal.limits.max_global_batch_size
        if most is not None:
            self.possible &= batch <= most
        if not self.possible.any():
            least = among.worker_bytes.min() / among.device_bytes.max()
            raise InputError(
                f"plan: none of {len(among)} candidates fits: "
                f"the global batch is too large, or a worker needs {least:.2f} times the memory"
            )

    def excess(self, lifted: str = "") -> Floats:
        """How many times its limit a candidate's worst value is; without the limit ``lifted``."""
        each = self.goal.excess(self.seconds, self.usd, self.idle, self.stale)
        return np.max([np.zeros(len(self.among)), *(v for n, v in each.items() if n != lifted)], 0)

    def feasible(self, lifted: str = "") -> np.ndarray:
        """Which candidates meet all limits by what is known of them."""
        found: np.ndarray = self.possible & (self.excess(lifted) <= 1.0)
        return found

    def settle(self, *, simulate: bool, top: int) -> None:
        """Predict the best candidates, until none of the others can be better than the best.

        Raises
        ------
        InputError : no candidate meets the limits.
        """
        slack = 1.0 + UNKNOWN_ERROR if simulate else 1.0
        near = self.possible & (self.excess() <= slack)
        order = np.flatnonzero(near)
        order = order[np.argsort(-self.worth[order], kind="stable")]
        best, by_formula = 0.0, self.worth.copy()
        self.settled = simulate
        for rank, i in enumerate(order.tolist()):
            meets = sum(self._meets(k) for k in self.found)
            if meets >= top and by_formula[i] * slack < best:
                break
            if rank >= MOST_CONSIDERED and (meets or rank >= 2 * MOST_CONSIDERED):
                self.settled = False
                break
            best = max(best, self._consider(i, best, simulate))
            if self.progress is not None:
                self.progress(min(rank + 1, MOST_CONSIDERED), MOST_CONSIDERED)
        if not self.feasible().any():
            raise self._nearest()
        for i in self.rivals():
            if i not in self.found:
                self._predict(i, "coarse")
        if not any(self._meets(i) for i in self.found):
            raise self._nearest()

    def _consider(self, i: int, best: float, simulate: bool) -> float:
        """Predict a candidate, by simulation if it may be the best; its worth if it meets the
        limits, else 0."""
        found = self._predict(i, "coarse")
        band = found.error_band
        error = UNKNOWN_ERROR if band is None or band.p90 is None else band.p90
        may = self.worth[i] * (1.0 + error) >= best and self.excess()[i] <= 1.0 + error
        if simulate and error > 0.0 and may:
            if self.simulated >= MOST_SIMULATED:
                self.settled = False
            else:
                self._simulate(i)
        return float(self.worth[i]) if self._meets(i) else 0.0

    def _simulate(self, i: int) -> None:
        try:
            self._predict(i, "fine")
            self.simulated += 1
        except TooLargeError:
            self.too_large += 1
            self.settled = False

    def _predict(self, i: int, fidelity: api.Fidelity) -> Prediction:
        """Predict a candidate, and put what is found in the place of the formulas' values."""
        if i not in self.jobs:
            self.jobs[i] = self.among.job(i, **self.common)
        found = api.predict(self.jobs[i], fidelity=fidelity, max_ops=self.max_ops)
        self.found[i] = found
        price = self.among.price[i]
        self.seconds[i] = self.goal.seconds(found.iteration_s, found.global_batch_size)
        self.usd[i] = self.seconds[i] / HOUR_S * price
        self.worth[i] = self.goal.worth(self.seconds[i], price)
        self.idle[i] = found.idle_fraction.mean
        self.stale[i] = found.staleness.mean if found.staleness is not None else 0.0
        return found

    def _meets(self, i: int) -> bool:
        values = (self.seconds[i], self.usd[i], self.idle[i], self.stale[i])
        return bool(self.possible[i]) and all(v <= 1.0 for v in self.goal.excess(*values).values())

    def rivals(self) -> list[int]:
        """The best candidate of each instance type that has one."""
        kinds = np.array([id(some.instance) for some in self.among.series])[self.among.of]
        worth = np.where(self.feasible(), self.worth, 0.0)
        order = np.argsort(-worth, kind="stable")
        order = order[worth[order] > 0.0]
        _, first = np.unique(kinds[order], return_index=True)
        return [int(order[k]) for k in np.sort(first)]

    def ranked(self) -> list[int]:
        """The predicted candidates that meet the limits, the best first."""
        some = [i for i in self.found if self._meets(i)]
        return sorted(some, key=lambda i: -self.worth[i])

    def _nearest(self) -> InputError:
        """Error that says which candidates come closest to the limits, and what they miss."""
        excess = np.where(self.possible, self.excess(), np.inf)
        kinds: dict[int, str] = {}
        for i in np.argsort(excess, kind="stable").tolist():
            name = self.among.series[self.among.of[i]].instance.label
            if name not in kinds.values():
                kinds[i] = f"{name} {self._missed(i)}"
            if len(kinds) == NEAREST or not math.isfinite(excess[i]):
                break
        said = "; ".join(kinds.values())
        return InputError(f"plan: none of {len(self.among)} candidates meets the limits; {said}")

    def _missed(self, i: int) -> str:
        """What a candidate misses."""
        among, limits = self.among, self.goal.limits
        values = (self.seconds[i], self.usd[i], self.idle[i], self.stale[i])
        over = [name for name, v in self.goal.excess(*values).items() if v > 1.0]
        texts = {
            "deadline": f"takes {values[0] / HOUR_S:.3g} h of {(limits.deadline_s or 0) / HOUR_S:g} h",
            "budget": f"costs {values[1]:.4g} of {limits.budget_usd or 0:g} USD",
            "idle": f"idles {values[2]:.1%} of at most {limits.max_idle_fraction or 0:.1%}",
            "staleness": f"has staleness {values[3]:.3g} of {limits.max_staleness or 0:g}",
        }
        said = " and ".join(texts[name] for name in over)
        return f"with {among.workers[i]} workers, {among.series[among.of[i]].arch}, {said}"

    def candidate(self, i: int, chance: float) -> Candidate:
        """A predicted candidate as a result."""
        among, found = self.among, self.found[i]
        some = among.series[among.of[i]]
        step_s, price = found.iteration_s, float(among.price[i])
        low, high = found.interval.iteration_s if found.interval else (step_s, step_s)
        ends = [float(self.seconds[i]) * end / step_s for end in (low, high)]
        values = (self.seconds[i], self.usd[i])
        over = self.goal.excess(*values, 0.0, 0.0)
        worst = max((over[name] for name in ("deadline", "budget") if name in over), default=0.0)
        times = 1.0 / worst if worst else math.inf
        return Candidate(
            instance=some.instance.name,
            accelerator=some.instance.accelerator,
            device=found.device,
            precision=some.job.workload.precision,
            nodes=int(among.nodes[i]),
            workers=found.workers,
            servers=self.jobs[i].options.server_count or None,
            architecture=some.arch,
            options=dict(some.options),
            batch_size=found.batch_size,
            global_batch_size=found.global_batch_size,
            price_usd_per_h=price,
            throughput_samples_per_s=found.throughput_samples_per_s,
            throughput_interval=(
                found.interval.throughput_samples_per_s
                if found.interval
                else (found.throughput_samples_per_s,) * 2
            ),
            time_s=float(self.seconds[i]),
            time_interval_s=(ends[0], ends[1]),
            cost_usd=float(self.usd[i]),
            cost_interval_usd=(ends[0] / HOUR_S * price, ends[1] / HOUR_S * price),
            samples_per_usd=self.goal.samples / float(self.usd[i]),
            idle_fraction=found.idle_fraction.mean,
            staleness=found.staleness.mean if found.staleness else None,
            probability_best=chance,
            probability_within=gains.probability_within(found, times),
            fidelity=found.fidelity,
            bottleneck=found.bottleneck.text,
            prediction=found,
        )


def _answer(search: _Search, top: int, out: Sequence[str]) -> Plan:
    """The plan: ranked candidates, the Pareto front, and the reasons."""
    order = search.ranked()
    chances = gains.chances(
        [search.jobs[i] for i in order],
        [search.found[i] for i in order],
        [float(search.worth[i]) for i in order],
    )
    all_found = [search.candidate(i, c) for i, c in zip(order, chances, strict=True)]
    first = all_found[0]
    other = next((c for c in all_found if c.kind != first.kind), None)
    same = sum(c.probability_best for c in all_found if c.kind == first.kind)
    goal = search.goal
    notes = []
    if search.too_large:
        notes.append(
            f"{search.too_large} candidates were not simulated: more than {search.max_ops:g} operations"
        )
    return Plan(
        objective=goal.objective,
        samples=goal.samples,
        candidates=len(search.among),
        feasible=int(search.feasible().sum()),
        finalists=len(order),
        simulated=search.simulated,
        settled=search.settled,
        ranked=tuple(all_found[:top]),
        runner_up=other,
        front=_front(search),
        why=_why(goal, first, other),
        probability=first.probability_best,
        probability_instance=same,
        change=_change(search, order[0]),
        prices=tuple(_prices(search, {c.instance: None for c in all_found})),
        left_out=(*out, *search.among.left_out),
        notes=tuple(notes),
    )


def _front(search: _Search) -> tuple[Trade, ...]:
    """Candidates that meet the limits, of which none is both faster and cheaper, fastest first."""
    some = np.flatnonzero(search.feasible())
    some = some[np.lexsort((search.usd[some], search.seconds[some]))]
    least = np.minimum.accumulate(search.usd[some])
    kept = some[np.concatenate([[True], search.usd[some][1:] < least[:-1]])]
    among, found = search.among, []
    for i in kept.tolist():
        series = among.series[among.of[i]]
        found.append(
            Trade(
                instance=series.instance.name,
                nodes=int(among.nodes[i]),
                workers=int(among.workers[i]),
                servers=int(among.servers[i]) or None,
                architecture=series.arch,
                options=dict(series.options),
                batch_size=int(among.batch_size[i]),
                time_s=float(search.seconds[i]),
                cost_usd=float(search.usd[i]),
                fidelity=search.found[i].fidelity if i in search.found else "coarse",
            )
        )
    return tuple(found)


def _why(goal: Goal, first: Candidate, other: Candidate | None) -> str:
    """Why the first wins, in words."""
    if other is None:
        return "no candidate of another instance type or architecture meets the limits"
    faster = first.throughput_samples_per_s / other.throughput_samples_per_s
    dearer = first.price_usd_per_h / other.price_usd_per_h
    ratio = goal.worth(first.time_s, first.price_usd_per_h) / goal.worth(
        other.time_s, other.price_usd_per_h
    )
    what = {"cost": "cheaper", "time": "faster", "throughput": "faster"}.get(
        goal.objective, "as many samples per USD"
    )
    rate = f"{faster:.3g} times the throughput at {dearer:.3g} times the price per hour"
    return (
        f"{ratio:.3g} times {what}{'' if what.startswith('as') else ' than'} the best of another "
        f"kind, {other.label}: {rate}. There {other.bottleneck}"
    )


def _change(search: _Search, i: int) -> Lever | None:
    """The single change that helps most: a limit lifted, or better hardware at the same price."""
    now = float(search.worth[i])
    levers = []
    for name in search.goal.excess(0.0, 0.0, 0.0, 0.0):
        worth = float(search.worth[search.feasible(name)].max())
        levers.append(Lever(f"no limit on {name}", worth / now))
    some = search.among.series[search.among.of[i]]
    job = search.jobs[i]
    options = dict(some.options)
    if search.among.servers[i]:
        options["servers"] = int(search.among.servers[i])
    found = advise(
        fidelity="coarse",
        workload=job.workload,
        cluster=job.cluster,
        workers=job.workers,
        arch=some.arch,
        options=options,
        **search.common,
    )
    for each in (*found.recommended, *found.unsure):
        if each.hardware:
            levers.append(Lever(f"{each.change}, at the same price", each.gain.ratio))
    best = max(levers, key=lambda lever: lever.gain, default=None)
    return best if best is not None and best.gain > 1.01 else None


def _prices(search: _Search, names: Mapping[str, None]) -> Iterable[Price]:
    """The lines of the catalogue that the ranked candidates rest on."""
    rows: dict[Instance, float] = {
        some.instance: some.price_usd_per_h for some in search.among.series
    }
    for row, price in rows.items():
        if row.name in names:
            yield Price(row.name, row.accelerator, price, row.region, row.date, row.place, row.source)
