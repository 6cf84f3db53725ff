"""The computation of one stage of a pipeline: its micro-batches, in the order of the schedule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.base.errors import InputError
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import Axis
from perfmodel.inputs.job import Job
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.replica import ReplicaStage, RoutedLayers, Sums, total
from perfmodel.inputs.workload import Workload, expanded
from perfmodel.pipelines.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.replicas.stage_work import Order, order_of
from perfmodel.training.devices import Workers
from perfmodel.training.labels import EXCHANGE, GRADIENT_SUM, PIPELINE, QUEUE, SLOWEST, SUM, WAIT
from perfmodel.training.routing import Exchanging, Routes, between_layers, routes_of

STARTS, ENDS = "actions begin", "actions end"
"""Labels of the logged ops that begin and end the actions of a stage, (workers, actions)."""

TIED = "tied tables"
"""Label of the logged ops after which a stage can sum the gradient of a table that another stage
has as well, and of those that follow the sum, (workers, 2)."""

LABELS = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT: "input gradient",
    WEIGHT: "weight gradient",
}
"""Labels of ops, by the kind of their action."""

_MICRO_BATCH = re.compile(r"(?:chunk (\d+), )?micro-batch (\d+)")
"""What the names of a stage's actions have in common."""


def mark_of(name: str) -> str:
    """Return the micro-batch of an op's name as pictures of schedules show it, with one ``'`` for
    each chunk below; empty if the op is not an action of a stage.

    >>> mark_of("forward stage 0, worker 1, micro-batch 3, fc"), mark_of("chunk 2, micro-batch 0")
    ('3', "0''")
    """
    found = _MICRO_BATCH.search(name)
    return found[2] + "'" * int(found[1] or 0) if found is not None else ""


def add_stage(
    b: GraphBuilder, job: Job, stage: ReplicaStage, workers: Workers, reduced: Sequence[bool]
) -> list[Workers]:
    """Add the actions of every worker's device, and return its passes.

    With a single pass in ``reduced``, the forward ops are those of the first micro-batch of each
    chunk, and the backward ops those after which each layer's gradient is complete. Otherwise there
    is a pass for each micro-batch.
    """
    order = order_of(stage, job.workload.accumulation)
    adding = _Stage(b, job, stage, workers, order, by_pass=len(reduced) > 1)
    return adding.passes(reduced)


