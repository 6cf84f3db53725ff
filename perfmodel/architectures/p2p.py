"""Peer to peer: workers send gradients directly to each other, without servers or collectives."""

from __future__ import annotations

import functools
from typing import Annotated, Literal

import msgspec
import numpy as np

from perfmodel.architectures.base import Architecture, Coarse, Traffic
from perfmodel.architectures.memory import Parts, replica_of, with_copies
from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import number
from perfmodel.base.quantities import Quantity, is_symbol, maximum, where
from perfmodel.communication.messages import Transmission, parts_of, tensors_of
from perfmodel.communication.network import Network
from perfmodel.communication.rates import Use
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import Option
from perfmodel.inputs.workload import expanded
from perfmodel.phases.layers import Stage
from perfmodel.phases.phases import Phase, Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.phases.whole import Whole
from perfmodel.training.workers import (
    FOLDED,
    Workers,
    add_workers,
    equal,
    left_out,
    log_steps,
    stagger_s,
)


class Options(Transmission, frozen=True, forbid_unknown_fields=True):
    """Options of peer-to-peer training."""

    exchange: Annotated[
        Literal["full", "sharded"],
        Option(
            "full: each worker sends its whole gradients to all others; sharded: each worker sums "
            "and updates its share of the parameters and sends it back"
        ),
    ] = "full"
    overlap: Annotated[
        bool,
        Option("send each gradient once it is ready; start each layer once its exchange is done"),
    ] = True
    reduce_per_byte_s: Annotated[float, Option("time to add gradients, per byte")] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number("reduce_per_byte_s", self.reduce_per_byte_s)


class PeerMessages(msgspec.Struct, frozen=True, eq=False):
    """The messages from a worker to each peer, in the order in which backward computes gradients.

    ``layer`` (messages,) and ``bytes`` (messages,) are the layer index and the gradient bytes of
    each message; ``dense`` (layers,) are the bytes of each layer's gradients.
    """

    layer: Ids
    bytes: Floats
    dense: Floats


def messages_of(job: Job) -> PeerMessages:
    """Make one message per layer, or several for a layer larger than ``partition_bytes``."""
    tensors = tensors_of(job.workload)
    dense = np.zeros(len(job.workload.layers))
    np.add.at(dense, tensors.layer, tensors.bytes)
    layers = np.flatnonzero(dense)[::-1]
    times = parts_of(dense[layers], Options.of(job).partition_bytes)
    layer = np.repeat(layers, times)
    return PeerMessages(layer, dense[layer] / np.repeat(times, times), dense)


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """Build the op graph; with ``fold``, of the first worker only, which represents all."""
    options = Options.of(job)
    b = GraphBuilder()
    workers = add_workers(b, job, some=FOLDED if fold else None)
    messages = messages_of(job)
    ready = _gradients(b, job, workers, messages)
    apply = _apply(b, job, workers, messages)
    b.edge(workers.backward[:, :1], apply)
    b.edge(ready, apply[:, messages.layer])
    waiting = workers.forward if options.overlap else workers.forward[:, :1]
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
    log_steps(b, workers, central=True)
    b.log("update", apply[:, messages.dense > 0.0])
    count = job.workers if fold else 1
    return b.build(device=workers.device, mark=workers.backward[:, 0], count=count)


def slices(job: Job) -> list[float]:
    """Return the bytes of the layers that are updated: those with parameters."""
    dense = messages_of(job).dense
    return [size for size in dense.tolist() if size > 0.0]


def _parts(job: Job) -> int:
    """Return the parts that a gradient is cut into for sending: if sharded, one per owner."""
    return job.workers if Options.of(job).exchange == "sharded" else 1


def _gradients(b: GraphBuilder, job: Job, workers: Workers, messages: PeerMessages) -> Ids:
    """Return the ops after which each message may be sent, (workers, messages)."""
    alone = job.workers == 1  # no peer to send to
    made = workers.backward if alone else Options.of(job).encoded(b, workers, messages.dense)
    if Options.of(job).overlap:
        return made[:, messages.layer]
    return np.broadcast_to(made[:, :1], (len(made), len(messages.layer)))


