"""All candidates of a plan, evaluated by formulas as arrays.

A candidate is an instance type, a number of workers and of servers, an architecture with its
options, and a batch size. Candidates that differ only in workers and servers form a series, which
:func:`perfmodel.evaluate` evaluates in one call.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack

import msgspec
import numpy as np

from perfmodel import api
from perfmodel.architectures import registry
from perfmodel.architectures.base import architecture_of
from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, whole_number
from perfmodel.catalogue import catalogue
from perfmodel.catalogue.instances import Instance
from perfmodel.inputs.job import Jitter, Job
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.recomputation import read_recomputation
from perfmodel.inputs.workload import Workload
from perfmodel.planning.layout_map import LayoutPoint
from perfmodel.predicting import job_facts
from perfmodel.predicting.memory import memory_on
from perfmodel.predicting.variants import evaluate
from perfmodel.sweeping.executors import completed
from perfmodel.theory.packing import Documents

V = TypeVar("V", float, Floats)

ARCHITECTURES = ("allreduce", "ps", "p2p", "zero1", "zero3")
"""Architectures considered by default. All of them compute the same update as one worker with the
global batch."""

FAMILIAR = ("allreduce", "fsdp", "ps")
"""Architectures from the most common one on; of others, people use few."""

BATCH_SIZES = (32, 64, 128, 256, 512)
SEQUENCES, RECOMPUTE = (1, 2, 4, 8, 16, 32, 64), ("none", "full")
"""Default batch sizes, and recomputation, of language models."""

SERVERS = (1, 4, 16)
MOST_WORKERS = 256
"""Default batch sizes per worker, numbers of servers, and largest number of workers."""

DENSE_NODES, GROWTH = 8, 1.25
"""Default numbers of nodes: every number up to ``DENSE_NODES``, then growing by this factor."""

SHARPNESS = 8.0
"""Norm that approximates overlap for asynchronous workers and for exchanged models, where the
layer-by-layer formulas are slow; finalists are predicted layer by layer."""

BATCH = 24
"""Series per task: about 50 ms of work."""

MOST_NAMED = 3
"""Number of instance types named in the error if none is left."""

MOST_CANDIDATES = 20_000_000
"""Largest number of candidates in a plan; catches typing errors."""


class BatchNoise(NamedTuple):
    """What larger batches need: the gradient noise scale, and the samples of an update with which
    the training takes as many samples as given."""

    scale_samples: float
    reference: int

    def efficiency(self, update_samples: V) -> V:
        """Progress of a sample relative to that in an update of reference, by the noise scale; see
        :mod:`perfmodel.theory.statistical_efficiency`."""
        if math.isinf(self.scale_samples):
            return update_samples / update_samples
        return (self.scale_samples + self.reference) / (self.scale_samples + update_samples)


class DeviceAxes(NamedTuple):
    """The varied arguments; empty or None for the defaults. ``options`` may hold lists."""

    arch: Sequence[str] = ()
    options: Mapping[str, object] = {}
    workers: Sequence[int] = ()
    servers: Sequence[int] = ()
    batch_size: Sequence[int] = ()
    precision: Sequence[str | None] = ()
    recompute: Sequence[str] = ()
    sequence_length: int | None = None
    documents: Documents | None = None


class CandidateSeries(NamedTuple):
    """Candidates that differ only in workers and servers: the instance type and its price per hour,
    the job with one worker, the name of its architecture, the given options, and the instance type
    of dedicated servers with its price. ``home`` is None if servers share the workers' nodes."""

    instance: Instance
    price_usd_per_h: float
    job: Job
    arch: str
    options: Mapping[str, object]
    home: Instance | None = None
    home_usd_per_h: float = 0.0


SeriesWork = tuple[CandidateSeries, Ids, Sequence[int], float]
"""A series, its numbers of workers and of servers, and the confidence that a worker fits."""


class Common(TypedDict, total=False):
    """Arguments of :func:`perfmodel.make_job` for all jobs of a plan."""

    jitter: Jitter | float | str | None
    seed: int