class _Stage:
    """Adds the ops of a stage action by action."""

    def __init__(
        self,
        b: GraphBuilder,
        job: Job,
        stage: ReplicaStage,
        workers: Workers,
        order: Order,
        *,
        by_pass: bool,
    ) -> None:
        self.b, self.job, self.stage, self.workers, self.order = b, job, stage, workers, order
        ends = np.cumsum(stage.chunk_layers)
        self.layers = [slice(end - n, end) for end, n in zip(ends, stage.chunk_layers, strict=True)]
        self.plain = seconds_of_layers(expanded(job.pass_work(reduced=False)))
        self.handed = seconds_of_layers(expanded(job.pass_work(reduced=True)))
        self._queue_bytes = np.zeros(1)  # of each worker's node, if sums pass its link
        self._path = self._links()
        self.last = [self._last(chunk) for chunk in range(len(self.layers))]
        self.detailed = self._detailed(by_pass=by_pass)

    def _detailed(self, *, by_pass: bool) -> set[int]:
        """Return the actions of which each layer is an op: the first forward pass of each chunk,
        the last that completes its gradients, and all if every pass communicates."""
        if by_pass:
            return set(range(len(self.order.kind)))
        actions: set[int] = set()
        for chunk in range(len(self.layers)):
            forward = (self.order.chunk == chunk) & (self.order.kind == FORWARD)
            actions |= {int(np.flatnonzero(forward)[0]), self.last[chunk]}
        return actions

    def passes(self, reduced: Sequence[bool]) -> list[Workers]:
        """Add all actions, one after the other, and return the passes."""
        begins, ends = self._whole()  # (workers, actions)
        n, width = len(begins), len(self.workers.layer_names)
        many = 1 if len(reduced) == 1 else self.job.workload.accumulation
        shape = (n, len(self.layers))
        group, axes = self.workers.index[:, None], (("worker", None), ("chunk", None))
        returns = self.b.ops("gradients complete", shape, group=group, axes=axes)
        forward = np.full((many, n, width), NONE)
        backward = np.full((many, n, width), NONE)
        for k in sorted(self.detailed):
            kind, chunk, number, _ = (int(column[k]) for column in self.order)
            made, done = self._by_layer(k, kind, chunk, number)
            begins[:, k], ends[:, k] = (
                (made[:, 0], done[:, -1]) if kind == FORWARD else (made[:, -1], done[:, 0])
            )
            if self.stage.routing is not None:
                ended = self._routed_layers(self.stage.routing, k, made, done)
                last = done[:, -1] if kind == FORWARD else done[:, 0]
                if (ended != last).any():  # else what was added after the last layer ends it
                    if (ends[:, k] != last).any():
                        self.b.edge(ends[:, k].copy(), ended)
                    ends[:, k] = ended
            at = 0 if many == 1 else number
            if kind == FORWARD:
                forward[at, :, self.layers[chunk]] = made
            elif kind != INPUT:
                backward[at, :, self.layers[chunk]] = done
        if self.stage.routing is not None:
            self._add_routing(self.stage.routing, ends)
        self._add_sums(ends)
        for chunk, k in enumerate(self.last):
            self.b.edge(ends[:, k].copy(), returns[:, chunk])
            ends[:, k] = returns[:, chunk]
        self.b.edge(ends[:, :-1].copy(), begins[:, 1:].copy())
        if self._exchanging:
            self.b.edge(ends[:, -1].copy(), begins[:, 0], lag=1)
        together = np.flatnonzero(self.order.joined)
        begins[:, together + 1], ends[:, together] = begins[:, together], ends[:, together + 1]
        self._finish(forward, backward, begins, ends)
        if self.stage.tied is not None:
            self._sum_tied(backward[-1], begins[:, 0], ends[:, -1], self.stage.tied.layer)
        self.b.log(STARTS, begins)
        self.b.log(ENDS, ends)
        return [
            msgspec.structs.replace(
                self.workers,
                forward=f,
                backward=g,
                returns=returns,
                axes=(("pass", (str(number),)),) if many > 1 else (),
            )
            for number, (f, g) in enumerate(zip(forward, backward, strict=True))
        ]

    def _whole(self) -> tuple[Ids, Ids]:
        """Add the actions that are one op each, or two if attention varies, and return what begins
        and what ends them, (workers, actions) each; others have any id."""
        n = len(self.workers.node)
        ids = np.full((n, len(self.order.kind)), -1, np.int64)
        plain = np.array([k not in self.detailed for k in range(len(self.order.kind))])
        last = ids.copy()
        attention = np.array([one.varying > 0.0 for one in one_pass(self.job.workload).layers])
        for kind, label in LABELS.items():
            which = np.flatnonzero(plain & (self.order.kind == kind))
            if not len(which):
                continue
            chunks = [self.layers[self.order.chunk[k]] for k in which]
            seconds = np.array([self.plain[kind, layers].sum() for layers in chunks])
            varying = np.array([self.plain[kind, one][attention[one]].sum() for one in chunks])
            names = [self._named(k) for k in which.tolist()]
            ids[:, which] = self.workers.compute(
                self.b, label, seconds - varying, names=names, axis="micro-batch", cause=PIPELINE
            )
            last[:, which] = ids[:, which]
            self._add_attention(which[varying > 0.0], label, varying[varying > 0.0], last)
        return ids, last

    def _add_attention(self, actions: Ids, label: str, seconds: Floats, last: Ids) -> None:
        """Add the attention of actions, which ends them."""
        if not len(actions):
            return
        batches = self.order.micro_batch[actions].tolist()
        streams = [self.workers.noise.of_attention([batch]) for batch in batches]
        made = self.workers.compute(
            self.b,
            label,
            seconds,
            names=[f"{self._named(k)}, attention" for k in actions.tolist()],
            axis="micro-batch",
            cause=PIPELINE,
            documents=np.stack(streams, axis=1),
        )
        self.b.edge(last[:, actions].copy(), made)
        last[:, actions] = made

    def _last(self, chunk: int) -> int:
        """Return the action that completes the gradients of a chunk."""
        gradient = (self.order.chunk == chunk) & np.isin(self.order.kind, (BACKWARD, WEIGHT))
        return int(np.flatnonzero(gradient)[-1])

    def _named(self, action: int) -> str:
        """Return what distinguishes an action from others of its kind."""
        number = f"micro-batch {self.order.micro_batch[action]}"
        chunk = self.order.chunk[action]
        return number if len(self.layers) == 1 else f"chunk {chunk}, {number}"

    def _by_layer(self, action: int, kind: int, chunk: int, number: int) -> tuple[Ids, Ids]:
        """Add an action layer by layer; return the ops that begin and that end each layer,
        (workers, layers): what its devices exchange for attention, what those that divide it sum,
        and sums of gradients follow it."""
        layers = self.layers[chunk]
        last = number == self.job.workload.accumulation - 1 or action == self.last[chunk]
        seconds = (self.handed if last else self.plain)[kind, layers]
        names = [f"{self._named(action)}, {name}" for name in self.workers.layer_names[layers]]
        documents = self.workers.noise.of_documents(
            one_pass(self.job.workload).layers[layers], int(self.order.micro_batch[action])
        )
        made = self.workers.compute(
            self.b, LABELS[kind], seconds, names=names, cause=PIPELINE, documents=documents
        )
        stage, done = self.stage, made
        exchanges = stage.forward_exchanges if kind == FORWARD else stage.backward_exchanges
        if kind in (FORWARD, BACKWARD, INPUT):
            sums = (stage.forward_sums if kind == FORWARD else stage.backward_sums)[layers]
            done = self._after_layer(EXCHANGE, names, exchanges[layers], done)
            if self._queue_bytes.any():  # each message of a ring waits behind other transfers
                sent = [one if one.bytes else Sums() for one in sums]
                done = self._after_layer(QUEUE, names, sent, done)
            done = self._after_layer(SUM, names, sums, done)
        if action == self.last[chunk]:
            done = self._after_layer(GRADIENT_SUM, names, stage.gradient_sums[layers], done)
        if kind == FORWARD:
            self.b.edge(done[:, :-1].copy(), made[:, 1:])
        else:
            self.b.edge(done[:, 1:].copy(), made[:, :-1])
        return made, done

    def _after_layer(
        self, label: str, names: Sequence[str], sums: Sequence[Sums], done: Ids
    ) -> Ids:
        """Add what devices send to each other after layers are ``done``, (workers, layers); return
        the ops that end each layer."""
        which = np.array([k for k, one in enumerate(sums) if one != Sums()], np.int64)
        if not len(which):
            return done
        parts, named = [sums[k] for k in which], [names[k] for k in which]
        added = self._ops(label, ("layer", named), parts, len(done))
        self.b.edge(done[:, which].copy(), added)
        ended = done.copy()
        ended[:, which] = added
        return ended

    def _add_sums(self, ends: Ids) -> None:
        """Add the collectives among the devices of a stage after each action, and end it so."""
        self._add_waits(ends)
        for kinds, exchanges, sums in (
            ((FORWARD,), self.stage.forward_exchanges, self.stage.forward_sums),
            ((BACKWARD, INPUT), self.stage.backward_exchanges, self.stage.backward_sums),
        ):
            self._add_after(ends, kinds, EXCHANGE, exchanges)
            self._add_after(ends, kinds, SUM, sums)

    def _add_after(
        self, ends: Ids, kinds: tuple[int, ...], label: str, sums: Sequence[Sums]
    ) -> None:
        """Add what devices send to each other after actions of these kinds."""
        of_chunk = [total(sums[layers]) for layers in self.layers]
        which = np.flatnonzero(np.isin(self.order.kind, kinds))
        which = which[~np.isin(which, list(self.detailed))]  # of others, they follow each layer
        which = which[[of_chunk[c] != Sums() for c in self.order.chunk[which].tolist()]]
        if not len(which):
            return
        parts = [of_chunk[c] for c in self.order.chunk[which].tolist()]
        names = [self._named(k) for k in which.tolist()]
        made = self._ops(label, ("micro-batch", names), parts, len(ends))
        self.b.edge(ends[:, which].copy(), made)
        ends[:, which] = made

    def _ops(self, label: str, axis: Axis, parts: Sequence[Sums], workers: int) -> Ids:
        """Add an op of each worker for each of these collectives, (workers, parts), or for its wait
        in the queue of the node's link."""
        if label == QUEUE and self._path is not None:
            each = 2 * (self.stage.replica.tensor - 1)
            messages = each * np.array([part.collectives for part in parts])
            return self.b.ops(
                label,
                (workers, len(parts)),
                path=self._path[..., :1],
                queued_bytes=messages * self._queue_bytes[:, None],
                group=self.workers.index[:, None],
                axes=(("worker", None), axis),
            )
        return self.b.ops(
            label,
            (workers, len(parts)),
            seconds=[part.seconds for part in parts],
            bytes=[part.bytes for part in parts],
            rate_cap_bytes_per_s=[part.rate_bytes_per_s for part in parts],
            path=self._path,
            group=self.workers.index[:, None],
            axes=(("worker", None), axis),
        )

    def _add_waits(self, ends: Ids) -> None:
        """Let the devices that divide a sequence end each action together, with the slowest."""
        within = self.stage.context_workers
        for kinds, waits_s in (
            ((FORWARD,), self.stage.forward_waits_s),
            ((BACKWARD, INPUT), self.stage.backward_waits_s),
        ):
            of_chunk = [sum(waits_s[layers]) for layers in self.layers]
            which = np.flatnonzero(np.isin(self.order.kind, kinds))
            several = len(ends) % within == 0 and within > 1
            if not len(which) or not waits_s or not (several or any(of_chunk)):
                continue
            made = self.b.ops(
                WAIT,
                (len(ends), len(which)),
                seconds=[of_chunk[c] for c in self.order.chunk[which].tolist()],
                group=self.workers.index[:, None],
                cause=SLOWEST,
                axes=(
                    ("worker", None),
                    ("micro-batch", [self._named(k) for k in which.tolist()]),
                ),
            )
            before = ends[:, which].copy()
            self.b.edge(before, made)
            if several:
                groups = before.reshape(-1, within, len(which))
                for k in range(1, within):
                    self.b.edge(np.roll(groups, k, axis=1).reshape(before.shape), made)
            ends[:, which] = made

    def _routed_layers(self, routing: RoutedLayers, action: int, made: Ids, done: Ids) -> Ids:
        """Add exchanges with experts between the layers of an action, each once a layer is ``done``
        (workers, layers); return what ends the action."""
        kind, layers = int(self.order.kind[action]), self.layers[self.order.chunk[action]]
        sums, waits_s = routes_of(routing, kind)
        names = [f"{self._named(action)}, {name}" for name in self.workers.layer_names[layers]]
        exchanging = Exchanging(routing.workers, self.workers.index, self._path)
        routes = Routes(sums[layers], waits_s[layers], names)
        return between_layers(self.b, exchanging, routes, made, done, forward=kind == FORWARD)

    def _add_routing(self, routing: RoutedLayers, ends: Ids) -> None:
        """Add exchanges with experts after each action that is one op."""
        exchanging = Exchanging(routing.workers, self.workers.index, self._path)
        plain = np.array([k for k in range(len(self.order.kind)) if k not in self.detailed], int)
        of_kind = {kind: routes_of(routing, kind) for kind in LABELS}
        sums, waits_s = [], []
        for k in plain.tolist():
            moved, late_s = of_kind[int(self.order.kind[k])]
            layers = self.layers[self.order.chunk[k]]
            sums.append(total(moved[layers]))
            waits_s.append(sum(late_s[layers]))
        routes = Routes(sums, waits_s, [self._named(k) for k in plain.tolist()])
        ends[:, plain] = exchanging.after(self.b, routes, ends[:, plain])

    def _links(self) -> Ids | None:
        """Add the links of the devices' nodes, if sums pass any; return those of each device,
        (workers, 1, links)."""
        if not any(one.bytes for one in self._exchanging):
            return None
        cluster, node = self.job.cluster, self.workers.node
        each, nodes = cluster.nics_per_node, np.arange(int(node.max()) + 1)
        rates = [cluster.nic_of(one).goodput_bytes_per_s for one in nodes.tolist()]
        first = np.array([cluster.first_worker(one) for one in nodes.tolist()])
        queued = cluster.send_queue_s * np.array(rates)
        self._queue_bytes = np.maximum(queued, cluster.send_queue_bytes)[node]
        nic = node * each + (self.workers.of_job - first[node]) % each
        links = [
            self.b.links(label, np.repeat(rates, each), place=np.repeat(nodes, each))[nic]
            for label in ("link out of", "link into")
        ]
        return np.stack(links, axis=-1)[:, None]

    def _sum_tied(self, backward: Ids, first: Ids, last: Ids, layer: int) -> None:
        """Let the gradient of a tied table, and all computation, be complete once the gradients of
        both stages are summed; if backward returns with reduced gradients, they are summed after
        that, and the next step waits for it."""
        axes = (("worker", None),)
        summed = self.b.ops("tied table", (len(last),), group=self.workers.index, axes=axes)
        self.b.edge(last, summed)
        if self.job.options.holds_backward and self.stage.replica.asks_as_torch:
            self.b.edge(summed, first, lag=1)
        else:
            for each in {layer, 0}:
                self.b.edge(backward[:, each].copy(), summed)
                backward[:, each] = summed
        self.b.log(TIED, np.stack([last, summed], axis=1))

    @property
    def _exchanging(self) -> list[Sums]:
        """All that the devices of the stage send to each other in a pass."""
        stage, routing = self.stage, self.stage.routing or RoutedLayers()
        several = (
            *(stage.forward_sums, stage.backward_sums, stage.gradient_sums),
            *(stage.forward_exchanges, stage.backward_exchanges),
            *(routing.forward, routing.backward),
        )
        return [one for sums in several for one in sums]

    def _finish(self, forward: Ids, backward: Ids, starts: Ids, ends: Ids) -> None:
        """Let the end of the first layer's gradient be that of all computation."""
        last = ends[:, -1]
        if self.last[0] == len(self.order.kind) - 1:
            return
        done = self.b.ops(
            "passes done", (len(last),), group=self.workers.index, axes=(("worker", None),)
        )
        self.b.edge(last, done)
        self.b.edge(backward[-1][:, 0].copy(), done)
        backward[-1][:, 0] = done
        if (forward[0][:, 0] != starts[:, 0]).any():
            raise InputError("schedule: a stage begins with a chunk other than its first")


