"""Peer to peer: workers send gradients to each other directly, without servers or collectives."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Literal

import msgspec
import numpy as np

from perfmodel.algebra import Quantity, maximum, where
from perfmodel.architectures import Architecture, Coarse
from perfmodel.architectures._messages import TRANSMISSION_HELP, Transmission, tensors_of
from perfmodel.architectures._network import Network
from perfmodel.architectures._workers import Workers, add_workers, left_out, plain, stagger_s
from perfmodel.errors import number
from perfmodel.graph import Floats, GraphBuilder, Ids, OpGraph
from perfmodel.job import Job
from perfmodel.phases import Phase, Phases, Quantities, Stage


class Options(Transmission, frozen=True, forbid_unknown_fields=True):
    """Options of peer-to-peer training; the registry entry below says what each means."""

    exchange: Literal["full", "sharded"] = "full"
    overlap: bool = True
    reduce_per_byte_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number("reduce_per_byte_s", self.reduce_per_byte_s)


class Messages(msgspec.Struct, frozen=True, eq=False):
    """What a worker sends to each peer, in the order in which backward makes the gradients.

    ``layer`` (messages,) index and ``bytes`` (messages,) of the gradients in them; ``dense``
    (layers,) bytes of each layer's gradients.
    """

    layer: Ids
    bytes: Floats
    dense: Floats


def messages_of(job: Job) -> Messages:
    """A message for each layer, or several where it has more than ``partition_bytes``."""
    tensors = tensors_of(job.workload)
    dense = np.zeros(len(job.workload.layers))
    np.add.at(dense, tensors.layer, tensors.bytes)
    layers = np.flatnonzero(dense)[::-1]
    times = np.maximum(np.ceil(dense[layers] / job.options.partition_bytes), 1.0).astype(np.int64)
    layer = np.repeat(layers, times)
    return Messages(layer, dense[layer] / np.repeat(times, times), dense)


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """The op graph; with ``fold`` of the first worker, which stands for all of them."""
    options: Options = job.options
    b = GraphBuilder()
    workers = add_workers(b, job, first=1 if fold else None)
    messages = messages_of(job)
    ready = _gradients(b, job, workers, messages)
    apply = _apply(b, job, workers, messages)
    b.edge(workers.backward, apply)
    b.edge(ready, apply[:, messages.layer])
    waiting = workers.forward if options.overlap else workers.forward[:, :1]
    b.edge(workers.backward[:, 0], workers.forward[:, 0], lag=1)
    b.edge(apply, waiting, lag=1)
    if job.workers > 1:
        line = _Lines(b, job, workers, messages, fold)
        to_owners = line.sends("send", from_=ready, parts=_parts(job))
        b.edge(line.arriving(to_owners), apply[:, None, messages.layer])
        if options.exchange == "sharded":
            back = line.sends("send back", from_=apply[:, messages.layer], parts=_parts(job))
            late = waiting[:, None, messages.layer] if options.overlap else waiting[:, None]
            b.edge(line.arriving(back), late, lag=1)
    if not fold:
        b.stagger(workers.forward[:, 0], stagger_s(job))
    counter = b.counters(apply.ravel()).reshape(apply.shape)
    b.probe("staleness", apply, apply, lag=1, counter=counter, group=workers.index[:, None])
    count = job.workers if fold else 1
    return b.build(device=workers.device, mark=workers.backward[:, 0], count=count)


def _parts(job: Job) -> int:
    """Into how many parts a gradient is cut before it is sent: one for each owner, if sharded."""
    return job.workers if job.options.exchange == "sharded" else 1


def _gradients(b: GraphBuilder, job: Job, workers: Workers, messages: Messages) -> Ids:
    """Ops after which each message may be sent, (workers, messages)."""
    alone = job.workers == 1  # with nobody to send anything to
    made = workers.backward if alone else job.options.encoded(b, workers, messages.dense)
    if job.options.overlap:
        return made[:, messages.layer]
    return np.broadcast_to(made[:, :1], (len(made), len(messages.layer)))


def _apply(b: GraphBuilder, job: Job, workers: Workers, messages: Messages) -> Ids:
    """Each worker's update of each layer's parameters, or of its share of them: (workers, layers).

    First the gradients of the others are decoded and added to its own.
    """
    options: Options = job.options
    share = messages.dense / messages.dense.sum() / _parts(job)
    others = (job.workers - 1) * messages.dense / _parts(job)
    adding = others * (options.reduce_per_byte_s + options.decode_per_byte_s)
    seconds = job.workload.optimizer_s * share + adding
    return workers.compute(b, "apply", seconds, names=workers.layer_names)


class _Lines:
    """A connection from each worker to each other one, and the messages on them.

    A worker's first peer is the one after it, so that nobody is everybody's first.
    """

    def __init__(
        self, b: GraphBuilder, job: Job, workers: Workers, messages: Messages, fold: bool
    ) -> None:
        members = job.workers
        self._b, self._options, self._messages = b, job.options, messages
        self._workers = workers
        self._sent = job.options.sent_bytes(messages.bytes)
        place = np.array([job.cluster.node_of_worker(worker) for worker in range(members)])
        names = [f"node {node}" for node in np.unique(place)]
        network = Network(b, job.cluster, names, core_share=members if fold else 1, fold=fold)
        n = len(workers.node)
        self._source = np.arange(n)
        target = (self._source[:, None] + np.arange(1, members)) % members
        self._shape = (n, members - 1)
        if fold:
            self._path = np.broadcast_to(network.around(), (*self._shape, 3))
            self._latency_s = np.full(self._shape, network.hop_s(place.tolist()))
        else:
            ends = place[:, None], place[target]
            self._path, self._latency_s = network.path(*ends), network.latency_s(*ends)
        self._connection, self._units = self._options.connections(
            b, "connection of", self._shape, self._sent, place=workers.node[:, None],
            axes=(("worker", None), ("peer", None)),
        )  # fmt: skip

    def sends(self, label: str, *, from_: Ids, parts: int) -> Ids:
        """Messages, cut into ``parts``, from every worker to every peer.

        ``from_`` (workers, messages) are the ops they follow; the shape of what is returned is
        (workers, peers, messages).
        """
        b, messages = self._b, self._messages
        names = tuple(self._workers.layer_names[i] for i in messages.layer)
        send = b.ops(
            label,
            (*self._shape, len(messages.layer)),
            bytes=self._sent / parts,
            path=self._path[:, :, None],
            latency_s=self._latency_s[:, :, None],
            slot=self._connection[:, :, None],
            units=self._units,
            priority=self._options.priority(messages.layer),
            group=self._source[:, None, None],
            axes=(("worker", None), ("peer", None), ("layer", names)),
        )
        self._options.finish(b, send)
        b.edge(from_[:, None], send)
        b.probe(label, send, send, at_ready=True, group=self._source[:, None, None])
        return send

    def arriving(self, sends: Ids) -> Ids:
        """Of messages by sender, those that end at each worker, (workers, peers, messages)."""
        n, peers = self._shape
        if n == 1:  # folded: what one sends is what one gets
            return sends
        offset = np.arange(1, peers + 1)
        found: Ids = sends[(np.arange(n)[:, None] - offset) % n, offset - 1]
        return found


def phases(job: Job, q: Quantities) -> Phases:
    """Computation, what of the exchange it does not hide, and the last layer's update."""
    return q.at_paces(lambda late: _phases(job, q, late))


