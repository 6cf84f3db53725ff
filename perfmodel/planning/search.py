"""The search for the best candidate of a plan.

Formulas evaluate all candidates. The best are predicted one by one, and simulated if the error band
of the formulas leaves open whether they beat the best so far.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor, Future
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel import api
from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, TooLargeError, number, whole_number
from perfmodel.base.units import HOUR_S
from perfmodel.inputs.failures import Failures
from perfmodel.inputs.job import Job
from perfmodel.planning.lasting import Lasting
from perfmodel.planning.plans import Candidate, LossTarget
from perfmodel.planning.space import BatchNoise, Common, Space
from perfmodel.predicting import gains
from perfmodel.predicting.answer import with_job
from perfmodel.results.memory import SURE
from perfmodel.results.prediction import Prediction
from perfmodel.sweeping.chunks import Answer, Chunk, Progress, predicted
from perfmodel.sweeping.executors import elsewhere, result, submitted
from perfmodel.sweeping.sweeps import samples_per_update

V = TypeVar("V", float, Floats)

UNIT_SAMPLES = 1_000_000
"""Samples that times and costs refer to if no amount of training is given."""

UNKNOWN_ERROR = 0.25
"""Error assumed for a formula whose error is unknown; the largest error that was measured."""

MOST_CONSIDERED = 100
"""Longest list of candidates."""

AHEAD = 8
"""Number of candidates simulated speculatively, if the executor runs concurrently with this thread.
"""

WITHIN = 0.01
"""Candidates that cannot beat the best by more than this fraction are not simulated."""

MAX_OPS = 1_000_000.0
"""Largest number of operations in the simulation of one candidate: about a second."""

NEAREST = 3
"""Number of candidates named in the error if no candidate meets the limits."""


MOST_CONFIDENCE = 0.999
"""Largest probability of the tails of measured memory that is asked for."""


class PlanLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on candidates; None for no limit.

    Device memory is always a limit: a worker fits with a probability of ``memory_confidence``. With
    a ``confidence`` a candidate keeps deadline and budget with that probability; without, its
    predicted time and cost do.

    Raises
    ------
    InputError : a limit is negative, or is zero where zero would exclude every candidate;
        ``memory_confidence`` or ``confidence`` is not in (0, 0.999].
    """

    budget_usd: float | None = None
    deadline_s: float | None = None
    max_idle_fraction: float | None = None
    max_staleness: float | None = None
    max_workers: int | None = None
    max_global_batch_size: int | None = None
    memory_confidence: float = SURE
    confidence: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            if name in ("budget_usd", "deadline_s"):
                number(name, value, above=0.0)
            elif name in ("memory_confidence", "confidence"):
                number(name, value, above=0.0, at_most=MOST_CONFIDENCE)
            elif name in ("max_workers", "max_global_batch_size"):
                whole_number(name, value)
            else:
                number(name, value, at_most=1.0 if name == "max_idle_fraction" else None)


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """The goal of a plan: objective, limits, amount of training, and failures that lengthen it."""

    objective: str
    limits: PlanLimits
    dataset_size: int | None
    epochs: int
    failures: Failures | None = None
    target: LossTarget | None = None
    noise: BatchNoise | None = None

    @property
    def samples(self) -> int:
        """Samples of the whole training, or :data:`UNIT_SAMPLES`."""
        return UNIT_SAMPLES if self.dataset_size is None else self.dataset_size * self.epochs

    def seconds(self, step_s: V, batch: V, update: V) -> V:
        """Training time without failures (s); ``batch`` is the global batch size, ``update`` the
        samples of an update."""
        if self.dataset_size is None:
            steps = self.samples / batch
        else:
            steps = self.epochs * -(-self.dataset_size // batch)
        if self.noise is not None:
            steps = steps / self.noise.efficiency(update)
        return steps * step_s

    def worth(self, seconds: V, usd_per_h: V, rate: V) -> V:
        """The objective as a value to maximise; ``rate`` in samples per second."""
        if self.objective == "throughput":
            return rate
        if self.objective == "time":
            return self.samples / seconds
        return self.samples / (seconds / HOUR_S * usd_per_h)

    def excess(self, seconds: V, usd: V, idle: V, stale: V) -> dict[str, V]:
        """Ratio of each predicted value to its limit; above 1 exceeds the limit.

        A limit of 0 counts as a millionth.
        """
        limits = self.limits
        pairs = {
            "deadline": (seconds, limits.deadline_s),
            "budget": (usd, limits.budget_usd),
            "idle": (idle, limits.max_idle_fraction),
            "staleness": (stale, limits.max_staleness),
        }
        return {
            name: value / max(most, 1e-6)
            for name, (value, most) in pairs.items()
            if most is not None
        }


class Search:
    """The candidates, and cached predictions of the best of them."""

    def __init__(
        self,
        goal: Goal,
        among: Space,
        common: Common,
        max_ops: float,
        executor: Executor,
        progress: Progress | None,
    ) -> None:
        self.goal, self.among, self.common = goal, among, common
        self.max_ops, self.executor = max_ops, executor
        self.progress = progress or (lambda done, most: None)
        self.jobs: dict[int, Job] = {}
        self.ahead: dict[int, Future[list[Answer]]] = {}  # speculative simulations
        self.predictions: dict[int, Prediction] = {}
        self.errors: dict[int, float] = {}  # error of each candidate's formulas
        self.room: dict[int, float] = {}  # limit over prediction that the confidence needs
        self.final: set[int] = set()  # will not be simulated again
        self.settled, self.simulated = False, 0
        self.too_large = 0
        batch = among.workers * among.batch_size
        self.lasting = Lasting(goal.failures, among)
        work_s = goal.seconds(among.step_s, batch.astype(float), among.update_samples.astype(float))
        self.seconds: Floats = self.lasting.expected_s(work_s)
        self.price: Floats = among.price - self.lasting.absent_usd_per_h()
        self.usd: Floats = self.seconds / HOUR_S * self.price
        self.worth: Floats = goal.worth(self.seconds, self.price, among.rate)
        self.idle, self.stale = among.idle.copy(), among.staleness.copy()
        self.possible = (among.worker_bytes <= among.device_bytes) & np.isfinite(self.seconds)
        most = goal.limits.max_global_batch_size
        if most is not None:
            self.possible &= batch <= most
        if not self.possible.any():
            raise self._no_room(batch)

    def _no_room(self, batch: Ids) -> InputError:
        """Build the error for when memory or the global batch limit excludes every candidate."""
        among, most = self.among, self.goal.limits.max_global_batch_size
        times = among.worker_bytes / among.device_bytes
        fits = times <= 1.0
        if fits.any():
            why = f"the smallest global batch is {batch[fits].min()} samples, the limit is {most}"
        else:
            i = int(times.argmin())
            series = among.series_of(i)
            why = (
                f"a worker needs at least {times[i]:.3g} times the memory of its device, on "
                f"{series.instance.label} with batch {among.batch_size[i]}, {among.arch(i)}"
            )
        return InputError(f"plan: none of {len(among)} candidates fits: {why}")

    def excess(self, lifted: str = "") -> Floats:
        """Each candidate's largest ratio of a value to its limit, ignoring the limit ``lifted``."""
        ratios = self.goal.excess(self.seconds, self.usd, self.idle, self.stale)
        ratios.pop(lifted, None)
        worst: Floats = np.max([np.zeros(len(self.among)), *ratios.values()], axis=0)
        return worst

    def feasible(self, lifted: str = "") -> NDArray[np.bool_]:
        """Which candidates meet all limits according to their latest predictions."""
        return np.logical_and(self.possible, self.excess(lifted) <= 1.0)

    def settle(self, *, simulate: bool, top: int) -> None:
        """Predict the best candidates until no other candidate can be better than the best.

        The formula error of a candidate that was not predicted is bounded by the largest error of
        the predicted candidates of its architecture.

        Raises
        ------
        InputError : no candidate meets the limits.
        """
        slack = 1.0 + UNKNOWN_ERROR if simulate else 1.0
        near = self.possible & (self.excess() <= slack)
        order = np.flatnonzero(near)
        order = order[np.argsort(-self.worth[order], kind="stable")]
        best, by_formula = 0.0, self.worth.copy()
        widest: dict[str, float] = {}  # largest formula error, by architecture
        self.settled = simulate
        for place, i in enumerate(order.tolist()):
            enough = sum(map(self._meets, self.predictions)) >= top
            if enough and by_formula[i] * slack < best * (1.0 + WITHIN):
                break
            arch = self.among.arch(i)
            if not self._promising(i):
                continue
            error = widest.get(arch, UNKNOWN_ERROR)
            if enough and by_formula[i] * (1.0 + error) < best * (1.0 + WITHIN):
                continue
            if len(self.predictions) >= self.among.most_considered * (1 if enough else 2):
                self.settled = False
                break
            if simulate:
                near_ones = order[place : place + AHEAD]
                self._begin(near_ones[self.worth[near_ones] * slack >= best * (1.0 + WITHIN)])
            best = max(best, self._consider(i, best, simulate))
            widest[arch] = max(self.errors[i], widest.get(arch, 0.0))
            self.progress(len(self.predictions), self.among.most_considered)
        if not self.feasible().any():
            raise self._nearest()
        for i in self.rivals():
            if i not in self.predictions:
                self._predict(i, "coarse")
        if simulate:
            self._simulate_first()
        if not any(self._meets(i) for i in self.predictions):
            raise self._nearest()

    def _simulate_first(self) -> None:
        """Simulate the first ranked candidate, repeating until the first one is simulated."""
        for _ in range(MOST_CONSIDERED):
            i = next(iter(self.ranked()), None)
            if i is None or i in self.final or not _error(self.predictions[i]):
                return
            self._simulate(i)

    def _consider(self, i: int, best: float, simulate: bool) -> float:
        """Predict a candidate, by simulation if it may be the best. Return its worth, or 0 if it
        exceeds a limit."""
        error = self.errors[i] = _error(self._predict(i, "coarse"))
        may = self.worth[i] * (1.0 + error) >= best * (1.0 + WITHIN)
        may = may and self._excess_of(i) <= 1.0 + error
        if simulate and error > 0.0 and may:
            if self.simulated >= self.among.most_simulated:
                self.settled = False
            else:
                self._simulate(i)
        return float(self.worth[i]) if self._meets(i) else 0.0

    def _simulate(self, i: int) -> None:
        self.final.add(i)
        try:
            self._predict(i, "fine")
            self.simulated += 1
        except TooLargeError:
            self.too_large += 1
            self.settled = False

    def _begin(self, places: Ids) -> None:
        """Start simulations speculatively, if the executor runs concurrently with this thread.

        Unneeded simulations cost time but do not change the result.
        """
        if not elsewhere(self.executor):
            return
        for i in places.tolist():
            if i in self.ahead or i in self.final:
                continue
            # formulas with an error may differ from the simulation
            if i in self.predictions or _error(self._answer(i, "coarse")):
                self.ahead[i] = submitted(self.executor, predicted, self._asked(i, "fine"))

    def _asked(self, i: int, fidelity: api.Fidelity) -> Chunk:
        if i not in self.jobs:
            self.jobs[i] = self.among.job(i, **self.common)
        how = api.PredictOptions(fidelity=fidelity, max_ops=self.max_ops)
        return Chunk((self.jobs[i],), how)

    def _answer(self, i: int, fidelity: api.Fidelity) -> Prediction:
        begun = self.ahead.pop(i, None) if fidelity == "fine" else None
        chunk = self._asked(i, fidelity)
        (answer,) = predicted(chunk) if begun is None else result(begun)
        if not isinstance(answer, Prediction):
            raise answer
        return with_job(answer, self.jobs[i], self.max_ops)

    def _predict(self, i: int, fidelity: api.Fidelity) -> Prediction:
        """Predict a candidate and replace the formulas' values by the prediction's."""
        p = self.predictions[i] = self._answer(i, fidelity)
        price, rate = float(self.among.price[i]), p.throughput_samples_per_s
        work_s = self.goal.seconds(p.iteration_s, float(p.global_batch_size), samples_per_update(p))
        seconds = self.lasting.predicted_s(i, self.jobs[i], work_s, p)
        price -= self.lasting.predicted_absent_usd_per_h(i)
        self.seconds[i], self.usd[i] = seconds, seconds / HOUR_S * price
        self.worth[i] = self.goal.worth(seconds, price, rate)
        self.idle[i] = p.idle_fraction.mean
        self.stale[i] = p.staleness.mean if p.staleness is not None else 0.0
        confidence = self.goal.limits.confidence
        if confidence is not None:
            room = self.lasting.room(i, confidence, p) or gains.room(p, confidence)
            self.room[int(self.among.of[i])] = room
        return p

    def _excesses(self, i: int) -> dict[str, float]:
        values = (self.seconds[i], self.usd[i], self.idle[i], self.stale[i])
        return self.goal.excess(*map(float, values))

    def _meets(self, i: int) -> bool:
        if not self.possible[i] or self._excess_of(i) > 1.0:
            return False
        confidence = self.goal.limits.confidence
        return confidence is None or self._within(i) >= confidence

    def _within(self, i: int) -> float:
        """The probability that a predicted candidate keeps deadline and budget."""
        worst = self._excess_of_run(i)
        p, times = self.predictions[i], 1.0 / worst if worst else math.inf
        within = self.lasting.within(i, times * float(self.seconds[i]), p)
        return gains.probability_within(p, times) if within is None else within

    def _promising(self, i: int) -> bool:
        """Whether a candidate may keep deadline and budget with the confidence: it needs the same
        room to them as one with its machine that has been predicted."""
        confidence, room = self.goal.limits.confidence, self.room.get(int(self.among.of[i]))
        if confidence is None or room is None or i in self.predictions:
            return True
        return self._excess_of_run(i) * room <= 1.0 + UNKNOWN_ERROR / 5.0

    def _excess_of_run(self, i: int) -> float:
        """The larger ratio of a candidate's time and cost to deadline and budget."""
        ratios = self.goal.excess(float(self.seconds[i]), float(self.usd[i]), 0.0, 0.0)
        return max(ratios.values(), default=0.0)

    def _excess_of(self, i: int) -> float:
        return max(self._excesses(i).values(), default=0.0)

    def rivals(self) -> list[int]:
        """The best candidate of each instance type that meets the limits."""
        kinds = np.array([id(series.instance) for series in self.among.series])[self.among.of]
        worth = np.where(self.feasible(), self.worth, 0.0)
        order = np.argsort(-worth, kind="stable")
        order = order[worth[order] > 0.0]
        _, first = np.unique(kinds[order], return_index=True)
        return [int(order[k]) for k in np.sort(first)]

    def ranked(self) -> list[int]:
        """The predicted candidates that meet the limits, best first.

        Of those that are within :data:`WITHIN` of the best left, the one of least effort is next.
        """
        left = sorted(filter(self._meets, self.predictions), key=lambda i: -self.worth[i])
        order: list[int] = []
        while left:
            near = [i for i in left if self.worth[i] * (1.0 + WITHIN) >= self.worth[left[0]]]
            chosen = min(near, key=lambda i: (self.among.effort(i), -self.worth[i]))
            left.remove(chosen)
            order.append(chosen)
        return order

    def _nearest(self) -> InputError:
        """Build the error that names the candidates closest to the limits and what they exceed."""
        excess = np.where(self.possible, self.excess(), np.inf)
        named: dict[str, str] = {}
        for i in np.argsort(excess, kind="stable").tolist():
            if len(named) == NEAREST or not math.isfinite(excess[i]):
                break
            name = self.among.series_of(i).instance.label
            named.setdefault(name, f"{name} {self._missed(i)}")
        nearest = "; ".join(named.values())
        return InputError(
            f"plan: none of {len(self.among)} candidates meets the limits; nearest: {nearest}"
        )

    def _missed(self, i: int) -> str:
        """Describe which limits a candidate exceeds, and by how much."""
        limits, hours = self.goal.limits, self.seconds[i] / HOUR_S
        most_h = (limits.deadline_s or 0.0) / HOUR_S
        texts = {
            "deadline": f"takes {hours:.3g} h (limit {most_h:.3g} h)",
            "budget": f"costs {self.usd[i]:.4g} USD (limit {limits.budget_usd or 0:g} USD)",
            "idle": f"is idle {self.idle[i]:.1%} (limit {limits.max_idle_fraction or 0:.1%})",
            "staleness": f"has staleness {self.stale[i]:.3g} (limit {limits.max_staleness or 0:g})",
        }
        why = " and ".join(texts[name] for name, ratio in self._excesses(i).items() if ratio > 1.0)
        return f"with {self.among.workers[i]} workers, {self.among.arch(i)}, {why}"

    def candidate(self, i: int, chance: float) -> Candidate:
        """Build the result for a predicted candidate."""
        among, p = self.among, self.predictions[i]
        rate, price = p.throughput_samples_per_s, float(among.price[i])
        billed = price - self.lasting.predicted_absent_usd_per_h(i)
        seconds, usd = float(self.seconds[i]), float(self.usd[i])
        steps_s, rates = (p.iteration_s, p.iteration_s), (rate, rate)
        if p.interval:
            steps_s, rates = p.interval.iteration_s, p.interval.throughput_samples_per_s
        run, noise = self.lasting.runs.get(i), self.goal.noise
        ends = [seconds * step_s / p.iteration_s for step_s in steps_s]
        low, high = ends if run is None else run.interval_s
        return Candidate(
            **among.identity(i),
            device=p.device,
            precision=among.series_of(i).job.workload.precision,
            workers=p.workers,
            servers=self.jobs[i].options.server_count or None,
            batch_size=p.batch_size,
            global_batch_size=p.global_batch_size,
            price_usd_per_h=price,
            throughput_samples_per_s=rate,
            throughput_interval=rates,
            time_s=seconds,
            time_interval_s=(low, high),
            cost_usd=usd,
            cost_interval_usd=(low / HOUR_S * billed, high / HOUR_S * billed),
            samples_per_usd=self.goal.samples / usd if usd else math.inf,
            idle_fraction=p.idle_fraction.mean,
            staleness=p.staleness.mean if p.staleness else None,
            probability_best=chance,
            probability_within=self._within(i),
            fidelity=p.fidelity,
            bottleneck=p.bottleneck.text,
            with_failures=run,
            statistical_efficiency=noise.efficiency(samples_per_update(p)) if noise else None,
            prediction=p,
        )


def _error(p: Prediction) -> float:
    """Error of a prediction relative to simulation, as a fraction."""
    if p.error_band is None:
        return 0.0
    return UNKNOWN_ERROR if p.error_band.p90 is None else p.error_band.p90
