"""D-PSGD: each worker averages its model with both neighbours' on a ring, synchronously."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from perfmodel.architectures.base import Architecture, Coarse, Traffic
from perfmodel.architectures.memory import Parts, replica_of, with_copies
from perfmodel.base.arrays import Ids
from perfmodel.base.quantities import Quantity, is_symbol, maximum, minimum, where
from perfmodel.communication.network import Network
from perfmodel.communication.rates import Use
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import MIXED, Option, Options as Base
from perfmodel.phases.phases import Phase, Phases
from perfmodel.phases.quantities import Quantities, quantities_of
from perfmodel.training.workers import (
    FOLDED,
    Workers,
    add_begin,
    add_optimizer,
    add_workers,
    equal,
    left_out,
    log_steps,
)

if TYPE_CHECKING:
    from perfmodel.training.recorder import Meaning, Recorder

NEIGHBOURHOOD = 6
"""Number of workers whose slowest sets the pace if each waits only for its neighbours. Found by
simulation."""

STEPS = 0.85
"""Jitter averages out over (STEPS / c)^2 steps, with c its coefficient of variation, if the
neighbours' models have a whole iteration to arrive. Found by simulation."""


class Options(Base, frozen=True, forbid_unknown_fields=True):
    """Options of D-PSGD."""

    overlap: Annotated[
        bool, Option("exchange models while the gradient is computed; otherwise afterwards")
    ] = True

    @property
    def needs_flush(self) -> str | None:
        """Models are mixed at any time."""
        return MIXED


def neighbours(workers: int) -> Ids:
    """Return the next and the previous worker of each worker on a ring, (workers, 2).

    (2, 1) for two workers, which are each other's neighbours; (1, 0) for one.

    >>> neighbours(4).tolist()
    [[1, 3], [2, 0], [3, 1], [0, 2]]
    """
    steps = np.array([1, -1])[: min(workers - 1, 2)]
    others: Ids = (np.arange(workers)[:, None] + steps) % workers
    return others


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """Build the op graph: computation, and the model sent to each neighbour during or after it.

    With ``fold``, only the first worker, which represents all of them.
    """
    b = GraphBuilder()
    workers = add_workers(b, job, some=FOLDED if fold else None)
    update = add_optimizer(b, job, workers)
    optimizer = update.last
    begin = add_begin(b, job, workers, optimizer)
    if job.workers > 1:
        _add_exchange(b, job, workers, begin, update.first, fold)
    counter = b.counters(optimizer)
    b.probe("staleness", optimizer, optimizer, lag=1, counter=counter, group=workers.index)
    log_steps(b, workers)
    b.log("update", optimizer)
    return b.build(device=workers.device, mark=optimizer, count=job.workers if fold else 1)


def _add_exchange(
    b: GraphBuilder, job: Job, workers: Workers, begin: Ids, average: Ids, fold: bool
) -> None:
    """Send each worker's model to its neighbours; ``average`` (workers,) once all are sent and
    received."""
    network = Network(b, job, fold=fold, core_share=job.workers if fold else 1)
    to = neighbours(job.workers)[: len(begin)]
    routes = network.between(workers.index[:, None], to)
    if fold:  # its neighbours do the same
        to = np.zeros_like(to)
    send = b.ops(
        "send",
        to.shape,
        bytes=job.workload.gradient_bytes,
        **routes,
        group=workers.index[:, None],
        axes=(("worker", None), ("to", ["to the next", "to the previous"])),
    )
    ready = begin if Options.of(job).overlap else workers.backward[:, 0]
    b.edge(ready[:, None], send)
    b.edge(send, average[:, None])
    b.edge(send, average[to])
    b.probe("send", send, send, at_ready=True, group=workers.index[:, None])


def meaning(job: Job, recorder: Recorder) -> Meaning:
    """Record the steps: each ends with the mean of the neighbourhood's models as they were at the
    beginning of the step, plus the worker's own gradient."""
    near = neighbours(job.workers).tolist()

    def update(worker: int, _drawn: int) -> None:
        step, part = recorder.version(worker), 1.0 / (1 + len(near[worker]))
        mixes = [(other, step, part) for other in near[worker]]
        recorder.apply(worker, (worker,), mixes=mixes)

    return {"update": update}


def phases(job: Job, q: Quantities) -> Phases:
    """Return computation and the exposed part of the exchange with the neighbours."""
    alone = q.workers <= 1
    compute = q.forward_s + q.backward_s
    use, exchange = _exchange(q)
    late = _pace(job, q)
    paces = [(late, maximum(*exchange))]
    if q.classes:  # the slowest worker in computing may not be the slowest in sending
        most = max(kind.scale for kind in q.classes)
        paces = []
        for scale, link in _around(job):
            linked = msgspec.structs.replace(q, bandwidth_bytes_per_s=link)
            paces.append((late * scale / most, maximum(*_exchange(linked)[1])))
    # if workers on a ring wait for each other, the slowest sets the pace
    step = maximum(0.0, *(_step(job, compute * pace, send) for pace, send in paces))
    shown = step - compute * late
    return Phases(
        parts={
            "compute": Phase(compute + q.optimizer_s, "compute"),
            "wait for the slowest": Phase((compute + q.optimizer_s) * (late - 1.0), "straggler"),
            "exchange": Phase(where(alone, 0.0, shown), "network"),
        },
        busy_s=use.times(where(alone, 0.0, 1.0)).by_link(job),
        updates=1.0 / q.workers,
    )


