"""Links of stages among those of all devices, and names of these devices."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import permutations

from perfmodel.base.arrays import NONE, Ids
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.network import BETWEEN_SITES
from perfmodel.graph.joining import Named
from perfmodel.graph.op_graph import Block
from perfmodel.replicas.seats import Seats
from perfmodel.training.workers import CORES

SHARED_SLOTS = "update threads of"
"""Label of the slots that the servers of all stages share."""

BETWEEN_NODES, INSIDE, OWN_LINKS = ("link out of", "link into"), "link inside", "inside link"
"""Labels of links of nodes, and the start of those of links of single devices."""


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
    for direction in BETWEEN_NODES:
        keys += [
            (direction, nic // fabric.nics_per_node, nic % fabric.nics_per_node)
            for nic in range(fabric.nics)
        ]
    keys.append(("core", 0, 0))
    if fabric.bus:
        keys += [(INSIDE, node, 0) for node in range(len(fabric.latency_s))]
    else:
        keys += [(f"{OWN_LINKS} out of", port, 0) for port in range(fabric.ports)]
        keys += [(f"{OWN_LINKS} into", port, 0) for port in range(fabric.ports)]
    if fabric.between is not None:
        pairs = permutations(fabric.between.names, 2)
        keys += [Named(BETWEEN_SITES, f"{a} to {z}", NONE) for a, z in pairs]
    return keys


def key_of(seats: Seats, fabric: Fabric, block: Block, k: int) -> Hashable | None:
    """Return which of all devices' links, or of the servers' threads, a stage's is."""
    between, nodes, here = block.label in BETWEEN_NODES, len(fabric.latency_s), len(seats.node)
    if between or block.label in (INSIDE, CORES):
        node, nic = divmod(k, seats.cluster.nics_per_node if between else 1)
        if node >= here:
            several = f", NIC {nic}" * (between and seats.cluster.nics_per_node > 1)
            name, place = f"(server {node - here}){several}", nodes + node - here
            return Named(block.label, f"node {place} {name}", place)
        place = int(seats.node[node])
        if block.label == CORES:
            return Named(CORES, f"node {place}", place)
        return (block.label, place, int(seats.nics[node, nic]) if between else 0)
    if block.label == SHARED_SLOTS:
        colocated = seats.cluster.server.placement == "colocated"
        place = int(seats.node[k % here]) if colocated else nodes + k
        return Named(SHARED_SLOTS, f"server {k}", place)
    if block.label.startswith(OWN_LINKS):
        return (block.label, int(seats.position[k]), 0)
    if block.label == BETWEEN_SITES:
        return Named(BETWEEN_SITES, block.member(block.first + k), NONE)
    return ("core", 0, 0) if block.label == "core" else None
