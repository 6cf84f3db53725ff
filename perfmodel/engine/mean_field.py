"""Simulates many equal workers by a few: finds the rate at which those left out run, too."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.engine.measures import Measures, measures
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import simulate
from perfmodel.engine.warmup import TOLERATED_DRIFT, Progress, warm_up
from perfmodel.graph.mean_field import MeanField
from perfmodel.graph.op_graph import CAUSES, OpGraph

MOST_GUESSES, CLOSE = 8, 2.0
"""Most short runs that look for the rate of the workers that are left out, and how close the rate
of those in the graph must come, as a multiple of ``rel_ci``, once it is known how one depends on
the other."""

APART = 0.01
"""Least relative difference between two guesses that tell how one rate depends on the other."""

HELD_BACK, NEARLY_FULL = 0.002, 0.01
"""Part of the time that workers wait for a bound on their lead, and idle part of the time of the
busiest shared resource, above which a few workers cannot represent many."""

SLOPE_ERROR = 0.3
"""Error of the slope that short runs tell, as a fraction of it: the interval has as much of what
the slope corrects."""

WIDEST = 4.0
"""Most that the interval of the workers in the graph may be wider than that of all."""


def simulate_mean_field(
    field: MeanField,
    seed: int = 0,
    rel_ci: float = 0.01,
    progress: Progress | None = None,
    *,
    compiled: bool | None = None,
) -> Measures:
    """Run the graph of a mean field, and measure all workers once it has settled.

    The workers that the graph lacks make as many iterations as those in it. Short runs find that
    rate, a long one measures.

    Raises
    ------
    InputError, DeadlockError : see :func:`perfmodel.engine.simulation.simulate`.
    """
    if not np.isfinite(field.most_per_s):
        return simulate(field.graph, seed=seed, rel_ci=rel_ci, progress=progress, compiled=compiled)
    alike = field.most_per_s * (1.0 - field.alone / field.workers)  # full, if all were equal
    rates = _Rates(field.most_per_s, min(alike, 1.0 / max(_alone_s(field.graph), 1e-300)))
    close = TOLERATED_DRIFT * rel_ci
    for _ in range(MOST_GUESSES):
        graph = field.at(rates.guess)
        with Simulation(graph, seed, compiled, steady=True) as run:
            width = rel_ci * (rates.wider if rates.slope else WIDEST)
            pilot = warm_up(run, width, 0, None, settle=False)
            part = run.totals() - pilot.begin
        if rates.guess == field.most_per_s and _idle(field, measures(graph, part)) <= close:
            break
        found = field.mean(part.progress) / part.time
        if rates.closed(found, CLOSE * rel_ci * rates.wider if rates.slope else close):
            break
    guess, steep = rates.guess, 1.0 - rates.slope
    graph = field.at(guess)
    few = simulate(
        graph, seed=seed, rel_ci=rel_ci * rates.wider, progress=progress, compiled=compiled
    )
    found = field.mean(few.iterations_per_s)
    right = min(guess + (found - guess) / steep, field.most_per_s)
    wide = (few.ci_fraction + SLOPE_ERROR * abs(found - guess) / right) / steep
    few = msgspec.structs.replace(_faster(few, right / found), ci_fraction=wide)
    return _of_all(field, guess, few)


def held_back(field: MeanField, found: Measures) -> bool:
    """Return whether workers wait for the slowest of all, without a resource that is full: for how
    long depends on how many they are, and they go on together, so that a few cannot tell."""
    waited = found.wait_fraction[:, CAUSES.index("staleness_bound")]
    return field.mean(waited) > HELD_BACK and _idle(field, found) > NEARLY_FULL


class _Rates:
    """Iterations per second of a worker: guessed for those that are left out, and found for those
    in the graph, which are slower if the others are faster.

    The first guess is given. The second is what came out. Later ones are where the line through the
    last two crosses equal rates. None is more than the most that shared resources allow.
    """

    def __init__(self, most: float, guess: float) -> None:
        self._most = most
        self._seen: list[tuple[float, float]] = []
        self.guess = guess

    def closed(self, found: float, close: float) -> bool:
        """Take what was found; return whether it is as guessed, but for the fraction ``close``. If
        not, guess again."""
        self._seen.append((self.guess, found))
        if abs(found - self.guess) <= close * self.guess:
            return True
        following = self.guess + (found - self.guess) / (1.0 - self.slope)
        low = max((guess for guess, found in self._seen if found > guess), default=0.0)
        high = min((guess for guess, found in self._seen if found < guess), default=self._most)
        if low < high and not low < following < high:
            following = (low + high) / 2.0
        self.guess = min(following, self._most)
        return False

    @property
    def wider(self) -> float:
        """How much less precisely the rate of those in the graph has to be known than that of all:
        if it falls steeply with the guess, little more than the guess is right."""
        return min(1.0 - self.slope, WIDEST)

    @property
    def slope(self) -> float:
        """How much what is found rises with the guess: 0 or below, 0 if it is not known."""
        if len(self._seen) < 2:
            return 0.0
        last, of_last = self._seen[-1]
        for guess, found in reversed(self._seen[:-1]):
            if abs(guess - last) > APART * last:
                return min((of_last - found) / (last - guess), 0.0)
        return 0.0


def _alone_s(graph: OpGraph) -> float:
    """Return the longest time of an iteration of a worker that is alone (s)."""
    return float(graph.op_stagger_s.max())


def _faster(few: Measures, times: float) -> Measures:
    """Return the measures if workers make so many ``times`` as many iterations, which compute as
    long; they wait for the same causes."""
    busy = np.minimum(few.busy_fraction * times, 1.0)
    idle = 1.0 - few.busy_fraction
    waits = few.wait_fraction * ((1.0 - busy) / np.where(idle > 0.0, idle, 1.0))[:, None]
    return msgspec.structs.replace(
        few,
        iterations_per_s=few.iterations_per_s * times,
        busy_fraction=busy,
        wait_fraction=waits,
    )


def _idle(field: MeanField, few: Measures) -> float:
    """Return the part of the time for which the busiest shared resource is idle."""
    links, slots = (
        few.link_utilisation[field.link_s > 0.0],
        few.slot_utilisation[field.slot_s > 0.0],
    )
    return 1.0 - float(np.concatenate([links, slots]).max())


def _of_all(field: MeanField, rate_per_s: float, few: Measures) -> Measures:
    """Return the measures of all workers from those of the few, while the others make
    ``rate_per_s`` iterations per second.

    Of the updates that workers see of each other, each of the few sees those of the other few only.
    """
    link, slot = field.left(rate_per_s)
    groups, workers = field.graph.n_groups, field.workers
    more = (workers - 1) / max(groups - 1, 1)
    rates = few.iterations_per_s
    made = float(rates @ field.graph.group_count) / max(float(rates.sum()), 1e-300)
    seen = np.rint(np.arange(len(few.staleness)) * more).astype(np.int64)
    return msgspec.structs.replace(
        few,
        link_utilisation=1.0 - link + link * few.link_utilisation,
        slot_utilisation=1.0 - slot + slot * few.slot_utilisation,
        staleness=np.bincount(seen, few.staleness).astype(np.int64),
        staleness_mean=few.staleness_mean * more,
        updates_per_s=few.updates_per_s * made,
    )