def _apply(b: GraphBuilder, job: Job, workers: Workers, messages: PeerMessages) -> Ids:
    """Add each worker's update of each layer's parameters, or of its share: (workers, layers).

    First it decodes the other workers' gradients and adds them to its own. All this takes place
    after the worker's backward pass.
    """
    options = Options.of(job)
    share = messages.dense / messages.dense.sum() / _parts(job)
    others = (job.workers - 1) * messages.dense / _parts(job)
    adding = others * (options.reduce_per_byte_s + options.decode_per_byte_s)
    seconds = job.device_work.optimizer_s * share + adding
    return workers.compute(b, "apply", seconds, names=workers.layer_names)


class _Lines:
    """A connection from each worker to each other worker, and the messages on it.

    Peers are numbered from the next worker on, so that workers do not all send to the same one
    first.
    """

    def __init__(
        self, b: GraphBuilder, job: Job, workers: Workers, messages: PeerMessages, fold: bool
    ) -> None:
        members = job.workers
        self._b, self._options, self._messages = b, Options.of(job), messages
        self._seed = job.seed
        self._workers = workers
        self._sent = Options.of(job).sent_bytes(messages.bytes)
        network = Network(b, job, fold=fold, core_share=members if fold else 1)
        n = len(workers.node)
        self._source = np.arange(n)
        target = (self._source[:, None] + np.arange(1, members)) % members
        self._shape = (n, members - 1)
        self._routes = network.between(self._source[:, None, None], target[:, :, None])
        self._connection, self._units = self._options.connections(
            b, "connection of", self._shape, self._sent, place=workers.node[:, None],
            axes=(("worker", None), ("peer", None)),
        )  # fmt: skip

    def sends(self, label: str, *, from_: Ids, parts: int) -> Ids:
        """Add messages, cut into ``parts``, from every worker to every peer.

        ``from_`` (workers, messages) are the ops they follow. Returns ops of shape (workers, peers,
        messages).
        """
        b, messages = self._b, self._messages
        names = tuple(self._workers.layer_names[i] for i in messages.layer)
        stream = (self._seed, len(label))
        priority = self._options.priority(messages.layer, self._shape[0], stream)
        send = b.ops(
            label,
            (*self._shape, len(messages.layer)),
            bytes=self._sent / parts,
            **self._routes,
            slot=self._connection[:, :, None],
            units=self._units,
            priority=priority.reshape(-1, 1, len(messages.layer)),
            group=self._source[:, None, None],
            axes=(("worker", None), ("peer", None), ("layer", names)),
        )
        self._options.finish(b, send, self._sent / parts)
        b.edge(from_[:, None], send)
        b.probe(label, send, send, at_ready=True, group=self._source[:, None, None])
        return send

    def arriving(self, sends: Ids) -> Ids:
        """Reorder messages from sender to receiver, (workers, peers, messages)."""
        n, peers = self._shape
        if n == 1:  # folded: a worker receives as it sends
            return sends
        offset = np.arange(1, peers + 1)
        arrivals: Ids = sends[(np.arange(n)[:, None] - offset) % n, offset - 1]
        return arrivals


def phases(job: Job, q: Quantities) -> Phases:
    """Return computation, updates, and the exposed part of the exchange."""
    return q.at_paces(lambda late: _phases(job, q, late))


def _phases(job: Job, q: Quantities, late: Quantity) -> Phases:
    """Return the phases if the slowest worker computes ``late`` times as long as the mean one."""
    options = Options.of(job)
    alone = q.workers <= 1
    sharded = options.exchange == "sharded"
    parts = q.workers if sharded else 1.0
    sent = options.sent_share / parts
    paths = [(sent * per_byte_s, where(alone, 0.0, hop_s)) for per_byte_s, hop_s in _paths(q)]
    adding_s = (options.reduce_per_byte_s + options.decode_per_byte_s) * (q.workers - 1.0) / parts
    apply_s = q.optimizer_s / parts + q.slowdown * adding_s * q.gradient_bytes
    encode_per_byte_s = options.encode_per_byte_s * q.slowdown
    if options.encode_per_byte_s > 0.0:
        encode_per_byte_s = where(alone, 0.0, encode_per_byte_s)
    shown = _exposed_s(
        q,
        q.scale * late,
        paths,
        apply_s * late / q.gradient_bytes,
        encode_per_byte_s=encode_per_byte_s * late,
        overlap=options.overlap,
        back=sharded,
    )
    compute, encode = q.forward_s + q.backward_s, encode_per_byte_s * q.gradient_bytes
    return Phases(
        parts={
            "compute": Phase(compute, "compute"),
            "wait for the slowest": Phase((compute + encode + apply_s) * (late - 1.0), "straggler"),
            "compress": Phase(encode, "compute"),
            "update": Phase(apply_s, "compute"),
            "exchange": Phase(where(alone, 0.0, shown), "network"),
        },
        busy_s=Use(paths[0][0], 0.0, paths[1][0] if paths[1:] else 0.0)
        .times(where(alone, 0.0, (2.0 if sharded else 1.0) * q.gradient_bytes))
        .by_link(job),
        updates=1.0 / q.workers,
    )


