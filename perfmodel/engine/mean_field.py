"""Simulates many workers by a few: finds the rate at which those left out run, too."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.engine.few import SLOPE_ERROR, busiest_link, faster, of_all, shared_parts
from perfmodel.engine.in_step import simulate_in_step
from perfmodel.engine.measures import Measures, measures
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import simulate
from perfmodel.engine.warmup import TOLERATED_DRIFT, Progress, warm_up
from perfmodel.graph.mean_field import MeanField
from perfmodel.graph.op_graph import OpGraph

NO_TIME = 1e-300
"""Shortest time of an iteration (s), to divide by."""

MOST_GUESSES, CLOSE = 8, 2.0
"""Most short runs that look for the rate of the workers that are left out, and how close the rate
of those in the graph must come, as a multiple of ``rel_ci``, once it is known how one depends on
the other."""

BUSY = 0.7
"""Utilisation of a link from which on workers may come to go on together (decision 0111)."""

SLOWER_OF_ONE, MOST_OF_ONE = 2.0, 3.0
"""By how much a few in proportion to full links are slower than all, as a fraction times their
number, on average and at most; on average less if links are not full (decisions 0105 and 0111)."""

CLEARLY = 0.1
"""By how much less than short runs of a few find workers in waves make, as a fraction, if there is
no need of a long run of the few."""

UNEQUAL = 0.03
"""Standard deviation of the weights of workers' transfers from which on few workers may be in waves
where all are not: then half of what they lose by it is part of the interval (decision 0114)."""

ROUGH_ERROR = 0.2
"""Error of the throughput of a few that represent all only roughly (decision 0109)."""

APART = 0.01
"""Least relative difference between two guesses that tell how one rate depends on the other."""

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

    If they go on in step, see :func:`perfmodel.engine.in_step.simulate_in_step`.

    Raises
    ------
    InputError, DeadlockError : see :func:`perfmodel.engine.simulation.simulate`.
    """
    if field.in_step:
        return simulate_in_step(field, seed, rel_ci, progress, compiled=compiled)
    if not len(field.shared):
        return simulate(field.graph, seed=seed, rel_ci=rel_ci, progress=progress, compiled=compiled)
    guessed = _guessed(field, seed, rel_ci, compiled)
    return _measured(field, guessed, seed, rel_ci, progress, compiled)


def _guessed(
    field: MeanField, seed: int, rel_ci: float, compiled: bool | None
) -> tuple[_Rates, Floats]:
    """Find the rate of all workers by short runs; return it, and how fast each group's workers are
    relative to the mean, (groups,)."""
    alone = 1.0 / np.maximum(_alone_s(field.graph), NO_TIME)
    pace = alone / field.mean(alone)
    rates = _Rates(field.most(pace), field.mean(alone))
    close = TOLERATED_DRIFT * rel_ci
    for _ in range(MOST_GUESSES):
        graph = field.at(rates.guess * pace)
        with Simulation(graph, seed, compiled, steady=True) as run:
            width = rel_ci * (rates.wider if rates.slope else WIDEST)
            pilot = warm_up(run, width, 0, None, settle=False)
            part = run.totals() - pilot.begin
        found, before = field.mean(part.progress) / part.time, rates.guess
        if field.kind.any():
            pace = field.by_kind(part.progress / part.time) / found
            rates.limit(field.most(pace))
        idle = 1.0 - shared_parts(field, measures(graph, part)).max()
        if rates.full and max(idle, abs(rates.guess - before) / before) <= close:
            break
        if rates.closed(found, CLOSE * rel_ci * rates.wider if rates.slope else close):
            break
    return rates, pace


def _measured(
    field: MeanField,
    guessed: tuple[_Rates, Floats],
    seed: int,
    rel_ci: float,
    progress: Progress | None,
    compiled: bool | None,
) -> Measures:
    """Run the graph while the others are as fast as guessed, and correct what comes out."""
    rates, pace = guessed
    guess, steep = rates.guess, 1.0 - rates.slope
    graph = field.at(guess * pace)
    few = simulate(
        graph, seed=seed, rel_ci=rel_ci * rates.wider, progress=progress, compiled=compiled
    )
    found = field.mean(few.iterations_per_s)
    moved = 0.0
    if field.kind.any():
        rates.limit(field.most(field.by_kind(few.iterations_per_s) / found))
        moved = abs(rates.guess - guess) / guess
    right = min(guess + (found - guess) / steep, rates.most)
    wide = moved + (few.ci_fraction + SLOPE_ERROR * abs(found - guess) / right) / steep
    few = msgspec.structs.replace(faster(few, right / found), ci_fraction=wide)
    return of_all(field, *field.left(guess * pace), few)


