"""AD-PSGD: active workers average their models with random passive workers, asynchronously."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from perfmodel.architectures.base import Architecture, Coarse
from perfmodel.architectures.memory import Parts, replica_of, with_copies
from perfmodel.base.arrays import NONE, Ids
from perfmodel.base.quantities import Quantity, floor_half, is_symbol, maximum, where
from perfmodel.communication.network import Network
from perfmodel.communication.partners import FEWEST, Partners, as_far
from perfmodel.communication.rates import Use
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import MIXED, Option, Options as Base
from perfmodel.phases.phases import Phase, Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.theory.contention import contended
from perfmodel.training.workers import (
    Workers,
    add_begin,
    add_optimizer,
    add_workers,
    left_out,
    log_steps,
    plain,
    steady,
)

if TYPE_CHECKING:
    from perfmodel.training.recorder import Meaning, Recorder


class Options(Base, frozen=True, forbid_unknown_fields=True):
    """Options of AD-PSGD."""

    passive: Annotated[
        Literal["even", "odd"],
        Option("passive workers, which answer but never ask: the even- or the odd-numbered ones"),
    ] = "odd"
    overlap: Annotated[
        bool, Option("exchange models while the gradient is computed; otherwise afterwards")
    ] = True

    @property
    def needs_flush(self) -> str | None:
        """Models are mixed at any time."""
        return MIXED

    @property
    def asynchronous(self) -> bool:
        """Whether workers iterate without a barrier: always."""
        return True


def sides(numbers: Ids, options: Options) -> tuple[Ids, Ids]:
    """Return which of some workers, by their numbers, are active, and which are passive.

    >>> active, passive = sides(np.array([0, 1, 6, 7, 8]), Options(passive="even"))
    >>> active.tolist(), passive.tolist()
    ([1, 3], [0, 2, 4])
    """
    passive = numbers % 2 == (0 if options.passive == "even" else 1)
    return np.flatnonzero(~passive), np.flatnonzero(passive)


def build(job: Job, some: Ids | None = None) -> OpGraph:
    """Build the op graph: computation, and the active workers' exchanges during or after it.

    ``some`` (workers,) are the workers that the graph has, which exchange with each other, and of
    which each pass is one op; None for all, with their layers.
    """
    b = GraphBuilder()
    workers = add_workers(b, job, some=some, layers=some is None)
    optimizer = add_optimizer(b, job, workers).last
    begin = add_begin(b, job, workers, optimizer)
    if job.workers > 1:
        counter = _add_exchange(b, job, workers, begin, optimizer)
    else:
        counter = b.counters(optimizer)
    b.probe(
        "staleness",
        workers.forward[:, 0],
        optimizer,
        at_ready=True,
        counter=counter,
        group=workers.index,
    )
    log_steps(b, workers)
    b.log("step", optimizer)
    return b.build(device=workers.device, mark=optimizer)


def _add_exchange(b: GraphBuilder, job: Job, workers: Workers, begin: Ids, optimizer: Ids) -> Ids:
    """Let each active worker exchange models with a passive one.

    Returns a counter for each worker's model, (workers,), that rises with each average and with
    each of the worker's own gradients.
    """
    everywhere = sides(np.arange(job.workers), Options.of(job))[1]
    active, passive = sides(workers.of_job, Options.of(job))
    network = Network(b, job)
    candidates = np.broadcast_to(passive, (len(active), len(passive)))
    candidates = as_far(workers.node, active, candidates, len(everywhere))
    partners = Partners.add(b, workers, active, candidates)
    request = partners.send(b, "request", job, network)
    averaged = partners.when_drawn(b, "average of the partner")
    reply = partners.send(b, "reply", job, network, reply=True)
    average = b.ops("average", active.shape, group=active, axes=(partners.axis,))
    b.edge((begin if Options.of(job).overlap else optimizer)[active], request)
    b.edge(request[:, None], averaged)
    b.edge(request, reply)
    b.edge(reply, average)
    b.edge(average, begin[active], lag=1)
    b.probe("exchange", request, average, at_ready=True, group=active)
    b.log("request", request, at_ready=True)
    b.log("answer", averaged)
    b.log("average", average)
    counter = np.full(len(workers.index), NONE)
    counter[active] = b.counters(np.stack([optimizer[active], average]))
    counter[passive] = b.counters(
        np.concatenate([optimizer[passive][None], partners.by_candidate(averaged)])
    )
    return counter


def meaning(job: Job, recorder: Recorder) -> Meaning:
    """Record the workers' own steps, and averages of pairs.

    The passive worker's model becomes the mean of its own and the received model. Half of their
    difference is then added to the active worker's model as it is at that time, which may already
    include another gradient.
    """
    active, passive = (side.tolist() for side in sides(np.arange(job.workers), Options.of(job)))
    requested, answered = [0] * len(active), [(0, 0)] * len(active)

    def request(pair: int, _drawn: int) -> None:
        requested[pair] = recorder.version(active[pair])

    def answer(index: int, _drawn: int) -> None:
        pair, k = divmod(index, len(passive))
        answered[pair] = passive[k], recorder.version(passive[k])
        recorder.mix(passive[k], [(active[pair], requested[pair], 0.5)], active[pair])

    def average(pair: int, _drawn: int) -> None:
        model = active[pair]
        recorder.mix(model, [(*answered[pair], 0.5), (model, requested[pair], -0.5)], model)

    handlers = {"request": request, "answer": answer, "average": average}
    return {"step": recorder.own_step, **handlers}


def phases(job: Job, q: Quantities) -> Phases:
    """Return computation and the exposed part of the exchanges, for the mean of all workers.

    The active workers are the customers of a closed network: each sends its model to a random
    passive worker and receives one, over links shared with those that chose the same worker.
    """
    options = Options.of(job)
    odd = floor_half(q.workers)
    even = q.workers - odd
    passive, active = (even, odd) if options.passive == "even" else (odd, even)
    compute = q.forward_s + q.backward_s + q.optimizer_s
    inside = not is_symbol(q.workers) and job.cluster.intra_node is not None
    within = inside & (q.nodes == 1) if inside else False
    model_s = q.gradient_bytes / where(
        within, q.inside_bandwidth_bytes_per_s, q.bandwidth_bytes_per_s
    )
    latency_s = 2.0 * where(within, q.inside_latency_s, q.latency_s)
    lines = where(within, 1, passive) if q.bus else passive  # a bus is shared by all

    def cycle(others: Sequence[Quantity]) -> tuple[Quantity, Sequence[Quantity]]:
        both = where(within, others[0] + others[1], 0.0) if q.bus else 0.0  # contention on the bus
        met = (maximum(waiting / maximum(lines, 1), both) for waiting in others)
        request_s, answered = (model_s * (1.0 + waiting) for waiting in met)
        exchange = request_s + answered + latency_s
        whole = maximum(compute, exchange) if options.overlap else compute + exchange
        return whole, [request_s, answered]

    demands = (model_s / maximum(lines, 1),) * 2
    cycle_s, _ = cycle(contended([active], demands, [cycle], stations=("ask", "answer"))[0])
    if q.bus and inside:  # at most the capacity of the bus
        cycle_s = where(within, maximum(cycle_s, 2.0 * active * model_s), cycle_s)
    shown = where(passive > 0, (cycle_s - compute), 0.0)
    # the mean rate of all workers: the active ones iterate more slowly
    rate = (active / (compute + shown) + passive / compute) / q.workers
    exchanges = active / (compute + shown) / q.workers / rate  # per mean iteration
    moving_s = where(passive > 0, exchanges * 2.0 * model_s, 0.0)
    inside_s = moving_s * (q.workers if q.bus else 1.0)
    use = Use(where(within, 0.0, moving_s), 0.0, where(within, inside_s, 0.0))
    return Phases(
        parts={
            "compute": Phase(compute, "compute"),
            "exchange": Phase(1.0 / rate - compute, "network"),
        },
        busy_s=use.by_link(job),
        updates=(active / (compute + shown) * 3.0 + passive / compute)
        / q.workers
        / rate
        / q.workers,
        staleness=where(passive > 0, _staleness(job, q, active, passive, cycle_s, compute), 0.0),
        spread=1.0,
    )


def _staleness(
    job: Job, q: Quantities, active: Quantity, passive: Quantity, cycle: Quantity, compute: Quantity
) -> Quantity:
    """Return the averages of a worker's model while it computes a gradient, mean over gradients.

    An active worker's own average falls into its computation if the computation hides the exchange.
    A passive worker is asked at random times: per cycle, active / passive times.
    """
    averaged = where(cycle > compute, 0.0, 1.0) if Options.of(job).overlap else 0.0
    requests = active / maximum(passive, 1) * compute / cycle
    by_active, by_passive = active / cycle, passive / compute
    return (by_active * averaged + by_passive * requests) / (by_active + by_passive)


def exact(job: Job) -> bool:
    """Return whether the coarse model equals the simulation: it does for a single worker."""
    return job.workers == 1 and plain(job) and steady(job) and leaves_out(job) is None


def leaves_out(job: Job) -> str | None:
    """Return the first feature of a job that the coarse model leaves out, or None."""
    unequal = bool(job.stragglers or job.cluster.overrides)
    cluster, n = job.cluster, job.workers
    several = cluster.fullest(n) > 1 and (cluster.nodes_for(n) > 1 or cluster.intra_node is None)
    return left_out(
        job, {"workers of different speeds": unequal, "several devices on a node": several}
    )


def memory(job: Job) -> Parts:
    """Return the memory of a worker: a replica, the model it receives, and a copy of its own that
    is sent while it computes."""
    model = job.workload.gradient_bytes if job.workers > 1 else 0.0
    return Parts(
        with_copies(replica_of(job.workload), received_models=model, models_being_sent=model)
    )


ARCHITECTURE = Architecture(
    name="ad_psgd",
    title="AD-PSGD (random pairs, asynchronous)",
    options=Options,
    build=build,
    few=build,
    fewest=FEWEST,
    memory=memory,
    assumptions=(
        "in each iteration an active worker draws a passive worker, all equally likely, sends its "
        "model and then receives the passive worker's: two transfers, one after the other",
        "a passive worker never waits and answers all requests at once; the replies share its link",
        "an active worker's iteration ends when its computation and its exchange have both ended",
        "a gradient is applied as soon as it is computed, before or after the averaging",
        "averaging takes no time",
    ),
    source="Lian et al., ICML 2018, arXiv 1710.06952",
    variants=({}, {"passive": "even", "overlap": False}),
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out, queues=lambda job: True),
    meaning=meaning,
)
