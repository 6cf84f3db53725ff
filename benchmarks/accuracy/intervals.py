"""``python -m benchmarks.accuracy.intervals PATH``: learn the unexplained errors of predictions.

Predicts measured runs to which nothing was fitted: those of the testbed, with its measured network,
and with nominal links the shipped cases of others, and DLPerf's table with the default options of a
ring. PATH is the folder that holds the folders of both. Prints the constants of
``perfmodel.predicting.intervals``, and how many runs lie in intervals that were learnt without any
run of their source (for the testbed: of their DNN; for DLPerf: of their framework).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np
from scipy import optimize, stats

from benchmarks.accuracy import dlperf, testbed
from benchmarks.accuracy.residuals import PredictedRun
from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.base.uncertainty import COVERAGE, WIDTH
from perfmodel.predicting.intervals import JobKind, Learnt, kind_of, step_interval, uncertainty
from perfmodel.validation import shipped_cases

SEVERAL = 8
"""Number of sources from which both sides of the residuals are told apart."""

LEAST = 0.005
"""Minimum standard deviation, so that a few runs that fit well do not promise too much."""


def runs(folder: Path) -> list[PredictedRun]:
    """Return all runs, predicted."""
    found = []
    jobs = [
        (f"testbed, {run.job.workload.name}", run.job, run.step_s or 0.0)
        for run in testbed.runs(folder / testbed.ABOUT.folder)
    ]
    nominal = dlperf.nominal_jobs(folder / dlperf.ABOUT.folder)
    jobs += [(f"dlperf, {name}", job, step_s) for name, job, step_s in nominal]
    found += [PredictedRun(name, job, api.predict(job), step_s) for name, job, step_s in jobs]
    for case in shipped_cases():
        if kind_of(case.job).network == "nominal" and case.group != "dlperf":
            samples = case.job.workers * case.job.workload.batch_size
            rate = case.measured.samples_per_s
            measured_s = case.measured.step_s if rate is None else samples / rate
            if measured_s is not None:
                found.append(PredictedRun(case.group, case.job, api.predict(case.job), measured_s))
    return found


def learn(some: Sequence[PredictedRun]) -> Learnt:
    """Return the most likely a, b and c of runs of one kind, widened for few sources.

    Predictions are medians, so each half of the misses tells the spread on its side. Runs of one
    source are correlated, so there are only as many independent runs as sources: each source has
    the same weight, and a and b grow by Student's factor for that many degrees of freedom.
    """
    misses = np.array([run.miss for run in some])
    waiting = np.array([run.prediction.idle_fraction.mean for run in some])
    nothing = Learnt(0.0, 0.0, 1.0, len(some), max(run.job.workers for run in some))
    known = np.array([uncertainty(r.job, r.prediction, nothing).total for r in some])
    sources = [run.source for run in some]
    weight = np.array([1.0 / sources.count(name) for name in sources])

    def cost(x: np.ndarray) -> float:
        always, more, below = np.exp(x)
        spread = np.where(misses < 0.0, below, 1.0) * always
        variance = known**2 + spread**2 + (more * waiting) ** 2
        return float(np.sum(weight * (np.log(variance) + misses**2 / variance)))

    starts = [[math.log(a), math.log(b), 0.0] for a, b in ((0.02, 0.1), (0.1, 0.02), (0.05, 0.05))]
    least = math.log(0.05) if len(set(sources)) >= SEVERAL else 0.0
    bounds = [(math.log(LEAST), 0.0)] * 2 + [(least, 0.0)]
    best = min((optimize.minimize(cost, s, bounds=bounds) for s in starts), key=lambda r: r.fun)
    few = stats.t.ppf(0.5 + COVERAGE / 2.0, max(len(set(sources)) - 1, 1)) / WIDTH
    always, more = np.exp(best.x[:2]) * few
    return nothing._replace(
        always=float(always), waiting=float(more), below=float(np.exp(best.x[2]))
    )


def covered(some: Sequence[PredictedRun]) -> Mapping[str, tuple[int, int]]:
    """Return, by source, the runs inside the intervals learnt from the other sources, and all
    runs."""
    found = {}
    for source in dict.fromkeys(run.source for run in some):
        others = [run for run in some if run.source != source]
        own = [run for run in some if run.source == source]
        if not others:
            continue
        learnt = learn(others)
        inside = 0
        for run in own:
            low, high = step_interval(run.job, run.prediction, learnt)
            inside += low <= run.step_s <= high
        found[source] = (inside, len(own))
    return found


def shared(some: Sequence[PredictedRun]) -> float:
    """Return the fraction of the residual variance that runs of one source share, 0 if they differ
    as much as any runs. It is the correlation of the errors of two predictions of a source, for
    :data:`perfmodel.predicting.gains.SHARED`."""
    by_source: dict[str, list[float]] = {}
    for run in some:
        by_source.setdefault(run.source, []).append(run.miss)
    pairs = [
        (a - b) ** 2 / 2.0
        for misses in by_source.values()
        for a, b in itertools.combinations(misses, 2)
    ]
    variance = float(np.var([run.miss for run in some]))
    return max(1.0 - float(np.mean(pairs)) / variance, 0.0) if pairs and variance else 0.0


@click.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(path: Path) -> None:
    """Learn the errors of predictions from measured runs."""
    by_kind: dict[JobKind, list[PredictedRun]] = {}
    for run in runs(path):
        by_kind.setdefault(kind_of(run.job), []).append(run)
    for kind, some in by_kind.items():
        learnt = learn(some)
        misses = np.median([run.miss for run in some])
        click.echo(
            f"{kind}: median {misses:+.3f}, always {learnt.always:.3f}, "
            f"waiting {learnt.waiting:.3f}, below {learnt.below:.3f} "
            f"shared {shared(some):.2f} "
            f"({learnt.runs} runs of up to {learnt.workers} workers)"
        )
        for source, (inside, count) in covered(some).items():
            click.echo(f"    {source:28} {inside:3} of {count:3} in the intervals of the others")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
