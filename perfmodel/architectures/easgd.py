"""EASGD: every few steps, a worker's model and the servers' centre move towards each other."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from perfmodel.architectures.base import Architecture, Coarse, Traffic, uniform_age
from perfmodel.architectures.memory import Parts, replica_of, with_copies
from perfmodel.base.arrays import Ids
from perfmodel.base.errors import number, whole_number
from perfmodel.base.quantities import Quantity, maximum, minimum
from perfmodel.communication.network import (
    SERVER_ASSUMPTION,
    Network,
    add_update_threads,
    homes_of,
    model_update_s,
    node_names,
)
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import Axis, OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import MIXED, Option, Options as Base
from perfmodel.phases.phases import Phase, Phases, mixed, resource_limited
from perfmodel.phases.quantities import Quantities
from perfmodel.results.memory import Footprint
from perfmodel.results.prediction import ModelAge
from perfmodel.theory.contention import CycleTime, contended, regularity
from perfmodel.training.workers import (
    Workers,
    add_begin,
    add_optimizer,
    add_workers,
    left_out,
    log_steps,
    plain,
)

if TYPE_CHECKING:
    from perfmodel.training.recorder import Meaning, Recorder

MOST_SERVERS = 10_000
"""Largest number of servers of a job; catches typing errors."""

AXES: tuple[Axis, Axis] = (("worker", None), ("server", None))


STATIONS = ("pull", "push", "update", "own pull", "own push")
"""Stations where workers contend: at the servers, and on the link of a shared node."""


class Options(Base, frozen=True, forbid_unknown_fields=True):
    """Options of EASGD."""

    period: Annotated[int, Option("local steps between two exchanges with the centre")] = 4
    moving_rate: Annotated[
        float, Option("how far worker and centre move towards each other; no effect on time")
    ] = 0.1
    servers: Annotated[int, Option("number of servers that share the centre in equal parts")] = 1

    @property
    def needs_flush(self) -> str | None:
        """Models are mixed at any time."""
        return MIXED

    def __post_init__(self) -> None:
        whole_number("period", self.period, at_most=1_000_000)
        number("moving_rate", self.moving_rate, above=0.0, at_most=1.0)
        whole_number("servers", self.servers, at_most=MOST_SERVERS)

    @property
    def asynchronous(self) -> bool:
        """Whether workers iterate without a barrier: always."""
        return True

    @property
    def server_count(self) -> int:
        """Number of servers."""
        return self.servers

    @property
    def exchanged_share(self) -> float:
        """Mean share of a model that a worker sends per step."""
        return 1 / self.period


def build(job: Job, some: Ids | None = None) -> OpGraph:
    """Build the op graph: computation, and a pull, a push and an update every ``period`` steps.

    ``some`` (workers,) are the workers that the graph has, of which each pass is one op; None for
    all, with their layers.
    """
    b = GraphBuilder()
    home = homes_of(job, Options.of(job).servers)
    nodes = len(node_names(job, home))
    workers = add_workers(b, job, some=some, nodes=nodes, layers=some is None)
    optimizer = add_optimizer(b, job, workers).last
    begin = add_begin(b, job, workers, optimizer, period=Options.of(job).period)
    _add_exchange(b, job, workers, home, begin)
    log_steps(b, workers)
    b.log("step", optimizer)
    return b.build(device=workers.device, mark=optimizer)


def _add_exchange(b: GraphBuilder, job: Job, workers: Workers, home: Ids, begin: Ids) -> None:
    """In the last step of each period, pull the centre before computing, and push the difference
    during computation.

    All ops of the servers have shape (workers, servers).
    """
    period, group = Options.of(job).period, workers.index[:, None]
    request = b.ops(
        "request", workers.index.shape, group=workers.index, cause="server", axes=AXES[:1]
    )
    pull, push = _transfers(b, job, workers, home)
    pulled = b.ops("pulled", workers.index.shape, group=workers.index, axes=AXES[:1])
    update = _updates(b, job, workers, home)
    for ops in (pull, push, update):
        b.active(ops, every=period, phase=period - 1)
    b.edge(begin, request)
    b.edge(update, request[:, None], lag=period)
    b.edge(request[:, None], pull)
    b.edge(pull, pulled[:, None])
    b.edge(pulled, workers.forward[:, 0])
    b.edge(pulled[:, None], push)
    b.edge(push, update)
    b.edge(update, push, lag=1)  # otherwise a token without a push overtakes a push in flight
    read, added = _every(b, "read", request, period), _every(b, "added", update, period)
    b.probe("staleness", read[:, None], added, counter=b.counters(added), group=group)
    b.log("read", read)
    b.log("pulled", pulled)
    b.log("added", added)
    if period == 1:  # otherwise steps without an exchange count as transfers of zero time
        for label, ops in (("pull", pull), ("push", push), ("update", update)):
            b.probe(label, ops, ops, at_ready=True, group=group)


def _transfers(b: GraphBuilder, job: Job, workers: Workers, home: Ids) -> tuple[Ids, Ids]:
    """Add the pull and the push between each worker and each server."""
    network = Network(b, job, home)
    worker, server = workers.of_job[:, None], job.workers + np.arange(len(home))

    def transfer(label: str, source: Ids, target: Ids) -> Ids:
        return b.ops(
            label,
            (len(workers.index), len(home)),
            bytes=job.workload.gradient_bytes / len(home),
            **network.between(source, target),
            group=workers.index[:, None],
            axes=AXES,
        )

    return transfer("pull", server, worker), transfer("push", worker, server)


def _updates(b: GraphBuilder, job: Job, workers: Workers, home: Ids) -> Ids:
    """Add each server's update by each worker's difference."""
    servers = len(home)
    return b.ops(
        "update",
        (len(workers.index), servers),
        **workers.processors.work(np.full(servers, model_update_s(job) / servers), home, 1),
        slot=add_update_threads(b, job, home),
        group=workers.index[:, None],
        cause="server",
        axes=AXES,
    )


def _every(b: GraphBuilder, label: str, ops: Ids, period: int) -> Ids:
    """Add ops that follow ``ops`` in the last step of each period, and run in no other step."""
    if period == 1:
        return ops
    follow = b.ops(label, ops.shape, cause="server")
    b.edge(ops, follow)
    for op in follow.ravel():
        b.every(int(op), period)
    return follow


def meaning(job: Job, recorder: Recorder) -> Meaning:
    """Record own steps and exchanges. When a pull arrives, the worker moves towards the centre as
    it was read. When the difference is added, the centre moves towards the worker as it was then.
    """
    from perfmodel.results.schedule import CENTRE

    servers, rate = range(Options.of(job).servers), Options.of(job).moving_rate
    centre: dict[int, list[int]] = {}  # versions that were read, by worker
    model: dict[int, list[int]] = {}  # versions that the difference was computed from
    moved = [True] * job.workers

    def read(worker: int, _drawn: int) -> None:
        centre[worker] = [recorder.version(CENTRE, k) for k in servers]
        moved[worker] = False

    def pulled(worker: int, _drawn: int) -> None:
        if moved[worker]:  # no exchange in this step
            return
        moved[worker] = True
        model[worker] = [recorder.version(worker, k) for k in servers]
        for k in servers:
            recorder.part(worker, (CENTRE, centre[worker][k], rate), worker, k)
        recorder.together((worker,))

    def added(index: int, _drawn: int) -> None:
        worker, k = divmod(index, len(servers))
        mixes = [(worker, model[worker][k], rate), (CENTRE, centre[worker][k], -rate)]
        recorder.mix(CENTRE, mixes, worker, k)

    return {"step": recorder.own_step, "read": read, "pulled": pulled, "added": added}


def phases(job: Job, q: Quantities) -> Phases:
    """Return computation, and a step's share of what the exchange of a period adds to it.

    A worker waits for its pull. Its push and update end before its next pull, so they are hidden by
    the period unless links or servers are slow.
    """
    link_s = q.gradient_bytes / q.servers / q.server_bandwidth_bytes_per_s
    core_s = q.gradient_bytes / q.core_with_servers_bytes_per_s
    shared_s = maximum(link_s, core_s)
    whole_s = q.update_per_tensor_s * q.tensors + q.update_per_byte_s * q.gradient_bytes
    update_s = whole_s / q.servers / q.update_threads
    demands = (shared_s, shared_s, update_s)
    # workers of a node also contend for its link
    beside = 2 * (job.cluster.devices_per_node > job.cluster.nics_per_node)
    kinds = q.by_class()
    cycles = [_cycle_of(job, kind, demands) for kind in kinds]
    even = regularity(update_s, shared_s) if q.corrected else 0.0
    busy = (even, even, 1.0 if q.corrected else 0.0, *(0.0,) * beside)
    queued = contended(
        q.counts,
        (*demands, *(0.0,) * beside),
        cycles,
        even=busy,
        stations=STATIONS[: len(demands) + beside],
    )
    rows = zip(kinds, queued, strict=True)
    periods = [_period(job, kind, demands, others) for kind, others in rows]
    often = q.workers / Options.of(job).period
    # if links differ, each worker is limited by its own
    link_per_byte_s = [kind.on_a_nic(kind.fullest) / kind.bandwidth_bytes_per_s for kind in kinds]
    own_s = q.gradient_bytes * functools.reduce(minimum, link_per_byte_s) / Options.of(job).period
    links_s = maximum(often * link_s, often * 2.0 * core_s, own_s)  # both ways over the core
    result = resource_limited(q.counts, periods, links_s=links_s, servers_s=often * update_s)
    before = mixed(q.counts, periods)
    queue = result.iteration_s - before.iteration_s
    # all queueing takes place between a worker's pull and its update
    stale = before.staleness * before.iteration_s + (q.workers - 1.0) * queue
    return msgspec.structs.replace(
        result,
        busy_s={name: q.workers * seconds for name, seconds in result.busy_s.items()},
        staleness=stale / result.iteration_s,
    )


Demands = tuple[Quantity, Quantity, Quantity]
"""Service demands (s) of an exchange on a server's outgoing link, incoming link, update threads."""


