"""Small jobs for tests: workloads of a few layers on clusters without surprises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from perfmodel import Cluster, Job, Link, Server, Source, Workload, WorkloadLayer, make_job
from perfmodel.architectures import names

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
        {"local_aggregation": True, "servers": 2},
        {"sync": "asp", "softsync": 2},
        {"transmission": "priority", "partition_bytes": 7, "duplex": True},
        {"transmission": "quantum", "quantum_bytes": 11, "compression": "top_k", "density": 0.2},
        {"transmission": "shared", "sync": "asp", "compression": "dgc", "encode_per_byte_s": 0.1},
        {"transmission": "priority", "credit_bytes": 20, "partition_bytes": 10},
    ],
    "p2p": [
        {},
        {"overlap": False},
        {"exchange": "sharded", "reduce_per_byte_s": 0.01},
        {"transmission": "priority", "partition_bytes": 7},
        {"exchange": "sharded", "compression": "quantised", "decode_per_byte_s": 0.01},
    ],
    "allreduce": [
        {},
        {"overlap": False},
        {"bucket_cap_bytes": 0, "first_bucket_bytes": 0},
        {"bucket_cap_bytes": 50, "first_bucket_bytes": 10, "concurrent": 2},
        {"each_send": True, "bucket_cap_bytes": 50},
        {"bucketing": "mg_wfbp", "reduce_per_byte_s": 0.001},
        {"algorithm": "halving_doubling", "each_send": True},
        {"algorithm": "double_tree", "chunks": 2, "each_send": True, "bucketing": "layer"},
        {"algorithm": "hierarchical", "each_send": True, "bucketing": "layer"},
        {"bucketing": "layer", "priority": True, "partition_bytes": 10, "cross_barrier": True},
        {"bucketing": "layer", "priority": True, "partition_bytes": 10, "credit_bytes": 25},
        {"compression": "top_k", "density": 0.1, "encode_per_byte_s": 0.01},
        {"compression": "quantised", "decode_per_byte_s": 0.01, "cross_barrier": True},
    ],
    "fsdp": [
        {"stage": 1, "unit_bytes": 0},
        {"stage": 2},
        {"stage": 3, "unit_bytes": 0},
        {"stage": 3, "unit_bytes": 50, "prefetch": 0},
        {"stage": 3, "unit_bytes": 0, "prefetch": 3, "reshard_after_forward": False},
    ],
    "local_sgd": [
        {"period": 1},
    ],
    "d_psgd": [{}, {"overlap": False}],
    "ad_psgd": [{}, {"passive": "even", "overlap": False}],
    "gosgd": [{}, {"probability": 0}, {"probability": 1, "queue": 1, "merge_per_model_s": 0.1}],
    "easgd": [{"period": 1}, {"period": 3, "servers": 2}],
}
"""Options under which each architecture has to keep the laws; defaults alone if not listed."""

ALL = [(name, options) for name in names() for options in VARIANTS.get(name, [{}])]
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
_positive = st.floats(0.01, 10.0)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Chains of one to five layers; some layers without parameters, some times zero."""
    n = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.sampled_from([0.0, 1.0, 7.0, 40.0, 100.0]), min_size=n, max_size=n))
    if not any(sizes):
        sizes[0] = 10.0
    forward = draw(st.lists(_seconds, min_size=n, max_size=n))
    backward = draw(st.lists(_seconds, min_size=n, max_size=n))
    forward[0] = draw(_positive)
    return workload(forward, backward, sizes, optimizer_s=draw(_seconds))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Clusters with and without latency, update cost, shared nodes, a core, colocated servers."""
    inside = draw(st.sampled_from([None, Link(500.0, 0.001)]))
    return cluster(
        draw(st.sampled_from([1.0, 13.0, 100.0])),
        draw(st.sampled_from([0.0, 0.01])),
        devices_per_node=draw(st.sampled_from([1, 2])),
        intra_node=inside,
        core_oversubscription=draw(st.sampled_from([None, 1.0, 3.0])),
        server=Server(
            placement=draw(st.sampled_from(["dedicated", "colocated"])),
            update_per_tensor_s=draw(st.sampled_from([0.0, 0.1])),
            update_per_byte_s=draw(st.sampled_from([0.0, 0.001])),
            threads=draw(st.sampled_from([1, 2])),
        ),
    )
