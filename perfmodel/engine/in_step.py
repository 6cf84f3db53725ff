"""Simulates many workers that go on together by a few: if none may be far ahead of the slowest, or
if the devices of a worker use servers one after the other."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.engine.bounded_lead import bounded_lead_s
from perfmodel.engine.few import SLOPE_ERROR, busiest_link, of_all, shared_parts
from perfmodel.engine.measures import Measures, Totals, measures
from perfmodel.engine.noise import factors_of
from perfmodel.engine.progress import RESOLUTION_OF_SHORT
from perfmodel.engine.run import Simulation, advance_all
from perfmodel.engine.staleness import BOUND, settled
from perfmodel.engine.starts import ci_of, seeds
from perfmodel.engine.tracing import recorded
from perfmodel.engine.warmup import Progress
from perfmodel.graph.mean_field import MeanField

FEWEST_RUNS, LONG_RUNS, LONG_ROUNDS, LONG_OPS = 2, 4, (128, 512), 2_000_000
"""Fewest and most runs of workers in step, the fewest and most rounds of each, and the operations
of each between these. Over hundreds of rounds, workers come to go from one server to the next
together, or stop to do so. Workers of several kinds have the most runs, as more of these jobs come
to a slow state (decision 0110)."""

MOST_OPS, FEWEST_ROUNDS = 4_000_000, 32
"""Operations after which a run of large graphs ends if it has half of its rounds, which are so many
at least."""

ERROR_OF_ONE = 0.75
"""Error of the throughput of workers in step if a shared resource is full, times the workers that
were simulated; if it is less busy, in proportion to the square (decision 0102). With several
devices, so many times as much unless it is full all the time (decision 0103)."""

ROUGH_IN_STEP, ROUGH_OPS = 0.4, 1_500_000
"""Error of the throughput of workers in step that represent all only roughly, and operations of
their runs, of which there are the fewest (decision 0109)."""

FULL = 0.995
"""Utilisation from which a resource is full all the time."""


def simulate_in_step(
    field: MeanField,
    seed: int,
    rel_ci: float,
    progress: Progress | None,
    *,
    compiled: bool | None,
) -> Measures:
    """Run the graph of a mean field whose workers go on together, and measure all workers.

    What they do at the same time would not be seen if those that the graph lacks were there evenly.
    So what they share is there in proportion to the workers of the graph.
    """
    graph = field.graph
    unlike = field.kind.max() >= field.devices and field.most_busy == 1.0
    numbers = (LONG_RUNS,) if unlike else (FEWEST_RUNS, LONG_RUNS)
    few = _long_runs(field, numbers, seed, rel_ci, progress, compiled)
    lacking = 1.0 - graph.n_groups / len(graph.worker_group)
    parts = shared_parts(field, few)
    devices, busiest = field.devices, float(parts.max(initial=0.0))
    share = busiest**2 if devices == 1 else devices * float(busiest < FULL)
    fewer = lacking * ERROR_OF_ONE * devices / graph.n_groups * share
    if busiest_link(field, parts) > field.most_busy:
        fewer += ROUGH_IN_STEP
    times = 1.0 if field.lead is None else _slower(field, field.lead, few, seed)
    waits = few.wait_fraction * times
    waits[:, BOUND] += 1.0 - times
    few = msgspec.structs.replace(
        few,
        iterations_per_s=few.iterations_per_s * times,
        busy_fraction=few.busy_fraction * times,
        wait_fraction=waits,
        link_utilisation=few.link_utilisation * times,
        slot_utilisation=few.slot_utilisation * times,
        updates_per_s=few.updates_per_s * times,
        ci_fraction=few.ci_fraction + SLOPE_ERROR * (1.0 - times) + fewer,
    )
    return of_all(field, np.ones(len(graph.slot_place)), np.ones(len(graph.link_place)), few)


def _slower(field: MeanField, lead: int, few: Measures, seed: int) -> float:
    """Return how much slower all workers are than the few that were simulated, if none may be more
    than ``lead`` iterations ahead of the slowest.

    It is known of workers that wait for nothing else
    (:func:`perfmodel.engine.bounded_lead.bounded_lead_s`). Of the devices of a worker, the busiest
    ones are taken.
    """
    graph = field.graph
    iteration_s = 1.0 / field.by_kind(few.iterations_per_s)
    varying_s = few.busy_fraction * iteration_s
    fixed_s = np.maximum((1.0 - few.wait_fraction[:, BOUND]) * iteration_s - varying_s, 0.0)
    factors = factors_of(graph)
    groups = np.arange(graph.n_groups).reshape(field.devices, -1)
    device = int(varying_s[groups].mean(axis=1).argmax())

    def pace_s(group: Ids) -> float:
        return bounded_lead_s(varying_s[group], fixed_s[group], factors, lead, seed)

    of_all = graph.worker_group.reshape(field.devices, -1)[device]
    return min(pace_s(groups[device]) / pace_s(of_all), 1.0)


def _long_runs(
    field: MeanField,
    numbers: Sequence[int],
    seed: int,
    rel_ci: float,
    progress: Progress | None,
    compiled: bool | None,
) -> Measures:
    """Run a graph from several starts at the same time for many rounds. Shorter runs are enough, of
    one of these ``numbers`` of starts, if all of their halves are about equally fast, or if links
    are so busy that a few represent all only roughly."""
    graph = field.in_proportion()
    affordable = MOST_OPS // graph.n_turns
    least = min(max(2 * affordable, FEWEST_ROUNDS), LONG_ROUNDS[0])
    rounds = min(max(LONG_OPS // graph.n_turns, least), LONG_ROUNDS[1])
    starts = seeds(seed, LONG_RUNS)
    with contextlib.ExitStack() as opened:
        runs: list[_LongRun] = []

        def advance(some: list[_LongRun], end: int) -> None:
            advance_all([one.run for one in some], end)
            for one in some:
                one.mark()
            if progress is not None:
                progress(sum(one.run.rounds for one in runs), LONG_RUNS * rounds)

        for number in numbers:
            more = [
                _LongRun(Simulation(graph, start, compiled, depth=recorded(graph), steady=True))
                for start in starts[len(runs) : number]
            ]
            for one in more:
                opened.enter_context(one.run)
            runs += more
            for end in (rounds // 16, rounds // 8, rounds // 4):
                advance(more, end)
            rates = [rate for one in runs for rate in one.rates]
            spread = (max(rates) - min(rates)) / (max(rates) + min(rates))
            parts = shared_parts(field, measures(graph, runs[0].measured))
            rough = busiest_link(field, parts) > field.most_busy
            if rough:
                advance(runs, max(ROUGH_OPS // graph.n_turns, rounds // 4))
            if rough or 2.0 * spread <= rel_ci:
                break
        else:
            advance(runs, max(min(rounds, affordable), rounds // 2))
        totals = [one.measured for one in runs]
        ci = spread if rough else max(ci_of(graph, totals), RESOLUTION_OF_SHORT * rel_ci)
        begin = float(runs[0].begin.rounds)
        whole = settled(graph, [one.opened for one in runs], totals)
        whole = runs[0].run.trace_on(whole, graph.span)
    return measures(graph, whole, ci_fraction=ci, runs=len(runs), transient_rounds=begin)


class _LongRun:
    """A run, and the totals up to some rounds of it."""

    def __init__(self, run: Simulation) -> None:
        self.run = run
        self._ends: list[Totals] = []

    def opened(self) -> Simulation:
        """Return the run."""
        return self.run

    def mark(self) -> None:
        """Keep the totals so far."""
        self._ends.append(self.run.totals())

    @property
    def rates(self) -> list[float]:
        """Iterations per second between the ends."""
        graph = self.run.graph
        return [(b - a).iterations_per_s(graph) for a, b in itertools.pairwise(self._ends)]

    @property
    def begin(self) -> Totals:
        """The totals at about a quarter of the rounds."""
        return [end for end in self._ends if 3 * end.rounds <= self._ends[-1].rounds][-1]

    @property
    def measured(self) -> Totals:
        """The totals without those rounds."""
        return self._ends[-1] - self.begin
