"""Idleness of data-parallel groups: from when computation ends to when that of the slowest does.

Lin et al., "Understanding stragglers in large model training using what-if analysis", OSDI 2025:
traces of production jobs with pipelines of ``pp`` stages, each a data-parallel group of ``dp``
workers. The folder holds ``trace-NAME.csv.gz``: an operation a row, with ``dp_rank``, ``stage``,
``step``, ``optype``, ``start_ts`` and ``duration`` (s), ``mb_id`` of the microbatch, and ``mc`` of
the part of the model where a stage has several.

In a step a worker is *idle* from the end of its last backward computation to the end of the last
one in its group, for only then can gradients be summed. Its idleness is that as a part of the step,
from the trace's own clock, on average over steps. Two predictions:

- *replay*: of every step, from the durations of computation alone. Microbatches go through the
  pipeline in the order in which each worker took them; communication takes no time.
- *half*: of the second half of the steps, from the first. The time a worker takes for a step is
  that of the replay; its mean, and its spread about what the group takes, go into a synchronous
  job as stragglers and jitter, and the largest of n does the rest.

The fits of *half* are in ``fitted/bytedance.json``, by trace: a job's spread says nothing of
another's. A trace without a fit has a *replay* only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec
import numpy as np
import pandas as pd

from benchmarks.accuracy import fitted
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel import (
    Cluster,
    Jitter,
    Link,
    Source,
    Straggler,
    Workload,
    WorkloadLayer,
    make_job,
    predict,
)
from perfmodel.base.errors import InputError
from perfmodel.base.uncertainty import WIDTH
from perfmodel.inputs.job import Job

ABOUT = About(
    title="Idleness in production pipelines",
    citation="J. Lin et al., OSDI 2025; traces on GitHub, ByteDance-Seed/StragglerAnalysis",
    folder="bytedance_stragglers",
    splits={
        "replay": Split(
            "nothing: the durations of computation in the same steps are given",
            "idleness of every worker in its data-parallel group",
        ),
        "half": Split(
            "durations of computation, and length of the steps, in the first half of the steps",
            "idleness of every worker in its data-parallel group, in the second half",
        ),
    },
    remarks="""\
A worker is idle from the end of its last backward computation to that of the slowest worker of its
stage. *replay* puts given durations together, with dependencies between stages and without
communication; *half* knows the first half of the steps only, and predicts with stragglers and
jitter of a synchronous job.

What differs between workers of one step is what makes them wait; what all have in common (a longer
step) does not. So jitter is the spread about the mean of the group. Persistent differences between
workers are kept as far as they are more than chance.

*Worst cases*: *half* in the job with imbalanced sequence lengths (SE). Chance alone makes the mean
of a worker over the second half uncertain by 2 points; on top, its workers wait 2 to 3 points
longer than the first half suggests.

*Not covered*: waiting for other stages inside the pipeline, since a bubble is not idleness of the
group; *half* for jobs that nothing was fitted to.""",
)

OPERATIONS = {"forward-compute": "forward", "backward-compute": "backward"}
COLUMNS = ["dp_rank", "stage", "step", "optype", "start_ts", "duration", "mb_id"]
NO_TIME_BYTES_PER_S = 1e15
"""Of a link over which gradients take no time."""

Operation = tuple[str, int, int]
"""What it does, part of the model in order of forward, microbatch."""

Worker = tuple[int, int]
"""Stage, and place in its data-parallel group."""


class Group(msgspec.Struct, frozen=True):
    """Workers of one stage: ``computing_s`` of each in a step; see the module.

    ``jitter`` coefficient of variation about the mean of the group, ``rest_s`` of a step after the
    slowest worker's computation, ``spread`` standard deviation of one worker's idleness from step
    to step.
    """

    computing_s: dict[int, float]
    jitter: float
    rest_s: float
    spread: float


class TraceFit(msgspec.Struct, frozen=True):
    """Of a trace: the steps it was fitted to, and its stages."""

    rows: int
    steps: list[int]
    stages: dict[int, Group]


def cases(folder: Path) -> list[Case]:
    """Idleness of each worker of each trace."""
    fits = fitted.read("bytedance", TraceFit)
    found = []
    for name, steps in traces(folder):
        found += _cases("replay", name, steps, _replayed(steps), {})
        if name not in fits:
            click.echo(f"no fit, replay only: {name}", err=True)
            continue
        later = steps[~steps["step"].isin(fits[name].steps)]
        if len(later):
            found += _cases(
                "half", name, later, dict(_expected(fits[name])), _chance(fits[name], later)
            )
    return found


def fit(folder: Path) -> None:
    """Write down the fits to the first half of the steps of each trace."""
    entries = {}
    for name, steps in traces(folder):
        numbers = sorted(int(step) for step in steps["step"].unique())
        first = numbers[: len(numbers) // 2]
        if len(first) < 2:
            click.echo(f"too few steps, left out: {name}", err=True)
            continue
        known = steps[steps["step"].isin(first)]
        stages = {
            int(stage): _group(known[known["stage"] == stage])
            for stage in sorted(known["stage"].unique())
        }
        entries[name] = TraceFit(rows=len(known), steps=first, stages=stages)
    fitted.write("bytedance", entries)


# -- traces ----------------------------------------------------------------------------------------


def traces(folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each trace's name and its steps, a row for each worker of each: see :func:`steps_of`.

    Raises
    ------
    InputError : there is none, or one cannot be read.
    """
    paths = sorted(folder.glob("trace-*.csv.gz")) + sorted(folder.glob("trace-*.csv"))
    if not paths:
        raise InputError(f"{folder}: no trace (trace-*.csv.gz)")
    for path in paths:
        name = path.name.removeprefix("trace-").partition(".")[0]
        try:
            rows = pd.read_csv(path, usecols=lambda c: c in [*COLUMNS, "mc", "rank"])
        except (ValueError, OSError) as error:
            raise InputError(f"{path}: cannot read: {error}") from None
        missing = [column for column in COLUMNS if column not in rows]
        if missing:
            raise InputError(f"{path}: no column {missing[0]}")
        yield name, steps_of(rows)


