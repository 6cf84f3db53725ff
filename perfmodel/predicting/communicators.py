"""Memory of NCCL's communicators on a device, which is outside of the allocator.

Each channel of a communicator has a buffer for every connection that it receives from: 4 MiB for
large messages, 4.7 MiB and 0.5 MiB for small ones, in an allocation of 10 MiB
(github.com/NVIDIA/nccl, issue 1685, from NCCL's own log). A ring receives from one neighbour, a
tree from its parent and, in a chain of the devices of a node, from one child. There are two
channels for each NVLink (issue 1703), which has 25 GB/s in a direction: 12 on V100, 24 on A100; and
32 at most. Memory is proportional to channels and to communicators (issues 864 and 986). Issue 864
has 1.6 GB with one communicator, the context included; here it is 1.4 to 2 GB.
"""

from __future__ import annotations

import math

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


def channels_of(cluster: Cluster) -> int:
    """Return the channels of a communicator, for the fastest links of a device."""
    if cluster.intra_node is not None and cluster.devices_per_node > 1:
        rate = cluster.intra_node.bandwidth_bytes_per_s
    else:
        rate = cluster.nic.bandwidth_bytes_per_s * cluster.nics_per_node
    enough = math.ceil(min(rate / CHANNEL_BYTES_PER_S, MOST_CHANNELS))
    return max(enough, LEAST_CHANNELS)


def communicators_of(job: Job, stage: int = 0, *, servers: bool) -> int:
    """Return how many communicators a device is part of.

    One is for all workers, unless they only talk to ``servers``. A device of an island has another
    one for the island. A device of ``stage`` of a replica has one for all devices, where frameworks
    wait for each other, and where they apply: for the devices that divide its layers, for those
    that divide its sequences, for those that divide its experts, for each stage next to its own,
    and for those at its place of all replicas.
    """
    across = int(job.workers > 1 and not servers)
    if job.islands:
        return across + int(any(island.devices > 1 for island in job.islands))
    replica = job.replica
    if replica is None:
        return across
    last = replica.pipeline - 1
    next_to = int(stage > 0) + int(stage < last)
    if replica.virtual_stages > 1 and last > 1:  # the last one sends to the first
        next_to = 2
    parts = int(replica.tensor > 1) + int(replica.context > 1) + int(replica.experts is not None)
    return 1 + parts + next_to + across


def communicator_bytes(cluster: Cluster) -> float:
    """Return the memory of a communicator on a device."""
    return channels_of(cluster) * CONNECTIONS * CONNECTION_BYTES
