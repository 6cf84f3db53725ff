"""Intervals of a source to which nothing else is fitted: how far predictions of other DNNs are off.

The runs of a group, by the first word of its name, are of one kind; a fit without a DNN, or any
other workload, is for the runs of that one, and the fit to all of a kind for those never seen.
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
    """The calibrations of each kind: of all its runs, and without those of each DNN."""
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
    """The run, on a cluster with the calibration that does not know it, if there is one."""
    kind = kind_of(run)
    fit = fits.get(f"{kind} without {run.job.workload.name}", fits.get(kind))
    cluster = msgspec.structs.replace(run.job.cluster, calibration=fit)
    return replace(run, job=msgspec.structs.replace(run.job, cluster=cluster))


def kind_of(run: Run) -> str:
    """Kind of a run: the second part of the group's name, up to the first underscore."""
    return run.group.split("/")[1].partition("_")[0]
