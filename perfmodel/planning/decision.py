"""From predictions to a decision: the best instances, workers, architecture and batch size.

:func:`plan` evaluates the whole search space by formulas, predicts the best candidates one by one,
and simulates them until no other can be better, given the error bands of the formulas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from perfmodel import api
from perfmodel.base.errors import InputError, unknown_name, whole_number
from perfmodel.inputs import catalogue, instances
from perfmodel.inputs.instances import Instance
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import Profile
from perfmodel.planning.plans import Candidate, Lever, Plan, Price, Trade
from perfmodel.planning.search import MAX_OPS, MOST_CONSIDERED, Goal, PlanLimits, Search
from perfmodel.planning.space import Axes, none_left, space
from perfmodel.predicting import gains
from perfmodel.studies.advice import advise
from perfmodel.studies.sensitivity import effects
from perfmodel.sweeping.chunks import Progress
from perfmodel.sweeping.processes import InLine

Objective = Literal["cost", "time", "throughput", "samples-per-usd"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)

LARGE_BATCH = 8192
"""Global batch size above which a plan warns about convergence: the largest that trained ResNet-50
to its usual accuracy in the usual number of epochs (Goyal and others, arXiv 1706.02677)."""


def plan(
    *,
    model: str | None = None,
    workload: Profile | str | Path | None = None,
    objective: Objective = "cost",
    dataset_size: int | None = None,
    epochs: int | None = None,
    limits: PlanLimits | None = None,
    catalogue_file: str | Path | None = None,
    instance: Sequence[str] = (),
    region: str | None = None,
    spot: bool = False,
    server_instances: Sequence[str] = (),
    top: int = 10,
    fidelity: Literal["auto", "coarse"] = "auto",
    max_ops: float = MAX_OPS,
    executor: Executor | None = None,
    progress: Progress | None = None,
    **varied: Any,
) -> Plan:
    """Choose instances, workers, architecture and batch size for a training run.

    There are this many parameters because users vary them independently; all have a default.

    Parameters
    ----------
    model, workload : give one of them, as for :func:`perfmodel.make_job`.
    objective : *cost* or *time* of the training, *throughput*, or *samples-per-usd*.
    dataset_size, epochs : samples per epoch, and epochs (1); by default a million samples in total.
    limits : see :class:`PlanLimits`.
    catalogue_file : a catalogue of instances (CSV); by default the one that ships with the package.
    instance, region, spot : see :func:`perfmodel.inputs.instances.choose`.
    server_instances : instance types for dedicated parameter servers, one server per machine, in
        the workers' region. Servers on the workers' nodes are tried as well.
    top : length of the ranked list.
    fidelity : *auto* simulates the best candidates until their order is settled; *coarse* does not.
    max_ops : largest number of operations in the simulation of one candidate.
    executor : runs evaluations and simulations, see :func:`perfmodel.sweep`.
    progress : called with (done, most) while candidates are predicted.
    varied : ``arch``, ``workers``, ``servers``, ``batch_size`` and ``precision``, each a value or a
        list; ``options``, each of which may be a list; ``jitter`` and ``seed``.

    Raises
    ------
    InputError : no candidate meets the limits (the text names the nearest ones and what they
        exceed), an unknown name, a number out of range, a missing price, or a deadline or budget
        without ``dataset_size``.

    >>> plan(model="resnet50", instance=["p3.16xlarge"], arch="ring", workers=[8, 16],
    ...      batch_size=64).first.workers
    8
    """
    if fidelity not in ("auto", "coarse"):
        raise unknown_name("fidelity", fidelity, ("auto", "coarse"))
    executor = executor or InLine()
    goal = _goal(objective, limits or PlanLimits(), dataset_size, epochs)
    whole_number("top", top, at_most=MOST_CONSIDERED)
    rows, out = instances.choose(
        instances.read_instances(catalogue_file), types=instance, region=region, spot=spot
    )
    if not rows:
        raise none_left(out)
    homes: list[Instance] = []
    if server_instances:
        bare = instances.read_instances(catalogue_file, bare=True)
        homes = instances.choose_servers(bare, server_instances, spot=spot)
    axes, common = _axes(varied)
    profile = _profile(model, workload)
    among = space(
        [(row, row.price(spot) or 0.0) for row in rows],
        profile,
        axes,
        homes=[(row, row.price(spot) or 0.0) for row in homes],
        most_workers=goal.limits.max_workers,
        common=common,
        executor=executor,
    )
    search = Search(goal, among, common, max_ops, executor, progress)
    search.settle(simulate=fidelity == "auto", top=top)
    return _answer(search, profile, top, out)


def _goal(objective: str, limits: PlanLimits, dataset_size: int | None, epochs: int | None) -> Goal:
    if objective not in OBJECTIVES:
        raise unknown_name("objective", objective, OBJECTIVES)
    for name, value in (("dataset_size", dataset_size), ("epochs", epochs)):
        if value is not None:
            whole_number(name, value)
    if dataset_size is None:
        for name in ("deadline_s", "budget_usd"):
            if getattr(limits, name) is not None:
                raise InputError(f"{name}: needs dataset_size, the samples per epoch")
        if epochs is not None:
            raise InputError("epochs: needs dataset_size as well")
    return Goal(objective=objective, limits=limits, dataset_size=dataset_size, epochs=epochs or 1)


def _axes(varied: Mapping[str, Any]) -> tuple[Axes, dict[str, Any]]:
    """Split arguments into the axes and those common to all jobs."""
    known = (*Axes._fields, "jitter", "seed")
    for name in varied:
        if name not in known:
            raise unknown_name("argument", name, known)
    common = {name: varied[name] for name in ("jitter", "seed") if name in varied}
    axes: dict[str, Any] = {"options": varied.get("options") or {}}
    for name in Axes._fields:
        value = varied.get(name)
        if name != "options" and value is not None:
            several = isinstance(value, Iterable) and not isinstance(value, str)
            axes[name] = tuple(value) if several else (value,)
    return Axes(**axes), common


def _profile(model: str | None, workload: Profile | str | Path | None) -> Profile:
    if (model is None) == (workload is None):
        raise InputError(
            f"model or workload: give one of them (models: {', '.join(catalogue.model_names())})"
        )
    if isinstance(workload, Profile):
        return workload
    return catalogue.model(model) if model is not None else catalogue.profile(Path(str(workload)))


def _answer(search: Search, profile: Profile, top: int, out: Sequence[str]) -> Plan:
    """Build the plan: ranked candidates, the Pareto front, and the reasons."""
    order = search.ranked()
    chances = gains.chances(
        [search.jobs[i] for i in order],
        [search.found[i] for i in order],
        [float(search.worth[i]) for i in order],
    )
    all_found = [search.candidate(i, c) for i, c in zip(order, chances, strict=True)]
    first = all_found[0]
    other = next((c for c in all_found if c.kind != first.kind), None)
    same = sum(c.probability_best for c in all_found if c.kind == first.kind)
    ranked, front = all_found[:top], _front(search)
    over = 1.0
    if other is not None:
        pair = (order[0], order[all_found.index(other)])
        over = gains.chances(
            [search.jobs[i] for i in pair],
            [search.found[i] for i in pair],
            [float(search.worth[i]) for i in pair],
        )[0]
    rest_on = {(each.instance, each.accelerator) for each in ranked}
    rest_on |= {(each.instance, each.accelerator) for each in front}
    rest_on |= {(other.instance, other.accelerator)} if other is not None else set()
    homes = {each.server_instance for each in ranked} | {each.server_instance for each in front}
    homes |= {other.server_instance} if other is not None else set()
    return Plan(
        objective=search.goal.objective,
        samples=search.goal.samples,
        limited=search.goal.limits.deadline_s is not None
        or search.goal.limits.budget_usd is not None,
        candidates=len(search.among),
        feasible=int(search.feasible().sum()),
        finalists=len(order),
        simulated=search.simulated,
        settled=search.settled,
        ranked=tuple(ranked),
        runner_up=other,
        front=front,
        why=_why(search.goal, first, other),
        probability=first.probability_best,
        probability_kind=same,
        probability_over_runner_up=over,
        change=_change(search, profile, order[0]),
        prices=tuple(_prices(search, rest_on, homes)),
        left_out=(*out, *search.among.left_out),
        effects=effects(search.jobs[order[0]]),
        notes=tuple(_notes(search, first)),
    )


def _notes(search: Search, first: Candidate) -> Iterator[str]:
    """Remarks on a plan."""
    if search.too_large:
        yield (
            f"{search.too_large} candidates were not simulated: each simulation would take more "
            f"than {search.max_ops:g} operations"
        )
    if first.global_batch_size > LARGE_BATCH:
        yield (
            f"the global batch is {first.global_batch_size} samples; batches this large may need "
            "more epochs, which the plan does not include (limit the global batch size, or see "
            "perfmodel converge)"
        )


def _front(search: Search) -> tuple[Trade, ...]:
    """Pareto front of time and cost among the candidates that meet the limits, fastest first."""
    some = np.flatnonzero(search.feasible())
    some = some[np.lexsort((search.usd[some], search.seconds[some]))]
    least = np.minimum.accumulate(search.usd[some])
    kept = some[np.concatenate([[True], search.usd[some][1:] < least[:-1]])]
    among, found = search.among, []
    for i in kept.tolist():
        series = among.series[among.of[i]]
        found.append(
            Trade(
                instance=series.instance.name,
                accelerator=series.instance.accelerator,
                nodes=int(among.nodes[i]),
                workers=int(among.workers[i]),
                servers=int(among.servers[i]) or None,
                server_instance=series.home.name if series.home is not None else None,
                architecture=series.arch,
                options=dict(series.options),
                batch_size=int(among.batch_size[i]),
                time_s=float(search.seconds[i]),
                cost_usd=float(search.usd[i]),
                fidelity=search.found[i].fidelity if i in search.found else "coarse",
            )
        )
    return tuple(found)


def _why(goal: Goal, first: Candidate, other: Candidate | None) -> str:
    """Explain in a sentence why the first candidate wins."""
    if other is None:
        return "no candidate of another instance type or architecture meets the limits"
    worth = [
        goal.worth(each.time_s, each.price_usd_per_h, each.throughput_samples_per_s)
        for each in (first, other)
    ]
    ratio = worth[0] / worth[1]
    less = {
        "cost": f"costs {ratio:.4g} times as much",
        "time": f"takes {ratio:.4g} times as long",
        "throughput": f"has {1.0 / ratio:.1%} of the throughput",
        "samples-per-usd": f"processes {1.0 / ratio:.1%} as many samples per USD",
    }[goal.objective]
    rate = other.throughput_samples_per_s / first.throughput_samples_per_s
    price = other.price_usd_per_h / first.price_usd_per_h
    return (
        f"the runner-up, {other.label}, {less}: {rate:.3g} times the throughput at "
        f"{price:.3g} times the price per hour; its bottleneck: {other.bottleneck}"
    )


def _change(search: Search, profile: Profile, i: int) -> Lever | None:
    """Find the single change that helps most: lifting a limit, another precision, or better
    hardware at the same price."""
    now = float(search.worth[i])
    levers = []
    for name in search.goal.excess(0.0, 0.0, 0.0, 0.0):
        worth = float(search.worth[search.feasible(name)].max())
        levers.append(Lever(f"no {name} limit", worth / now))
    some = search.among.series[search.among.of[i]]
    job = search.jobs[i]
    levers += _precisions(profile, job)
    options = dict(some.options)
    if search.among.servers[i]:
        options["servers"] = int(search.among.servers[i])
    found = advise(
        fidelity="coarse",
        workload=job.workload,
        cluster=job.cluster,
        workers=job.workers,
        arch=some.arch,
        options=options,
        **search.common,
    )
    for each in (*found.recommended, *found.unsure):
        if each.hardware:
            levers.append(Lever(f"{each.change}, at the same price", each.gain.ratio))
    best = max(levers, key=lambda lever: lever.gain, default=None)
    return best if best is not None and best.gain > 1.01 else None


def _precisions(profile: Profile, job: Job) -> Iterator[Lever]:
    """Gains from the other precisions for which the profile has timings on the job's device."""
    w = job.workload
    has = {each.precision for each in profile.timings if each.device == w.device}
    now = api.predict(job, fidelity="coarse").throughput_samples_per_s
    for precision in sorted(has - {w.precision}):
        other = catalogue.workload(
            profile, device_name=w.device, precision=precision, batch_size=w.batch_size
        )
        changed = msgspec.structs.replace(job, workload=other)
        then = api.predict(changed, fidelity="coarse").throughput_samples_per_s
        yield Lever(f"precision {precision}", then / now)


def _prices(
    search: Search, names: Collection[tuple[str, str]], homes: Collection[str | None]
) -> Iterator[Price]:
    """The catalogue lines of the workers' instance types and accelerators, and of the servers'."""
    rows: dict[Instance, float] = {
        some.instance: some.price_usd_per_h
        for some in search.among.series
        if (some.instance.name, some.instance.accelerator) in names
    }
    rows |= {
        some.home: some.home_usd_per_h
        for some in search.among.series
        if some.home is not None and some.home.name in homes
    }
    for row, price in rows.items():
        yield Price(row.name, row.accelerator, price, row.region, row.date, row.place, row.source)
