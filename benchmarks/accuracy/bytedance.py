"""Idleness of data-parallel groups: from the end of a worker's computation to the slowest's.

Lin et al., "Understanding stragglers in large model training using what-if analysis", OSDI 2025:
traces of production jobs with pipelines of ``pp`` stages, each a data-parallel group of ``dp``
workers. The folder holds ``trace-NAME.csv.gz``: one operation per row, with ``dp_rank``, ``stage``,
``step``, ``optype``, ``start_ts`` and ``duration`` (s).

In a step a worker is *idle* from the end of its last backward computation to the end of the last
one in its group, because only then can gradients be summed. Its idleness is this time as a fraction
of the step. The workers of a stage are a synchronous job. The mean compute time of each worker, and
its spread about the mean of the group, come from the first half of the steps; the second half is
predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pandas as pd

import perfmodel as pm
from benchmarks.accuracy import fitted
from benchmarks.accuracy.cases import Case, Run, about, predicted

ABOUT = about("bytedance")

COLUMNS = ["dp_rank", "stage", "step", "optype", "start_ts", "duration"]
COMPUTING = ["forward-compute", "backward-compute"]

NO_NETWORK = pm.Cluster(
    name="no network",
    nic=pm.Link(1e15),
    source=pm.Source("measured", "all that a step has is in the workers' times"),
)


class StageFit(msgspec.Struct, frozen=True):
    """``step_s`` of each worker by ``steps``: its computation, and the common time after the
    slowest; ``jitter`` is its coefficient of variation about the mean of the group."""

    rows: int
    steps: list[int]
    step_s: list[float]
    jitter: float


def cases(folder: Path) -> list[Case]:
    """Return the idleness of each worker of each trace, in steps outside the fit."""
    fits = fitted.read("bytedance", StageFit)
    found = []
    for name, stage, steps in stages(folder):
        fit = fits.get(f"{name} stage {stage}")
        later = steps[~steps["step"].isin(fit.steps)] if fit is not None else steps[:0]
        if fit is None or later.empty:
            click.echo(f"left out, no fit to other steps: {name} stage {stage}", err=True)
            continue
        slowest = later.groupby("step")["computed_s"].transform("max")
        idle = ((slowest - later["computed_s"]) / later["step_s"]).groupby(later["dp_rank"]).mean()
        found.append(
            Run(
                group=f"bytedance/half/{name}",
                name=f"stage {stage}",
                job=job_of(fit),
                worker_idle=tuple(float(x) for x in idle),
                iterations=later["step"].nunique(),
                pools=("bytedance/half",),
                others={"no idleness": 0.0},
            )
        )
    return predicted(found)


def fit(folder: Path) -> None:
    """Store the fits to the first half of the steps of each trace."""
    entries = {}
    for name, stage, steps in stages(folder):
        numbers = sorted(int(step) for step in steps["step"].unique())
        first = numbers[: len(numbers) // 2]
        if len(first) < 2:
            click.echo(f"left out, too few steps: {name} stage {stage}", err=True)
            continue
        entries[f"{name} stage {stage}"] = _fit(steps[steps["step"].isin(first)], first)
    fitted.write("bytedance", entries)


def _fit(steps: pd.DataFrame, first: list[int]) -> StageFit:
    times = steps.pivot(index="step", columns="dp_rank", values="computed_s").dropna()
    count, workers = times.shape
    whole = times + (steps.groupby("step")["step_s"].max() - times.T.max()).mean()
    relative = (whole.T / whole.T.mean()).T
    own = relative.mean()
    freedom = max((count - 1) * (workers - 1), 1)
    variance = float(((relative - own) ** 2).to_numpy().sum()) / freedom
    between = float(own.var(ddof=1)) if workers > 1 else 0.0
    kept = max(0.0, 1.0 - variance / count / between) if between > 0.0 else 0.0
    step_s = float(whole.to_numpy().mean()) * (1.0 + kept * (own - 1.0))
    each = [fitted.rounded(float(x)) for x in step_s]
    return StageFit(len(steps), first, each, fitted.rounded(math.sqrt(variance)))


def job_of(fit: StageFit) -> pm.Job:
    """Return workers that compute for a whole step, and sum gradients in zero time."""
    mean_s = sum(fit.step_s) / len(fit.step_s)
    return pm.make_job(
        workload=pm.Workload.of("stage", [pm.WorkloadLayer("all", 0.0, mean_s, (1.0,))]),
        cluster=NO_NETWORK,
        workers=len(fit.step_s),
        arch="ring",
        jitter=pm.Jitter(fit.jitter),
        stragglers=[pm.Straggler(k, x / mean_s) for k, x in enumerate(fit.step_s)],
    )


def stages(folder: Path) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Yield each trace's name, and a row per step and worker of a stage: ``computed_s``, the end of
    its last computation, and ``step_s``, the length of the step."""
    paths = sorted(folder.glob("trace-*.csv*"))
    if not paths:
        raise pm.InputError(f"{folder}: no trace (trace-*.csv.gz)")
    for path in paths:
        name = path.name.removeprefix("trace-").partition(".")[0]
        try:
            rows = pd.read_csv(path, usecols=COLUMNS)
        except (ValueError, OSError) as error:
            raise pm.InputError(f"{path}: cannot read: {error}") from None
        rows["end_s"] = rows["start_ts"] + rows["duration"]
        by_step = rows.groupby("step")
        begin_s, end_s = by_step["start_ts"].min(), by_step["end_s"].max()
        computing = rows[rows["optype"].isin(COMPUTING)]
        ends = computing.groupby(["step", "stage", "dp_rank"])["end_s"].max().reset_index()
        ends["computed_s"] = ends["end_s"] - ends["step"].map(begin_s)
        ends["step_s"] = ends["step"].map(end_s - begin_s)
        for stage, found in ends.groupby("stage"):
            yield name, int(str(stage)), found