class ChunkSeconds(NamedTuple):
    """Seconds of each chunk of a stage for a micro-batch by kind of action, (kinds, chunks), alone
    on their links: computing, sums among the devices that divide layers, exchanges among those that
    divide sequences, and waits for the slowest of these; exchanges with experts, and waits for the
    busiest of these; and sums of its gradients, (chunks,)."""

    computing: Floats
    sums: Floats
    exchanges: Floats
    waits: Floats
    routing: Floats
    imbalance: Floats
    gradients: Floats


def chunk_seconds(job: Job) -> ChunkSeconds:
    """Return the seconds of each chunk of a stage's job."""
    stage, layers = job.stage, seconds_of_layers(expanded(job.pass_work(reduced=False)))
    if stage is None:
        none = np.zeros((len(layers), 1))
        return ChunkSeconds(layers.sum(axis=1, keepdims=True), *(none,) * 5, gradients=none[0])
    first = np.cumsum([0, *stage.chunk_layers[:-1]])

    def of_chunks(forward: Sequence[float], backward: Sequence[float]) -> Floats:
        return np.add.reduceat(by_kind(layers.shape[1], forward, backward), first, axis=1)

    routing = stage.routing or RoutedLayers()
    gradients = np.array(seconds_alone(stage.gradient_sums) or [0.0] * layers.shape[1])
    return ChunkSeconds(
        np.add.reduceat(layers, first, axis=1),
        of_chunks(seconds_alone(stage.forward_sums), seconds_alone(stage.backward_sums)),
        of_chunks(seconds_alone(stage.forward_exchanges), seconds_alone(stage.backward_exchanges)),
        of_chunks(stage.forward_waits_s, stage.backward_waits_s),
        of_chunks(seconds_alone(routing.forward), seconds_alone(routing.backward)),
        of_chunks(routing.forward_waits_s, routing.backward_waits_s),
        np.add.reduceat(gradients, first),
    )