def _exchange(q: Quantities) -> tuple[Use, tuple[Quantity, Quantity]]:
    """Return the links' busy time in an exchange, and the longest transfers, between nodes and
    inside a node, if all begin at once."""
    models = minimum(q.workers - 1.0, 2.0)
    away, full = q.nodes > 1, q.fullest
    if is_symbol(q.workers):
        nic_s = models * q.gradient_bytes / q.bandwidth_bytes_per_s
        return Use(nic_s), (nic_s + q.latency_s, 0.0)
    # the first and the last device of a node send to another node; a single device sends both ways
    apart = q.on_other_nics(0, full - 1) & (full > 1)
    least = q.on_other_nics(0, q.emptiest - 1) & (q.emptiest > 1)
    sent = where(apart & least, 1.0, models)
    nic_s = where(away, sent * q.gradient_bytes / q.bandwidth_bytes_per_s, 0.0)
    if q.bus:
        flows = where(away, 2.0 * (full - 1.0), models * full)
    else:
        flows = where(away, minimum(full - 1.0, 2.0), models)
    inside_s = flows * q.gradient_bytes / q.inside_bandwidth_bytes_per_s
    between_s = where(away, nic_s + q.latency_s, 0.0)
    within_s = inside_s + where(flows > 0.0, q.inside_latency_s, 0.0)
    return Use(nic_s, 0.0, inside_s), (between_s, within_s)


def _step(job: Job, compute_s: Quantity, exchange_s: Quantity) -> Quantity:
    """Return computation overlapped with an exchange or, without overlap, followed by it."""
    return maximum(compute_s, exchange_s) if Options.of(job).overlap else compute_s + exchange_s


def _pace(job: Job, q: Quantities) -> Quantity:
    """Return the compute time of a neighbourhood's slowest worker, relative to the mean.

    If workers differ, the neighbourhood is the slowest worker and a share of all others.
    """
    near = minimum(q.workers, NEIGHBOURHOOD)
    if q.classes:
        part = (near - 1.0) / (q.workers - 1.0)
        most = max(kind.scale for kind in q.classes)
        slowest = next(kind for kind in q.classes if kind.scale == most)
        q = msgspec.structs.replace(
            q,
            classes=tuple(
                msgspec.structs.replace(
                    kind, count=kind.count * part + (1.0 - part) * (kind is slowest)
                )
                for kind in q.classes
            ),
        )
    q = msgspec.structs.replace(q, workers=near)
    if not Options.of(job).overlap or not q.random or is_symbol(q.workers):
        return q.slowest()
    return q.slowest(steps=maximum((STEPS / q.cv) ** 2, 1.0))


def _around(job: Job) -> set[tuple[float, float]]:
    """Return for each worker its compute time relative to the profile, and the slowest of its own
    and its neighbours' links (bytes/s)."""
    seats, near = job.seats(), neighbours(job.workers).tolist()
    goodputs = [seat.nic.goodput_bytes_per_s for seat in seats]
    return {
        (seat.slowdown, min(goodputs[j] for j in (i, *near[i]))) for i, seat in enumerate(seats)
    }


def exact(job: Job) -> bool:
    """Return whether the coarse model equals the simulation.

    On several nodes with several devices, transfers inside a node do not all coincide. It is still
    exact if transfers between nodes take longer, or if computation hides all transfers.
    """
    if not (equal(job) and left_out(job) is None):
        return False
    cluster, n = job.cluster, job.workers
    if cluster.nodes_for(n) == 1 or cluster.fullest(n) == 1:
        return True
    q = quantities_of(job)
    _, (between_s, within_s) = _exchange(q)
    hidden = Options.of(job).overlap and within_s <= q.forward_s + q.backward_s
    return cluster.even(n) and bool(within_s <= between_s or hidden)


def _fold(job: Job) -> OpGraph | None:
    """Do not fold workers that share a node or span several sites: their destinations differ."""
    differ = job.cluster.fullest(job.workers) > 1 or job.crosses_sites
    return None if differ else build(job, fold=True)


def memory(job: Job) -> Parts:
    """Return the memory of a worker: a replica, and the models of its neighbours."""
    received = min(job.workers - 1, 2) * job.workload.gradient_bytes
    return Parts(with_copies(replica_of(job.workload), received_models=received))


def traffic(job: Job) -> Traffic:
    """Return the bytes of a worker: its model, to each neighbour."""
    moved = min(job.workers - 1, 2) * job.workload.gradient_bytes
    return Traffic(moved, moved)


ARCHITECTURE = Architecture(
    name="d_psgd",
    title="D-PSGD (neighbours on a ring, synchronous)",
    options=Options,
    build=build,
    memory=memory,
    assumptions=(
        "each worker sends its whole model to both neighbours on a ring, over two connections at "
        "once; with two workers, each has one neighbour",
        "a worker averages and applies its gradient once both its computation and its exchange "
        "have ended; it waits for its neighbours, not for all workers",
        "averaging takes no time",
    ),
    source="Lian et al., NIPS 2017, arXiv 1705.09056",
    fold=_fold,
    variants=({}, {"overlap": False}),
    traffic=traffic,
    meaning=meaning,
    coarse=Coarse(phases=phases, exact=exact, leaves_out=left_out),
)
