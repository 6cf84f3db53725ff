"""Links of stages among those of all devices, and names of these devices."""

from __future__ import annotations

from collections.abc import Hashable

from perfmodel.base.arrays import Ids
from perfmodel.communication.fabric import Fabric
from perfmodel.graph.op_graph import Block
from perfmodel.replicas.seats import Seats
from perfmodel.training.workers import CORES

SHARED_SLOTS = "update threads of"
"""Label of the slots that the servers of all stages share."""

OWN_LINKS = "inside link"
"""Start of the labels of links of single devices."""


def names_of(at: Ids, within: int) -> list[str]:
    """Return the names of all devices by their position, those that divide layers as one; of
    ``within`` for each worker, also their number there."""
    names = {
        int(position): f"stage {stage}, worker {worker // within}"
        + (f", part {worker % within}" if within > 1 else "")
        for stage, row in enumerate(at)
        for worker, position in enumerate(row)
    }
    return [names[position] for position in sorted(names)]


def keys_of_fabric(fabric: Fabric) -> list[Hashable]:
    """Return the key of each link of all devices' fabric: kind, node and number there."""
    keys: list[Hashable] = []
    for direction in ("link out of", "link into"):
        keys += [
            (direction, nic // fabric.nics_per_node, nic % fabric.nics_per_node)
            for nic in range(fabric.nics)
        ]
    keys.append(("core", 0, 0))
    if fabric.bus:
        keys += [("link inside", node, 0) for node in range(len(fabric.latency_s))]
    else:
        keys += [(f"{OWN_LINKS} out of", port, 0) for port in range(fabric.ports)]
        keys += [(f"{OWN_LINKS} into", port, 0) for port in range(fabric.ports)]
    keys += [("sites", k, 0) for k in range(len(fabric.capacity) - len(keys))]
    return keys


def key_of(seats: Seats, fabric: Fabric, block: Block, k: int) -> Hashable | None:
    """Return which of all devices' links, or of the servers' threads, a stage's is."""
    each = seats.cluster.nics_per_node
    if block.label in ("link out of", "link into"):
        node, nic = divmod(k, each)
        if node >= len(seats.node):  # of a server
            return (block.label, "server", node - len(seats.node), nic)
        return (block.label, int(seats.node[node]), int(seats.nics[node, nic]))
    if block.label == "core":
        return ("core", 0, 0)
    if block.label == "link inside":
        return (block.label, int(seats.node[k]), 0) if k < len(seats.node) else None
    if block.label.startswith(OWN_LINKS):
        return (block.label, int(seats.position[k]), 0)
    if block.label == SHARED_SLOTS:
        return (SHARED_SLOTS, k)
    if block.label == CORES:
        return (CORES, int(seats.node[k])) if k < len(seats.node) else (CORES, "server", k)
    return None
