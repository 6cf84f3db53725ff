"""Small jobs for tests: workloads of a few layers on simple clusters."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
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
from perfmodel.architectures.registry import all_architectures, find, names, read_options
from perfmodel.inputs.passes import accumulated

VARIANTS: dict[str, list[dict[str, Any]]] = {
    one.name: [dict(options) for options in one.variants] for one in all_architectures()
}
"""Options under which each architecture must obey the laws: every option, and every allowed word,
appears at least once."""

ALL = [(name, options) for name in names() for options in VARIANTS[name]]
ALL_IDS = [f"{name}-{'-'.join(f'{k}={v}' for k, v in o.items())}" for name, o in ALL]


def each_variant(which: Callable[[str, dict[str, Any]], bool] = lambda arch, options: True) -> Any:
    """Parametrise a test by the variants of all architectures for which ``which`` holds."""
    cases = [
        pytest.param(arch, options, id=name)
        for (arch, options), name in zip(ALL, ALL_IDS, strict=True)
        if which(arch, options)
    ]
    return pytest.mark.parametrize(("arch", "options"), cases)


def third_of_variants(
    which: Callable[[str, dict[str, Any]], bool] = lambda arch, options: True,
) -> Any:
    """Parametrise as :func:`each_variant`, but mark two of three variants as slow.

    Which third is not depends on the name of the test, so that every variant is in many tests."""

    def mark(test: Any) -> Any:
        first = zlib.crc32(test.__name__.encode()) % 3
        chosen = [one for one, variant in enumerate(ALL) if which(*variant)]
        cases = [
            pytest.param(
                *ALL[one], id=ALL_IDS[one], marks=pytest.mark.slow if (first + n) % 3 else ()
            )
            for n, one in enumerate(chosen)
        ]
        return pytest.mark.parametrize(("arch", "options"), cases)(test)

    return mark


ETHERNET = Cluster(
    name="10 Gbps",
    nic=Link(1.25e9, 25e-6, 0.9415),
    server=Server(update_per_tensor_s=0.2e-3, update_per_byte_s=0.09e-9),
    source=Source("exact", "made for a test"),
)
"""A cluster of one device per node without the usual losses of nominal figures."""


def workload(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    bytes_: Sequence[float],
    *,
    batch_size: int = 1,
    optimizer_s: float = 0.0,
    data_loading_s: float = 0.0,
) -> Workload:
    """A chain of layers with one tensor each (none if its size is 0)."""
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
    """A job; workers start together by default and are rounded up to whole groups."""
    fields.setdefault("start", "together")
    given = options or {}
    count = whole_groups(workers, given)
    return make_job(workload=work, cluster=where, workers=count, arch=arch, options=given, **fields)


def whole_groups(workers: int, options: Mapping[str, Any]) -> int:
    """The smallest allowed number of workers that is at least ``workers``."""
    size = options.get("shard_group") or 1
    return workers if workers <= size else -(-workers // size) * size


_seconds = st.floats(0.0, 10.0, allow_subnormal=False)

FREELY_S, FREELY_BYTES_PER_S = 0.5, 13.0
"""Shortest iteration and smallest bandwidth for workers that do not wait for each other."""


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
    """Jobs of one to four workers, but at least as many as the options need; possibly with jitter.

    Workers that do not wait for each other may differ widely in pace: those on the server's node
    need no network. For these jobs computation and traffic are kept in proportion, so that no
    worker makes thousands of iterations while another makes three.
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


# -- workers of several devices --------------------------------------------------------------------

ONE_CHUNK = ("gpipe", "1f1b", "zb_h1", "zb_h2")
SEVERAL_CHUNKS = ("interleaved_1f1b", "looped_bfs", "interleaved_zb", "zb_v")
"""Schedules of replicas with one chunk of layers per stage, and with several."""


@st.composite
def pipelines(draw: st.DrawFn, *, most_stages: int = 4) -> dict[str, Any]:
    """Arguments of workers with a few stages, none if there is one; all numbers are possible."""
    stages = draw(st.integers(1, most_stages))
    passes = draw(st.integers(1, 8))
    if stages == 1:
        return {"accumulation": passes}
    schedule = draw(st.sampled_from(ONE_CHUNK + SEVERAL_CHUNKS))
    chunks = 1
    if schedule in SEVERAL_CHUNKS:
        chunks = 2 if schedule == "zb_v" else draw(st.integers(1, 3))
        rounds = max(passes // stages, 1)
        passes -= passes % rounds if passes >= stages else 0
    transfers = ["torch", "gloo", "ahead"]
    if schedule in ("gpipe", "1f1b", "zb_h1"):
        transfers.append("blocking")
    return {
        "accumulation": passes,
        "pipeline": stages,
        "schedule": schedule,
        "virtual_stages": chunks,
        "transfers": draw(st.sampled_from(transfers)),
        "rank_order": draw(st.sampled_from(["tp-dp-pp", "tp-pp-dp"])),
    }


@st.composite
def replica_jobs(
    draw: st.DrawFn,
    arch: str,
    *,
    jitter: bool = False,
    workers: tuple[int, int] = (1, 3),
    variants: Sequence[Mapping[str, Any]] | None = None,
) -> Job:
    """Jobs of one to three replicas with unequal stages, with any options of an architecture that
    pipelines allow (or ``variants``), on one or two devices per node."""
    options = dict(draw(st.sampled_from(VARIANTS[arch] if variants is None else variants)))
    shape = draw(pipelines())
    passes = shape.pop("accumulation")
    if shape.get("pipeline", 1) > 1:
        options |= {k: v for k, v in (("no_sync", True),) if k in options}
        if arch == "fsdp" and options.get("stage", 3) == 3:
            options["reshard_after_forward"] = False
            for name in ("blocking_reduce", "reshard_after_backward"):
                options.pop(name, None)
    many = shape.get("pipeline", 1) * shape.get("virtual_stages", 1) + draw(st.integers(0, 2))
    layers = [
        WorkloadLayer(
            f"layer{k}",
            draw(st.floats(0.5, 2.0)),
            draw(st.floats(1.0, 4.0)),
            (draw(st.sampled_from([1.0, 7.0, 40.0])),),
            draw(st.sampled_from([0.0, 1.0, 5.0])),
        )
        for k in range(many)
    ]
    made = Workload.of("chain", layers, optimizer_s=draw(st.sampled_from([0.0, 0.5])))
    where = cluster(
        draw(st.sampled_from([13.0, 100.0])),
        draw(st.sampled_from([0.0, 0.01])),
        devices_per_node=draw(st.sampled_from([1, 2])),
        intra_node=draw(st.sampled_from([None, Link(500.0, 0.001)])),
        core_oversubscription=draw(st.sampled_from([None, None, 3.0])),
        server=Server(
            placement=draw(st.sampled_from(["dedicated", "colocated"])),
            update_per_byte_s=draw(st.sampled_from([0.0, 0.001])),
        ),
    )
    spread = draw(st.sampled_from([None, Jitter(0.3)])) if jitter else None
    count = draw(st.integers(max(workers[0], 1 + options.get("backup_workers", 0)), workers[1]))
    return job(accumulated(made, passes), where, count, arch, options, jitter=spread, **shape)
