"""Intervals of a source without any other fit, learnt from errors for other DNNs.

Runs whose group names share their first word are of one kind. A fit without a DNN, or another
workload, serves the runs of that DNN; the fit to all runs of a kind serves unseen ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from benchmarks.accuracy.cases import Run
from perfmodel import predict
from perfmodel.calibration.residuals import PredictedRun, residual_calibration
from perfmodel.inputs.calibration import Calibration


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
