"""From predictions to a decision: the best instances, workers, architecture and batch size.

:func:`plan` evaluates the whole search space by formulas, predicts the best candidates one by one,
and simulates them until no other can be better, given the error bands of the formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast

import msgspec
import numpy as np

from perfmodel import api
from perfmodel.base.arrays import pareto_front
from perfmodel.base.errors import InputError, unknown_name, whole_number
from perfmodel.base.units import HOUR_S
from perfmodel.catalogue import catalogue, instances
from perfmodel.catalogue.documents import OF_DOCUMENTS, documents_of
from perfmodel.catalogue.instances import Instance
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.failures import Failures
from perfmodel.inputs.job import Jitter, Job
from perfmodel.inputs.profile import Profile
from perfmodel.planning.amounts import Amount, Objective
from perfmodel.planning.layout_space import Division, Machine, layout_space
from perfmodel.planning.plans import Candidate, Lever, Plan, Price, Trade
from perfmodel.planning.search import MAX_OPS, MOST_CONSIDERED, Goal, PlanLimits, Search
from perfmodel.planning.space import Common, DeviceAxes, Space, none_left, space
from perfmodel.predicting import gains
from perfmodel.predicting.effects import effects
from perfmodel.studies.advice import advise
from perfmodel.sweeping.chunks import Progress
from perfmodel.sweeping.grids import Several
from perfmodel.sweeping.processes import InLine

T = TypeVar("T")

OF_ALL_LAYOUTS = ("sequence_length", *OF_DOCUMENTS, "framework", "sequence_parallel")
"""Arguments of a plan that all layouts have in common."""

LARGE_BATCH = 8192
"""Global batch size above which a plan warns about convergence: the largest that trained ResNet-50
to its usual accuracy in the usual number of epochs (Goyal and others, arXiv 1706.02677)."""


class Varied(TypedDict, total=False):
    """What a plan varies: values, or lists of values, and arguments of all jobs."""

    arch: Several[str]
    workers: Several[int]
    servers: Several[int]
    batch_size: Several[int]
    precision: Several[str | None]
    options: Mapping[str, object] | None
    jitter: Jitter | float | str | None
    seed: int
    sequence_length: int
    document_length: float
    document_spread: float
    document_lengths: Sequence[float] | str | Path
    recompute: Several[str]
    devices: Several[int]
    tensor: Several[int]
    context: Several[int]
    expert: Several[int]
    pipeline: Several[int]
    virtual_stages: Several[int]
    micro_batch_size: Several[int]
    schedule: Several[str]
    global_batch_size: Several[int]
    framework: str
    sequence_parallel: bool


def plan(
    *,
    model: str | None = None,
    workload: Profile | str | Path | None = None,
    objective: Objective = "cost",
    dataset_size: int | None = None,
    epochs: int | None = None,
    tokens: float | None = None,
    loss: float | None = None,
    scaling_law: str | None = None,
    noise_scale_samples: float | None = None,
    reference_batch_size: int | None = None,
    failures: Failures | None = None,
    device: str | None = None,
    cluster: Cluster | str | Path | None = None,
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
    **varied: Unpack[Varied],
) -> Plan:
    """Choose instances, workers, architecture and batch size for a training run.

    There are this many parameters because users vary them independently; all have a default. There
    are this many lines because each is described.

    Parameters
    ----------
    model, workload : give one of them, as for :func:`perfmodel.make_job`.
    objective : *cost* or *time* of the training, *throughput*, or *samples-per-usd*.
    dataset_size, epochs : samples per epoch, and epochs (1); by default a million samples in total.
    tokens : of the whole training of a language model, instead of ``dataset_size``.
    loss, scaling_law : instead of ``tokens``: the loss (nats per token) to train to, and the law
        that gives its tokens: *chinchilla* (default), or a file.
    noise_scale_samples, reference_batch_size : gradient noise scale, and the samples of an update
        with which the training takes that many samples: larger updates take more. By default the
        noise scale of the workload.
    failures : failures, checkpoints and interruptions: times and costs are expected ones then, and
        confidence counts failures too.
    device, cluster : your own machines, instead of rented ones: with as many ``devices`` as given,
        or as the cluster has. They have no price. Only language models run on them.
    limits : see :class:`PlanLimits`.
    catalogue_file : a catalogue of instances (CSV); by default the one that ships with the package.
    instance, region, spot : see :func:`perfmodel.catalogue.instances.choose`.
    server_instances : instance types for dedicated parameter servers, one server per machine, in
        the workers' region. Servers on the workers' nodes are tried as well.
    top : length of the ranked list.
    fidelity : *auto* simulates the best candidates until their order is settled; *coarse* does not.
    max_ops : largest number of operations in the simulation of one candidate.
    executor : runs evaluations and simulations, see :func:`perfmodel.sweep`.
    progress : called with (done, most) while candidates are predicted.
    varied : ``arch``, ``workers``, ``servers``, ``batch_size``, ``precision`` and ``recompute``,
        each a value or a list; ``options``, each of which may be a list; ``jitter``, ``seed``,
        ``sequence_length``, and the documents that sequences are packed from, ``document_length``
        and ``document_spread``, or ``document_lengths``. Of a language model with ``devices``, or
        on a cluster of one's own, layouts: ``tensor``, ``context``, ``expert``, ``pipeline``,
        ``virtual_stages``, ``micro_batch_size``, ``schedule`` and ``global_batch_size``, each a
        value or a list, ``framework`` and ``sequence_parallel``.

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
    profile = profile_of(model, workload)
    division, owned = _division(varied), cluster is not None or device is not None
    if owned and objective in ("cost", "samples-per-usd"):
        raise InputError(
            f"objective: {objective} needs prices, which a cluster of one's own does not have "
            "(allowed: time, throughput)"
        )
    amount = Amount(
        dataset_size, epochs, tokens, loss, scaling_law, noise_scale_samples,
        reference_batch_size, failures,
    )  # fmt: skip
    goal = amount.goal(objective, limits or PlanLimits(), profile, varied.get("sequence_length"))
    whole_number("top", top, at_most=MOST_CONSIDERED)
    rows: list[Instance] = []
    out: list[str] = []
    if owned:
        machines = [own_machine(device, cluster, profile)]
    else:
        rows, out = instances.choose(
            instances.read_instances(catalogue_file), types=instance, region=region, spot=spot
        )
        if not rows:
            raise none_left(out)
        machines = _machines(rows, spot) if division.wanted else []
    common = _common(varied)
    if machines:
        among: Space = layout_space(
            machines, profile, division, most_batch=goal.limits.max_global_batch_size,
            confidence=goal.limits.memory_confidence, noise=goal.noise, out=out,
        )  # fmt: skip
        top, out = min(top, among.most_considered), []
    else:
        bare = instances.read_instances(catalogue_file, bare=True) if server_instances else []
        homes = instances.choose_servers(bare, server_instances, spot=spot)
        among = space(
            *([(row, row.price(spot) or 0.0) for row in rows], profile, _axes(varied)),
            homes=[(row, row.price(spot) or 0.0) for row in homes],
            most_workers=goal.limits.max_workers,
            confidence=goal.limits.memory_confidence,
            common=common,
            executor=executor,
        )
    search = Search(goal, among, common, max_ops, executor, progress)
    search.settle(simulate=fidelity == "auto", top=top)
    return _answer(search, profile, top, out)