def simulate_many(
    field: MeanField,
    seed: int = 0,
    rel_ci: float = 0.01,
    progress: Progress | None = None,
) -> tuple[OpGraph, Measures]:
    """Run a mean field, and return the graph and the measures of it or, if its workers come to go
    on together, of that in which they do.

    They do so if links are busy, and if that is slower than can be due to how few they are.

    Raises
    ------
    InputError, DeadlockError : see :func:`perfmodel.engine.simulation.simulate`.
    """
    if field.most_busy < 1.0 and not field.in_step:
        return field.graph, _roughly(field, seed, rel_ci, progress)
    if field.together is None:
        return field.graph, simulate_mean_field(field, seed, rel_ci, progress)
    rates, pace = guessed = _guessed(field, seed, rel_ci, None)
    if busiest_link(field, field.parts(rates.guess * pace)) < BUSY:
        return field.graph, _measured(field, guessed, seed, rel_ci, progress, None)
    together, few = field.together, field.together.graph.n_groups
    waves = simulate_in_step(together, seed, rel_ci, progress, compiled=None)
    rate, margin = together.mean(waves.iterations_per_s), MOST_OF_ONE / few
    if rate > (1.0 - CLEARLY - margin) * rates.guess:
        precise = max(rel_ci, abs(1.0 - rate / rates.guess) / 4.0)  # half of it widens the interval
        evenly = _measured(field, guessed, seed, precise, progress, None)
        slower = 1.0 - rate / field.mean(evenly.iterations_per_s)
        if slower <= evenly.ci_fraction + margin:
            wide = evenly.ci_fraction + abs(slower) / 2.0
            return field.graph, msgspec.structs.replace(evenly, ci_fraction=wide)
    busy = float(shared_parts(together, waves).max())
    missing = SLOWER_OF_ONE * (1.0 / few - 1.0 / field.workers) * busy
    wide = waves.ci_fraction + missing / 2.0
    if _unequal(together.graph) > UNEQUAL:
        wide += max(rates.guess / rate - 1.0, 0.0) / 2.0
    waves = msgspec.structs.replace(faster(waves, 1.0 + missing), ci_fraction=wide)
    return together.graph, waves


def _roughly(field: MeanField, seed: int, rel_ci: float, progress: Progress | None) -> Measures:
    """Run a mean field whose few represent all only roughly if links are busy: then there is no
    point in a narrow interval of the few."""
    rough = max(rel_ci, ROUGH_ERROR / 2.0)
    rates, pace = _guessed(field, seed, rough, None)
    if busiest_link(field, field.parts(rates.guess * pace)) <= field.most_busy:
        return simulate_mean_field(field, seed, rel_ci, progress)
    few = _measured(field, (rates, pace), seed, rough, progress, None)
    return msgspec.structs.replace(few, ci_fraction=few.ci_fraction + ROUGH_ERROR)


def _unequal(graph: OpGraph) -> float:
    """Return the standard deviation of the weights of transfers, relative to the mean of all
    workers for the same message: one of several parts has a larger weight in every worker."""
    weight, sent = graph.route_weight[graph.op_route], graph.op_bytes > 0.0
    relative = [np.ones(1)]
    for block in graph.ops:
        ids = slice(block.first, block.first + block.size)
        if sent[ids].all():
            of_workers = weight[ids].reshape(block.shape)
            relative.append((of_workers / of_workers.mean(axis=0)).ravel())
    return float(np.concatenate(relative).std())


class _Rates:
    """Iterations per second of a worker: guessed for those that are left out, and found for those
    in the graph, which are slower if the others are faster.

    The first guess is given. The second is what came out. Later ones are where the line through the
    last two crosses equal rates. None is more than the ``most`` that shared resources allow.
    """

    def __init__(self, most: float, guess: float) -> None:
        self.most = most
        self._seen: list[tuple[float, float]] = []
        self.guess = min(guess, most)

    @property
    def full(self) -> bool:
        """Whether the guess is the most that shared resources allow."""
        return self.guess == self.most

    def limit(self, most: float) -> None:
        """Change the most that shared resources allow."""
        self.guess = most if self.full else min(self.guess, most)
        self.most = most

    def closed(self, found: float, close: float) -> bool:
        """Take what was found; return whether it is as guessed, but for the fraction ``close``. If
        not, guess again."""
        self._seen.append((self.guess, found))
        if abs(found - self.guess) <= close * self.guess:
            return True
        following = self.guess + (found - self.guess) / (1.0 - self.slope)
        low = max((guess for guess, found in self._seen if found > guess), default=0.0)
        high = min((guess for guess, found in self._seen if found < guess), default=self.most)
        if low < high and not low < following < high:
            following = (low + high) / 2.0
        self.guess = min(following, self.most)
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


def _alone_s(graph: OpGraph) -> Floats:
    """Return the time of an iteration of each group's workers if they are alone (s), (groups,)."""
    own = np.flatnonzero(graph.op_group >= 0)
    longest_s = np.zeros(graph.n_groups)
    np.maximum.at(longest_s, graph.op_group[own], graph.op_stagger_s[own])
    return longest_s
