"""Simulates a graph from several starts, which go on for as long as the interval needs."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Self

import numpy as np

from perfmodel.engine.measures import Measures, Totals, measures
from perfmodel.engine.progress import RESOLUTION_OF_SHORT, saturated, short_runs
from perfmodel.engine.run import Simulation, at_once
from perfmodel.engine.staleness import settled
from perfmodel.engine.state import forget_gap
from perfmodel.engine.steady import AT_EACH_LOOK, ci_fraction
from perfmodel.engine.tracing import recorded
from perfmodel.graph.op_graph import OpGraph

if TYPE_CHECKING:
    from perfmodel.engine.warmup import Pilot, Progress

FEWEST_RUNS, RUNS_OF_NOISY, MOST_RUNS = 6, 8, 32
"""Number of runs, with different starts, of a job whose workers start at random times: minimum;
number after which the runs of a random job are made longer instead; maximum."""

FEWEST_RUNS_OF_MANY, RUNS_OF_MANY = 2, 6
"""The same of a job with so many workers that its pilots are short: minimum, and number after which
its runs are made longer."""

FEWEST_WIDE = 4
"""Minimum number of runs if their interval is wider than requested."""

RESOLUTION = 0.1
"""Lower limit of a random job's interval, as a fraction of ``rel_ci``: the run may miss rare
patterns. That of short runs of many workers is higher."""

PRECISION_OPS_OF_MANY, PRECISION_OPS, USUAL_CI = 8_000_000, 24_000_000, 0.01
"""Operations after which runs of a job with many workers, and those of others, end if the interval
may be this wide, and more for narrower ones. Some jobs alternate for thousands of rounds; their
interval stays wider than requested."""

MOST_ROUNDS = 32768
"""Maximum rounds of runs whose confidence interval stays wider than requested."""

LONGER, MUCH_LONGER = 2.0, 4.0
"""Least and largest factor by which runs are made longer at once."""

AT_ONCE = 5
"""Most starts whose pilots run at the same time."""

LATER = 8
"""If runs are extended to some number of rounds, about one in LATER of these is added to the
warm-up."""

KEPT_OPS = 2_000_000
"""Operations of all runs that stay in memory until they are made longer: about 1 GB. Others are
repeated."""


def from_many_starts(
    graph: OpGraph, seed: int, rel_ci: float, progress: Progress | None, compiled: bool | None
) -> Measures:
    """Run from different starts; make runs longer if randomness within them adds to the spread."""
    with _Starts(graph, seed, rel_ci, compiled) as starts:
        while True:
            starts.add(progress)
            if starts.ci <= rel_ci or not graph.noisy or not starts.extend():
                break
        runs, short = starts.runs, short_runs(graph)
        return measures(
            graph,
            starts.traced(),
            ci_fraction=max(starts.ci, (RESOLUTION_OF_SHORT if short else RESOLUTION) * rel_ci)
            + float(np.mean([run.pilot.loss for run in runs]))
            + abs(float(np.mean([run.pilot.drift for run in runs]))),
            runs=len(runs),
            transient_rounds=float(np.mean([run.pilot.transient_rounds for run in runs])),
        )


class _Start:
    """A run from one start, which can be continued.

    Attributes
    ----------
    run : the simulation, while it is in memory.
    pilot, totals : its pilot, and the totals after the warm-up.
    """

    pilot: Pilot
    totals: Totals

    def __init__(self, graph: OpGraph, seed: int, compiled: bool | None) -> None:
        self._how = graph, seed, compiled
        self._ends: list[Totals] = []
        self.run: Simulation | None = None

    def begin(self, rel_ci: float, least_spans: int, rounds: int, *, settle: bool) -> None:
        """Run the pilot; go on for ``rounds`` after it if it is shorter."""
        from perfmodel.engine.warmup import warm_up

        run = self.opened()
        self.pilot = warm_up(run, rel_ci, least_spans, None, settle=settle)
        self._ends = [self.pilot.begin, run.totals()]
        self.totals = self._ends[1] - self._ends[0]
        if rounds:
            self.extend(rounds)

    @property
    def rounds(self) -> int:
        """Rounds so far, with the warm-up."""
        return self._ends[-1].rounds

    def extend(self, rounds: int) -> None:
        """Continue until there are so many rounds after the pilot's warm-up. The measured part
        begins where the run had ended before, but not after one in LATER of these rounds."""
        run, first = self.continued(), self.pilot.begin.rounds
        run.advance(max(self.rounds, first + rounds))
        later = first + rounds // LATER  # with little jitter, the order of workers changes slowly
        begin = max((end for end in self._ends if end.rounds <= later), key=lambda end: end.rounds)
        self._ends.append(run.totals())
        self.totals = self._ends[-1] - begin

    def trace_on(self, totals: Totals) -> Totals:
        """Return ``totals`` with the critical paths of further rounds, if they have too few and the
        simulation is in memory, or if they have none; the last thing that is done with a run."""
        if self.run is None and totals.walks == 0:
            self.continued()
        return totals if self.run is None else self.run.trace_on(totals, self.run.span)

    def opened(self) -> Simulation:
        """Return the simulation, from its beginning if it is not in memory."""
        if self.run is None:
            graph, seed, compiled = self._how
            self.run = Simulation(graph, seed, compiled, depth=recorded(graph), steady=True)
        return self.run

    def continued(self) -> Simulation:
        """Return the simulation where it ended, which is simulated again if it was closed."""
        run = self.opened()
        if run.rounds < self.rounds:
            run.advance(self.rounds)
            forget_gap(run.world)
        return run

    def close(self) -> None:
        """Free the memory of the simulation; the run can be continued nevertheless."""
        if self.run is not None:
            self.run.__exit__()
            self.run = None


class _Starts:
    """The runs of a graph from different starts, and the interval of their mean throughput."""

    def __init__(self, graph: OpGraph, seed: int, rel_ci: float, compiled: bool | None) -> None:
        self._graph, self._rel_ci, self._compiled = graph, rel_ci, compiled
        self._seeds = seeds(seed, MOST_RUNS)
        self._short = short_runs(graph)
        self._rounds = 0
        most = PRECISION_OPS_OF_MANY if self._short else PRECISION_OPS
        self._most = most * max(USUAL_CI / rel_ci, 1.0) ** 2 / float(graph.activity @ graph.turns)
        self.runs: list[_Start] = []
        self.ci = inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for run in self.runs:
            run.close()

    def add(self, progress: Progress | None) -> None:
        """Add as many runs as the interval needs, or fewer if they have to become longer anyway;
        one if many workers keep a resource busy all the time, so that other starts cannot be faster
        (decision 0097). The first waits for queues to settle; the others run at the same time, a
        few more than are needed if need be."""
        fewest = FEWEST_RUNS_OF_MANY if self._short else FEWEST_RUNS
        while self.ci > self._rel_ci and not self._enough():
            for run in self._begun(fewest):
                if self.ci <= self._rel_ci or self._enough():
                    run.close()
                    continue
                self.runs.append(run)
                enough = FEWEST_WIDE if self._spent > self._most else fewest
                if len(self.runs) >= min(enough, fewest):
                    self._look()
                elif self._short:
                    known = saturated(self._graph, run.totals, self._rel_ci)
                    self.ci = RESOLUTION_OF_SHORT * self._rel_ci if known else inf
                self._close_unkept([run])
                if progress is not None:
                    progress(len(self.runs), max(self._expected(fewest), len(self.runs)))

    def extend(self) -> bool:
        """Make all runs longer; return whether they may be."""
        length = sum(run.totals.rounds for run in self.runs) / len(self.runs)
        longest = MOST_ROUNDS // RUNS_OF_NOISY // 2
        left = length + (self._most - self._spent) / len(self.runs)
        longer = min(max((self.ci / self._rel_ci) ** 2, LONGER), MUCH_LONGER)
        rounds = round(min(longer * length, longest, left))
        if rounds <= max(self._rounds, length):
            return False
        self._rounds = rounds
        for first in range(0, len(self.runs), self._at_once):
            some = self.runs[first : first + self._at_once]
            at_once([run.opened() for run in some], [partial(run.extend, rounds) for run in some])
            self._close_unkept(some)
        self._look()
        return True

    def traced(self) -> Totals:
        """Return the totals of all runs, with settled staleness and enough critical paths."""
        parts = [run.totals for run in self.runs]
        whole = settled(self._graph, [run.continued for run in self.runs], parts)
        for run in () if self._short and whole.walks else self.runs:
            whole = run.trace_on(whole)
        return whole

    def _begun(self, fewest: int) -> list[_Start]:
        """Return further runs after their pilots: the first, the others that there are at least, or
        some that the interval probably needs."""
        count = len(self.runs)
        most = 1
        if count:
            affordable = max(int(self._most * count / self._spent) + 1, FEWEST_WIDE)
            most = min(self._expected(fewest), self._most_runs(), affordable)
        room = self._at_once - sum(run.run is not None for run in self.runs)
        more = max(min(most - count, AT_ONCE, room), 1)
        chosen = self._seeds[count : count + more]
        runs = [_Start(self._graph, seed, self._compiled) for seed in chosen]
        spans = self.runs[0].pilot.spans if count else 0
        begin = [
            partial(run.begin, self._rel_ci, spans, self._rounds, settle=not count) for run in runs
        ]
        at_once([run.opened() for run in runs], begin)
        return runs

    def _close_unkept(self, runs: list[_Start]) -> None:
        """Close these runs if all take more memory than may be kept."""
        if self._graph.n_ops * len(self.runs) > KEPT_OPS:
            for run in runs:
                run.close()

    @property
    def _at_once(self) -> int:
        """Most runs that fit into memory at the same time."""
        return max(KEPT_OPS // self._graph.n_ops, 1)

    @property
    def _spent(self) -> int:
        """Rounds of all runs."""
        return sum(run.rounds for run in self.runs)

    def _enough(self) -> bool:
        """Return whether no more runs may be added, but those that there are may become longer."""
        return len(self.runs) >= self._most_runs()

    def _most_runs(self) -> int:
        """Return after how many runs no more are added if the interval stays as wide as it is."""
        if self.ci < inf and self._spent > self._most:
            return FEWEST_WIDE
        if not self._graph.noisy:
            return MOST_RUNS
        if self._short:
            return RUNS_OF_MANY
        return RUNS_OF_NOISY if self.ci > 2.0 * self._rel_ci else MOST_RUNS

    def _expected(self, fewest: int) -> int:
        """Return how many runs there will probably be."""
        return (
            fewest
            if self.ci == inf
            else expected(len(self.runs), self.ci / self._rel_ci, MOST_RUNS)
        )

    def _look(self) -> None:
        self.ci = ci_of(self._graph, [run.totals for run in self.runs])


def expected(done: int, wider: float, most: int) -> int:
    """Estimate the total work for an interval that is currently ``wider`` times too wide."""
    if wider > 1e3:
        return min(2 * done, most)
    return min(max(round(done * wider**2), done + 1), most)


def ci_of(graph: OpGraph, runs: list[Totals]) -> float:
    """Return the half-width of the interval of the runs' mean throughput, relative to it."""
    rates = [one.iterations_per_s(graph) for one in runs]
    return ci_fraction(rates, AT_EACH_LOOK) if np.isfinite(rates).all() else 0.0


def seeds(seed: int, count: int) -> list[int]:
    """Return the seeds of a job's runs: its own, then seeds derived from it."""
    derived = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return [seed, *(int(s) for s in derived[1:])]