def own_machine(
    device: str | None, cluster: Cluster | str | Path | None, profile: Profile
) -> Machine:
    """Return machines of one's own."""
    if cluster is None:
        raise InputError("device: give a cluster as well (instance types have their own devices)")
    if profile.decoder is None:
        raise InputError(
            f"cluster: {profile.name!r} is not a language model with dimensions; plans on a "
            "cluster of one's own look for layouts of these"
        )
    made = cluster if isinstance(cluster, Cluster) else catalogue.cluster_or_file(cluster)
    if device is None:
        device = api.make_job(workload=profile, cluster=cluster, batch_size=1).workload.device
    name = catalogue.device(device).name
    row = Instance(
        name=made.name, accelerator=name.upper(), devices=made.devices_per_node, region="",
        price_usd_per_h=None,
    )  # fmt: skip
    return Machine(row, 0.0, made, name, cluster)


def _machines(rows: Sequence[Instance], spot: bool) -> list[Machine]:
    """Return the instance types whose accelerators are in the catalogue."""
    return [
        Machine(row, row.price(spot) or 0.0, made, row.device, made)
        for row in rows
        if row.device is not None
        for made in (row.cluster(),)
    ]


def _division(varied: Varied) -> Division:
    """Return the axes of layouts."""
    common = {name: varied[name] for name in OF_ALL_LAYOUTS if name in varied}  # type: ignore[literal-required]
    precisions: tuple[str | None, ...] = listed_values(varied.get("precision"))
    if len(precisions) == 1:
        common["precision"] = precisions[0]
    lists: dict[str, Any] = {
        name: listed_values(varied.get(name)) for name in Division._fields[:-1]
    }
    return Division(**lists, common=common)


