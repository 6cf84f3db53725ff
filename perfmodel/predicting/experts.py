"""What layers with experts send to the devices that have these, and the waits for the busiest.

A group of devices with all experts is a number of consecutive devices of a stage: of one replica,
or of several, which then compute the same layer at the same time. Each device sends the tokens that
it has to the devices of their experts (*dispatch*), and gets the results back (*combine*), in
forward and again in backward. Devices that divide each expert gather the tokens of all of them, and
sum what comes out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.base.same import Same
from perfmodel.communication.costs import Cost, LinkCosts
from perfmodel.communication.exchanges import AllToAllExchange
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.members import Members
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.decoder_parts import DISPATCH
from perfmodel.inputs.expert_parallel import ExpertParallel, Routed, is_of_experts
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.precisions import dispatched_share
from perfmodel.inputs.recomputation import block_of
from perfmodel.inputs.replica import Replica, ReplicaStage, RoutedLayers, Sums
from perfmodel.inputs.workload import Workload, WorkloadLayer
from perfmodel.replicas.seats import Seats
from perfmodel.theory.routing import Routing, copies_across, largest_load
from perfmodel.times.tensor_parallel import with_tensors


class Placed(msgspec.Struct, frozen=True, eq=False):
    """The devices of a stage, in the order of their numbers; equal ones are one object.

    Attributes
    ----------
    cluster : with the nodes of all devices, all alike.
    devices : (devices,), moved by whole nodes so that the first is on the first node.
    within : devices that count as one worker of the stage's job.
    tensor, sharing : devices that divide the layers of a replica, and its tokens.
    """

    cluster: Cluster
    devices: Ids
    within: int
    tensor: int
    sharing: int

    @classmethod
    def of(cls, cluster: Cluster, seats: Seats, replica: Replica, within: int) -> Placed:
        """Return the devices of a stage, of which ``within`` count as one."""
        devices = (seats.position[:, None] * within + np.arange(within)).ravel()
        if not cluster.devices_on_nodes:
            devices = devices - devices[0] // cluster.devices_per_node * cluster.devices_per_node
        sharing = replica.tensor * replica.context
        return _placed(Same(cluster), devices.tobytes(), within, replica.tensor, sharing)

    def members(self, experts: ExpertParallel, *, of_expert: bool) -> Members:
        """Return the groups that exchange tokens, or those that divide each expert: all on the
        nodes of the first."""
        size = experts.devices
        node = self.cluster.devices_per_node
        many = max(min(len(self.devices) // size, math.ceil(node / size)), 1)
        table = self.devices[: many * size].reshape(many, experts.degree, experts.tensor)
        by_group = table if of_expert else table.swapaxes(1, 2)
        groups = by_group.reshape(-1, by_group.shape[-1])
        fabric = Fabric.of(self.cluster, int(groups.max()) + 1)
        inside = len(np.unique(fabric.place[groups[0]])) == 1
        measured = self.cluster.inside_collectives if inside else ()
        return Members(fabric, measured, groups)


@functools.lru_cache(maxsize=64)
def _placed(on: Same[Cluster], devices: bytes, within: int, tensor: int, sharing: int) -> Placed:
    """Return the devices of a stage; layouts that differ in other ways share them, and their
    exchanges."""
    alone = on.value.at_one_site()
    return Placed(alone, np.frombuffer(devices, np.int64), within, tensor, sharing)


def with_experts(
    stage: ReplicaStage,
    workload: Workload,
    experts: ExpertParallel,
    placed: Placed,
    *,
    shares_update: bool,
) -> tuple[ReplicaStage, Workload]:
    """Return a stage with what its layers send to experts, and its workload with gradients of
    experts that are :func:`reduced` among those that have the same.

    Parameters
    ----------
    shares_update : whether each worker updates a part of the model only.
    """
    routing = routed_layers(workload, experts, placed)
    if routing is None:
        return stage, workload
    made = updated(workload, experts, placed, shares_update=shares_update)
    return msgspec.structs.replace(stage, routing=routing), made


def routed_layers(
    workload: Workload, experts: ExpertParallel, placed: Placed
) -> RoutedLayers | None:
    """Return what the layers of a stage send to experts; None if none does."""
    layers = one_pass(workload).layers
    routed = _routed(layers)
    if routed is None:
        return None
    load = _load(experts, placed, routed)
    exposed = 1.0 - experts.overlap
    to_experts, back = (
        _part(_dispatch(experts, placed, _shorter(routed, share), load), exposed)
        for share in (dispatched_share(workload.precision), 1.0)
    )
    again = workload.recompute == "full"
    late = load - 1.0

    def of(layer: WorkloadLayer, *, backward: bool) -> tuple[Sums, float]:
        if layer.routed is not None:
            there, home = (to_experts, back) if layer.kind == DISPATCH else (back, to_experts)
            if not backward:
                return there
            return _both(there, home) if again and block_of(layer) else home
        if not is_of_experts(layer.name):
            return Sums(), 0.0
        return Sums(), late * (layer.backward_s if backward else layer.forward_s)

    forward = [of(layer, backward=False) for layer in layers]
    backward = [of(layer, backward=True) for layer in layers]
    return RoutedLayers(
        max(experts.devices // placed.within, 1),
        tuple(sums for sums, _ in forward),
        tuple(sums for sums, _ in backward),
        tuple(wait_s for _, wait_s in forward),
        tuple(wait_s for _, wait_s in backward),
    )


def updated(
    workload: Workload, experts: ExpertParallel, placed: Placed, *, shares_update: bool
) -> Workload:
    """Return the workload of a stage with gradients of experts that are :func:`reduced`, and with
    the time of its update, which workers may share."""
    if _routed(workload.layers) is None:
        return workload
    made = reduced(workload, experts, placed)
    if shares_update:
        longer = _longer_update(workload, experts, placed)
        made = msgspec.structs.replace(made, optimizer_s=made.optimizer_s * longer)
    return made


def _routed(layers: Sequence[WorkloadLayer]) -> Routed | None:
    return next((layer.routed for layer in layers if layer.routed is not None), None)


def _shorter(routed: Routed, share: float) -> Routed:
    return msgspec.structs.replace(routed, bytes=routed.bytes * share)


def _part(sent: tuple[Sums, float], share: float) -> tuple[Sums, float]:
    """Return a part of an exchange, and of the wait for the largest load."""
    sums, late_s = sent
    return Sums(sums.seconds * share, sums.bytes * share, sums.rate_bytes_per_s), late_s * share


def _both(one: tuple[Sums, float], other: tuple[Sums, float]) -> tuple[Sums, float]:
    """Return two exchanges as one."""
    (first, first_s), (second, second_s) = one, other
    moved = first.bytes + second.bytes
    transfer_s = first.bytes / first.rate_bytes_per_s + second.bytes / second.rate_bytes_per_s
    rate = first.rate_bytes_per_s if first == second or not moved else moved / transfer_s
    return Sums(first.seconds + second.seconds, moved, rate), first_s + second_s


def _longer_update(workload: Workload, experts: ExpertParallel, placed: Placed) -> float:
    """Return how much longer an update takes that workers share, because fewer of them have the
    same experts."""
    sizes = [(sum(one.tensor_bytes), is_of_experts(one.name)) for one in one_pass(workload).layers]
    whole, part = sum(size for size, _ in sizes), sum(size for size, yes in sizes if yes)
    together = max(experts.devices // placed.within, 1)
    return 1.0 + (together - 1.0) * (part / whole if whole else 0.0)


@functools.lru_cache(maxsize=256)
def _load(experts: ExpertParallel, placed: Placed, routed: Routed) -> float:
    """Return the expected largest load of a device over the mean; 1 if experts have a capacity, as
    all their places are sent and computed."""
    if experts.capacity is not None or experts.degree == 1:
        return 1.0
    tokens = routed.tokens / placed.sharing * experts.devices
    number = max(round(tokens), 1)
    return largest_load(
        Routing(number, routed.experts, routed.active, experts.degree, experts.skew)
    )


@functools.lru_cache(maxsize=256)
def _dispatch(
    experts: ExpertParallel, placed: Placed, routed: Routed, load: float
) -> tuple[Sums, float]:
    """Return what a worker's devices send to experts, or get back, with balanced loads; and how
    much longer it takes because of the largest load."""
    size = np.array([routed.bytes / placed.sharing])
    parts: list[tuple[Members, Cost]] = []
    if experts.degree > 1:
        members = placed.members(experts, of_expert=False)
        exchange, copies = _exchange(experts, members, routed)
        costs = LinkCosts(members, size * copies)
        parts.append((members, costs.all_to_all(exchange)))
    if experts.tensor > 1:
        members = placed.members(experts, of_expert=True)
        # tokens are gathered before, and results summed after: half of both for each
        costs = LinkCosts(members, size * experts.tensor)
        for operation in ("all_gather", "reduce_scatter"):
            parts.append((members, costs.cost(operation).times(1)))
    seconds = moved = transfer_s = late_s = 0.0
    for members, cost in parts:
        half = 1.0 if cost is parts[0][1] and experts.degree > 1 else 0.5
        late_s += half * (load - 1.0) * float(cost.transfer_s[0])
        out = _out_bytes(members, cost) * placed.within
        if out == 0.0:
            seconds += half * float(cost.seconds[0])
            continue
        seconds += half * float(cost.startup_s[0])
        moved += half * out
        transfer_s += half * float(cost.transfer_s[0])
    if moved == 0.0:
        return Sums(seconds), late_s
    return Sums(seconds, moved, moved / transfer_s), late_s


def _out_bytes(members: Members, cost: Cost) -> float:
    """Return the bytes that a device sends out of its node."""
    out = slice(0, members.fabric.nics)
    loads = cost.loads[0, out] * float(cost.bytes[0])
    return float(loads.sum()) / members.ends.size


def _exchange(
    experts: ExpertParallel, members: Members, routed: Routed
) -> tuple[AllToAllExchange, float]:
    """Return how a group exchanges its tokens, inside a node always directly, and the share of
    their copies that it sends: a *hierarchical* exchange sends one to each device that has some of
    a token's experts, and one to each node."""
    nodes = len(np.unique(members.fabric.place[members.ends[0]]))
    if experts.exchange != "hierarchical":
        return AllToAllExchange() if nodes == 1 else AllToAllExchange(experts.exchange), 1.0
    model = routed.experts, routed.active
    limit = None if experts.nodes is None else min(experts.nodes, nodes)
    allowed = None if limit is None else limit * experts.degree // nodes
    copies = copies_across(experts.degree, *model, allowed)
    if nodes == 1:
        return AllToAllExchange(), copies
    return AllToAllExchange("hierarchical", copies_across(nodes, *model, limit) / copies), copies


