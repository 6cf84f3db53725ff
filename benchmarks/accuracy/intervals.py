"""``python -m benchmarks.accuracy.intervals PATH``: what predictions leave unexplained.

Predicts measured runs to which nothing was fitted: those of the testbed in the folder PATH, where
the network was measured, and the shipped cases of others, from nominal links. Prints the constants
that ``perfmodel.intervals`` has, and how many runs lie in intervals that were learnt without any
run of their source (of the testbed: of their DNN).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from scipy import optimize

from benchmarks.accuracy import testbed
from perfmodel import api
from perfmodel.errors import InputError
from perfmodel.intervals import Kind, Learnt, kind_of, uncertainty
from perfmodel.job import Job
from perfmodel.prediction import Prediction
from perfmodel.validation import shipped_cases

LEAST = 0.005
"""Standard deviation that is taken for granted, lest few runs that fit well promise too much."""


class Run(NamedTuple):
    """A measured run: where it is from, its job, its prediction, and its measured step."""

    source: str
    job: Job
    prediction: Prediction
    measured_s: float

    @property
    def miss(self) -> float:
        """Logarithm of measured over predicted."""
        return math.log(self.measured_s / self.prediction.iteration_s)


def runs(folder: Path) -> list[Run]:
    """All runs, predicted."""
    found = []
    for name, job, step_s in testbed.jobs(folder):
        found.append(Run(f"testbed, {name}", job, api.predict(job), step_s))
    for case in shipped_cases():
        if kind_of(case.job).network == "nominal":
            samples = case.job.workers * case.job.workload.batch_size
            rate = case.measured.samples_per_s
            step_s = case.measured.step_s if rate is None else samples / rate
            if step_s is not None:
                found.append(Run(case.group, case.job, api.predict(case.job), step_s))
    return found


def learn(some: Sequence[Run]) -> Learnt:
    """The most likely a and b of runs of one kind."""
    misses = np.array([run.miss for run in some])
    waiting = np.array([run.prediction.idle_fraction.mean for run in some])
    nothing = Learnt(0.0, 0.0, len(some), max(run.job.workers for run in some))
    known = np.array([uncertainty(r.job, r.prediction, nothing).total for r in some])

    def cost(logs: np.ndarray) -> float:
        always, more = np.exp(logs)
        variance = known**2 + always**2 + (more * waiting) ** 2
        return float(np.sum(np.log(variance) + misses**2 / variance))

    starts = [np.log([0.02, 0.1]), np.log([0.1, 0.02]), np.log([0.05, 0.05])]
    bounds = [(math.log(LEAST), 0.0)] * 2
    best = min((optimize.minimize(cost, s, bounds=bounds) for s in starts), key=lambda r: r.fun)
    always, more = np.exp(best.x)
    return Learnt(float(always), float(more), nothing.runs, nothing.workers)


def covered(some: Sequence[Run]) -> Mapping[str, tuple[int, int]]:
    """By source: runs inside the intervals learnt from the other sources, and all of them."""
    found = {}
    for source in dict.fromkeys(run.source for run in some):
        others = [run for run in some if run.source != source]
        own = [run for run in some if run.source == source]
        if not others:
            continue
        learnt = learn(others)
        inside = 0
        for run in own:
            parts = uncertainty(run.job, run.prediction, learnt)
            low, high = parts.interval(run.prediction.iteration_s)
            inside += low <= run.measured_s <= high
        found[source] = (inside, len(own))
    return found


@click.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(path: Path) -> None:
    """Learn how far predictions are off from the testbed in PATH and from the shipped cases."""
    by_kind: dict[Kind, list[Run]] = {}
    for run in runs(path):
        by_kind.setdefault(kind_of(run.job), []).append(run)
    for kind, some in by_kind.items():
        learnt = learn(some)
        click.echo(
            f"{kind}: always {learnt.always:.3f}, waiting {learnt.waiting:.3f} "
            f"({learnt.runs} runs of up to {learnt.workers} workers)"
        )
        for source, (inside, count) in covered(some).items():
            click.echo(f"    {source:28} {inside:3} of {count:3} in the intervals of the others")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
