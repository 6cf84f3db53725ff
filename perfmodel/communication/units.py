"""The workers of a job by kinds of their nodes, and a sample that has some of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Ids
from perfmodel.communication.network import homes_of
from perfmodel.graph.op_graph import Axis, Block, OpGraph
from perfmodel.inputs.job import Job


class Units(NamedTuple):
    """The workers of a job in units of ``each``: one of its ``nodes``, or two if nodes have an odd
    number of workers, so that active workers of AD-PSGD stay active. ``kinds`` has the units of
    each kind, ascending: first those that host servers, last the usual ones, which may be none."""

    each: int
    nodes: int
    kinds: tuple[Ids, ...]

    @classmethod
    def of(cls, job: Job) -> Units | None:
        """Return the units of a job; None if an unusual node is in one that is not full."""
        cluster = job.cluster
        nodes = 1 + cluster.devices_per_node % 2
        each = nodes * cluster.devices_per_node
        count = job.workers // each
        unlike: dict[int, set[object]] = {}
        hosts: set[int] = set()
        for straggler in job.stragglers:
            what = straggler.worker % each, straggler.factor
            unlike.setdefault(straggler.worker // each, set()).add(what)
        for one in cluster.overrides:
            if one.node < cluster.nodes_for(job.workers):
                what_node = one.node % nodes, one.nic, one.speed
                unlike.setdefault(one.node // nodes, set()).add(what_node)
        if cluster.server.placement == "colocated":
            for server, node in enumerate(homes_of(job, job.options.server_count).tolist()):
                unlike.setdefault(node // nodes, set()).add(server)
                hosts.add(node // nodes)
        if max(unlike, default=0) >= count:
            return None
        kinds: dict[frozenset[object], list[int]] = {}
        for unit in sorted(unlike, key=lambda unit: (unit not in hosts, unit)):
            kinds.setdefault(frozenset(unlike[unit]), []).append(unit)
        usual = np.setdiff1d(np.arange(count), np.fromiter(unlike, np.int64))
        return cls(each, nodes, (*map(np.array, kinds.values()), usual))

    @property
    def number(self) -> int:
        """Number of full units."""
        return sum(map(len, self.kinds))

    def sample(self, workers: int, fewest: int) -> Ids:
        """Return units with so many workers in all, or ``fewest`` usual ones beside the others: of
        each kind as large a part as of all, one unit at least."""
        wanted = max(workers // self.each, 1)
        *rare, usual = self.kinds
        several = [max(round(wanted * len(kind) / self.number), 1) for kind in rare]
        rest = max(wanted - sum(several), fewest // self.each, 1)
        rest = min(rest, max(round(wanted * len(usual) / self.number), fewest // self.each, 1))
        return np.concatenate(
            [kind[:some] for kind, some in zip(self.kinds, [*several, rest], strict=True)]
        )

    def represented_by(self, sample: Ids, workers: int) -> tuple[Ids, Ids]:
        """Return the group of the graph of a sample that represents each worker, (workers,), and
        the kind of each group, (groups,). Workers beyond the last full unit are usual ones."""
        place = np.zeros(self.number, np.int64)
        kind_of = np.zeros((len(sample), self.each), np.int64)
        first = 0
        for number, kind in enumerate(self.kinds):
            several = int(np.isin(sample, kind).sum())
            place[kind] = first + np.arange(len(kind)) * several // max(len(kind), 1)
            usual = number == len(self.kinds) - 1
            own = np.zeros(self.each) if usual else np.arange(self.each)
            kind_of[first : first + several] = number * self.each + own
            first += several
        worker = np.arange(workers)
        rest = self.kinds[-1][-1] if len(self.kinds[-1]) else self.number - 1
        unit = np.where(worker < self.number * self.each, worker // self.each, rest)
        group = place[unit] * self.each + worker % self.each
        return group, np.unique(kind_of, return_inverse=True)[1].ravel()

    def moved(self, job: Job, sample: Ids) -> Job:
        """Return the job with the nodes of a sample in front."""
        place = {int(unit): position for position, unit in enumerate(sample)}
        stragglers = tuple(
            msgspec.structs.replace(one, worker=place[unit] * self.each + one.worker % self.each)
            for one in job.stragglers
            if (unit := one.worker // self.each) in place
        )
        overrides = []
        for one in job.cluster.overrides:
            if one.node >= job.cluster.nodes_for(job.workers):
                overrides.append(one)
            elif (unit := one.node // self.nodes) in place:
                node = place[unit] * self.nodes + one.node % self.nodes
                overrides.append(msgspec.structs.replace(one, node=node))
        cluster = msgspec.structs.replace(job.cluster, overrides=tuple(overrides))
        return msgspec.structs.replace(job, stragglers=stragglers, cluster=cluster)

    def named(self, graph: OpGraph, sample: Ids) -> OpGraph:
        """Return the graph of a sample with the names that its workers and nodes have in the
        job."""
        if (sample == np.arange(len(sample))).all():
            return graph
        known = {
            f"{label} {position * size + k}": f"{label} {unit * size + k}"
            for label, size in (("worker", self.each), ("node", self.nodes))
            for position, unit in enumerate(sample.tolist())
            for k in range(size)
        }

        def renamed(axis: Axis, length: int) -> Axis:
            label, names = axis
            if label not in ("worker", "node"):
                return axis
            names = names or [f"{label} {k}" for k in range(length)]
            ends = (name.partition(",") for name in names)
            return label, tuple(known.get(head, head) + comma + rest for head, comma, rest in ends)

        def of(blocks: Sequence[Block]) -> tuple[Block, ...]:
            return tuple(
                msgspec.structs.replace(block, axes=tuple(map(renamed, block.axes, block.shape)))
                for block in blocks
            )

        return msgspec.structs.replace(
            graph,
            ops=of(graph.ops),
            slots=of(graph.slots),
            links=of(graph.links),
            probes=of(graph.probes),
        )