def steps_of(rows: pd.DataFrame) -> pd.DataFrame:
    """For each worker of each step: ``computed_s`` and ``replayed_s``, when its last computation
    ends by the clock and by the replay, and ``step_s``, the length of the step."""
    if "rank" in rows:  # of several devices with the same part of the model one stands for all
        rows = rows[rows["rank"] == rows.groupby(["stage", "dp_rank"])["rank"].transform("min")]
    rows = rows.assign(end_s=rows["start_ts"] + rows["duration"])
    by_step = rows.groupby("step")
    begin_s = by_step["start_ts"].min()
    computing = rows[rows["optype"].isin(list(OPERATIONS))].sort_values("start_ts", kind="stable")
    found = (
        computing.groupby(["step", "stage", "dp_rank"])["end_s"]
        .max()
        .rename("computed_s")
        .reset_index()
    )
    found["computed_s"] -= found["step"].map(begin_s)
    found["step_s"] = found["step"].map(by_step["end_s"].max() - begin_s)
    replays = {
        (step, stage, worker): end_s
        for (step, worker), some in computing.groupby(["step", "dp_rank"])
        for stage, end_s in replay(some).items()
    }
    keys = zip(found["step"], found["stage"], found["dp_rank"], strict=True)
    found["replayed_s"] = [replays.get(key, math.nan) for key in keys]
    unclear = found.loc[found["replayed_s"].isna(), "step"].unique()
    if len(unclear):
        click.echo(f"operations wait for each other, left out: {len(unclear)} steps", err=True)
    return found[~found["step"].isin(unclear)]


def replay(rows: pd.DataFrame) -> Mapping[int, float]:
    """When each stage of one pipeline ends (s), if it computes as soon as it can; nothing where
    operations wait for each other.

    A forward needs that of the stage before, a backward that of the stage behind, of the same
    microbatch; the last stage's backward needs its forward. Where the trace lacks what is needed,
    nothing is waited for. A device computes in the order in which it did.
    """
    stages = int(rows["stage"].max()) + 1
    virtual = rows.get("mc", 0) * stages + rows["stage"]
    last = int(virtual.max())
    queues: dict[int, list[tuple[Operation, float]]] = {}
    for stage, kind, place, microbatch, seconds in zip(
        rows["stage"], rows["optype"], virtual, rows["mb_id"], rows["duration"], strict=True
    ):
        operation = (OPERATIONS[kind], int(place), int(microbatch))
        queues.setdefault(int(stage), []).append((operation, float(seconds)))
    there = {operation for queue in queues.values() for operation, _ in queue}
    ended: dict[Operation, float] = {}
    now = dict.fromkeys(queues, 0.0)
    begun = dict.fromkeys(queues, 0)
    moving = True
    while moving:
        moving = False
        for stage, queue in queues.items():
            for operation, seconds in queue[begun[stage] :]:
                needed = _needed(operation, last)
                if needed in there and needed not in ended:
                    break
                now[stage] = max(now[stage], ended.get(needed, 0.0)) + seconds
                ended[operation] = now[stage]
                begun[stage] += 1
                moving = True
    return now if all(begun[stage] == len(queue) for stage, queue in queues.items()) else {}


def _needed(operation: Operation, last: int) -> Operation:
    kind, place, microbatch = operation
    if kind == "forward":
        return (kind, place - 1, microbatch)
    if place == last:
        return ("forward", place, microbatch)
    return (kind, place + 1, microbatch)