def _common(varied: Varied) -> Common:
    """Return the arguments common to all jobs."""
    for name in varied:
        if name not in Varied.__annotations__:
            raise unknown_name("argument", name, Varied.__annotations__)
    common = Common()
    if "jitter" in varied:
        common["jitter"] = varied["jitter"]
    if "seed" in varied:
        common["seed"] = varied["seed"]
    return common


def _axes(varied: Varied) -> DeviceAxes:
    """Return the axes of single devices."""
    return DeviceAxes(
        arch=listed_values(varied.get("arch")),
        options=varied.get("options") or {},
        workers=listed_values(varied.get("workers")),
        servers=listed_values(varied.get("servers")),
        batch_size=listed_values(varied.get("batch_size")),
        precision=listed_values(varied.get("precision")),
        recompute=listed_values(varied.get("recompute")),
        sequence_length=varied.get("sequence_length"),
        documents=documents_of(varied)[0],
    )


def listed_values(value: Several[T] | None) -> tuple[T, ...]:
    """The values of an argument that may be one, several or none."""
    if value is None:
        return ()
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return tuple(cast("Sequence[T]", value)) if several else (cast("T", value),)


def profile_of(model: str | None, workload: Profile | str | Path | None) -> Profile:
    """Return the profile of a model, or of a workload file."""
    if (model is None) == (workload is None):
        known = len(catalogue.model_names())
        raise InputError(
            f"model or workload: give one of them ({known} models: perfmodel list models)"
        )
    if isinstance(workload, Profile):
        return workload
    return catalogue.model(model) if model is not None else catalogue.profile(Path(str(workload)))


def _answer(search: Search, profile: Profile, top: int, out: Sequence[str]) -> Plan:
    """Build the plan: ranked candidates, the Pareto front, and the reasons."""
    order, limits = search.ranked(), search.goal.limits
    pairs = zip(order, _chances(search, order), strict=True)
    finalists = [search.candidate(i, chance) for i, chance in pairs]
    first = finalists[0]
    rival = next((place for place, c in enumerate(finalists) if c.kind != first.kind), None)
    runner_up = finalists[rival] if rival is not None else None
    ranked, front = _folded(finalists)[:top], _front(search)
    shown: list[Candidate | Trade] = [
        *ranked,
        *front,
        *([runner_up] if runner_up is not None else []),
    ]
    return Plan(
        objective=search.goal.objective,
        samples=search.goal.samples,
        limited=limits.deadline_s is not None or limits.budget_usd is not None,
        candidates=search.among.evaluated,
        feasible=int(search.feasible().sum()),
        finalists=len(order),
        simulated=search.simulated,
        settled=search.settled,
        ranked=tuple(ranked),
        runner_up=runner_up,
        front=front,
        why=_why(search.goal, first, runner_up),
        probability=first.probability_best,
        probability_kind=sum(c.probability_best for c in finalists if c.kind == first.kind),
        probability_over_runner_up=(
            1.0 if rival is None else _chances(search, [order[0], order[rival]])[0]
        ),
        change=_change(search, profile, order[0]),
        prices=tuple(_prices(search, shown)),
        left_out=(*out, *search.among.left_out),
        effects=effects(search.jobs[order[0]]),
        notes=tuple(_notes(search, first)),
        target=search.goal.target,
        places=search.among.places(),
    )


