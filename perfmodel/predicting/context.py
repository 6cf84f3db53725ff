"""What devices that divide sequences send to each other, and how long they wait for the slowest.

A ring sends keys and values in as many rounds as there are other devices, each while the part
before is computed; what takes longer than that is exposed. In backward their gradients pass round
as well. An all-gather and an all-to-all come before attention, and after it in backward. With
contiguous parts the device with the last one computes nearly twice the mean; of packed sequences
that with the longest documents computes more than others, unless each document is divided alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.communication.costs import Cost, LinkCosts
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.members import Members
from perfmodel.inputs.cluster import Cluster, Collective
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.recomputation import block_of
from perfmodel.inputs.replica import Replica, ReplicaStage, Sums
from perfmodel.inputs.workload import Workload, WorkloadLayer
from perfmodel.replicas.seats import check_span
from perfmodel.theory.packing import largest_part

BACKWARD_TIMES = 2.0
"""Bytes that backward exchanges over those of forward: keys and values, and their gradients."""


NOTHING = Sums()
"""What layers without keys and values exchange."""


def with_context(
    cluster: Cluster,
    stage: ReplicaStage,
    layers: Sequence[WorkloadLayer],
    workload: Workload,
    within: int,
) -> ReplicaStage:
    """Return a stage with what its devices exchange for sequences that they divide.

    Parameters
    ----------
    cluster : of single devices.
    layers : of a pass of the stage.
    workload : of the stage; backward exchanges again what it computes again.
    within : how many of the devices are workers of their own; 1 if all count as one.

    Raises
    ------
    InputError : the devices would have a part of a node besides whole nodes.
    """
    replica = stage.replica
    costs = _Costs.of(cluster, replica, within)
    uneven, again = _uneven(replica, workload), workload.recompute == "full"
    waits, forward = [(0.0, 0.0)] * len(layers), [NOTHING] * len(layers)
    backward = forward.copy()
    for k, one in enumerate(layers):
        if not one.keys_bytes:
            continue
        late = uneven * _attention(one, workload)
        waits[k] = late * one.forward_s, late * one.backward_s
        times = BACKWARD_TIMES + (again and bool(block_of(one)))
        forward[k] = costs.joined(one, 1.0, one.forward_s + waits[k][0])
        backward[k] = costs.joined(one, times, one.backward_s + waits[k][1])
    made = msgspec.structs.replace(
        stage,
        context_workers=within,
        forward_exchanges=tuple(forward),
        backward_exchanges=tuple(backward),
        forward_waits_s=tuple(wait_s for wait_s, _ in waits),
        backward_waits_s=tuple(wait_s for _, wait_s in waits),
    )
    if within > 1:
        return made
    sizes = [sum(layer.tensor_bytes) / replica.tensor for layer in layers]
    return msgspec.structs.replace(made, gradient_sums=tuple(map(costs.gradients, sizes)))


class _Pair(NamedTuple):
    """What passes round a ring, and what does not."""

    round: Sums
    other: Sums


class _Costs:
    """Costs of exchanges among the devices that divide a sequence, each size once."""

    def __init__(
        self, replica: Replica, fabric: Fabric, ends: Ids, measured: tuple[Collective, ...],
        workers: int,
    ) -> None:  # fmt: skip
        self.replica, self.fabric, self.measured = replica, fabric, measured
        self.ends, self.workers = ends, workers
        self.known: dict[tuple[str, float], Sums] = {}
        self.exchanges: dict[tuple[float, float, float, float], Sums] = {}

    @classmethod
    def of(cls, cluster: Cluster, replica: Replica, within: int) -> _Costs:
        """Return the costs on a cluster of single devices; all groups of a node send at once."""
        span, each = replica.tensor * replica.context, cluster.devices_per_node
        check_span(cluster, span, "context" if replica.tensor == 1 else "tensor x context")
        here = max(span, each - each % span)
        alone = cluster.at_one_site()
        numbers = np.arange(here).reshape(-1, replica.context, replica.tensor)
        measured = cluster.inside_collectives if span <= each else ()
        ends = numbers.swapaxes(1, 2).reshape(-1, replica.context)
        return cls(replica, Fabric.of(alone, here), ends, measured, here // span * within)

    def joined(self, layer: WorkloadLayer, times: float, attention_s: float) -> Sums:
        """Return what a layer exchanges that attention of so many seconds does not hide; keys and
        values pass ``times`` as often as in forward."""
        key = layer.keys_bytes, layer.queries_bytes, times, attention_s
        if key not in self.exchanges:
            pair = self._exchange(layer, times)
            if self.replica.context_exchange in ("ring", "hierarchical"):
                pair = _exposed(pair, self.replica, attention_s)
            self.exchanges[key] = _joined(pair)
        return self.exchanges[key]

    def _exchange(self, layer: WorkloadLayer, times: float) -> _Pair:
        """Return what a layer exchanges."""
        none = NOTHING
        way, together = self.replica.context_exchange, self.replica.context_all_to_all
        keys, all_bytes = layer.keys_bytes, layer.keys_bytes + layer.queries_bytes
        if way == "all-gather":
            gathered = self._once("all_gather", times * keys, self._gathered)
            return _Pair(none, gathered)
        # each pass of an all-to-all moves queries, keys, values and outputs, or their gradients
        passes = 1.0 if times == 1.0 else times - 1.0
        part = passes * all_bytes / self.replica.context
        other = self._once("all_to_all", part, self._all_to_all) if together > 1 else none
        ring = none
        if together < self.replica.context:
            ring = self._once("ring", times * keys / together, self._ring)
        return _Pair(ring, other)

    def gradients(self, size: float) -> Sums:
        """Return the sum of gradients of so many bytes."""
        return self._once("gradients", size, self._gradients) if size else Sums()

    def _once(self, name: str, size: float, of: Callable[[float], Cost]) -> Sums:
        if (name, size) not in self.known:
            self.known[name, size] = as_sums(self.fabric, [of(size)], 0, self.workers)
        return self.known[name, size]

    def _members(self, ends: Ids) -> Members:
        return Members(self.fabric, self.measured, ends)

    def _gathered(self, size: float) -> Cost:
        """The cost to gather ``size`` bytes, to which each device has an equal part."""
        return LinkCosts(self._members(self.ends), np.array([size])).cost("all_gather")

    def _gradients(self, size: float) -> Cost:
        return LinkCosts(self._members(self.ends), np.array([size])).cost("all_reduce")

    def _ring(self, size: float) -> Cost:
        """The cost to pass ``size`` bytes round, of which each device has an equal part."""
        together = self.replica.context_all_to_all
        several = self.replica.context // together
        ends = self.ends.reshape(-1, several, together).swapaxes(1, 2).reshape(-1, several)
        return self._sends(ends, np.roll(ends, -1, axis=1), size / several, several - 1)

    def _all_to_all(self, size: float) -> Cost:
        """The cost to send an equal part of ``size`` bytes to each device, itself included."""
        ends = self.ends.reshape(-1, self.replica.context_all_to_all)
        return LinkCosts(self._members(ends), np.array([size])).all_to_all()

    def _sends(self, source: Ids, target: Ids, size: float, times: int) -> Cost:
        """The cost of sends of ``size`` bytes, all at once, so many times in a row."""
        source, target, fabric = source.ravel(), target.ravel(), self.fabric
        path = fabric.path(source, target)
        loads: Floats = self._members(self.ends).loads(path, np.ones(len(source)))
        slowest_s = float((loads / fabric.capacity).max(initial=0.0))
        slowest_s = max(slowest_s, float((1.0 / fabric.flow_between(source, target)).max()))
        latency_s = float(fabric.between_s(source, target).max())
        return Cost(
            bytes=np.array([times * size]),
            loads=loads[None],
            startup_s=np.array([times * latency_s]),
            transfer_s=np.array([times * size * slowest_s]),
        )


def _attention(layer: WorkloadLayer, workload: Workload) -> float:
    """Return the part of the time of a layer with keys that depends on which parts of sequences a
    device has."""
    return 1.0 if workload.packing is None else layer.varying


def _uneven(replica: Replica, workload: Workload) -> float:
    """Return by how much longer than the mean the slowest device computes attention.

    Of c contiguous parts the last has 2 c - 1 of the c^2 blocks below the diagonal, and the mean is
    c of them. Of packed sequences it depends on where documents begin.
    """
    parts, packing = replica.context // replica.context_all_to_all, workload.packing
    if packing is not None and replica.context_split != "documents" and parts > 1:
        zigzag = replica.context_split == "zigzag"
        sequences = one_pass(workload).batch_size
        return largest_part(packing, sequences, parts, zigzag=zigzag) - 1.0
    return (parts - 1.0) / parts if replica.context_split == "contiguous" else 0.0


def _exposed(pair: _Pair, replica: Replica, attention_s: float) -> _Pair:
    """Return what is left of a ring behind the blocks of attention: all but the last hide it."""
    parts = replica.context // replica.context_all_to_all
    ring = pair.round
    whole_s = ring.seconds + ring.bytes / ring.rate_bytes_per_s
    if whole_s == 0.0:
        return pair
    left = max(whole_s - (parts - 1.0) / parts * attention_s, 0.0) / whole_s
    return pair._replace(round=Sums(ring.seconds * left, ring.bytes * left, ring.rate_bytes_per_s))


def _joined(pair: _Pair) -> Sums:
    """Return both parts one after the other, at the lower of their rates."""
    rates = [one.rate_bytes_per_s for one in pair if one.bytes]
    return Sums(
        sum(one.seconds for one in pair),
        sum(one.bytes for one in pair),
        min(rates, default=float("inf")),
    )


def as_sums(fabric: Fabric, parts: list[Cost], layer: int, workers: int = 1) -> Sums:
    """Return the collectives of a layer: time inside a node, or bytes over links between nodes,
    those of each of so many workers on the fabric."""
    seconds = sum(float(part.seconds[layer]) for part in parts)
    if int(fabric.place.max()) == 0 or seconds == 0.0:
        return Sums(seconds)
    out = slice(0, fabric.nics)
    moved = sum(
        float(part.bytes[layer] * part.loads[min(layer, len(part.loads) - 1), out].sum())
        for part in parts
    )
    transfer_s = sum(float(part.transfer_s[layer]) for part in parts)
    if transfer_s == 0.0 or moved == 0.0:
        return Sums(seconds)
    moved /= workers
    return Sums(seconds - transfer_s, moved, moved / transfer_s)
