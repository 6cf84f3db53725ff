"""Estimate the cost of a simulation before running it.

A simulation executes every operation of the graph once per round. If many workers make a graph
large, its size is extrapolated from smaller graphs instead of building it: no architecture's graph
grows faster than the square of the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from perfmodel.base.errors import InputError, TooLargeError
from perfmodel.graph.limits import bounded
from perfmodel.graph.op_graph import MANY_GROUPS, MOST, OpGraph
from perfmodel.graph.rules import Choice
from perfmodel.inputs.job import Job

MOST_OPS = 50_000_000
"""Default limit on simulated operations: 10 s to a minute on one slow core."""

STEADY_ROUNDS, RANDOM_ROUNDS, RANDOM_RUNS = 25, 100, 4
"""Rounds assumed for a deterministic job, rounds assumed for a random job, and runs simulated if
only the first iterations of a random job are wanted. Most jobs need fewer."""

ROUNDS_OF_MANY = 16
"""Rounds assumed for a random job with so many workers that runs are short."""

BOUND_ROUNDS, MOST_BOUND_ROUNDS = 25, 50_000
"""Rounds per iteration of a staleness bound (SSP), and the most rounds it can add up to."""

OP_S, OP_BYTES = 1e-6, 1200.0
"""Time to simulate an operation of the estimate, and memory per operation of the graph, as measured
on a server; times are 0.2 to 1.4 us (docs/performance.md)."""

ALTERNATIVE = 0.2
"""Cost of one alternative route of an operation, in operations."""

MOST_LOOKED_AT = 1000
"""Number of workers, counted from the first, whose speeds are considered."""

SAMPLES = (8, 16, 32)
"""Worker counts of the smaller graphs."""


class SimulationCost(msgspec.Struct, frozen=True):
    """Cost of a simulation: operations in the graph, times rounds."""

    graph_ops: float
    rounds: float

    @property
    def ops(self) -> float:
        """Number of simulated operations."""
        return self.graph_ops * self.rounds

    @property
    def text(self) -> str:
        """The cost in words."""
        seconds, size = self.ops * OP_S, self.graph_ops * OP_BYTES
        if seconds < 120.0:
            time = f"{max(seconds, 1.0):.0f} s"
        elif seconds < 7200.0:
            time = f"{seconds / 60.0:.0f} min"
        else:
            time = f"{seconds / 3600.0:.0f} h"
        memory = f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
        return f"about {_millions(self.ops)} operations, {time} and {memory} of memory"


def built(
    job: Job,
    build: Callable[[Job], OpGraph],
    max_ops: float,
    fold: Callable[[Job], OpGraph | None] | None = None,
    iterations: int | None = None,
) -> OpGraph:
    """Build the graph of a job if simulating it takes at most ``max_ops`` operations.

    ``fold``, if given, builds a graph in which one worker represents all. ``iterations`` is the
    number of iterations to simulate; None for the long run.

    Raises
    ------
    TooLargeError : the simulation takes more; the message gives its cost and says what to do.
    """
    most = int(min(max(max_ops, MOST_OPS) / STEADY_ROUNDS, MOST))
    expected = None
    try:
        with bounded(most):
            graph = fold(job) if fold is not None else None
            if graph is None and job.workers > 2 * SAMPLES[-1] and max_ops < math.inf:
                expected = _expected(job, build, iterations)
            if graph is None and (expected is None or expected.ops <= max_ops):
                graph = build(job)
    except TooLargeError:
        if most == MOST:
            raise
        raise _too_large(
            job, SimulationCost(float(most), STEADY_ROUNDS), max_ops, known=False
        ) from None
    if graph is None:
        raise _too_large(job, expected or SimulationCost(float(most), STEADY_ROUNDS), max_ops)
    return checked(job, graph, max_ops, iterations)


def checked(job: Job, graph: OpGraph, max_ops: float, iterations: int | None = None) -> OpGraph:
    """Return the graph of a job if simulating it takes at most ``max_ops`` operations; else raise
    :class:`TooLargeError`."""
    cost = cost_of(graph, job, iterations)
    if cost.ops > max_ops:
        raise _too_large(job, cost, max_ops)
    return graph


def iterations_in_a_round(job: Job) -> float:
    """Return the mean iterations per worker in a round, in which each completes at least one.

    It exceeds one if fast workers do not wait for slow ones.
    """
    if not job.options.asynchronous or job.options.bounded_lead is not None:
        return 1.0
    slowest = {*range(min(job.workers, MOST_LOOKED_AT)), *(s.worker for s in job.stragglers)}
    slowdowns = [seat.slowdown for seat in job.seats(slowest)]
    return max(slowdowns) * sum(1.0 / slowdown for slowdown in slowdowns) / len(slowdowns)


def cost_of(graph: OpGraph, job: Job, iterations: int | None = None) -> SimulationCost:
    """Return the cost of simulating a job's graph: its first ``iterations``, or the long run."""
    choices = [rule for rule in graph.rules if isinstance(rule, Choice)]
    routes = sum(rule.routes.size for rule in choices if rule.routes is not None)
    if iterations is not None:
        rounds = float(iterations * (RANDOM_RUNS if graph.random else 1))
    elif graph.staggered and job.workers >= MANY_GROUPS:
        rounds = ROUNDS_OF_MANY
    elif graph.random:
        rounds = max(RANDOM_ROUNDS, min(BOUND_ROUNDS * _bound(job), MOST_BOUND_ROUNDS))
    else:
        rounds = STEADY_ROUNDS
    rounds *= iterations_in_a_round(job)
    return SimulationCost(graph.n_turns + ALTERNATIVE * routes, rounds)


def _bound(job: Job) -> float:
    """Return the staleness bound if the simulation has to run until it is reached; else 0."""
    bound = job.options.bounded_lead
    return bound if bound is not None and bound < math.inf else 0.0


def _expected(
    job: Job, build: Callable[[Job], OpGraph], iterations: int | None = None
) -> SimulationCost | None:
    """Extrapolate the cost of a job from fewer workers; None if such a job is not possible."""
    costs = []
    for workers in SAMPLES:
        stragglers = tuple(s for s in job.stragglers if s.worker < workers)
        try:
            graph = build(msgspec.structs.replace(job, workers=workers, stragglers=stragglers))
        except (InputError, IndexError):
            return None
        costs.append(cost_of(graph, job, iterations))
    square = np.polyfit(SAMPLES, [cost.graph_ops for cost in costs], 2)
    ops = max(float(np.polyval(square, job.workers)), costs[-1].graph_ops)
    return SimulationCost(ops, costs[-1].rounds)


def _too_large(
    job: Job, cost: SimulationCost, max_ops: float, *, known: bool = True
) -> TooLargeError:
    more, limit = "", f"--max-ops {1.1 * cost.ops:.2g}"
    if not known:
        more, limit = "more than ", "a higher --max-ops"
    return TooLargeError(
        f"simulating {job.architecture.name} with {job.workers} workers takes {more}{cost.text}, "
        f"above the limit of --max-ops {_millions(max_ops)}; use --fidelity coarse for an instant "
        f"answer, or {limit} to simulate it anyway"
    )


def _millions(count: float) -> str:
    return f"{count / 1e6:.3g} million" if count >= 1e6 else f"{count:.0f}"