def _exchange(
    q: Quantities, demands: Demands, others: Sequence[Quantity]
) -> tuple[Quantity, Quantity]:
    """Return the seconds until the pull has ended, and from then until the update has."""
    pull, push, update = (
        (1.0 + queued) * seconds for queued, seconds in zip(others[:3], demands, strict=True)
    )
    own_pull, own_push = _own(q, others)
    pulled, back = maximum(own_pull, pull) + q.latency_s, maximum(own_push, push) + q.latency_s
    # an update waits for one of several threads and runs on that one
    return pulled, back + update + (q.update_threads - 1.0) * demands[2]


def _own(q: Quantities, others: Sequence[Quantity]) -> tuple[Quantity, Quantity]:
    """Return the seconds of the pull and the push on the link of the worker's node, shared with
    those of the others that are on that node."""
    own_s = q.gradient_bytes * maximum(
        1.0 / q.bandwidth_bytes_per_s, 1.0 / (q.servers * q.flow_bytes_per_s)
    )
    if len(others) == 3:
        return own_s, own_s
    beside = q.beside
    part = beside / maximum(q.workers - 1.0, 1.0)
    pull, push = (own_s * (1.0 + part * queued) for queued in others[3:])
    return pull, push


def _cycle_of(job: Job, q: Quantities, demands: Demands) -> CycleTime:
    """Return the cycle time of a period, given the others present at each station."""
    steps_s = Options.of(job).period * (q.forward_s + q.backward_s + q.optimizer_s)

    def cycle(others: Sequence[Quantity]) -> tuple[Quantity, list[Quantity]]:
        pull, rest = _exchange(q, demands, others)
        held = [(1.0 + queued) * demand for queued, demand in zip(others[:3], demands, strict=True)]
        if len(others) > 3:
            held += _own(q, others)
        return pull + maximum(steps_s, rest), held

    return cycle


