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
    """The workers of a job in shard groups of ``size`` consecutive workers.

    Each of the ``count`` shard groups has the whole model, a part on each of its workers. Workers
    with the same part form a replica group: the i-th worker of each shard group.
    """

    cluster: Cluster
    fabric: Fabric
    size: int
    count: int

    @classmethod
    def of(cls, cluster: Cluster, workers: int, size: int) -> Groups:
        """Return the groups of this many workers, a multiple of ``size``."""
        return cls(cluster, Fabric.of(cluster, workers), size, workers // size)

    def shards(self, *, fold: bool) -> list[PlacedGroup]:
        """Return the shard groups; with ``fold`` one that stands for all."""
        return self._groups("shard group", self._table, fold)

    def replicas(self, *, fold: bool) -> list[PlacedGroup]:
        """Return the replica groups; with ``fold`` one that stands for all."""
        return self._groups("replica group", self._table.T, fold)

    @property
    def shards_measured(self) -> bool:
        """Whether measured collectives apply to the shard groups."""
        return _apart(self.cluster, self.fabric, self._table)

    @property
    def replicas_measured(self) -> bool:
        """Whether measured collectives apply to the replica groups."""
        return _apart(self.cluster, self.fabric, self._table.T)

    @property
    def _table(self) -> Ids:
        return np.arange(self.size * self.count).reshape(self.count, self.size)

    def _groups(self, name: str, table: Ids, fold: bool) -> list[PlacedGroup]:
        measured = self.cluster.collectives_of(self.size * self.count)
        if not _apart(self.cluster, self.fabric, table):
            measured = ()
        if fold:
            return [PlacedGroup(np.zeros(1, np.int64), Members(self.fabric, measured, table), None)]
        return [
            PlacedGroup(row, Members(self.fabric, measured, row[None]), f"{name} {k}")
            if len(table) > 1
            else PlacedGroup(row, Members(self.fabric, measured), None)
            for k, row in enumerate(table)
        ]


def _apart(cluster: Cluster, fabric: Fabric, table: Ids) -> bool:
    """Return whether each group has the cluster to itself, as a measured group has: no two groups
    share a node or an oversubscribed core."""
    if len(table) == 1:
        return True
    nodes = fabric.place[table]
    separate = sum(len(np.unique(row)) for row in nodes)
    return cluster.core_oversubscription is None and separate == len(np.unique(nodes))


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