@dataclasses.dataclass(frozen=True)
class Columns:
    """Candidates as arrays (candidates,).

    Attributes
    ----------
    workers, servers, nodes, batch_size : integers; ``servers`` is 0 without servers.
    step_s, rate, idle, staleness : predicted by formulas; ``rate`` in samples per second.
    price : USD per hour for all nodes, including dedicated servers.
    worker_bytes, device_bytes : required and available device memory (inf if unknown); required
        for a worker to fit with the given confidence.
    """

    workers: Ids
    servers: Ids
    nodes: Ids
    batch_size: Ids
    step_s: Floats
    rate: Floats
    idle: Floats
    staleness: Floats
    price: Floats
    worker_bytes: Floats
    device_bytes: Floats

    def __len__(self) -> int:
        return len(self.workers)


@dataclasses.dataclass(frozen=True)
class Space(Columns):
    """All candidates.

    Attributes
    ----------
    series : the series; ``of`` holds the index of each candidate's series.
    left_out : instance types that were not evaluated, and why.
    most_considered, most_simulated : largest number of candidates predicted one by one, and
        simulated.
    """

    series: tuple[CandidateSeries, ...]
    left_out: tuple[str, ...]
    of: Ids

    most_considered: int = dataclasses.field(default=100, kw_only=True)
    most_simulated: int = dataclasses.field(default=60, kw_only=True)

    @property
    def evaluated(self) -> int:
        """Number of candidates evaluated by formulas."""
        return len(self)

    @property
    def devices(self) -> Ids:
        """Number of devices of each candidate, (candidates,)."""
        return self.workers

    @property
    def update_samples(self) -> Ids:
        """Samples of an update of each candidate, (candidates,): those of a worker if workers
        update on their own, else those of all."""
        alone = np.array([series.job.options.asynchronous for series in self.series])[self.of]
        return np.where(alone, self.batch_size, self.workers * self.batch_size)

    def arch(self, index: int) -> str:
        """The name of a candidate's architecture."""
        return self.series_of(index).arch

    def layout(self, index: int) -> dict[str, object] | None:
        """How the devices of a candidate's workers divide the model; None for single devices."""
        return None

    def places(self) -> tuple[LayoutPoint, ...]:
        """Where layouts are on a map; none for single devices."""
        return ()

    def effort(self, index: int) -> tuple[float, ...]:
        """What people would rather have less of, in this order: nodes, servers, then unusual
        software."""
        name = registry.find(self.arch(index))[0].name
        known = FAMILIAR.index(name) if name in FAMILIAR else len(FAMILIAR)
        return (float(self.nodes[index]), float(self.servers[index]), float(known))

    def series_of(self, index: int) -> CandidateSeries:
        """The series of a candidate."""
        return self.series[int(self.of[index])]

    def identity(self, index: int) -> dict[str, Any]:
        """What a candidate is, but for its workers, servers and batch."""
        series = self.series_of(index)
        return {
            "instance": series.instance.name,
            "accelerator": series.instance.accelerator,
            "nodes": int(self.nodes[index]),
            "server_instance": series.home.name if series.home is not None else None,
            "architecture": self.arch(index),
            "options": dict(series.options),
            "layout": self.layout(index),
        }

    def options(self, index: int) -> dict[str, object]:
        """All given options of a candidate."""
        servers = int(self.servers[index])
        return {**self.series_of(index).options, **({"servers": servers} if servers else {})}

    def job(self, index: int, **common: Unpack[Common]) -> Job:
        """The job of a candidate."""
        series = self.series_of(index)
        return api.make_job(
            workload=series.job.workload,
            cluster=series.job.cluster,
            workers=int(self.workers[index]),
            arch=series.arch,
            options=self.options(index),
            **common,
        )


