"""Causes that make a run slower than its job should be, each as changes of the job.

A cause has a size in most cases, such as the rate that a link really has. Its hypotheses are the
sizes that come into question, each with a weight.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.units import show
from perfmodel.catalogue import catalogue
from perfmodel.inputs import usual_losses
from perfmodel.inputs.cluster import IntraNode, NodeOverride
from perfmodel.inputs.job import Job, Straggler
from perfmodel.studies.changes import Change, of_arguments, of_cluster, of_options

AS_PREDICTED = "as predicted"
"""The hypothesis that nothing is wrong."""

PLACES = 4
"""Nodes of which each may be the slow one."""

FEW, MANY = 5, 32
"""Number of sizes of a cause whose size is known roughly, and of one of unknown size."""

LEAST_RATE, MOST_SLOWER = 0.01, 6.0
"""The slowest link in question, as a fraction of the nominal rate; the largest ratio of times: a
judgement."""

WRONG_INTERFACE_BYTES_PER_S = 1.1e8
"""What a gigabit interface carries for a whole node: the slowest that a library may choose by
mistake."""

PCIE_BYTES_PER_S, PCIE_SPREAD, PCIE_LATENCY_S = 11.1e9, 0.4, 2.5e-6
"""What a device sends over PCIe x16: geometric mean of the catalogue's rates for generations 3.0
and 4.0 (half of 15.75e9 and of 31.5e9), and the standard deviation of its logarithm, which covers
both; latency as there."""

SOCKET_LATENCY_S = 50e-6
"""Latency of a message over sockets: a judgement, twice that of the catalogue's fast Ethernet."""


class Hypothesis(NamedTuple):
    """A cause of one size.

    Attributes
    ----------
    weight : prior probability among the hypotheses of its cause.
    size : for the interval of the size; the unit is that of :class:`Cause`.
    change : makes the job as it really runs.
    host_s : time per step that devices idle for the host, as part of their computation.
    """

    weight: float
    size: float
    change: Change
    host_s: float = 0.0


class Cause(NamedTuple):
    """A cause.

    Attributes
    ----------
    name : in a word or two.
    hypotheses : its sizes in a job; none if the job cannot have it.
    finding : says the cause and its size for a person, with ``{}`` for the size.
    unit : of the size: a unit of :mod:`perfmodel.base.units`, *times*, or "" without a size.
    remedy : what to do about it.
    seen_alone : whether one device alone would be as slow.
    """

    name: str
    hypotheses: Callable[[Job], Iterator[Hypothesis]]
    finding: str
    unit: str
    remedy: str
    seen_alone: bool = False

    def words(self, size: float) -> str:
        """The finding with a size."""
        if self.unit == "times":
            return self.finding.format(f"{size:.2g}")
        if self.unit == "count":
            return self.finding.format(f"{size:.0f}")
        return self.finding.format(show(size, self.unit)) if self.unit else self.finding


def _even(sizes: Sequence[float], change: Callable[[float], Change]) -> Iterator[Hypothesis]:
    """Hypotheses of equal weight."""
    for size in sizes:
        yield Hypothesis(1.0 / len(sizes), float(size), change(float(size)))


def _slower(change: Callable[[float], Change]) -> Iterator[Hypothesis]:
    """How many times as long something takes; the longer, the less likely, by the square."""
    factors = np.geomspace(1.05, MOST_SLOWER, MANY)
    weights = factors**-2.0 / (factors**-2.0).sum()
    for weight, factor in zip(weights.tolist(), factors.tolist(), strict=True):
        yield Hypothesis(weight, factor, change(factor))


def _about(middle: float, spread: float, change: Callable[[float], Change]) -> Iterator[Hypothesis]:
    """Equally likely sizes whose logarithm is normal."""
    from scipy.special import ndtri

    z = ndtri((np.arange(FEW) + 0.5) / FEW)
    return _even((middle * np.exp(spread * z)).tolist(), change)


def _nodes(job: Job) -> int:
    return job.of_devices.cluster.nodes_for(job.devices)


def _shares_node(job: Job) -> bool:
    cluster = job.of_devices.cluster
    return job.devices > 1 and cluster.devices_at(0, job.devices) > 1


def _nic(job: Job, **fields: object) -> Change:
    nic = job.of_devices.cluster.nic
    return of_cluster("links", nic=msgspec.structs.replace(nic, **fields), collectives=())


