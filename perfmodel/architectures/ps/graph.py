"""Parameter server: workers push gradients to servers and pull the new parameters back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Unpack

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import joined, slices_of
from perfmodel.base.arrays import NONE, Floats, Ids, ranked
from perfmodel.communication.fabric import places_of
from perfmodel.communication.network import Network, add_update_threads, homes_of, node_names
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import QUEUED, OpGraph
from perfmodel.inputs.job import Job
from perfmodel.theory import incast
from perfmodel.training.devices import ComputeFields
from perfmodel.training.workers import add_workers, log_steps, stagger_s, steady

MOST, MOST_OF_EACH = 1024, 32
"""Messages of a worker in a graph of a few that represent many, or to each server on average if
these are many: of more parts several are one message (decision 0116)."""


class Pushers(msgspec.Struct, frozen=True, eq=False):
    """The workers that talk to the servers: all of them, or the first of each node for its node.

    ``worker`` (pushers,) are their numbers in the graph; ``of`` (workers,) is the pusher of each
    worker.
    """

    worker: Ids
    of: Ids

    @property
    def others(self) -> Ids:
        """Workers that talk to the servers through another worker."""
        return np.flatnonzero(self.worker[self.of] != np.arange(len(self.of)))


def build(job: Job, some: Ids | None = None) -> OpGraph:
    """Build the op graph: forward, backward, push, update and pull of each worker's slices.

    ``some`` (workers,) are the workers that the graph has; None for all.
    """
    return _Builder(job, some).graph()


class _Builder:
    """Builds the parts of a parameter server's graph, most of shape (pushers, slices)."""

    def __init__(self, job: Job, some: Ids | None) -> None:
        self.job, self.options = job, Options.of(job)
        b = self.b = GraphBuilder()
        self.home = homes_of(job, self.options.servers)
        names = node_names(job, self.home)
        self.workers = add_workers(b, job, some=some, nodes=len(names))
        colocated = job.cluster.server.placement == "colocated"
        self.on_workers_cores = colocated and self.workers.processors.shared
        of = talking = self.workers.index
        if self.options.local_aggregation:
            of, talking = ranked(self.workers.node)
        self.pushers = Pushers(talking, of)
        self.slices = slices_of(job.workload, self.options)
        if some is not None:
            most = max(MOST, MOST_OF_EACH * self.options.servers)
            self.slices = joined(self.slices, most)
        self.sent = self.options.sent_bytes(self.slices.bytes)
        self.network = Network(b, job, self.home)
        self.names = tuple(self.workers.layer_names[i] for i in self.slices.layer)
        self.shape = (len(self.pushers.worker), len(self.slices.bytes))
        self.group = self.pushers.worker[:, None]
        self.pusher = self.group if some is None else some[self.group]
        self.axes = (("worker", None), ("slice", self.names))

    def graph(self) -> OpGraph:
        b, options, workers = self.b, self.options, self.workers
        ready = self._gradients()
        push = self._transfers("push", self.sent, to_servers=True, weight=self._shares())
        update = self._update()
        # in forward order: layers that forward needs first get lower ids, which win ties
        pull = self._transfers("pull", self.slices.bytes, to_servers=False)
        b.edge(ready, push)
        self._applies(push, update)
        arrived = self._parameters(pull)
        self._steps(push, arrived)
        fresh = self._replies(update, pull)
        if options.duplex:
            b.stagger(workers.forward[:, 0], stagger_s(self.job)[workers.of_job])
        else:
            b.stagger(pull, np.broadcast_to(stagger_s(self.job)[self.pusher], pull.shape))
        self._probes(push, update, pull, fresh)
        self._log(update, pull, fresh)
        return b.build(device=workers.device, mark=workers.backward[:, 0])

    # -- messages ------------------------------------------------------------------------------

    def _gradients(self) -> Ids:
        """Return the ops that end each slice's gradient; with local aggregation, the node's."""
        b, workers, slices = self.b, self.workers, self.slices
        dense = np.zeros(len(workers.layer_names))
        np.add.at(dense, slices.layer, slices.bytes)
        made = self.options.encoded(b, workers, dense)
        ready = made[:, slices.layer] if self.options.overlap else made[:, :1]
        leaders = ready[self.pushers.worker]
        if not len(self.pushers.others):
            return np.broadcast_to(leaders, self.shape)
        gather = self._inside("gather")
        b.edge(ready[self.pushers.others], gather)
        summed = b.ops("node's gradient", self.shape, group=self.group, axes=self.axes)
        b.edge(leaders, summed)
        b.edge(gather, summed[self.pushers.of[self.pushers.others]])
        return summed

    def _parameters(self, pull: Ids) -> Ids:
        """Return the ops after which each worker has the new parameters, (workers, slices)."""
        if not len(self.pushers.others):
            return pull
        arrived = pull[self.pushers.of]
        scatter = self._inside("scatter")
        self.b.edge(arrived[self.pushers.others], scatter)
        arrived[self.pushers.others] = scatter
        return arrived

    def _inside(self, label: str) -> Ids:
        """Add a transfer of each slice between a worker and the first of its node."""
        number, others = self.workers.of_job, self.pushers.others[:, None]
        leaders = self.pushers.worker[self.pushers.of[others]]
        others, leaders = number[others], number[leaders]
        ends = (others, leaders) if label == "gather" else (leaders, others)
        return self.b.ops(
            label,
            (len(self.pushers.others), self.shape[1]),
            bytes=self.slices.bytes,
            **self.network.between(*ends),
            group=self.pushers.others[:, None],
            axes=self.axes,
        )

    def _shares(self) -> Floats:
        """Return each push's share of its server's link if full, (pushers, slices): 1 if equal.

        If asynchronous workers overlap and their steps vary, shares are not exactly equal either
        (docs/decisions/0098).
        """
        server_of, queue_bytes = self.slices.server, self.job.cluster.queue_bytes
        pushers, servers = self.shape[0], self.options.servers
        shares = np.ones((pushers, servers))
        if queue_bytes is None:
            unbound = self.options.sync != "bsp" and self.options.bounded_lead in (None, math.inf)
            if unbound and self.options.overlap and not steady(self.job):
                for server in range(servers):
                    shares[:, server] = incast.drawn(
                        pushers, incast.NEARLY_EQUAL, seed=self.job.seed, link=server
                    )
            return shares[:, server_of]
        nics = [self.job.cluster.nic_of(int(node)) for node in self._pushing_nodes]
        rates = np.array([nic.goodput_bytes_per_s for nic in nics])
        for server, away, senders in self._crowds():
            sent_bytes = float(self.sent[server_of == server].sum())
            spread, seed = incast.spread(senders, sent_bytes, queue_bytes), self.job.seed
            shares[away, server] = incast.parts(rates[away], spread, seed=seed, link=server)
        return shares[:, server_of]

    def _queueing_s(self) -> Floats:
        """Return the mean wait of a small message at its server's queue, (pushers, slices). The
        queue is full while several push there, taken as half of the time (docs/decisions/0029)."""
        waits_s = np.zeros((self.shape[0], self.options.servers))
        for server, away, _senders in self._crowds():
            link = self.job.cluster.nic_of_server(server, self.job.workers)
            full_s = (self.job.cluster.queue_bytes or 0.0) / link.goodput_bytes_per_s
            waits_s[away, server] = full_s / 2.0
        return waits_s[:, self.slices.server]

    @property
    def _pushing_nodes(self) -> Ids:
        return self.workers.node[self.pushers.worker]

    def _crowds(self) -> Iterator[tuple[int, NDArray[np.bool_], int]]:
        """Yield servers whose incoming queues fill up, each with the pushers of the graph that fill
        them, and how many of all workers do."""
        job, receivers = self.job, len(ranked(self.home)[1])
        node = places_of(job.cluster, job.workers)
        node = np.unique(node) if self.options.local_aggregation else node
        for server, home in enumerate(self.home):
            away = node[node != home]
            # with fewer nodes, queues are too short for losses
            if job.cluster.queue_bytes is not None and len(ranked(away)[1]) > receivers:
                yield server, self._pushing_nodes != home, len(away)

    def _transfers(
        self, label: str, size: Floats, *, to_servers: bool, weight: Floats | float = 1.0
    ) -> Ids:
        b, options, slices = self.b, self.options, self.slices
        order = slice(None) if to_servers else slice(None, None, -1)
        node = self.workers.node[self.pushers.worker][:, None]
        worker, server = self.pusher, self.job.workers + slices.server[order]
        ends = (worker, server) if to_servers else (server, worker)
        connection, units = options.connections(
            b,
            f"{label} connection of",
            (self.shape[0], options.servers),
            size[order],
            place=node,
            axes=(("worker", None), ("server", None)),
        )
        line = connection[:, slices.server[order]]
        if to_servers:
            self.push_line = line
        else:
            self.pull_line = line[:, order]
        sent = b.ops(
            label,
            self.shape,
            bytes=size[order],
            **self.network.between(*ends),
            weight=weight * (slices.parts[order] if options.transmission == "shared" else 1.0),
            slot=line,
            units=units,
            priority=options.priority(
                slices.layer[order], self.shape[0], (self.job.seed, int(to_servers))
            ),
            group=self.group,
            axes=(("worker", None), ("slice", self.names[order])),
        )[:, order]
        options.finish(b, sent, size)
        return sent

    # -- servers -------------------------------------------------------------------------------

    def _update(self) -> Ids:
        cost, slices = self.job.cluster.server, self.slices
        self.threads = add_update_threads(self.b, self.job, self.home)[slices.server]
        seconds = cost.update_per_tensor_s * slices.tensors + slices.bytes * (
            cost.update_per_byte_s + self.options.decode_per_byte_s
        )
        if self.options.sync != "bsp":
            seconds += slices.bytes * (cost.optimizer_per_byte_s / self.options.softsync)
        return self.b.ops(
            "update",
            self.shape,
            group=self.group,
            cause="cpu" if self.on_workers_cores else "server",
            slot=self.threads,
            axes=self.axes,
            **self.workers.processors.work(seconds, self.home[slices.server], 1),
        )

    def _applies(self, push: Ids, update: Ids) -> None:
        if self.options.overlap or self.options.duplex:
            self.b.edge(push, update)
        else:  # without overlap nothing is applied before the whole gradient has arrived
            pushed = self.b.ops(
                "pushed", self.shape[:1], group=self.pushers.worker, axes=(("worker", None),)
            )
            self.b.edge(push, pushed[:, None])
            self.b.edge(pushed[:, None], update)

    def _replies(self, update: Ids, pull: Ids) -> Ids:
        """Add edges from updates to pulls; return the ops that end an update of each slice.

        They have shape (1, slices) if all gradients make one update, else (pushers, slices). With
        ``softsync`` they end a part of an update, and no pull waits for the rest.
        """
        b, options = self.b, self.options
        fresh = update
        if options.sync == "bsp":
            fresh = self._optimised()
            if not options.backup_workers:
                b.edge(update, np.broadcast_to(fresh, update.shape))
        if options.duplex:
            answer = pull if options.pull == "reply" else self._requests(pull)
            b.edge(np.broadcast_to(fresh, pull.shape), answer)
            self._bound(update, answer, lag=0)
        elif options.backup_workers:
            self._quorum(update, fresh, pull)
        else:  # one reply phase: a worker pulls once all updates it waits for have been applied
            whole = b.ops("model applied", (len(fresh),), cause="server")
            b.edge(fresh, whole[:, None])
            b.edge(np.broadcast_to(whole[:, None], (len(pull), 1)), pull, lag=1)
            self._bound(whole[:, None], pull, lag=1)
        return fresh

    def _optimised(self) -> Ids:
        """Add the end of each slice's update by all workers: the optimizer, if it takes time."""
        optimizer_s = self.job.cluster.server.optimizer_per_byte_s * self.slices.bytes
        if not optimizer_s.any():
            return self._for_all("all applied by", "server", self.names)
        home = self.home[self.slices.server]
        work = self.workers.processors.work(optimizer_s, home, 1)
        return self._for_all("all applied by", "server", self.names, slot=self.threads, **work)

    def _requests(self, pull: Ids) -> Ids:
        """Add pulls on request: an acknowledgement to the worker, and its request to the server.

        Both are small, but they queue on their connections: the first behind pulls, the second
        behind pushes and, at the server, behind other workers' pushes. Returns the
        acknowledgements, (pushers, slices).
        """
        server = self.job.workers + self.slices.server
        latency_s = self.network.fabric.between_s(self.pusher, server)

        def small(label: str, line: Ids, queued_s: Floats | float = 0.0) -> Ids:
            return self.b.ops(
                label,
                self.shape,
                slot=line,
                latency_s=latency_s + queued_s,
                spent={QUEUED: queued_s},
                group=self.group,
                axes=self.axes,
            )

        answer = small("acknowledge", self.pull_line)
        request = small("request", self.push_line, self._queueing_s())
        self.b.edge(answer, request)
        self.b.edge(request, pull)
        return answer

    def _for_all(
        self,
        label: str,
        cause: str,
        names: tuple[str, ...],
        slot: ArrayLike = NONE,
        **work: Unpack[ComputeFields],
    ) -> Ids:
        return self.b.ops(
            label,
            (1, len(names)),
            cause=cause,
            slot=slot,
            axes=(("all workers", ("all workers",)), ("slice", names)),
            **work,
        )

    def _bound(self, applied: Ids, pull: Ids, lag: int) -> None:
        """Add SSP's bound: no reply until the slowest worker is within ``staleness_bound``."""
        if self.options.sync != "ssp" or self.options.staleness_bound == math.inf:
            return
        names = self.names if self.options.duplex else ("model",)
        slowest = self._for_all("applied by the slowest of", "staleness_bound", names)
        self.b.edge(applied, np.broadcast_to(slowest, applied.shape))
        lag += int(self.options.staleness_bound)
        self.b.edge(np.broadcast_to(slowest, pull.shape), pull, lag=lag)

    def _quorum(self, update: Ids, fresh: Ids, pull: Ids) -> None:
        """Add backup workers: an update ignores the last few, whose gradients are dropped."""
        b, needed = self.b, self.job.workers - self.options.backup_workers
        worker = (("worker", None),)
        applied = b.ops("gradient applied", (len(update),), group=self.pushers.worker, axes=worker)
        b.edge(update, applied[:, None])
        enough = b.ops("enough applied", (1,), cause="server")
        b.edge(applied, enough)
        b.quorum(int(enough[0]), needed)
        b.edge(enough[:, None], fresh)
        reply = b.ops("reply", (len(update),), group=self.pushers.worker, axes=worker)
        b.edge(enough, reply, lag=1)
        b.edge(applied, reply, lag=1)
        b.edge(reply[:, None], pull)
        b.log("own", applied)
        b.log("reply", reply, at_ready=True)

    # -- workers -------------------------------------------------------------------------------

    def _steps(self, push: Ids, arrived: Ids) -> None:
        """Add edges between the communication and the computation of each worker."""
        b, options, workers, slices = self.b, self.options, self.workers, self.slices
        lag = int(options.duplex)  # duplex: the reply to iteration i's push serves iteration i+1
        b.edge(workers.backward[:, 0], workers.forward[:, 0], lag=1)
        if not options.duplex and 0 not in slices.layer:
            # a first layer without parameters waits for the end of all pushes instead of a pull
            b.edge(push[self.pushers.of], workers.forward[:, :1], lag=1)
        waiting = workers.forward[:, slices.layer] if options.overlap else workers.forward[:, :1]
        b.edge(arrived, waiting, lag=lag)

    def _log(self, update: Ids, pull: Ids, fresh: Ids) -> None:
        """Log what schedules are recorded from, see :mod:`perfmodel.architectures.ps.recording`."""
        log_steps(self.b, self.workers, central=True)
        self.b.log("update", update if self.options.sync == "ssp" else fresh)
        if self.options.sync != "asp":
            self.b.log("read", pull, at_ready=True)

    def _probes(self, push: Ids, update: Ids, pull: Ids, fresh: Ids) -> None:
        b, options = self.b, self.options
        counter = b.counters(fresh, every=options.softsync)
        if options.sync == "ssp":  # the version that is read is the one at the reply
            lag = int(options.duplex)
            opened, closed, at_ready = pull, update, True
        else:
            opened, closed, lag, at_ready = fresh, fresh, 1, False
        b.probe(
            "staleness",
            opened,
            closed,
            lag=lag,
            counter=counter,
            group=self.group,
            at_ready=at_ready,
        )
        alone = options.backup_workers > 0  # a gradient is not always an update
        applied = update if alone else np.broadcast_to(fresh, push.shape)
        b.probe("push", push, applied, at_ready=True, group=self.group)
        b.probe("update", update, update, at_ready=True, group=self.group)
        b.probe("pull", pull, pull, at_ready=True, group=self.group)
