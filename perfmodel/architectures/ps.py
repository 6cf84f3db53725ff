"""Parameter server: workers push gradients to servers and pull the new parameters back."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from perfmodel.architectures import Architecture
from perfmodel.architectures._network import Network
from perfmodel.architectures._workers import Workers, add_workers, stagger_s
from perfmodel.errors import InputError, number, whole_number
from perfmodel.graph import Floats, GraphBuilder, Ids, OpGraph
from perfmodel.job import Job
from perfmodel.workload import Workload, expanded

MOST_SERVERS = 10_000
"""Servers of one job; more is taken for a slip of the keyboard."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the parameter server; the registry entry below says what each means."""

    sync: Literal["bsp", "asp"] = "bsp"
    servers: int = 1
    overlap: bool = True
    duplex: bool = False
    sharding: Literal["split", "greedy"] = "split"
    split_above_bytes: float = 4e6

    def __post_init__(self) -> None:
        whole_number("servers", self.servers, at_most=MOST_SERVERS)
        number("split_above_bytes", self.split_above_bytes)


class Slices(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What each layer keeps on each server, in the order in which backward makes the gradients.

    All of shape (slices,): ``layer`` index, ``server`` index, ``bytes``, and how many tensors
    (or parts of tensors) they are.
    """

    layer: Ids
    server: Ids
    bytes: Floats
    tensors: Ids


def slices_of(workload: Workload, options: Options) -> Slices:
    """Cut and place a workload's tensors; what one layer has on one server travels together.

    *split* cuts tensors of more than ``split_above_bytes`` evenly over all servers. What is not
    cut goes whole, the largest first, to the server with the fewest bytes so far.
    """
    tensors = [
        (i, size)
        for i, layer in reversed(list(enumerate(expanded(workload).layers)))
        for size in layer.tensor_bytes
    ]
    servers = options.servers
    cut = options.sharding == "split" and servers > 1
    load = [0.0] * servers
    home: dict[int, int] = {}
    for t in sorted(range(len(tensors)), key=lambda t: -tensors[t][1]):
        size = tensors[t][1]
        if not (cut and size > options.split_above_bytes):
            home[t] = min(range(servers), key=lambda s: load[s])
            load[home[t]] += size
    held: dict[tuple[int, int], list[float]] = {}
    for t, (i, size) in enumerate(tensors):
        parts = [home[t]] if t in home else range(servers)
        for s in parts:
            held.setdefault((i, s), []).append(size / len(parts))
    where = np.array(list(held))
    return Slices(
        layer=where[:, 0],
        server=where[:, 1],
        bytes=np.array([sum(parts) for parts in held.values()]),
        tensors=np.array([len(parts) for parts in held.values()]),
    )


def build(job: Job) -> OpGraph:
    """The op graph: forward, backward, push, update, pull of every slice of every worker."""
    options: Options = job.options
    if job.cluster.nodes is not None:
        nodes = job.cluster.node_of_server(options.servers - 1, job.workers) + 1
        if nodes > job.cluster.nodes:
            raise InputError(
                f"servers: {options.servers} dedicated servers beside {job.workers} workers do "
                f"not fit on cluster {job.cluster.name!r} ({job.cluster.nodes} nodes)"
            )
    b = GraphBuilder()
    workers = add_workers(b, job)
    slices = slices_of(job.workload, options)
    n, width = job.workers, len(slices.bytes)
    home = np.array([job.cluster.node_of_server(s, n) for s in range(options.servers)])
    network = Network(b, job.cluster, _node_names(int(workers.node.max()) + 1, home.tolist()))
    node, server_node = workers.node[:, None], home[slices.server]
    layer_names = tuple(workers.layer_names[i] for i in slices.layer)
    worker_axis = ("worker", None)
    axes = (worker_axis, ("slice", layer_names))
    group = workers.index[:, None]

    def connections(label: str) -> Ids:
        slots = b.slots(
            label,
            (n, options.servers),
            place=workers.node[:, None],
            axes=(worker_axis, ("server", None)),
        )
        return slots[:, slices.server]

    push = b.ops(
        "push",
        (n, width),
        bytes=slices.bytes,
        path=network.path(node, server_node),
        latency_s=network.latency_s(node, server_node),
        slot=connections("push connection of"),
        group=group,
        axes=axes,
    )
    threads = b.slots(
        "update threads of",
        (options.servers,),
        capacity=job.cluster.update_threads,
        place=home,
        axes=(("server", None),),
    )
    cost = job.cluster.server
    update = b.ops(
        "update",
        (n, width),
        group=group,
        cause="server",
        slot=threads[slices.server],
        seconds=cost.update_per_tensor_s * slices.tensors + cost.update_per_byte_s * slices.bytes,
        axes=axes,
    )
    # pulls go in forward order: lower ids, which win ties, to the layers that forward needs first
    pull = b.ops(
        "pull",
        (n, width),
        bytes=slices.bytes[::-1],
        path=network.path(server_node[::-1], node),
        latency_s=network.latency_s(server_node[::-1], node),
        slot=connections("pull connection of")[:, ::-1],
        group=group,
        axes=(worker_axis, ("slice", layer_names[::-1])),
    )[:, ::-1]
    if options.overlap or options.duplex:
        b.edge(push, update)
    else:  # phases: nothing is applied before the whole gradient is in
        pushed = b.ops("pushed", (n,), group=workers.index, axes=axes[:1])
        b.edge(push, pushed[:, None])
        b.edge(pushed[:, None], update)
    _join(b, options, workers, slices, push, pull)
    fresh = _synchronise(b, options, update, pull, layer_names)
    first = workers.forward[:, :1] if options.duplex else pull
    b.stagger(first, np.broadcast_to(stagger_s(job)[:, None], first.shape))
    counter = b.counters(fresh)
    b.probe("staleness", fresh, fresh, lag=1, counter=counter, group=group)
    b.probe("push", push, np.broadcast_to(fresh, push.shape), at_ready=True, group=group)
    b.probe("update", update, update, at_ready=True, group=group)
    b.probe("pull", pull, pull, at_ready=True, group=group)
    return b.build(device=workers.device, mark=workers.backward[:, 0])


def _node_names(worker_nodes: int, server_nodes: list[int]) -> list[str]:
    """Names of all nodes; those with servers say which."""
    hosts: dict[int, list[str]] = {node: [] for node in range(worker_nodes)}
    for server, node in enumerate(server_nodes):
        hosts.setdefault(node, []).append(f"server {server}")
    return [
        f"node {node}" + (f" ({', '.join(servers)})" if servers else "")
        for node, servers in sorted(hosts.items())
    ]


def _join(
    b: GraphBuilder, options: Options, workers: Workers, slices: Slices, push: Ids, pull: Ids
) -> None:
    """Edges between computation and communication of each worker."""
    lag = int(options.duplex)  # duplex: the reply to iteration i's push serves iteration i+1
    b.edge(workers.backward[:, 0], workers.forward[:, 0], lag=1)
    if not options.duplex and 0 not in slices.layer:
        # a first layer without parameters waits for no pull, yet a step begins with all sent
        b.edge(push, workers.forward[:, :1], lag=1)
    if options.overlap:
        b.edge(workers.backward[:, slices.layer], push)
        b.edge(pull, workers.forward[:, slices.layer], lag=lag)
    else:
        b.edge(workers.backward[:, :1], push)
        b.edge(pull, workers.forward[:, :1], lag=lag)


def _synchronise(
    b: GraphBuilder, options: Options, update: Ids, pull: Ids, layer_names: tuple[str, ...]
) -> Ids:
    """Edges from updates to pulls; returns the ops that end an update of each slice.

    Shape (1, slices) for BSP, one update for all workers; (workers, slices) for ASP.
    """
    n, width = update.shape
    fresh = update
    if options.sync == "bsp":
        fresh = b.ops(
            "all applied",
            (1, width),
            cause="server",
            axes=(("all workers", ("all workers",)), ("slice", layer_names)),
        )
        b.edge(update, np.broadcast_to(fresh, update.shape))
    if options.duplex:
        b.edge(np.broadcast_to(fresh, pull.shape), pull)
        return fresh
    # one reply phase: a worker pulls once everything it waits for has been applied
    whole = b.ops("model applied", (len(fresh),), cause="server")
    b.edge(fresh, whole[:, None])
    b.edge(np.broadcast_to(whole[:, None], (n, 1)), pull, lag=1)
    return fresh


def server_bytes(job: Job) -> float:
    """Memory of the fullest server: parameters, optimizer state, a receive buffer per worker."""
    slices = slices_of(job.workload, job.options)
    state = job.workload.optimizer_state_bytes / job.workload.gradient_bytes
    return float(np.bincount(slices.server, slices.bytes).max() * (1 + state + job.workers))


ARCHITECTURE = Architecture(
    name="ps",
    title="parameter server",
    options=Options,
    build=build,
    asynchronous=lambda options: bool(options.sync == "asp"),
    server_bytes=server_bytes,
    option_help={
        "sync": "bsp: an update waits for every worker; asp: every push is applied at once",
        "servers": "number of servers the parameters are spread over",
        "overlap": "push a layer as soon as its gradient is ready, start it as soon as it is back",
        "duplex": "answer each pushed slice at once (MXNet) instead of one pull phase per step",
        "sharding": "split: cut large tensors over all servers; greedy: whole tensors, balanced",
        "split_above_bytes": "size above which sharding=split cuts a tensor",
    },
    assumptions=(
        "one connection per worker and server and direction, one layer at a time, in order; the "
        "tensors that a layer keeps on one server travel together",
        "every pushed tensor costs the server its update time, also under BSP; without overlap "
        "(and without duplex) nothing is applied before a worker's whole gradient is in",
        "a worker's copy is the one right after its own push was applied (under ASP)",
        "the optimizer runs on the server: the worker's optimizer time does not count",
    ),
    source="Li et al., IEEE TPDS 33(11), 2022, doi 10.1109/TPDS.2022.3151739; "
    "Jia et al., IPCCC 2020",
)