def _slow_link(job: Job) -> Iterator[Hypothesis]:
    """The achieved rate of the link between nodes, from nearly nominal down."""
    if _nodes(job) < 2:
        return iter(())
    cluster = job.of_devices.cluster
    most = cluster.nic.goodput_bytes_per_s
    least = min(LEAST_RATE * most, WRONG_INTERFACE_BYTES_PER_S / cluster.nics_per_node)
    rates = np.geomspace(0.9 * most, least, MANY).tolist()
    return _even(rates, lambda rate: _nic(job, ceiling_bytes_per_s=rate))


def _sockets(job: Job) -> Iterator[Hypothesis]:
    """Collectives over TCP although the links have RDMA."""
    nic = job.of_devices.cluster.nic
    if _nodes(job) < 2 or usual_losses.over_sockets(nic):
        return iter(())
    return _about(
        usual_losses.SOCKETS_BYTES_PER_S,
        usual_losses.SOCKETS_SPREAD,
        lambda rate: _nic(job, ceiling_bytes_per_s=rate, latency_s=SOCKET_LATENCY_S),
    )


def _no_peer_access(job: Job) -> Iterator[Hypothesis]:
    """Devices of a node copy through the host."""
    inside = job.of_devices.cluster.intra_node
    if not _shares_node(job) or (inside is not None and inside.interconnect == "host"):
        return iter(())

    def copied(rate: float) -> Change:
        host = msgspec.structs.replace(usual_losses.through_host(), bandwidth_bytes_per_s=rate)
        return of_cluster("inside", intra_node=host, collectives=(), inside_collectives=())

    return _about(usual_losses.HOST_BYTES_PER_S, usual_losses.HOST_SPREAD, copied)


def _no_nvlink(job: Job) -> Iterator[Hypothesis]:
    """Devices of a node that should have NVLink exchange over PCIe, directly: those that cannot
    copy through the host."""
    workload, inside = job.of_devices.workload, job.of_devices.cluster.intra_node
    known = catalogue.devices().get(workload.device)
    direct = known is None or known.peer_access
    if not (direct and _shares_node(job)) or inside is None or inside.interconnect != "nvlink":
        return iter(())

    def over_pcie(rate: float) -> Change:
        pcie = IntraNode(rate, PCIE_LATENCY_S, kind="per_device", interconnect="pcie")
        return of_cluster("inside", intra_node=pcie, collectives=(), inside_collectives=())

    return _about(PCIE_BYTES_PER_S, PCIE_SPREAD, over_pcie)


def _no_overlap(job: Job) -> Iterator[Hypothesis]:
    if getattr(job.options, "overlap", False) is True and job.workers > 1:
        yield Hypothesis(1.0, 1.0, of_options("no overlap", overlap=False))


def _every_pass(job: Job) -> Iterator[Hypothesis]:
    """Gradients are exchanged in every pass of an update."""
    if getattr(job.options, "no_sync", False) is True and job.workload.accumulation > 1:
        yield Hypothesis(
            1.0, job.workload.accumulation, of_options("exchange in every pass", no_sync=False)
        )


def _small_buckets(job: Job) -> Iterator[Hypothesis]:
    """Gradients are exchanged tensor by tensor."""
    now = getattr(job.options, "bucketing", None)
    if now not in (None, "layer") and job.workers > 1:
        yield Hypothesis(1.0, 1.0, of_options("a bucket per layer", bucketing="layer"))


def _slow_node(job: Job) -> Iterator[Hypothesis]:
    """One node is slow: the first, the last, or one between; stages wait differently for each."""
    overrides = job.of_devices.cluster.overrides
    links = {override.node: override.nic for override in overrides}
    nodes = np.unique(np.linspace(0, _nodes(job) - 1, PLACES).round()).astype(int).tolist()

    def slower(node: int, factor: float) -> Change:
        slow = NodeOverride(node, links.get(node), 1.0 / factor)
        others = tuple(override for override in overrides if override.node != node)
        return of_cluster("slow", overrides=(*others, slow))

    for node in nodes:
        for hypothesis in _slower(functools.partial(slower, node)):
            yield hypothesis._replace(weight=hypothesis.weight / len(nodes))


def _slow_device(job: Job) -> Iterator[Hypothesis]:
    if job.devices < 2:
        return iter(())
    if job.replica is not None:  # its devices are no workers: a node is slow
        return _slow_node(job)
    last = job.workers - 1
    kept = tuple(s for s in job.stragglers if s.worker != last)
    return _slower(lambda factor: of_arguments("slow", stragglers=(*kept, Straggler(last, factor))))


