"""What real machines lose against the nominal figures of a cluster.

Data sheets give rates of links. They do not say what a framework spends on each gradient, that the
devices of a full node slow each other down, that sockets do not reach the rate of a fast link, or
that many cards cannot access each other's memory. Clusters with nominal figures get these losses,
so that a prediction is what to expect rather than the best case. Figures of measured and calibrated
clusters already contain them.

The values of devices and of copies through the host were learnt from public tables that no
prediction of the accuracy page is compared with: ``python -m benchmarks.accuracy.losses PATH``
prints them. The others are means of what was fitted to published runs.
"""

from __future__ import annotations

import msgspec

from perfmodel.base.provenance import Assumption
from perfmodel.inputs.cluster import NO_HANDOVER, Cluster, Handover, Server
from perfmodel.inputs.device import Device
from perfmodel.inputs.links import IntraNode, Link

HANDOVER_PER_TENSOR_S = 10e-6
"""Device time per gradient tensor: bucket bookkeeping and launches."""

MEMORY_PASSES = 25.0
"""Bytes that a device's memory moves per gradient byte: copies into and out of buckets, and the
copies and sums of the collective."""

MEMORY_BYTES_PER_S, MEMORY_OVER_NVLINK = 900e9, 7.0
"""Memory bandwidth of a device that is not in the catalogue: about that of a V100 or an RTX 3090,
or this many times the rate of its NVLinks each way (V100 6, A100 5 to 7, H100 7, B200 9)."""

SLOWDOWN_PER_NEIGHBOUR = 0.004
"""Relative increase of a device's compute time per further device of the job on its node: between
0.002, learnt from workstations, and the 0.009 to 0.012 that were fitted to full nodes of V100
(KungFu, DLPerf)."""

DEVICE_SPREAD = 0.01
"""Standard deviation of the speeds of equal devices, as a fraction."""

SOCKETS_BYTES_PER_S = 1.8e9
"""Rate that collectives reach over TCP on links that are nominally faster: geometric mean of what
was fitted to HKBU's runs on 100 Gbps (2.4e9), Horovod's on 25 Gbps (1.75e9), KungFu's (1.4e9)."""

SOCKETS_SPREAD = 0.35
"""Standard deviation of the logarithm of that rate among three systems."""

UPDATE_PER_TENSOR_S = 0.1e-3
"""Time of a parameter server per gradient tensor, as fitted to CM-DARE (0.05e-3 to 0.13e-3)."""

UPDATE_PER_BYTE_S = 0.8e-9
"""Time of a parameter server per gradient byte, to receive, add and apply it: geometric mean of
what was fitted to BytePS (0.06e-9, HKBU), MXNet (0.7e-9, its bandwidth tool; 3e-9, DL2) and
TensorFlow (1.6e-9, CM-DARE; 1.9e-9, Horovod)."""

RDMA_LATENCY_S, CLEARLY_RDMA_S = 20e-6, 10e-6
"""Latency below which the links of a cluster count as RDMA, which has no such ceiling; and below
which those of a cluster over sockets do if a job changes their latency."""

HOST_BYTES_PER_S = 14e9
"""Rate of copies through a node's memory, of all its devices together: each of two devices sends at
half of it."""

HOST_SPREAD = 0.5
"""Standard deviation of the logarithm of that rate among eight machines."""

HOST_LATENCY_S = 5e-6
"""Latency of such a copy: twice that over PCIe in NCCL's own model, as it crosses PCIe twice."""


def applies_to(cluster: Cluster) -> bool:
    """Whether a cluster gets the usual losses: as its ``losses`` say, or else if its figures are
    neither measured, exact nor calibrated."""
    if cluster.losses is not None:
        return cluster.losses == "usual"
    return cluster.calibration is None and cluster.source.kind in ("estimated", "published")


