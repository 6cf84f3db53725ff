"""Shard groups, whose workers share one copy of the model, and replica groups across them."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.base.quantities import Condition, Quantity, is_symbol, where
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.members import Members
from perfmodel.inputs.cluster import Cluster
from perfmodel.phases.quantities import Quantities


class PlacedGroup(NamedTuple):
    """A group in a graph: the ``rows`` of its members among the graph's workers, the members on
    their links, and the group's name; None if it is the only one or stands for all."""

    rows: Ids
    members: Members
    name: str | None


class Groups(msgspec.Struct, frozen=True, eq=False):
    """Groups of a job's workers that run the same collectives: ``table`` (groups, members)."""

    cluster: Cluster
    fabric: Fabric
    name: str
    table: Ids

    @classmethod
    def of(cls, cluster: Cluster, workers: int, size: int) -> tuple[Groups, Groups]:
        """Return the shard groups of ``size`` consecutive workers, and the replica groups.

        Each shard group has the whole model, a part on each of its workers. The workers of a
        replica group have the same part: they are the i-th workers of all shard groups.
        """
        fabric, table = Fabric.of(cluster, workers), np.arange(workers).reshape(-1, size)
        return (
            cls(cluster, fabric, "shard group", table),
            cls(cluster, fabric, "replica group", table.T),
        )

    @property
    def size(self) -> int:
        """Number of members of each group."""
        return int(self.table.shape[1])

    @property
    def measured(self) -> bool:
        """Whether measured collectives apply: each group has the cluster to itself, as a measured
        group has. No two groups share a node or an oversubscribed core."""
        if len(self.table) == 1:
            return True
        nodes = self.fabric.place[self.table]
        separate = sum(len(np.unique(row)) for row in nodes)
        return self.cluster.core_oversubscription is None and separate == len(np.unique(nodes))

    def placed(self, *, fold: bool) -> list[PlacedGroup]:
        """Return the groups; with ``fold`` one that stands for all; none for single workers."""
        if self.size == 1:
            return []
        fabric, table = self.fabric, self.table
        collectives = self.cluster.collectives_of(table.size) if self.measured else ()
        if fold:
            return [PlacedGroup(np.zeros(1, np.int64), Members(fabric, collectives, table), None)]
        if len(table) == 1:
            return [PlacedGroup(table[0], Members(fabric, collectives), None)]
        return [
            PlacedGroup(row, Members(fabric, collectives, row[None]), f"{self.name} {k}")
            for k, row in enumerate(table)
        ]


def same_place(cluster: Cluster, workers: int, size: int) -> bool:
    """Return whether all shard groups, and all replica groups, are placed alike on the nodes."""
    devices = cluster.fullest(workers)
    fits = devices % size == 0 or size % devices == 0
    return size in (1, workers) or (cluster.even(workers) and fits)


def share_links(q: Quantities, size: Quantity) -> Condition:
    """Return whether shard groups, and replica groups of several workers, share links, if they are
    placed alike.

    They do not if shard groups stay within nodes and use the links inside, and replica groups of
    one device per node use the links between nodes.
    """
    inside = q.inside_bandwidth_bytes_per_s < math.inf
    return (size > 1) & ((size > q.fullest) | ((size < q.fullest) & inside))


class GroupSpan(msgspec.Struct, frozen=True, eq=False):
    """How groups of one kind are placed on nodes, for formulas.

    Attributes
    ----------
    members : number of members of a group.
    on_node, least : most and fewest members of a group on a node that has any.
    nics : number of a node's NICs that its members use.
    beside : number of groups on a node.
    away : whether a group spans several nodes.
    alone : whether no other group shares its nodes, or an oversubscribed core.
    """

    members: Quantity
    on_node: Quantity
    least: Quantity
    nics: Quantity
    beside: Quantity
    away: Condition
    alone: Condition

    @classmethod
    def of_all(cls, q: Quantities) -> GroupSpan:
        """Return the span of one group of all workers."""
        away = is_symbol(q.workers) or q.nodes > 1  # symbols: one worker per node
        return cls(q.workers, q.fullest, q.emptiest, q.nics_per_node, 1.0, away, True)

    @classmethod
    def of_shards(cls, q: Quantities, size: Quantity, *, core: bool) -> GroupSpan:
        """Return the span of shard groups of ``size`` workers; ``core``: does the core limit."""
        full = q.fullest
        inside = size <= full
        beside = where(inside, full / size, 1.0)
        alone = not core if is_symbol(q.workers) else (q.workers <= size) | _alone(beside, core)
        return cls(
            members=size,
            on_node=where(inside, size, full),
            least=where(inside, size, q.emptiest),
            nics=q.nics_per_node,
            beside=beside,
            away=size > full,
            alone=alone,
        )

    @classmethod
    def of_replicas(cls, q: Quantities, size: Quantity, *, core: bool) -> GroupSpan:
        """Return the span of the replica groups across shard groups of ``size`` workers."""
        full = q.fullest
        across = size >= full
        beside = where(across, full, size)
        return cls(
            members=q.workers / size,
            on_node=where(across, 1.0, full / size),
            least=where(across, 1.0, q.emptiest / size),
            nics=q.nics_per_node // np.gcd(q.nics_per_node, size),
            beside=beside,
            away=is_symbol(q.workers) or q.nodes > 1,
            alone=(size <= 1) | _alone(beside, core),
        )


def _alone(beside: Quantity, core: bool) -> Condition:
    """Return whether a group has its nodes to itself, and does not share an oversubscribed core."""
    return (beside <= 1) & (not core)