def reduced(workload: Workload, experts: ExpertParallel, placed: Placed) -> Workload:
    """Return the workload of a stage whose gradients of experts take as long to be reduced among
    all of its workers as they do among those that have the same experts.

    These are as many as there are groups; they take every so many-th place. Devices that count as
    one because they divide sequences have different experts.
    """
    one = one_pass(workload)
    sizes = [size for layer in one.layers if is_of_experts(layer.name)
             for size in layer.tensor_bytes]  # fmt: skip
    workers = len(placed.devices) // placed.within
    together = max(experts.devices // placed.within, 1)
    share = placed.within / placed.tensor
    if together > 1 and workers > 1:
        share *= _share_of_reduction(placed, workers, together, max(sizes, default=0.0))
    if not sizes or share == 1.0:
        return workload
    layers = tuple(
        msgspec.structs.replace(
            layer, tensor_bytes=tuple(size * share for size in layer.tensor_bytes if share > 0.0)
        )
        if is_of_experts(layer.name)
        else layer
        for layer in one.layers
    )
    made = msgspec.structs.replace(with_tensors(one, layers), layers=layers)
    return accumulated(made, workload.accumulation, workload.batch_size)


@functools.lru_cache(maxsize=256)
def _share_of_reduction(placed: Placed, workers: int, together: int, size: float) -> float:
    """Return the time of all-reduces among every ``together``-th worker over that among all."""
    if workers == together:
        return 0.0
    fabric = Fabric.of(placed.cluster, int(placed.devices.max()) + 1)
    first = placed.devices[:: placed.within]
    sizes = np.array([size])

    def seconds(groups: Ids) -> float:
        return float(LinkCosts(Members(fabric, (), groups), sizes).cost("all_reduce").transfer_s[0])

    whole_s = seconds(first[None])
    return seconds(first.reshape(-1, together).T) / whole_s if whole_s > 0.0 else 1.0


def sums_of(routing: RoutedLayers | None) -> Sequence[Sums]:
    """Return all exchanges with experts of a stage's layers."""
    return () if routing is None else (*routing.forward, *routing.backward)