def _slow_devices(job: Job) -> Iterator[Hypothesis]:
    """Every device computes slower than it should."""

    def slower(factor: float) -> Change:
        workload = job.of_devices.workload.scaled("compute_s", factor)
        return of_arguments("slow devices", workload=workload)

    return _slower(slower)


def _host_bound(job: Job) -> Iterator[Hypothesis]:
    """Devices idle, for the host launches kernels more slowly than they run."""

    for weight, factor, change, _ in _slow_devices(job):
        idle_s = (factor - 1.0) * job.of_devices.workload.compute_s
        yield Hypothesis(weight, idle_s, change, idle_s)


def _loading(job: Job) -> Iterator[Hypothesis]:
    """Loading a batch takes longer than computing it."""
    workload = job.of_devices.workload
    least_s = max(workload.compute_s, workload.data_loading_s)

    def loaded(factor: float) -> Change:
        slow = msgspec.structs.replace(workload, data_loading_s=factor * least_s)
        return of_arguments("slow loading", workload=slow)

    for weight, factor, change, _ in _slower(loaded):
        yield Hypothesis(weight, factor * least_s, change)


def _spread(job: Job) -> Iterator[Hypothesis]:
    """The workers are on more nodes than they need."""
    if not _shares_node(job):
        return iter(())
    there = job.of_devices.cluster.devices_at(0, job.devices)
    counts = [float(2**k) for k in range(int(math.log2(there))) if 2**k < there]
    return _even(
        counts,
        lambda count: of_cluster("spread", devices_per_node=int(count), nodes=None),
    )


CAUSES = (
    Cause(
        "slow link",
        _slow_link,
        "the links between nodes carry {}",
        "bytes_per_s",
        "check the rate that the link negotiated, which interfaces the library uses "
        "(NCCL_SOCKET_IFNAME, NCCL_IB_HCA), and what else uses them",
    ),
    Cause(
        "no RDMA",
        _sockets,
        "collectives go over TCP sockets, at {}",
        "bytes_per_s",
        "NCCL_DEBUG=INFO must say NET/IB or a plugin, not NET/Socket; install the plugin or the "
        "RDMA drivers",
    ),
    Cause(
        "no peer access",
        _no_peer_access,
        "devices of a node copy through the memory of the host, at {}",
        "bytes_per_s",
        "nvidia-smi topo -p2p r must say OK; switch off ACS and IOMMU, or take devices with NVLink",
    ),
    Cause(
        "no NVLink",
        _no_nvlink,
        "devices of a node exchange over PCIe instead of NVLink, at {} each",
        "bytes_per_s",
        "nvidia-smi topo -m must say NV#; start the fabric manager, or add bridges",
    ),
    Cause(
        "no overlap",
        _no_overlap,
        "communication does not overlap with computation",
        "",
        "exchange gradients in hooks of the backward pass, as DistributedDataParallel does",
    ),
    Cause(
        "exchange in every pass",
        _every_pass,
        "gradients are exchanged in each of {} passes of an update",
        "count",
        "run all passes but the last inside no_sync",
    ),
    Cause(
        "small buckets",
        _small_buckets,
        "gradients are exchanged layer by layer",
        "",
        "raise the bucket size (bucket_cap_mb, HOROVOD_FUSION_THRESHOLD)",
    ),
    Cause(
        "slow device",
        _slow_device,
        "one device takes {} times as long as the others",
        "times",
        "time each device alone: clocks, temperature, other processes; replace the slow one",
    ),
    Cause(
        "slow computation",
        _slow_devices,
        "every device computes {} times as long as it should",
        "times",
        "profile one device: clocks and power, precision, attention that is not fused",
        seen_alone=True,
    ),
    Cause(
        "host-bound",
        _host_bound,
        "devices idle for {} of a step, because the host does not launch kernels fast enough",
        "s",
        "torch.compile or CUDA graphs, fused optimizers, larger batches, faster cores; no "
        "synchronisation in the loop (.item(), print)",
        seen_alone=True,
    ),
    Cause(
        "data loading",
        _loading,
        "a batch takes {} to load, longer than to compute",
        "s",
        "more loader processes, decoded or smaller samples, faster storage",
        seen_alone=True,
    ),
    Cause(
        "placement",
        _spread,
        "nodes have {} devices of the job each, so that more goes over the network",
        "count",
        "fill nodes before taking more of them",
    ),
)
"""All causes, in no order."""