def _phases(job: Job, q: Quantities, late: Quantity) -> Phases:
    """The same where the slowest worker computes ``late`` times as long as the mean one."""
    options: Options = job.options
    alone = q.workers <= 1
    sharded = options.exchange == "sharded"
    parts = q.workers if sharded else 1.0
    sent = options.sent_share * (2.0 if sharded else 1.0) / parts
    away = q.workers - q.devices_per_node  # peers on other nodes
    link = maximum(away, 0.0) * q.devices_per_node / q.bandwidth_bytes_per_s
    inside = (q.workers - 1.0) / q.inside_bandwidth_bytes_per_s
    per_byte_s = sent * maximum(link, inside)
    adding_s = (options.reduce_per_byte_s + options.decode_per_byte_s) * (q.workers - 1.0) / parts
    apply_s = q.optimizer_s / parts + q.slowdown * adding_s * q.gradient_bytes
    encode_per_byte_s = options.encode_per_byte_s * q.slowdown
    if options.encode_per_byte_s > 0.0:
        encode_per_byte_s = where(alone, 0.0, encode_per_byte_s)
    hops = where(alone, 0.0, (2.0 if sharded else 1.0) * q.latency_s)
    computed, _, end = q.layers.backward_and_send_s(
        q.scale * late,
        [Stage(0.0, per_byte_s)],
        encode_per_byte_s=encode_per_byte_s * late,
        latency_s=hops,
        overlap=options.overlap,
        ahead=options.overlap,
    )
    first = q.layers.bytes[0] / q.gradient_bytes
    compute, encode = q.forward_s + q.backward_s, encode_per_byte_s * q.gradient_bytes
    shown = maximum(end - computed + first * apply_s - apply_s, 0.0)
    return Phases(
        parts={
            "compute": Phase(compute, "compute"),
            "wait for the slowest": Phase((compute + encode + apply_s) * (late - 1.0), "straggler"),
            "compress": Phase(encode, "compute"),
            "update": Phase(apply_s, "compute"),
            "exchange": Phase(where(alone, 0.0, shown), "network"),
        },
        busy_s={"link of each node": where(alone, 0.0, sent * link * q.gradient_bytes)},
        updates=1.0 / q.workers,
    )