def space(
    instances: Sequence[tuple[Instance, float]],
    profile: Profile,
    axes: DeviceAxes,
    *,
    homes: Sequence[tuple[Instance, float]] = (),
    most_workers: int | None = None,
    confidence: float,
    common: Common,
    executor: Executor,
) -> Space:
    """Evaluate all candidates. A single worker is a candidate with the first architecture only.

    Parameters
    ----------
    instances : instance types and their price in USD per hour.
    profile : profile of the model.
    homes : instance types for dedicated servers and their price in USD per hour. They must be in
        the workers' region, so that no traffic leaves it.
    most_workers : largest number of workers.
    confidence : probability with which a worker has to fit into its device.
    common : further arguments of :func:`perfmodel.make_job` for every job.
    executor : runs the evaluation.

    Raises
    ------
    InputError : no candidate is possible, or the executor broke down.
    """
    most = most_workers or max(axes.workers, default=MOST_WORKERS)
    for name in ("workers", "servers", "batch_size"):
        for value in getattr(axes, name):
            whole_number(name, value)
    on_device = functools.cache(functools.partial(_workloads, profile, axes))
    work: list[SeriesWork] = []
    out: list[str] = []
    for instance, price in instances:
        try:
            workloads = on_device(instance.device)
        except InputError as error:
            out.append(f"{instance.label}: {error}")
            continue
        counts = np.array(_workers(instance, axes.workers, most), np.int64)
        if not len(counts):
            out.append(f"{instance.label}: a node has more than {most} devices")
            continue
        architectures, cluster = list(_architectures(axes)), functools.cache(instance.cluster)
        for (arch, options), workload in itertools.product(architectures, workloads):
            first = (arch, options) == architectures[0]
            workers = counts if first else counts[counts > 1]
            if not len(workers):
                continue
            make = functools.partial(
                api.make_job, workload=workload, arch=arch, options=options, **common
            )
            job = make(cluster=cluster())
            series = CandidateSeries(instance, price, job, arch, options)
            work.append((series, workers, axes.servers, confidence))
            for home, usd_per_h in homes:
                if series.job.options.server_count and home.region == instance.region:
                    apart = series._replace(
                        job=make(cluster=cluster(home)),
                        home=home,
                        home_usd_per_h=usd_per_h,
                    )
                    work.append((apart, workers, axes.servers, confidence))
    if not work:
        raise none_left(out)
    all_series = tuple(series for series, *_ in work)
    if homes and not any(series.home for series in all_series):
        places = {home.region for home, _ in homes}
        raise InputError(
            "server_instances: no architecture has servers"
            if not any(series.job.options.server_count for series in all_series)
            else f"server_instances: only in {', '.join(sorted(places))}, where no workers are"
        )
    columns = joined(_all_evaluated(work, executor))
    return Space(series=all_series, left_out=tuple(out), **columns)


def joined(parts: Sequence[Columns]) -> dict[str, Any]:
    """The columns of all series one after the other, and the series of each candidate (``of``)."""
    columns: dict[str, Any] = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in dataclasses.fields(Columns)
    }
    return columns | {"of": np.repeat(np.arange(len(parts)), [len(part) for part in parts])}


def _all_evaluated(work: Sequence[SeriesWork], executor: Executor) -> list[Columns]:
    """The columns of each series. Those of one workload are evaluated one after the other."""
    alike: dict[int, list[int]] = {}
    for place, (series, *_) in enumerate(work):
        alike.setdefault(id(series.job.workload), []).append(place)
    order = list(itertools.chain.from_iterable(alike.values()))
    batches = [order[first : first + BATCH] for first in range(0, len(work), BATCH)]
    results: dict[int, Columns] = {}
    count = 0
    tasks = ([work[place] for place in batch] for batch in batches)
    for number, columns in completed(executor, _batch_evaluated, tasks):
        results.update(zip(batches[number], columns, strict=True))
        count += sum(map(len, columns))
        if count > MOST_CANDIDATES:
            raise InputError(f"plan: more than {MOST_CANDIDATES} candidates")
    return [results[place] for place in range(len(work))]


def _batch_evaluated(batch: Sequence[SeriesWork]) -> list[Columns]:
    return list(itertools.starmap(_evaluated, batch))


def none_left(out: Sequence[str]) -> InputError:
    """Build the error that explains why no instance type is left."""
    more = f"; and {len(out) - MOST_NAMED} more" if len(out) > MOST_NAMED else ""
    return InputError(f"plan: no instance type is left: {'; '.join(out[:MOST_NAMED])}{more}")