def varying_seconds(job: Job) -> Floats:
    """Return what grows with the squared lengths of documents of the seconds of each chunk of a
    stage's job, by kind of action, (kinds, chunks)."""
    work = expanded(job.pass_work(reduced=False))
    parts = seconds_of_layers(work) * np.array([layer.varying for layer in work.layers])
    chunks = (len(work.layers),) if job.stage is None else job.stage.chunk_layers
    return np.add.reduceat(parts, np.cumsum([0, *chunks[:-1]]), axis=1)


def seconds_of_sums(layers: int, forward: Sequence[Sums], backward: Sequence[Sums]) -> Floats:
    """Return the seconds of each layer's sums among the devices that divide it, alone on their
    links, by kind of action, (kinds, layers)."""
    return by_kind(layers, seconds_alone(forward), seconds_alone(backward))


def by_kind(layers: int, forward: Sequence[float], backward: Sequence[float]) -> Floats:
    """Return what each layer has in forward and in backward by kind of action, (kinds, layers)."""
    table = np.zeros((4, layers))
    for kinds, row in (((FORWARD,), forward), ((BACKWARD, INPUT), backward)):
        if row:
            table[kinds, :] = row
    return table


def seconds_alone(sums: Sequence[Sums]) -> list[float]:
    """Return the seconds of collectives alone on their links."""
    return [one.seconds + one.bytes / one.rate_bytes_per_s for one in sums]


def seconds_of_layers(work: Workload) -> Floats:
    """Return the seconds of each layer by kind of action, (kinds, layers)."""
    forward = np.array([layer.forward_s for layer in work.layers])
    backward = np.array([layer.backward_s for layer in work.layers])
    weight = np.array([layer.of_weights_s for layer in work.layers])
    table = np.empty((4, len(forward)))
    table[FORWARD], table[BACKWARD] = forward, backward
    table[INPUT], table[WEIGHT] = backward - weight, weight
    return table