def exact(job: Job) -> bool:
    """Whether the coarse model equals the simulation: where adding up gradients takes no time."""
    options: Options = job.options
    adding = job.workload.optimizer_s + options.reduce_per_byte_s + options.decode_per_byte_s
    whole = options.exchange == "full" and options.partition_bytes == math.inf
    return whole and adding == 0.0 and plain(job) and leaves_out(job) is None


def leaves_out(job: Job) -> str | None:
    """What a job has that the coarse model does not."""
    options: Options = job.options
    several = options.transmission != "fifo"
    return left_out(
        job, {f"transmission={options.transmission}": several, "credit": options.credit_bytes > 0.0}
    )


def _fold(job: Job) -> OpGraph | None:
    """Workers that share a node differ in whom they reach without the network."""
    if job.workers > 1 and job.cluster.node_of_worker(job.workers - 1) < job.workers - 1:
        return None
    return build(job, fold=True)


def _unused(options: Any) -> Collection[str]:
    names: set[str] = options.unused
    return names


ARCHITECTURE = Architecture(
    name="p2p",
    title="peer to peer: every worker sends to every other (synchronous, no server)",
    options=Options,
    build=build,
    asynchronous=lambda options: False,
    server_bytes=None,
    option_help={
        "exchange": "full: whole gradients to everybody; sharded: each worker sums and updates "
        "its share of the parameters and sends it back",
        "overlap": "send a layer as soon as its gradient is ready, start it as soon as it is there",
        "reduce_per_byte_s": "time to add one byte's worth of gradients",
        **TRANSMISSION_HELP,
    },
    assumptions=(
        "one connection per pair of workers and direction, one layer at a time, in order; all "
        "connections at once",
        "a layer's next forward pass waits for its gradients from all workers",
        "each worker updates a layer as soon as all have sent it, on its device",
        "with exchange=sharded each layer is cut evenly over all workers",
    ),
    source="Alqahtani, Demirbas, ICCCN 2019, arXiv 1909.02061; Watcharapichat et al. (Ako), "
    "SoCC 2016, doi 10.1145/2987550.2987586",
    fold=_fold,
    unused=_unused,
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out),
)