def _exposed_s(
    q: Quantities,
    scale: Quantity,
    paths: list[tuple[Quantity, Quantity]],
    apply_per_byte_s: Quantity,
    *,
    encode_per_byte_s: Quantity,
    overlap: bool,
    back: bool,
) -> Quantity:
    r"""Return the exposed time of the exchange; computation takes ``scale`` times the profile.

    ``paths`` are x and alpha of each path to others. A layer has arrived once it has on all paths.

    Layers L to 1 are sent as they are computed, taking :math:`x s_l` each, until :math:`E_l`. They
    are applied one after the other, taking :math:`u s_l` each, once backward has ended at C and
    they have arrived at :math:`E_l + \alpha`. With ``back``, results are sent after all that:

    .. math:: A_l = \max(A_{l+1}, C, E_l + \alpha) + u s_l, \quad
              R_l = \max(R_{l+1}, E_1, A_l) + x s_l

    The next forward pass waits for :math:`A_1`, or :math:`R_1 + \alpha`: layer 1 arrives last. With
    ``overlap`` the layers before the first one with parameters do not wait.
    """
    layers, applying = q.layers, apply_per_byte_s * q.gradient_bytes
    if isinstance(layers, Whole):
        late: list[Quantity] = []
        for per_byte_s, hop_s in paths:
            computed, _, end = layers.backward_and_send_s(
                scale,
                [Stage(0.0, per_byte_s)],
                encode_per_byte_s=encode_per_byte_s,
                latency_s=hop_s,
                overlap=overlap,
            )
            late.append(end - computed + (per_byte_s * q.gradient_bytes + hop_s if back else 0.0))
        return functools.reduce(maximum, late)
    first_s = layers.first_s * scale if overlap else 0.0
    sizes = layers.bytes[::-1]

    def send(ready_s: list[Quantity]) -> Quantity:
        computed = ready_s[-1] + layers.last_s * scale
        sent: list[Quantity] = [0.0 for _ in paths]
        arrived: list[Quantity] = []
        for ready, size in zip(ready_s, sizes, strict=True):
            begin = ready if overlap else computed
            sent = [
                maximum(end, begin) + per_byte_s * size
                for end, (per_byte_s, _) in zip(sent, paths, strict=True)
            ]
            ends = [end + hop_s for end, (_, hop_s) in zip(sent, paths, strict=True)]
            arrived.append(functools.reduce(maximum, ends))
        applied, returned = computed + first_s, sent
        for come, size in zip(arrived, sizes, strict=True):
            applied = maximum(applied, come) + apply_per_byte_s * size
            returned = [
                maximum(end, applied) + per_byte_s * size
                for end, (per_byte_s, _) in zip(returned, paths, strict=True)
            ]
        back_s = [end + hop_s for end, (_, hop_s) in zip(returned, paths, strict=True)]
        return functools.reduce(maximum, back_s, applied) if back else applied

    computed, end = layers.overlapped_s(
        scale, send, layers.index[::-1], encode_per_byte_s=encode_per_byte_s
    )
    return maximum(end - computed - first_s - applying, 0.0)


def _paths(q: Quantities) -> list[tuple[Quantity, Quantity]]:
    """Return the seconds per byte that a worker sends to each other worker, and the latency: for
    workers on other nodes and, if there are any, for those on its own. All send at once."""
    counts = (q.fullest, q.emptiest) if q.nics_per_node > 1 else (q.fullest,)
    flows = [q.on_a_nic(count) * maximum(q.workers - count, 0.0) for count in counts]
    away = functools.reduce(maximum, flows)
    flow_s = where(away > 0, 1.0 / q.flow_bytes_per_s, 0.0)
    paths = [(maximum(away / q.bandwidth_bytes_per_s, flow_s), where(away > 0, q.latency_s, 0.0))]
    if is_symbol(q.workers):  # one per node
        return [(paths[0][0], q.latency_s)]
    beside = q.fullest - 1.0
    inside = beside * (q.fullest if q.bus else 1.0) / q.inside_bandwidth_bytes_per_s
    return [*paths, (inside, where(beside > 0.0, q.inside_latency_s, 0.0))]