def _period(job: Job, q: Quantities, demands: Demands, others: Sequence[Quantity]) -> Phases:
    """Return the phases of a mean iteration, that is, of one step of a period."""
    period = Options.of(job).period
    compute = q.forward_s + q.backward_s + q.optimizer_s
    pull, rest = _exchange(q, demands, others)
    late = maximum(rest - period * compute, 0.0)
    shared_s, _, update_s = demands
    cycle = pull + period * compute + late
    return Phases(
        parts={
            "compute": Phase(compute, "compute"),
            "pull": Phase(pull / period, "network"),
            "push and update": Phase(late / period, "server"),
        },
        busy_s={
            "link out of the servers": shared_s / period,
            "link into the servers": shared_s / period,
            "servers": update_s / period,
        },
        updates=1.0 / period,
        # other workers' updates between a worker's pull and its own update
        staleness=(q.workers - 1.0) * (pull + rest) / cycle,
        spread=q.cv * compute * period / cycle,
    )


def exact(job: Job) -> bool:
    """Return whether the coarse model equals the simulation: it does for a single worker."""
    return job.workers == 1 and plain(job) and leaves_out(job) is None


def leaves_out(job: Job) -> str | None:
    """Return the first feature of a job that the coarse model leaves out, or None."""
    colocated = job.cluster.server.placement == "colocated"
    return left_out(job, {"servers colocated with workers": colocated})


