"""Intervals of a source without any other fit, learnt from errors for other DNNs.

Runs whose group names share their first word are of one kind. A fit without a DNN, or another
workload, serves the runs of that DNN; the fit to all runs of a kind serves unseen ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from benchmarks.accuracy.cases import Run
from perfmodel import predict
from perfmodel.base.errors import InputError
from perfmodel.base.uncertainty import COVERAGE, WIDTH
from perfmodel.inputs.calibration import Calibration, Feature
from perfmodel.inputs.job import Job
from perfmodel.predicting.intervals import DOUBLING, features_of
from perfmodel.results.prediction import Prediction

LEAST, MOST = 0.005, 10.0
"""Smallest and largest spread."""

GROWING: tuple[Feature, ...] = ("workers", "servers", "bandwidth_bytes_per_s")
"""Features beyond whose range the spread grows, at the rate assumed for all jobs
(:data:`perfmodel.predicting.intervals.DOUBLING`)."""


class PredictedRun(msgspec.Struct, frozen=True):
    """A measured run of a ``source``, such as a DNN; runs of the same source are alike."""

    source: str
    job: Job
    prediction: Prediction
    step_s: float

    @property
    def miss(self) -> float:
        """Logarithm of measured over predicted step time."""
        return math.log(self.step_s / self.prediction.iteration_s)


def residual_calibration(runs: Sequence[PredictedRun]) -> Calibration:
    """The most likely spread of measured around predicted step times, and the features' ranges.

    The difference between repeated runs, as predicted, comes in addition. The fewer sources the
    spread was learnt from, the wider it is, by Student's t with that many degrees of freedom. Each
    source has the same weight, however many runs it has.

    Raises
    ------
    InputError : there are no runs.
    """
    from scipy import optimize, stats

    if not runs:
        raise InputError("calibration: needs at least one measured run")
    misses = np.array([run.miss for run in runs])
    known = np.array([_chance(run.prediction) for run in runs])
    counts = Counter(run.source for run in runs)
    weights = np.array([1.0 / counts[run.source] for run in runs])

    def cost(log_spread: float) -> float:
        variance = known**2 + math.exp(2.0 * log_spread)
        return float((weights * (np.log(variance) + misses**2 / variance)).sum())

    best = optimize.minimize_scalar(cost, bounds=(math.log(LEAST), math.log(MOST)))
    sources = len({run.source for run in runs})
    wider = float(stats.t.ppf(0.5 + COVERAGE / 2.0, sources)) / WIDTH
    features = [features_of(run.job) for run in runs]
    ranges: dict[str, tuple[float, float]] = {
        name: (float(min(values)), float(max(values)))
        for name in GROWING
        if len(values := [each[name] for each in features if name in each]) > 0
    }
    return Calibration(
        spread=round(math.exp(best.x) * wider, 6),
        ranges=ranges,
        growth=dict.fromkeys(ranges, DOUBLING),
        rows=len(runs),
    )


def _chance(prediction: Prediction) -> float:
    interval = prediction.interval
    return 0.0 if interval is None else interval.parts.measurement


def learnt(runs: Iterable[Run]) -> dict[str, Calibration]:
    """Return the calibrations of each kind: from all its runs, and without those of each DNN."""
    kinds: dict[str, list[PredictedRun]] = {}
    for run in runs:
        if run.step_s is not None:
            answer = predict(run.job, run_iterations=run.iterations)
            one = PredictedRun(run.job.workload.name, run.job, answer, run.step_s)
            kinds.setdefault(kind_of(run), []).append(one)
    found = {}
    for kind, some in sorted(kinds.items()):
        found[kind] = residual_calibration(some)
        for name in sorted({one.source for one in some}):
            if others := [one for one in some if one.source != name]:
                found[f"{kind} without {name}"] = residual_calibration(others)
    return found


def calibrated(run: Run, fits: Mapping[str, Calibration]) -> Run:
    """Return the run, on a cluster with a calibration that excludes it, if there is one."""
    kind = kind_of(run)
    fit = fits.get(f"{kind} without {run.job.workload.name}", fits.get(kind))
    cluster = msgspec.structs.replace(run.job.cluster, calibration=fit)
    return replace(run, job=msgspec.structs.replace(run.job, cluster=cluster))


def kind_of(run: Run) -> str:
    """Return the kind of a run: the second part of the group's name, up to the first underscore."""
    return run.group.split("/")[1].partition("_")[0]
