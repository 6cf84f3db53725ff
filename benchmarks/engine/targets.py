"""Targets for the measurements."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan

from benchmarks.engine.measure import Run
from benchmarks.engine.tasks import TASKS

Runs = dict[str, Run]
"""By simulator."""
Best = dict[tuple[str, int], Runs]
"""By task and number of workers."""

PREDICT = "predict"
RACKS = ("racks", 512)

NOTHING = Run(nan, nan, nan, nan)
AGREED = {
    "ps_fifo": 1e-9,
    "ps_burst": 1e-9,
    "ps_iter": 1e-9,
    "ps_layers": 1e-9,
    "racks": 1e-6,
    "ring": 1e-9,
    "ring-folded": 1e-3,
}
"""Maximum relative error of any simulator's makespan, by task."""
LARGE = 100_000
"""Minimum number of ops for which the build speed counts."""


@dataclass(frozen=True)
class Target:
    """``measured`` must be at most, or at least, ``bound``; NaN: not measured."""

    text: str
    measured: float
    relation: str
    bound: float

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if unknown."""
        if isnan(self.measured):
            return None
        if self.relation == "<=":
            return self.measured <= self.bound
        return self.measured >= self.bound


def errors(task: str, n: int, runs: Runs) -> dict[str, float]:
    """Return the relative error of each simulator's makespan; NaN for the one that gives the
    correct value.

    The correct value is known in advance, or comes from the reference, or from SimGrid.
    """
    known, judge = TASKS[task].known_s(n), ""
    for judge in ("reference", "simgrid") if isnan(known) else ():
        if judge in runs:
            known = runs[judge].makespan_s
            break
    found = {tool: abs(run.makespan_s / known - 1.0) for tool, run in runs.items()}
    return found | ({judge: nan} if judge in found else {})


def targets(best: Best, deviation: float) -> list[Target]:
    """Return all targets; ``deviation`` is that of the end times of ``racks`` from SimGrid's."""

    def run(task: str, n: int, tool: str = "perfmodel") -> Run:
        return best.get((task, n), {}).get(tool, NOTHING)

    def times(task: str, n: int, tool: str, bound: float) -> Target:
        ratio = run(task, n, tool).simulate_s / run(task, n).simulate_s
        return Target(f"{task} {n}: times as fast as {tool}", ratio, ">=", bound)

    def sends_per_s(n: int, tool: str) -> float:
        return TASKS["ring"].ops(n) / run("ring", n, tool).simulate_s

    def error(task: str) -> float:
        cases = [(n, runs) for (name, n), runs in best.items() if name == task]
        found = [error for n, runs in cases for error in errors(task, n, runs).values()]
        return max((error for error in found if not isnan(error)), default=nan)

    speeds = [
        task.ops(n) / best[name, n]["perfmodel"].build_s / 1e6
        for name, task in TASKS.items()
        for n in task.sizes
        if task.ops(n) >= LARGE and "perfmodel" in best.get((name, n), {})
    ]
    folded = run("ring-folded", 1024)
    growth = run("ps_iter", 4096).simulate_s / run("ps_iter", 512).simulate_s
    whole = run(PREDICT, 64)
    return [
        times("ps_iter", 64, "reference", 8),
        times("ps_iter", 512, "reference", 8),
        times("ps_iter", 64, "simgrid", 25),
        times("ps_iter", 512, "simgrid", 200),
        times("ps_burst", 512, "simgrid", 3),
        times("racks", 512, "simgrid", 3),
        Target("ps_iter: time at 4096 over time at 512", growth, "<=", 12),
        Target("ps_iter 4096: peak memory, MB", run("ps_iter", 4096).peak_mb, "<=", 500),
        Target(
            "ring: sends/s at 256 over those of the reference at 16",
            sends_per_s(256, "perfmodel") / sends_per_s(16, "reference"),
            ">=",
            5,
        ),
        Target(
            "ring-folded 1024: build and simulate, s", folded.build_s + folded.simulate_s, "<=", 0.1
        ),
        Target("build: million ops/s, slowest large graph", min(speeds, default=nan), ">=", 2),
        Target("predict: wall time, s", whole.simulate_s, "<=", 2),
        Target("predict: peak memory, MB", whole.peak_mb, "<=", 300),
        *(
            Target(f"{task}: largest error of a makespan", error(task), "<=", bound)
            for task, bound in AGREED.items()
        ),
        Target("racks 512: largest error of an end", deviation, "<=", AGREED["racks"]),
    ]
