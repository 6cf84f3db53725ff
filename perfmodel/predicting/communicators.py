"""Memory of NCCL's communicators on a device, which is outside of the allocator.

Each channel of a communicator has a buffer for every connection that it receives from: 4 MiB for
large messages, 4.7 MiB and 0.5 MiB for small ones, in an allocation of 10 MiB
(github.com/NVIDIA/nccl, issue 1685, from NCCL's own log). A ring receives from one neighbour, a
tree from its parent and, in a chain of the devices of a node, from one child. There are two
channels for each NVLink (issue 1703), which has 25 GB/s in a direction: 12 on V100, 24 on A100; and
32 at most. A group on several nodes reaches no more than the network links that its devices on a
node have, with two channels for each link of 25 GB/s (issues 438 and 652), so that one with a
device on each node has few. Memory is proportional to channels and to communicators (issues 864
and 986). Issue 864 has 1.6 GB with one communicator, the context included; here it is 1.4 to 2 GB.
"""

from __future__ import annotations

import functools
import math
from collections import Counter

import msgspec

from perfmodel.base.same import Same
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job

CONNECTION_BYTES = 10.0 * 2**20
"""Buffers of a connection."""

CONNECTIONS = 3
"""Connections of a channel that a device receives from: of a ring one, of a tree two."""

CHANNEL_BYTES_PER_S = 12.5e9
"""Half of the rate of an NVLink in a direction, which two channels share."""

LEAST_CHANNELS, MOST_CHANNELS = 2, 32
"""Channels of a communicator, whatever the links (NCCL's ``MAXCHANNELS`` up to 2.27)."""


class Group(msgspec.Struct, frozen=True):
    """Devices with a communicator: how many, how many devices apart, and where the first is."""

    size: int
    stride: int = 1
    first: int = 0

    def on_a_node(self, devices_per_node: int) -> int:
        """Return how many of them are on the node that has most."""
        some = range(min(self.size, devices_per_node + 1))  # nodes that follow are alike
        nodes = Counter((self.first + k * self.stride) // devices_per_node for k in some)
        return max(nodes.values())


def channels_of(cluster: Cluster, group: Group | None = None) -> int:
    """Return the channels of a communicator: for the fastest links of a device or, if the ``group``
    is on several nodes, for the network links that its devices on a node have between them."""
    here = cluster.devices_per_node
    inside = cluster.intra_node if here > 1 else None
    nics = cluster.nics_per_node
    rate = math.inf if inside is None else inside.bandwidth_bytes_per_s
    together = here if group is None else group.on_a_node(here)
    if here > 1 and group is not None and together < group.size:
        nics = min(nics, together)
        rate = rate if together > 1 else math.inf
        rate = min(rate, cluster.nic.bandwidth_bytes_per_s * nics)
    elif inside is None:
        rate = cluster.nic.bandwidth_bytes_per_s * nics
    enough = math.ceil(min(rate / CHANNEL_BYTES_PER_S, MOST_CHANNELS))
    return max(enough, LEAST_CHANNELS)


def communicators_of(job: Job, stage: int = 0, *, servers: bool) -> list[Group]:
    """Return the groups of devices that a device has a communicator with.

    One is of all workers, unless they only talk to ``servers``. A device of an island has another
    one for the island. A device of ``stage`` of a replica has one for all devices, where frameworks
    wait for each other, and where they apply: for the devices that divide its layers, for those
    that divide its sequences, for those that divide its experts, for each stage next to its own,
    and for those at its place of all replicas.
    """
    across = job.workers > 1 and not servers
    if job.islands:
        size = max(island.devices for island in job.islands)
        within = [Group(size)] if size > 1 else []
        return within + ([Group(job.workers, size)] if across else [])
    replica = job.replica
    if replica is None:
        return [Group(job.workers)] if across else []
    each, stages = replica.tensor * replica.context, replica.pipeline
    of_stage, of_replica = each * job.workers, each
    if replica.order == "tp-pp-dp":
        of_stage, of_replica = each, each * stages
    first, last = stage * of_stage, stages - 1
    groups = [Group(job.devices)]
    groups += [Group(replica.tensor)] if replica.tensor > 1 else []
    groups += [Group(replica.context, replica.tensor)] if replica.context > 1 else []
    if replica.experts is not None:
        groups.append(Group(replica.experts.degree, replica.tensor))
    neighbours = [min(stage, stage + step) for step in (-1, 1) if 0 <= stage + step <= last]
    groups += [Group(2, of_stage, one * of_stage) for one in neighbours]
    if replica.virtual_stages > 1 and last > 1 and len(neighbours) < 2:
        groups.append(Group(2, last * of_stage))  # the last one sends to the first
    return groups + ([Group(job.workers, of_replica, first)] if across else [])


def communicator_bytes(cluster: Cluster, group: Group | None = None) -> float:
    """Return the memory of a communicator on a device, of a ``group`` or of devices of a node."""
    return _channels(Same(cluster), group) * CONNECTIONS * CONNECTION_BYTES


@functools.lru_cache(maxsize=1024)
def _channels(cluster: Same[Cluster], group: Group | None) -> int:
    return channels_of(cluster.value, group)