def memory(job: Job) -> Parts:
    """Return the memory of a worker: a replica, and the centre, which becomes the difference; and
    that of a server: its shard of the centre, and as large a buffer per worker."""
    centre = job.workload.gradient_bytes
    shard = centre / Options.of(job).servers
    server = with_copies(Footprint(), centre=shard, receive_buffers=job.workers * shard)
    return Parts(with_copies(replica_of(job.workload), centre=centre), server)


def model_age(job: Job) -> ModelAge:
    """Return the local steps since a worker's last exchange: 0 to period - 1, equally often."""
    return uniform_age(Options.of(job).period)


def traffic(job: Job) -> Traffic:
    """Return a worker's bytes: the centre and the difference, in one of ``period`` steps."""
    options = Options.of(job)
    share = job.workload.gradient_bytes / options.period
    of_all = job.workers * share / options.servers
    return Traffic(share, share, of_all, of_all)


ARCHITECTURE = Architecture(
    name="easgd",
    title="EASGD (elastic averaging with servers, asynchronous)",
    options=Options,
    build=build,
    few=build,
    memory=memory,
    assumptions=(
        "in the last step of each period a worker pulls the centre, waits for it, and sends the "
        "elastic difference while it computes the gradient",
        "a server answers a worker's pull once it has added that worker's previous difference",
        "the parameters are cut into equal parts, one per server; each worker has a connection to "
        "each server, and all parts travel at once",
        SERVER_ASSUMPTION,
        "adding a difference takes the server its update time per tensor and byte; the worker's "
        "own part of the exchange takes no time",
    ),
    source="Zhang, Choromanska, LeCun, NIPS 2015, arXiv 1412.6651",
    model_age=model_age,
    variants=({"period": 1}, {"period": 3, "servers": 2}, {}),
    traffic=traffic,
    meaning=meaning,
    slices=lambda job: (
        [job.workload.gradient_bytes / Options.of(job).servers] * Options.of(job).servers
    ),
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out, queues=lambda job: True),
)
