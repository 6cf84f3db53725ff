"""Random jobs with everything varied that users vary; job k of a seed is the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec
import numpy as np

from perfmodel import (
    Cluster,
    InputError,
    Job,
    Link,
    Server,
    Source,
    Straggler,
    Workload,
    WorkloadLayer,
    build_graph,
    make_job,
)
from perfmodel.architectures.registry import find, names
from perfmodel.catalogue import catalogue
from perfmodel.inputs.cluster import Collective, Handover, IntraNode, NodeOverride, Piece
from perfmodel.inputs.job import Jitter
from perfmodel.inputs.options import described
from perfmodel.predicting import bands

DEVICE = "v100"
SOURCE = Source("assumed", "drawn at random")
MODELS = ("alexnet", "inception_v1", "resnet18", "resnet50", "vgg16")
MOST_OPS = {True: 1000, False: 4000}
"""Maximum number of ops per iteration, if workers drift apart and if not; larger jobs get fewer
workers, so a thousand jobs take minutes."""

ALIKE = 0.3
"""Fraction of the jobs with identical workers on one node each."""

Draw = np.random.Generator


class Cell(msgspec.Struct, frozen=True):
    """Job number ``number`` of a ``seed``."""

    seed: int
    number: int
    job: Job

    @property
    def group(self) -> str:
        """Group in which the job is counted."""
        return bands.group_of(self.job)

    @property
    def name(self) -> str:
        """Name of the job, the same in all runs."""
        return f"{self.seed}/{self.number}"


def cells(seed: int, count: int) -> Iterator[Cell]:
    """Yield the first ``count`` jobs of a seed; training algorithms take turns."""
    for number in range(count):
        yield cell(seed, number)


def cell(seed: int, number: int) -> Cell:
    """Return job ``number`` of a seed. Contradictory jobs are drawn again."""
    known = ways()
    way = list(known)[number % len(known)]
    draw = np.random.default_rng([seed, number])
    while True:
        try:
            return Cell(seed, number, small(_job(draw, known[way])))
        except InputError:
            continue


def small(job: Job) -> Job:
    """Return the job, with fewer workers if its simulation would take too long."""
    graph = build_graph(job)
    drifting = job.start == "staggered"
    if len(graph.op_seconds) <= MOST_OPS[drifting] or job.workers == 1:
        return job
    fewer = max(job.workers // 2, 1)
    late = tuple(s for s in job.stragglers if s.worker < fewer)
    return small(msgspec.structs.replace(job, workers=fewer, stragglers=late))


# -- jobs ------------------------------------------------------------------------------------------


def _job(draw: Draw, way: Way) -> Job:
    arch, options = way(draw)
    workers = _workers(draw)
    if "servers" in options:
        options["servers"] = _servers(draw, workers)
    same = chance(draw, ALIKE)
    return make_job(
        workload=workload(draw),
        cluster=alike(draw, arch) if same else cluster(draw, workers, arch),
        workers=workers,
        arch=arch,
        options=options,
        jitter=None if same else jitter(draw),
        stragglers=[] if same else stragglers(draw, workers),
        seed=int(draw.integers(1000)),
    )


def chance(draw: Draw, probability: float) -> bool:
    return bool(draw.random() < probability)


def decades(draw: Draw, low: float, high: float) -> float:
    """Return a log-uniform number between two powers of ten."""
    return float(10.0 ** draw.uniform(low, high))


def _one_of(draw: Draw, *values: Any) -> Any:
    return values[int(draw.integers(len(values)))]


def _workers(draw: Draw) -> int:
    if chance(draw, 0.04):
        return 1
    if chance(draw, 0.08):
        return int(draw.integers(33, 129))
    return round(2.0 ** draw.uniform(1.0, 5.0))


def _servers(draw: Draw, workers: int) -> int:
    return 1 if chance(draw, 0.5) else int(draw.integers(1, min(workers, 8) + 1))


def workload(draw: Draw) -> Workload:
    """Return a model of the catalogue, or a chain of layers drawn at random."""
    if chance(draw, 0.3):
        model, batch = _one_of(draw, *MODELS), int(2 ** draw.integers(3, 8))
        profile = catalogue.model(model)
        return catalogue.workload(profile, device_name=DEVICE, batch_size=batch)
    count = int(_one_of(draw, 1, 2, 3, 4, 5, 8, 12, 20))
    compute_s, size = decades(draw, -1.5, 0.0), decades(draw, 6.5, 8.8)
    times, sizes = draw.lognormal(0.0, 0.8, count), draw.lognormal(0.0, 1.2, count)
    times, sizes = compute_s * times / times.sum(), size * sizes / sizes.sum()
    forward = float(draw.uniform(0.2, 0.5))
    empty = draw.random(count) < 0.15
    empty[int(draw.integers(count))] = False
    layers = [
        WorkloadLayer(
            f"layer{i}",
            forward * float(times[i]),
            (1.0 - forward) * float(times[i]),
            () if empty[i] else tensors(draw, float(sizes[i])),
        )
        for i in range(count)
    ]
    return Workload.of(
        "chain",
        layers,
        optimizer_s=compute_s * float(draw.uniform(0.0, 0.1)) if chance(draw, 0.5) else 0.0,
        data_loading_s=compute_s * float(draw.uniform(0.3, 1.3)) if chance(draw, 0.15) else 0.0,
    )


def tensors(draw: Draw, size: float) -> tuple[float, ...]:
    """Return one tensor, or a large and a small one."""
    return (size,) if chance(draw, 0.5) else (0.98 * size, 0.02 * size)


def jitter(draw: Draw) -> Jitter | None:
    if chance(draw, 0.35):
        return None
    scope = "op" if chance(draw, 0.25) else "iteration"
    return Jitter(decades(draw, -2.0, -0.3), _one_of(draw, "lognormal", "gamma"), scope)


def stragglers(draw: Draw, workers: int) -> list[Straggler]:
    if chance(draw, 0.6):
        return []
    if chance(draw, 0.5):
        return [Straggler(int(draw.integers(workers)), float(draw.uniform(1.05, 3.0)))]
    late = np.flatnonzero(draw.random(workers) < 0.4).tolist()
    return [Straggler(worker, 1.0 + float(draw.exponential(0.4))) for worker in late]


def alike(draw: Draw, arch: str) -> Cluster:
    """Return equal nodes with one device each."""
    nic = _nic(draw)
    return Cluster(
        name="drawn",
        nic=nic,
        server=msgspec.structs.replace(_server(draw), placement="dedicated"),
        collectives=_collectives(draw, nic, arch) if chance(draw, 0.15) else (),
        source=SOURCE,
    )


def _nic(draw: Draw) -> Link:
    efficiency = float(draw.uniform(0.7, 1.0))
    return Link(decades(draw, 9.0, 11.6) / 8.0, decades(draw, -6.0, -3.3), efficiency)


def cluster(draw: Draw, workers: int, arch: str) -> Cluster:
    devices = int(draw.choice([1, 2, 4, 8], p=[0.6, 0.15, 0.15, 0.1]))
    nic, inside = _nic(draw), None
    if devices > 1 and chance(draw, 0.6):
        rate, latency_s = decades(draw, 10.0, 11.6), decades(draw, -6.0, -5.0)
        inside = IntraNode(rate, latency_s, kind=_one_of(draw, "bus", "per_device"))
    crowded = devices > 1 and chance(draw, 0.15)
    cores = chance(draw, 0.03)
    handover = Handover(decades(draw, -6, -4), decades(draw, -11.5, -10))
    slower = _one_of(draw, "speed", "nic", "both") if chance(draw, 0.25) else None
    return Cluster(
        name="drawn",
        nic=nic,
        devices_per_node=devices,
        nics_per_node=devices if chance(draw, 0.2) else 1,
        intra_node=inside,
        core_oversubscription=float(draw.uniform(1.0, 8.0)) if chance(draw, 0.12) else None,
        cpu_cores=16 if cores else None,
        worker_threads=8 if cores else None,
        server=_server(draw),
        overrides=() if slower is None else _overrides(draw, -(-workers // devices), nic, slower),
        collectives=_collectives(draw, nic, arch) if chance(draw, 0.15) else (),
        slowdown_per_neighbour=float(draw.uniform(0.0, 0.1)) if crowded else 0.0,
        loaders_per_node=2.0 if crowded else None,
        handover=handover if chance(draw, 0.1) else Handover(),
        queue_bytes=1e6 if chance(draw, 0.03) else None,
        source=SOURCE,
    )


def _server(draw: Draw) -> Server:
    return Server(
        placement="colocated" if chance(draw, 0.15) else "dedicated",
        update_per_tensor_s=decades(draw, -6.0, -3.5),
        update_per_byte_s=decades(draw, -11.0, -9.5),
        threads=1 if chance(draw, 0.7) else int(_one_of(draw, 2, 4)),
    )


def _overrides(draw: Draw, nodes: int, nic: Link, what: str) -> tuple[NodeOverride, ...]:
    """Return slower devices or links on one node, or on several with a probability of a fifth;
    server nodes included."""
    last = nodes + (1 if chance(draw, 0.1) else 0)
    which = [int(draw.integers(last))]
    if chance(draw, 0.2):
        which = np.flatnonzero(draw.random(last) < 0.5).tolist()
    return tuple(
        NodeOverride(
            node,
            msgspec.structs.replace(
                nic, bandwidth_bytes_per_s=nic.bandwidth_bytes_per_s * draw.uniform(0.1, 0.9)
            )
            if what != "speed"
            else None,
            float(draw.uniform(0.4, 1.0)) if what != "nic" else 1.0,
        )
        for node in which
    )


def _collectives(draw: Draw, nic: Link, arch: str) -> tuple[Collective, ...]:
    """Return collectives as a library achieves them on such links, or close to that."""

    def of(operation: Any, times: float) -> Collective:
        startup_s, per_byte_s = decades(draw, -5.0, -3.5), times / nic.goodput_bytes_per_s
        pieces = (
            Piece(startup_s, per_byte_s * float(draw.uniform(1.0, 3.0))),
            Piece(4.0 * startup_s, per_byte_s * float(draw.uniform(0.8, 1.5)), 1e6),
        )
        return Collective(operation=operation, pieces=pieces, ranks=(2, 128), bytes=(1.0, 1e10))

    if arch == "fsdp":
        return (of("all_gather", 0.5), of("reduce_scatter", 0.5))
    return (of("all_reduce", 1.0),)


# -- training algorithms -------------------------------------------------------------------------

Options = dict[str, Any]
Way = Callable[[Draw], tuple[str, Options]]


def _ps(draw: Draw, sync: str) -> tuple[str, Options]:
    options: Options = {"sync": sync, "overlap": chance(draw, 0.7), "servers": 1}
    options["duplex"] = sync != "backup" and chance(draw, 0.3)
    if options["duplex"] and chance(draw, 0.1):
        options["pull"] = "request"
    if chance(draw, 0.06):
        options["transmission"] = _one_of(draw, "priority", "shared")
    if chance(draw, 0.1):
        options["sharding"] = "hash"
    if chance(draw, 0.1):
        options["split_above_bytes"] = math.inf
    if chance(draw, 0.1):
        options |= {"compression": "quantised", "encode_per_byte_s": decades(draw, -11.0, -10.0)}
    return sync, options


def _bsp(draw: Draw) -> tuple[str, Options]:
    _, options = _ps(draw, "bsp")
    if chance(draw, 0.15) and "compression" not in options:
        options["local_aggregation"] = True
    return "ps", options


def _backup(draw: Draw) -> tuple[str, Options]:
    _, options = _ps(draw, "bsp")
    return "ps", {**options, "duplex": False, "pull": "reply", "backup_workers": _some(draw)}


def _asp(draw: Draw) -> tuple[str, Options]:
    _, options = _ps(draw, "asp")
    if chance(draw, 0.2):
        options["softsync"] = 1 + _some(draw)
    return "ps", options


def _ssp(draw: Draw) -> tuple[str, Options]:
    _, options = _ps(draw, "ssp")
    bounds, often = [0, 1, 2, 3, 5, 10, math.inf], [0.2, 0.2, 0.15, 0.2, 0.1, 0.1, 0.05]
    return "ps", {**options, "staleness_bound": float(draw.choice(bounds, p=often))}


def _some(draw: Draw) -> int:
    return int(draw.integers(1, 4))


def _p2p(draw: Draw) -> tuple[str, Options]:
    options: Options = {
        "overlap": chance(draw, 0.7),
        "exchange": "sharded" if chance(draw, 0.4) else "full",
        "reduce_per_byte_s": decades(draw, -11.5, -10.0) if chance(draw, 0.3) else 0.0,
    }
    if chance(draw, 0.1):
        options["transmission"] = _one_of(draw, "priority", "shared")
    if chance(draw, 0.15):
        options["partition_bytes"] = 4e6
    return "p2p", options


def _allreduce(draw: Draw) -> tuple[str, Options]:
    rings = ("auto", "auto", "ring", "halving_doubling", "tree", "double_tree", "hierarchical")
    options: Options = {
        "algorithm": _one_of(draw, *rings),
        "overlap": chance(draw, 0.8),
        "bucketing": _one_of(draw, "ddp", "ddp", "one", "layer", "horovod", "mg_wfbp"),
        "reduce_per_byte_s": decades(draw, -11.5, -10.0) if chance(draw, 0.2) else 0.0,
    }
    for name, value, part in (
        ("partition_bytes", 4e6, 0.1),
        ("priority", True, 0.15),
        ("cross_barrier", True, 0.15),
        ("concurrent", 2, 0.15),
        ("each_send", True, 0.1),
        ("credit_bytes", 8e6, 0.05),
    ):
        if chance(draw, part):
            options[name] = value
    if chance(draw, 0.1):
        kind = _one_of(draw, "top_k", "dgc", "quantised")
        options |= {"compression": kind, "encode_per_byte_s": decades(draw, -11.0, -10.0)}
    return "allreduce", options


def _fsdp(draw: Draw) -> tuple[str, Options]:
    return "fsdp", {
        "stage": int(draw.choice([1, 2, 3], p=[0.15, 0.15, 0.7])),
        "unit_bytes": float(_one_of(draw, 0.0, 1e6, 25e6, 100e6)),
        "prefetch": int(draw.integers(0, 4)),
        "reshard_after_forward": chance(draw, 0.7),
    }


def _local_sgd(draw: Draw) -> tuple[str, Options]:
    kinds = ("auto", "auto", "ring", "halving_doubling", "tree", "double_tree", "hierarchical")
    period = int(_one_of(draw, 1, 2, 4, 8, 16))
    return "local_sgd", {"period": period, "algorithm": _one_of(draw, *kinds)}


def _diloco(draw: Draw) -> tuple[str, Options]:
    kinds = ("auto", "auto", "ring", "halving_doubling", "tree", "double_tree", "hierarchical")
    period = int(_one_of(draw, 2, 4, 8, 16))
    options: Options = {
        "period": period,
        "fragments": min(period, int(_one_of(draw, 1, 1, 2, 4))),
        "pattern": _one_of(draw, "sequential", "strided"),
        "overlap_steps": int(_one_of(draw, 0, 0, 1, period - 1)),
        "during_backward": chance(draw, 0.3),
        "sent_as": _one_of(draw, "fp32", "bf16", "int8", "fp4"),
        "algorithm": _one_of(draw, *kinds),
        "exchange": "server" if chance(draw, 0.2) else "all_reduce",
    }
    if chance(draw, 0.3):
        options |= {"encode_per_byte_s": decades(draw, -11.0, -10.0), "outer_s": 0.01}
    return "diloco", options


def _overlapping(arch: str) -> Way:
    return lambda draw: (arch, {"overlap": chance(draw, 0.6)})


def _ad_psgd(draw: Draw) -> tuple[str, Options]:
    return "ad_psgd", {"overlap": chance(draw, 0.6), "passive": _one_of(draw, "even", "odd")}


def _easgd(draw: Draw) -> tuple[str, Options]:
    return "easgd", {"period": int(_one_of(draw, 1, 2, 4, 8)), "servers": 1}


def _gosgd(draw: Draw) -> tuple[str, Options]:
    return "gosgd", {
        "probability": float(draw.choice([0.02, 0.1, 0.3, 1.0])),
        "queue": int(draw.choice([1, 8])),
        "merge_per_model_s": decades(draw, -4.0, -2.0) if chance(draw, 0.3) else 0.0,
    }


WAYS: Mapping[str, Way] = {
    "ps bsp": _bsp,
    "ps backup workers": _backup,
    "ps asp": _asp,
    "ps ssp": _ssp,
    "p2p": _p2p,
    "allreduce": _allreduce,
    "fsdp": _fsdp,
    "local_sgd": _local_sgd,
    "diloco": _diloco,
    "d_psgd": _overlapping("d_psgd"),
    "easgd": _easgd,
    "gosgd": _gosgd,
    "ad_psgd": _ad_psgd,
}
"""Hand-written ways to draw architecture and options."""


def ways() -> dict[str, Way]:
    """Return the ways to draw architecture and options; all get equally many jobs.

    An architecture without an entry in :data:`WAYS` gets a generic one: switches and choices are
    drawn from their allowed values, numbers keep their defaults.
    """
    known = {way.partition(" ")[0] for way in WAYS}
    return {**WAYS, **{name: _as_described(name) for name in names() if name not in known}}


def _as_described(name: str) -> Way:
    def drawn(draw: Draw) -> tuple[str, Options]:
        options: Options = {}
        for each in described(find(name)[0].options):
            if each.type is bool:
                options[each.name] = chance(draw, 0.5)
            elif get_origin(each.type) is Literal:
                options[each.name] = _one_of(draw, *get_args(each.type))
        return name, options

    return drawn