# -- idleness --------------------------------------------------------------------------------------


def _idle(steps: pd.DataFrame, column: str, length_s: pd.Series) -> pd.Series:
    """Part of each step in which each worker waits for the slowest of its group."""
    slowest = steps.groupby(["step", "stage"])[column].transform("max")
    return (slowest - steps[column]) / length_s


def _means(steps: pd.DataFrame, idle: pd.Series) -> dict[Worker, float]:
    """Idleness of each worker, on average over steps."""
    means = steps.assign(idle=idle).groupby(["stage", "dp_rank"])["idle"].mean().reset_index()
    columns = (means["stage"], means["dp_rank"], means["idle"])
    return {(int(k), int(rank)): float(x) for k, rank, x in zip(*columns, strict=True)}


def _replayed(steps: pd.DataFrame) -> dict[Worker, float]:
    """Idleness of each worker, if a step is as long as its slowest worker computes."""
    length_s = steps.groupby("step")["replayed_s"].transform("max")
    return _means(steps, _idle(steps, "replayed_s", length_s))


def _group(steps: pd.DataFrame) -> Group:
    """The fit to the steps of one stage."""
    times = steps.pivot(index="step", columns="dp_rank", values="replayed_s").dropna()
    count, workers = times.shape
    relative = (times.T / times.T.mean()).T
    own = relative.mean()
    freedom = max((count - 1) * (workers - 1), 1)
    variance = float(((relative - own) ** 2).to_numpy().sum()) / freedom
    between = float(own.var(ddof=1)) if workers > 1 else 0.0
    kept = max(0.0, 1.0 - variance / count / between) if between > 0.0 else 0.0
    computing_s = float(times.to_numpy().mean()) * (1.0 + kept * (own - 1.0))
    lengths = steps.groupby("step").agg(step_s=("step_s", "max"), slowest=("replayed_s", "max"))
    idle = steps.assign(idle=_idle(steps, "replayed_s", steps["step_s"]))
    return Group(
        computing_s={
            int(rank): round(float(x), 6)
            for rank, x in zip(own.index.to_numpy(), computing_s.to_numpy(), strict=True)
        },
        jitter=round(math.sqrt(variance), 6),
        rest_s=round(max(0.0, float((lengths["step_s"] - lengths["slowest"]).mean())), 6),
        spread=round(float(idle.groupby("dp_rank")["idle"].std().mean()), 6),
    )


def _expected(fit: TraceFit) -> Iterator[tuple[Worker, float]]:
    """Idleness of each worker."""
    for stage, group in fit.stages.items():
        answer = predict(_job(group))
        step_s = answer.iteration_s + group.rest_s
        for rank, idle in zip(group.computing_s, answer.idle_fraction.per_worker, strict=True):
            yield (stage, rank), idle * answer.iteration_s / step_s


def _chance(fit: TraceFit, later: pd.DataFrame) -> dict[int, float]:
    """Half the width of the interval for a worker's mean over later steps, by stage."""
    several = math.sqrt(1.0 / len(fit.steps) + 1.0 / later["step"].nunique())
    return {stage: WIDTH * group.spread * several for stage, group in fit.stages.items()}


def _job(group: Group) -> Job:
    """Workers that compute, and sum gradients in no time."""
    seconds = list(group.computing_s.values())
    base_s = float(np.mean(seconds))
    return make_job(
        workload=Workload.of("pipeline", [WorkloadLayer("all", 0.0, base_s, (1.0,))]),
        cluster=Cluster(
            name="no network",
            nic=Link(NO_TIME_BYTES_PER_S),
            source=Source("estimated", "only who waits for whom is asked"),
        ),
        workers=len(seconds),
        arch="ring",
        jitter=Jitter(group.jitter),
        stragglers=[Straggler(k, x / base_s) for k, x in enumerate(seconds)],
    )


def _cases(
    split: str,
    trace: str,
    steps: pd.DataFrame,
    predicted: Mapping[Worker, float],
    chance: Mapping[int, float],
) -> list[Case]:
    """``chance``: half the width of the interval, by stage."""
    measured = _means(steps, _idle(steps, "computed_s", steps["step_s"]))
    found = []
    for worker in sorted(measured.keys() & predicted.keys()):
        idle, stage = predicted[worker], worker[0]
        interval = (idle - chance[stage], idle + chance[stage]) if stage in chance else None
        found.append(
            Case(
                f"bytedance/{split}/{trace}:idle",
                f"stage {stage}, worker {worker[1]}",
                idle,
                measured[worker],
                relative=False,
                interval=interval,
                pools=(f"bytedance/{split}:idle",),
                others={"no idleness": 0.0},
            )
        )
    return found