def _workloads(profile: Profile, axes: DeviceAxes, device: str | None) -> list[Workload]:
    """The workload on a device at each precision and batch size."""
    language = profile.decoder is not None
    sizes = axes.batch_size or (SEQUENCES if language else BATCH_SIZES)
    again = axes.recompute or (RECOMPUTE if language else ("",))
    workloads = []
    for precision, size, name in itertools.product(axes.precision or (None,), sizes, again):
        work = catalogue.workload(
            profile, device_name=device, precision=precision, batch_size=size,
            sequence_length=axes.sequence_length, recompute=read_recomputation(name or None, None),
            documents=axes.documents,
        )  # fmt: skip
        made = job_facts.with_layers(api.make_job(workload=work, arch="allreduce"))
        workloads.append(made.workload)
    return workloads


def _workers(instance: Instance, counts: Sequence[int], most: int) -> list[int]:
    """Numbers of workers: those in ``counts``, or those that fill whole nodes."""
    if counts:
        return [count for count in counts if count <= most]
    nodes = list(range(1, DENSE_NODES + 1))
    while nodes[-1] * instance.devices < most:
        nodes.append(round(nodes[-1] * GROWTH))
    return [count * instance.devices for count in nodes if count * instance.devices <= most]


def _architectures(axes: DeviceAxes) -> Iterator[tuple[str, dict[str, object]]]:
    """Each architecture with each combination of the options it supports."""
    names = axes.arch or ARCHITECTURES
    supported = {name: {*registry.find(name)[0].options.__struct_fields__} for name in names}
    unknown = set(axes.options).difference(*supported.values())
    for name in names:
        _, preset = registry.find(name)
        options = {
            key: value if isinstance(value, (list, tuple)) else [value]
            for key, value in axes.options.items()
            if key in supported[name] | unknown and key not in preset
        }
        for values in itertools.product(*options.values()):
            yield name, dict(zip(options, values, strict=True))


def _evaluated(
    series: CandidateSeries, counts: Ids, servers: Sequence[int], confidence: float
) -> Columns:
    """The columns of a series."""
    job, instance = series.job, series.instance
    counts = counts[job.options.allows(counts)]
    choices = np.zeros(1, np.int64)
    if job.options.server_count and "servers" not in series.options:
        choices = np.array(servers or SERVERS, np.int64)
    workers, many = (grid.ravel() for grid in np.meshgrid(counts, choices, indexing="ij"))
    nodes = -(-workers // instance.devices)
    if not servers:
        fits = many <= np.maximum(nodes if series.home is None else workers, 1)
        workers, many, nodes = workers[fits], many[fits], nodes[fits]
    slow = job.options.asynchronous or architecture_of(job).model_age is not None
    by_formulas = evaluate(
        job,
        workers=workers,
        servers=many if choices[0] else None,
        sharpness=SHARPNESS if slow else None,
    )
    size = len(workers)
    device_bytes = math.inf if instance.device_bytes is None else instance.device_bytes
    return Columns(
        workers=workers,
        servers=many,
        nodes=nodes,
        batch_size=np.full(size, job.workload.batch_size),
        step_s=by_formulas.iteration_s,
        rate=by_formulas.throughput_samples_per_s,
        idle=by_formulas.idle_fraction,
        staleness=by_formulas.staleness,
        price=nodes * series.price_usd_per_h + many * series.home_usd_per_h,
        worker_bytes=_worker_bytes(job, workers, confidence),
        device_bytes=np.full(size, float(device_bytes)),
    )


def _worker_bytes(job: Job, workers: Ids, confidence: float) -> Floats:
    """Memory that a worker's device needs (bytes); depends on the number of workers if they shard
    the model, or if one is alone."""

    device = catalogue.device(job.workload.device)

    def needed(count: int) -> float:
        counted = msgspec.structs.replace(job, workers=count)
        return memory_on(device, counted).needed_bytes(confidence)

    counts, places = np.unique(workers, return_inverse=True)
    sizes = np.zeros(len(counts))
    sizes[-1] = needed(int(counts[-1]))
    for k, count in enumerate(counts[:-1].tolist()):
        sizes[k] = needed(count)
        if sizes[k] == sizes[-1]:  # and so do all in between
            sizes[k:] = sizes[-1]
            break
    return sizes[places]
