"""Small jobs for tests: workloads of a few layers on clusters without surprises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from perfmodel import (
    Cluster,
    Jitter,
    Job,
    Link,
    Server,
    Source,
    Workload,
    WorkloadLayer,
    make_job,
)
from perfmodel.architectures.registry import find, names, read_options

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "ps": [
        {"sync": "bsp"},
        {"sync": "asp"},
        {"sync": "bsp", "duplex": True},
        {"sync": "asp", "duplex": True, "servers": 2},
        {"sync": "bsp", "overlap": False},
        {"sync": "asp", "overlap": False, "servers": 3, "split_above_bytes": float("inf")},
        {"sync": "ssp", "staleness_bound": 1},
        {"sync": "ssp", "staleness_bound": 0, "duplex": True, "sharding": "hash", "servers": 2},
        {"sync": "ssp", "staleness_bound": 2, "duplex": True, "pull": "request"},
        {"local_aggregation": True, "servers": 2},
        {"local_aggregation": True, "overlap": False},
        {"local_aggregation": True, "duplex": True},
        {"backup_workers": 1},
        {"backup_workers": 1, "overlap": False, "servers": 2},
        {"sync": "asp", "softsync": 2},
        {"sync": "asp", "softsync": 3, "duplex": True},
        {"duplex": True, "pull": "request"},
        {"sync": "asp", "duplex": True, "pull": "request", "servers": 2},
        {"transmission": "priority", "partition_bytes": 7, "duplex": True},
        {"transmission": "quantum", "quantum_bytes": 11, "compression": "top_k", "density": 0.2},
        {"transmission": "quantum", "quantum_bytes": 11, "duplex": True, "sync": "asp"},
        {"transmission": "shared", "sync": "asp", "compression": "dgc", "encode_per_byte_s": 0.1},
        {"transmission": "priority", "credit_bytes": 20, "partition_bytes": 10},
        {"compression": "quantised", "quantised_bits": 4, "decode_per_byte_s": 0.01},
    ],
    "p2p": [
        {},
        {"overlap": False},
        {"exchange": "sharded", "reduce_per_byte_s": 0.01},
        {"exchange": "sharded", "overlap": False, "transmission": "shared"},
        {"transmission": "priority", "partition_bytes": 7},
        {"transmission": "quantum", "quantum_bytes": 11},
        {"transmission": "fifo", "credit_bytes": 25, "partition_bytes": 10},
        {"exchange": "sharded", "compression": "quantised", "decode_per_byte_s": 0.01},
        {"compression": "quantised", "quantised_bits": 4, "transmission": "shared"},
        {"compression": "top_k", "density": 0.3, "overlap": False},
        {"compression": "dgc", "density": 0.2, "encode_per_byte_s": 0.01},
    ],
    "allreduce": [
        {},
        {"overlap": False},
        {"bucket_cap_bytes": 0, "first_bucket_bytes": 0},
        {"bucket_cap_bytes": 50, "first_bucket_bytes": 10, "concurrent": 2},
        {"each_send": True, "bucket_cap_bytes": 50},
        {"bucketing": "mg_wfbp", "reduce_per_byte_s": 0.001},
        {"algorithm": "ring", "overlap": False},
        {"algorithm": "halving_doubling", "each_send": True},
        {"algorithm": "halving_doubling", "reduce_per_byte_s": 0.001},
        {"algorithm": "tree", "bucketing": "one"},
        {"algorithm": "tree", "bucketing": "layer", "each_send": True, "overlap": False},
        {"algorithm": "double_tree", "chunks": 2, "each_send": True, "bucketing": "layer"},
        {"algorithm": "double_tree", "chunks": 2, "bucketing": "layer"},
        {"algorithm": "hierarchical", "each_send": True, "bucketing": "layer"},
        {"algorithm": "hierarchical", "bucketing": "mg_wfbp"},
        {"bucketing": "horovod", "fusion_cycle_s": 0.5},
        {"bucketing": "horovod", "fusion_cycle_s": 2.0, "fusion_threshold_bytes": 45},
        {"bucketing": "horovod", "fusion_cycle_s": 0.5, "algorithm": "tree", "overlap": False},
        {"bucketing": "horovod", "fusion_cycle_s": 1.0, "cross_barrier": True},
        {"bucketing": "layer", "priority": True, "partition_bytes": 10, "cross_barrier": True},
        {"bucketing": "layer", "priority": True, "partition_bytes": 10, "credit_bytes": 25},
        {"compression": "top_k", "density": 0.1, "encode_per_byte_s": 0.01},
        {"compression": "dgc", "density": 0.1, "each_send": True, "decode_per_byte_s": 0.001},
        {"compression": "quantised", "decode_per_byte_s": 0.01, "cross_barrier": True},
        {"compression": "quantised", "quantised_bits": 4, "algorithm": "tree", "each_send": True},
    ],
    "fsdp": [
        {"stage": 1, "unit_bytes": 0},
        {"stage": 2},
        {"stage": 3, "unit_bytes": 0},
        {"stage": 3, "unit_bytes": 50, "prefetch": 0, "reduce_per_byte_s": 0.01},
        {"stage": 3, "unit_bytes": 0, "prefetch": 3, "reshard_after_forward": False},
    ],
    "local_sgd": [
        {"period": 1},
        {"period": 2, "algorithm": "ring"},
        {"period": 1, "algorithm": "tree"},
        {"period": 2, "algorithm": "double_tree", "chunks": 2},
        {"period": 3, "algorithm": "halving_doubling"},
        {"period": 3},
        {"period": 2, "algorithm": "hierarchical", "reduce_per_byte_s": 0.001},
    ],
    "d_psgd": [{}, {"overlap": False}],
    "ad_psgd": [{}, {"passive": "even", "overlap": False}],
    "gosgd": [
        {},
        {"probability": 0},
        {"probability": 0.5, "queue": 1},
        {"probability": 0.5, "queue": 2, "merge_per_model_s": 0.1},
        {"probability": 1, "queue": 1, "merge_per_model_s": 0.1},
    ],
    "easgd": [{"period": 1}, {"period": 3, "servers": 2}, {}],
}
"""Options under which each architecture has to keep the laws: every option, and every word that it
may be, in at least one of them."""

ALL = [(name, options) for name in names() for options in VARIANTS[name]]
ALL_IDS = [f"{name}-{'-'.join(f'{k}={v}' for k, v in o.items())}" for name, o in ALL]


def workload(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    bytes_: Sequence[float],
    *,
    batch_size: int = 1,
    optimizer_s: float = 0.0,
    data_loading_s: float = 0.0,
) -> Workload:
    """A chain of layers with one tensor each (none where its size is 0)."""
    layers = [
        WorkloadLayer(f"layer{i}", f, b, (s,) if s else ())
        for i, (f, b, s) in enumerate(zip(forward_s, backward_s, bytes_, strict=True))
    ]
    return Workload.of(
        "chain",
        layers,
        batch_size=batch_size,
        optimizer_s=optimizer_s,
        data_loading_s=data_loading_s,
    )


def cluster(
    bandwidth_bytes_per_s: float = 1.0,
    latency_s: float = 0.0,
    *,
    update_per_tensor_s: float = 0.0,
    update_per_byte_s: float = 0.0,
    **fields: Any,
) -> Cluster:
    """A cluster of equal nodes."""
    server = fields.pop("server", None) or Server(
        update_per_tensor_s=update_per_tensor_s, update_per_byte_s=update_per_byte_s
    )
    return Cluster(
        name="test",
        nic=Link(bandwidth_bytes_per_s, latency_s),
        server=server,
        source=Source("exact", "made for a test"),
        **fields,
    )


def job(
    work: Workload,
    where: Cluster,
    workers: int,
    arch: str,
    options: dict[str, Any] | None = None,
    **fields: Any,
) -> Job:
    """A job; workers start together unless said otherwise."""
    fields.setdefault("start", "together")
    return make_job(
        workload=work, cluster=where, workers=workers, arch=arch, options=options or {}, **fields
    )


_seconds = st.floats(0.0, 10.0, allow_subnormal=False)

FREELY_S, FREELY_BYTES_PER_S = 0.5, 13.0
"""Least time of an iteration, and least bandwidth, where workers do not wait for each other."""


@st.composite
def workloads(draw: st.DrawFn, *, least_s: float = 0.01) -> Workload:
    """Chains of one to five layers; some layers without parameters, some times zero.

    The first forward takes ``least_s`` at least.
    """
    n = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.sampled_from([0.0, 1.0, 7.0, 40.0, 100.0]), min_size=n, max_size=n))
    if not any(sizes):
        sizes[0] = 10.0
    forward = draw(st.lists(_seconds, min_size=n, max_size=n))
    backward = draw(st.lists(_seconds, min_size=n, max_size=n))
    forward[0] = draw(st.floats(least_s, 10.0))
    return workload(forward, backward, sizes, optimizer_s=draw(_seconds))


@st.composite
def clusters(draw: st.DrawFn, *, least_bytes_per_s: float = 1.0) -> Cluster:
    """Clusters with and without latency, update cost, shared nodes, a core, colocated servers, and
    workers that compute on the cores on which those servers update."""
    inside = draw(st.sampled_from([None, Link(500.0, 0.001)]))
    cores, threads = draw(st.sampled_from([(None, None), (4, None), (2, 1), (3, 2)]))
    return cluster(
        draw(st.sampled_from([b for b in (1.0, 13.0, 100.0) if b >= least_bytes_per_s])),
        draw(st.sampled_from([0.0, 0.01])),
        devices_per_node=draw(st.sampled_from([1, 2])),
        intra_node=inside,
        core_oversubscription=draw(st.sampled_from([None, 1.0, 3.0])),
        cpu_cores=cores,
        worker_threads=threads,
        server=Server(
            placement=draw(st.sampled_from(["dedicated", "colocated"])),
            update_per_tensor_s=draw(st.sampled_from([0.0, 0.1])),
            update_per_byte_s=draw(st.sampled_from([0.0, 0.001])),
            threads=draw(st.sampled_from([1, 2])),
        ),
    )


@st.composite
def jobs(draw: st.DrawFn, arch: str, options: dict[str, Any], *, jitter: bool = False) -> Job:
    """Jobs of one to four workers, as many at least as the options need; with ``jitter`` maybe.

    Workers that do not wait for each other may differ much in pace: those that share a node with
    the server need no network. So what they compute and what they send is kept in proportion there,
    lest one makes thousands of iterations while another one makes three.
    """
    architecture, aliased = find(arch)
    freely = read_options(architecture, {**aliased, **options}).asynchronous
    work = draw(workloads(least_s=FREELY_S if freely else 0.01))
    where = draw(clusters(least_bytes_per_s=FREELY_BYTES_PER_S if freely else 1.0))
    least = 1 + options.get("backup_workers", 0)
    spread = None
    if jitter:
        kind = draw(st.sampled_from(["lognormal", "gamma"]))
        scope = draw(st.sampled_from(["iteration", "op"]))
        spread = draw(st.sampled_from([None, Jitter(0.3, kind, scope)]))
    return job(work, where, draw(st.integers(least, 4)), arch, options, jitter=spread)