def with_losses(
    cluster: Cluster,
    device: Device | None,
    *,
    sockets: bool = True,
    servers: bool = True,
    among_several: bool = False,
) -> tuple[Cluster, list[Assumption]]:
    """Return a cluster with the usual losses, and an assumption for each.

    A loss that the cluster's own fields describe is left as it is.

    Parameters
    ----------
    device : None if it is not in the catalogue, which counts as a GPU.
    sockets : whether links between nodes are used through TCP sockets, if their latency does not
        show that they are not.
    servers : whether to list the costs of parameter servers among the assumptions.
    among_several : whether compute times were measured on a device among several: they contain the
        losses of the devices.
    """
    if not applies_to(cluster):
        return cluster, []
    changes: dict[str, object] = {}
    inside = cluster.intra_node
    if inside is not None and inside.interconnect == "pcie" and not _peer_access(device):
        changes["intra_node"] = through_host()
    if (device is None or device.kind == "gpu") and not among_several:
        if cluster.handover == NO_HANDOVER:
            changes["handover"] = handover_of(device, inside)
        if cluster.slowdown_per_neighbour == 0.0 and cluster.devices_per_node > 1:
            changes["slowdown_per_neighbour"] = SLOWDOWN_PER_NEIGHBOUR
        if cluster.device_spread == 0.0:
            changes["device_spread"] = DEVICE_SPREAD
    changes |= _limits(cluster) if sockets else {}
    lossy = msgspec.structs.replace(cluster, losses="none", **changes)
    notes = [row for name in changes for row in _assumptions(name, lossy)]
    if not any((cluster.server.update_per_tensor_s, cluster.server.update_per_byte_s)):
        lossy = msgspec.structs.replace(lossy, server=_busy(lossy.server))
        notes += _of_servers(lossy.server) if servers else []
    return lossy, notes


def through_host() -> IntraNode:
    """Return the links between devices that cannot access each other's memory: all their copies
    cross the host's memory, which they share."""
    return IntraNode(HOST_BYTES_PER_S, HOST_LATENCY_S, kind="bus", interconnect="host")


def handover_of(device: Device | None, inside: IntraNode | None = None) -> Handover:
    """Return what handing gradients over costs a device (:data:`MEMORY_PASSES`).

    Parameters
    ----------
    device : None if it is not in the catalogue; the links ``inside`` its node then tell about how
        fast its memory is.

    >>> round(handover_of(None).seconds(tensors=290, size_bytes=1.4e9), 4)
    0.0418
    """
    if device is not None:
        rate = device.memory_bandwidth_bytes_per_s
    elif inside is not None and inside.interconnect == "nvlink":
        rate = max(MEMORY_BYTES_PER_S, MEMORY_OVER_NVLINK * inside.bandwidth_bytes_per_s)
    else:
        rate = MEMORY_BYTES_PER_S
    return Handover(HANDOVER_PER_TENSOR_S, MEMORY_PASSES / rate)


def over_sockets(link: Link) -> bool:
    """Whether a nominal link between nodes is used through TCP sockets, by its latency."""
    return link.latency_s >= RDMA_LATENCY_S


def _peer_access(device: Device | None) -> bool:
    return device is None or device.peer_access


def _limits(cluster: Cluster) -> dict[str, object]:
    """Return the changed fields of a cluster some of whose links are faster than sockets."""
    limited = cluster.with_links(_limited)
    return {
        name: value
        for name in ("nic", "overrides", "server")
        if (value := getattr(limited, name)) != getattr(cluster, name)
    }


def _busy(server: Server) -> Server:
    return msgspec.structs.replace(
        server, update_per_tensor_s=UPDATE_PER_TENSOR_S, update_per_byte_s=UPDATE_PER_BYTE_S
    )


def _of_servers(server: Server) -> list[Assumption]:
    return [
        Assumption("update per tensor", server.update_per_tensor_s, "s", "usual loss"),
        Assumption("update per byte", server.update_per_byte_s, "s/byte", "usual loss"),
    ]


def _limited(link: Link) -> Link:
    if link.ceiling_bytes_per_s is not None or link.latency_s < CLEARLY_RDMA_S:
        return link
    return msgspec.structs.replace(link, ceiling_bytes_per_s=SOCKETS_BYTES_PER_S)


def _assumptions(name: str, cluster: Cluster) -> list[Assumption]:
    """Return the assumptions about a changed field."""
    why = "usual loss"
    if name == "intra_node":
        return []  # listed with the other links
    if name == "handover":
        return [
            Assumption("handover per tensor", cluster.handover.per_tensor_s, "s", why),
            Assumption("handover per byte", cluster.handover.per_byte_s, "s/byte", why),
        ]
    if name == "nic":
        limit = cluster.nic.ceiling_bytes_per_s
        if cluster.nic.bandwidth_bytes_per_s * cluster.nic.efficiency <= (limit or 0.0):
            return []
        return [Assumption("sockets", limit, "bytes_per_s", f"{why}: TCP on fast links")]
    if name in ("slowdown_per_neighbour", "device_spread"):
        return [Assumption(name.replace("_", " "), getattr(cluster, name), "", why)]
    return []