def exact(job: Job) -> bool:
    """Return whether the coarse model equals the simulation.

    With gradients sent back, it does if adding them takes no time: the order in which a worker
    applies gradients that have arrived is then irrelevant.
    """
    options = Options.of(job)
    adding = job.device_work.optimizer_s + options.reduce_per_byte_s + options.decode_per_byte_s
    first = not options.overlap or bool(expanded(job.workload).layers[0].tensor_bytes)
    known = options.exchange == "full" or (adding == 0.0 and first)
    even = job.cluster.even(job.workers)
    return known and even and equal(job) and leaves_out(job) is None


def leaves_out(job: Job) -> str | None:
    """Return the first feature of a job that the coarse model leaves out, or None."""
    options = Options.of(job)
    several = options.transmission != "fifo"
    return left_out(
        job,
        {f"transmission={options.transmission}": several, "credit": options.credit_bytes > 0.0},
        connections=False,
        parts=None,
    )


def _fold(job: Job) -> OpGraph | None:
    """Do not fold workers that share a node or span several sites, as they reach their peers over
    different links, nor workers that each have their own order."""
    if Options.of(job).transmission == "random" or job.crosses_sites:
        return None
    if job.workers > 1 and job.cluster.node_of_worker(job.workers - 1) < job.workers - 1:
        return None
    return build(job, fold=True)


def memory(job: Job) -> Parts:
    """Return the memory of a worker: a replica, and the gradients of every peer, or of its share of
    them, whose optimizer state it alone keeps."""
    options, n = Options.of(job), job.workers
    received = (n - 1) * options.sent_share * job.workload.gradient_bytes
    shards = n if options.exchange == "sharded" else 1
    kept = replica_of(job.workload, shards)
    return Parts(with_copies(kept, received_gradients=received / shards))


def traffic(job: Job) -> Traffic:
    """Return a worker's bytes: its gradients to every peer, or a share of them both ways."""
    options, n = Options.of(job), job.workers
    whole = (n - 1) * options.sent_share * job.workload.gradient_bytes
    moved = whole if options.exchange == "full" else 2 * whole / n
    return Traffic(moved, moved)


ARCHITECTURE = Architecture(
    name="p2p",
    title="peer to peer: every worker sends to every other (synchronous, no server)",
    options=Options,
    build=build,
    memory=memory,
    assumptions=(
        "there is one connection per pair of workers and direction; it carries one layer at a "
        "time, in order, and all connections are used at once",
        "a layer's next forward pass waits for its gradients from all workers",
        "each worker updates a layer once all have sent it, on its device and after its own "
        "backward pass",
        "with exchange=sharded each layer is cut evenly over all workers",
    ),
    source="Alqahtani, Demirbas, ICCCN 2019, arXiv 1909.02061; Watcharapichat et al. (Ako), "
    "SoCC 2016, doi 10.1145/2987550.2987586",
    fold=_fold,
    variants=(
        {},
        {"overlap": False},
        {"exchange": "sharded", "reduce_per_byte_s": 0.01},
        {"exchange": "sharded", "overlap": False, "transmission": "shared"},
        {"transmission": "priority", "partition_bytes": 7},
        {"transmission": "random"},
        {"transmission": "quantum", "quantum_bytes": 11},
        {"transmission": "fifo", "credit_bytes": 25, "partition_bytes": 10},
        {"exchange": "sharded", "compression": "quantised", "decode_per_byte_s": 0.01},
        {"compression": "quantised", "quantised_bits": 4, "transmission": "shared"},
        {"compression": "top_k", "density": 0.3, "overlap": False},
        {"compression": "dgc", "density": 0.2, "encode_per_byte_s": 0.01},
    ),
    traffic=traffic,
    meaning=lambda job, recorder: recorder.replicas(),
    slices=slices,
    central=True,
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out),
)