def _folded(finalists: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, of layouts only the best of each kind."""
    kinds = [candidate.kind for candidate in finalists]
    return [
        candidate
        for place, candidate in enumerate(finalists)
        if candidate.layout is None or candidate.kind not in kinds[:place]
    ]


def _chances(search: Search, places: Sequence[int]) -> Sequence[float]:
    """The probability of each of some predicted candidates to be the best of them."""
    return gains.chances(
        [search.jobs[i] for i in places],
        [search.predictions[i] for i in places],
        [float(search.worth[i]) for i in places],
    )


def _notes(search: Search, first: Candidate) -> Iterator[str]:
    """Remarks on a plan."""
    paid = [price for price in _prices(search, [first]) if price.price_usd_per_h]
    if undated := [price.instance for price in paid if not price.date]:
        yield f"price without a date: {', '.join(undated)} (compare it with today's)"
    if search.too_large:
        yield (
            f"candidates not simulated, because each simulation would take more than "
            f"{search.max_ops:g} operations: {search.too_large}"
        )
    if first.global_batch_size > LARGE_BATCH and search.goal.noise is None:
        yield (
            f"the global batch is {first.global_batch_size} samples; batches this large may need "
            "more epochs, which the plan does not include (limit the global batch size, or see "
            "perfmodel converge)"
        )


def _front(search: Search) -> tuple[Trade, ...]:
    """Pareto front of time and cost among the candidates that meet the limits, fastest first."""
    feasible, among = np.flatnonzero(search.feasible()), search.among
    places = feasible[pareto_front(search.seconds[feasible], search.usd[feasible])].tolist()
    return tuple(
        Trade(
            **among.identity(i),
            workers=int(among.workers[i]),
            servers=int(among.servers[i]) or None,
            batch_size=int(among.batch_size[i]),
            time_s=float(search.seconds[i]),
            cost_usd=float(search.usd[i]),
            fidelity=search.predictions[i].fidelity if i in search.predictions else "coarse",
        )
        for i in places
    )


def _why(goal: Goal, first: Candidate, runner_up: Candidate | None) -> str:
    """Explain in a sentence why the first candidate wins."""
    if runner_up is None:
        return "no candidate of another instance type or architecture meets the limits"
    worth = [
        goal.worth(c.time_s, c.cost_usd / c.time_s * HOUR_S, c.throughput_samples_per_s)
        for c in (first, runner_up)
    ]
    ratio = worth[0] / worth[1]
    less = {
        "cost": f"costs {ratio:.4g} times as much",
        "time": f"takes {ratio:.4g} times as long",
        "throughput": f"has {1.0 / ratio:.1%} of the throughput",
        "samples-per-usd": f"processes {1.0 / ratio:.1%} as many samples per USD",
    }[goal.objective]
    rate = runner_up.throughput_samples_per_s / first.throughput_samples_per_s
    at = ""
    if first.price_usd_per_h and runner_up.price_usd_per_h != first.price_usd_per_h:
        price = runner_up.price_usd_per_h / first.price_usd_per_h
        at = f" at {price:.3g} times the price per hour"
    elif first.layout is None:
        at = " at 1 times the price per hour"
    return (
        f"the runner-up, {runner_up.label}, {less}: {rate:.3g} times the throughput{at}; its "
        f"bottleneck: {runner_up.bottleneck}"
    )


def _change(search: Search, profile: Profile, i: int) -> Lever | None:
    """Find the single change that helps most: lifting a limit, another precision, or better
    hardware at the same price."""
    now = float(search.worth[i])
    levers = []
    for name in search.goal.excess(0.0, 0.0, 0.0, 0.0):
        worth = float(search.worth[search.feasible(name)].max())
        levers.append(Lever(f"no {name} limit", worth / now))
    job = search.jobs[i]
    if search.among.layout(i) is not None:
        return _best(levers)
    levers += _precisions(profile, job)
    advice = advise(
        fidelity="coarse",
        workload=job.workload,
        cluster=job.cluster,
        workers=job.workers,
        arch=search.among.series_of(i).arch,
        options=search.among.options(i),
        **search.common,
    )
    for change in (*advice.recommended, *advice.unsure):
        if change.hardware:
            levers.append(Lever(f"{change.change}, at the same price", change.gain.ratio))
    return _best(levers)


def _best(levers: Sequence[Lever]) -> Lever | None:
    best = max(levers, key=lambda lever: lever.gain, default=None)
    return best if best is not None and best.gain > 1.01 else None


def _precisions(profile: Profile, job: Job) -> Iterator[Lever]:
    """Gains from the other precisions for which the profile has timings on the job's device."""
    w = job.workload
    has = {timing.precision for timing in profile.timings if timing.device == w.device}
    now = api.predict(job, fidelity="coarse").throughput_samples_per_s
    for precision in sorted(has - {w.precision}):
        workload = catalogue.workload(
            profile, device_name=w.device, precision=precision, batch_size=w.batch_size
        )
        changed = msgspec.structs.replace(job, workload=workload)
        then = api.predict(changed, fidelity="coarse").throughput_samples_per_s
        yield Lever(f"precision {precision}", then / now)


def _prices(search: Search, shown: Sequence[Candidate | Trade]) -> Iterator[Price]:
    """The catalogue lines of the instance types that are shown: workers', then servers'."""
    names = {(c.instance, c.accelerator) for c in shown}
    homes = {c.server_instance for c in shown}
    rows: dict[Instance, float] = {}
    for series in search.among.series:
        if (series.instance.name, series.instance.accelerator) in names:
            rows[series.instance] = series.price_usd_per_h
    for series in search.among.series:
        if series.home is not None and series.home.name in homes:
            rows[series.home] = series.home_usd_per_h
    for row, price in rows.items():
        yield Price(row.name, row.accelerator, price, row.region, row.date, row.place, row.source)
