"""GoSGD: after a step a worker may send its model to a random other worker, without waiting."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Annotated, NamedTuple

from perfmodel.architectures.base import Architecture, Coarse
from perfmodel.architectures.memory import Parts, replica_of, with_copies
from perfmodel.base.arrays import Ids
from perfmodel.base.errors import number, whole_number
from perfmodel.base.quantities import Quantity, is_symbol, maximum, where
from perfmodel.communication.network import Network
from perfmodel.communication.partners import FEWEST, Partners, as_far, others
from perfmodel.communication.rates import Use
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import MIXED, Option, Options as Base
from perfmodel.phases.phases import Phase, Phases, mixed
from perfmodel.phases.quantities import Quantities
from perfmodel.results.prediction import ModelAge
from perfmodel.training.workers import (
    Workers,
    add_begin,
    add_optimizer,
    add_workers,
    left_out,
    log_steps,
    steady,
)

if TYPE_CHECKING:
    from perfmodel.training.recorder import Meaning, Recorder

MOST_STEPS = 1_000_000
"""Largest number of steps that a worker may be ahead of its messages."""


ROUNDS = 20
"""Iterations of the fixed point for the fraction of time that workers send to other nodes."""


class Options(Base, frozen=True, forbid_unknown_fields=True):
    """Options of GoSGD."""

    probability: Annotated[
        float, Option("probability that a worker sends its model after a step; 0: never")
    ] = 0.1
    queue: Annotated[
        int,
        Option(
            "mean number of models a worker may have in flight before it has to wait",
            lambda o: o.probability == 0.0,
        ),
    ] = 8
    merge_per_model_s: Annotated[
        float, Option("time to merge a received model", lambda o: o.probability == 0.0)
    ] = 0.0

    @property
    def needs_flush(self) -> str | None:
        """Models are mixed at any time."""
        return MIXED

    def __post_init__(self) -> None:
        number("probability", self.probability, at_most=1.0)
        whole_number("queue", self.queue, at_most=MOST_STEPS)
        number("merge_per_model_s", self.merge_per_model_s)

    @property
    def asynchronous(self) -> bool:
        """Whether workers iterate without a barrier: always."""
        return True

    @property
    def exchanged_share(self) -> float:
        """Mean share of a model that a worker sends per step."""
        return self.probability


def window(options: Options) -> int:
    """Return the steps in which a worker sends, on average, as many models as may be in flight.

    >>> window(Options(probability=0.25, queue=8))
    32
    """
    return min(math.ceil(options.queue / max(options.probability, 1e-9)), MOST_STEPS)


def build(job: Job, some: Ids | None = None) -> OpGraph:
    """Build the op graph: computation, random pushes after it, and merges before the next step.

    ``some`` (workers,) are the workers that the graph has, which send to each other, and of which
    each pass is one op; None for all, with their layers.
    """
    b = GraphBuilder()
    workers = add_workers(b, job, some=some, layers=some is None)
    optimizer = add_optimizer(b, job, workers).last
    begin = add_begin(b, job, workers, optimizer)
    if job.workers > 1 and Options.of(job).probability > 0.0:
        _add_gossip(b, job, workers, begin, optimizer)
    b.probe(
        "staleness", optimizer, optimizer, lag=1, counter=b.counters(optimizer), group=workers.index
    )
    log_steps(b, workers)
    b.log("step", optimizer)
    b.log("merge", begin)
    return b.build(device=workers.device, mark=optimizer)


def _add_gossip(b: GraphBuilder, job: Job, workers: Workers, begin: Ids, optimizer: Ids) -> None:
    """Send models at random, one after the other; a worker is at most a window ahead of them."""
    options = Options.of(job)
    everyone = others(len(workers.index))
    candidates = as_far(workers.node, workers.index, everyone, job.workers - 1)
    partners = Partners.add(b, workers, workers.index, candidates)
    push = partners.send(b, "push", job, Network(b, job))
    if options.probability < 1.0:
        b.active(push, probability=options.probability, draw=partners.draw)
    b.edge(optimizer, push)
    b.edge(push, begin, lag=window(options) + 1)
    b.log("send", push, at_ready=True)
    b.log("arrival", push)
    if options.merge_per_model_s > 0.0:
        _add_merges(b, job, workers, partners, begin, push)


def _add_merges(
    b: GraphBuilder, job: Job, workers: Workers, partners: Partners, begin: Ids, push: Ids
) -> None:
    """Let each worker merge, on its device, the models that have arrived when its step begins."""
    options = Options.of(job)
    merge = workers.compute(b, "merge", 0.0)
    b.edge(begin, merge)
    b.edge(merge, workers.forward[:, 0])
    deliver = partners.when_drawn(b, "deliver", options.probability)
    b.edge(push[:, None], deliver)
    for worker, to in enumerate(partners.by_candidate(deliver).T):
        b.mailbox(int(merge[worker]), to, options.merge_per_model_s * workers.slowdown[worker])


class ModelInFlight(NamedTuple):
    """A model in flight: its version, and its weight in a mean."""

    sender: int
    receiver: int
    version: int
    weight: float


def meaning(job: Job, recorder: Recorder) -> Meaning:
    """Record the workers' own steps, and the models that arrive before each of them.

    Every model has a weight, initially 1/n, which is halved when the model is sent. A received
    model of weight v is merged into a model of weight w by v / (v + w); the result has weight
    v + w.
    """
    candidates = others(job.workers).tolist()
    weight = [1.0 / job.workers] * job.workers
    sent: list[deque[ModelInFlight]] = [deque() for _ in range(job.workers)]
    inbox: list[list[ModelInFlight]] = [[] for _ in range(job.workers)]

    def send(worker: int, drawn: int) -> None:
        weight[worker] /= 2.0
        receiver = candidates[worker][max(drawn, 0)]
        model = ModelInFlight(worker, receiver, recorder.version(worker), weight[worker])
        sent[worker].append(model)

    def arrival(worker: int, _drawn: int) -> None:
        message = sent[worker].popleft()
        inbox[message.receiver].append(message)

    def merge(worker: int, _drawn: int) -> None:
        for message in inbox[worker]:
            weight[worker] += message.weight
            part = message.weight / weight[worker]
            recorder.mix(worker, [(message.sender, message.version, part)], worker)
        inbox[worker].clear()

    return {"step": recorder.own_step, "send": send, "arrival": arrival, "merge": merge}


def phases(job: Job, q: Quantities) -> Phases:
    """Return a worker's iteration; each worker runs at its own pace."""
    return mixed(q.counts, [_alone(job, kind, q) for kind in q.by_class()])


def _alone(job: Job, q: Quantities, whole_job: Quantities) -> Phases:
    """Return computation and merging, or sending if that takes longer.

    Each link receives as many models as its workers send, so no worker sends faster than the
    slowest link receives.
    """
    options = Options.of(job)
    p, alone = options.probability, q.workers <= 1
    compute = q.forward_s + q.backward_s + q.optimizer_s
    merge = p * options.merge_per_model_s * q.slowdown
    use, sending = _sending(q)
    away = maximum(q.workers - q.fullest, 0.0) / maximum(q.workers - 1.0, 1.0)
    slowest = away * q.gradient_bytes / whole_job.at_once_bytes_per_s
    late = maximum(p * maximum(sending, slowest) - compute - merge, 0.0)
    return Phases(
        parts={
            "compute": Phase(compute, "compute"),
            "merge": Phase(where(alone, 0.0, merge), "compute"),
            "push": Phase(where(alone, 0.0, late), "network"),
        },
        busy_s=use.times(where(alone, 0.0, p)).by_link(job),
        updates=1.0 / q.workers,
    )


def _sending(q: Quantities) -> tuple[Use, Quantity]:
    """Return the links' busy time for one model of each worker, and the residence time of a model
    if all workers send all the time.

    A sender's models go one after the other, each to a random link shared with other senders. With
    one worker per node, and as many senders as receivers, this is a closed network of n customers
    at n - 1 equally likely links: an arrival finds (n - 2) / (n - 1) others, whatever the service
    times. If only some models go to another node, a sender finds the others that go the same way,
    weighted by the fraction of time that they do.
    """
    others = maximum(q.workers - 1.0, 1.0)
    apart = maximum(q.workers - q.fullest, 0.0)
    away, sharing = apart / others, q.on_a_nic(q.fullest)
    link_s = q.gradient_bytes / q.bandwidth_bytes_per_s
    inside_s = q.gradient_bytes / q.inside_bandwidth_bytes_per_s
    flow_s = q.gradient_bytes / q.flow_bytes_per_s
    beside = q.fullest - 1.0
    use = Use(away * sharing * link_s, 0.0, (1.0 - away) * inside_s * (q.fullest if q.bus else 1.0))
    if is_symbol(q.workers):  # one per node
        met = 1.0 + maximum(q.workers - 2.0, 0.0) / others
        return use, away * maximum(link_s * met, flow_s)
    part: Quantity = away
    sending: Quantity = 0.0
    for _ in range(ROUNDS):
        out = 1.0 + (sharing - 1.0) * part
        into = 1.0 + sharing * part * maximum(apart - 1.0, 0.0) / maximum(apart, 1.0)
        met = 1.0 + (1.0 - part) * (
            beside if q.bus else maximum(beside - 1.0, 0.0) / maximum(beside, 1.0)
        )
        between = away * maximum(link_s * maximum(out, into), flow_s)
        sending = between + (1.0 - away) * inside_s * met
        part = where(sending > 0.0, between / where(sending > 0.0, sending, 1.0), away)
    return use, sending


def exact(job: Job) -> bool:
    """Return whether the coarse model equals the simulation: it does if no worker sends."""
    silent = job.workers == 1 or Options.of(job).probability == 0.0
    data = job.workload.data_loading_s == 0.0
    return silent and data and steady(job) and leaves_out(job) is None


def leaves_out(job: Job) -> str | None:
    """Return the first feature of a job that the coarse model leaves out, or None."""
    return left_out(job, connections=False)


def model_age(job: Job) -> ModelAge | None:
    """Return the local steps since a worker last sent its model; None if it never does.

    The age k at the start of a step is geometric: p (1 - p)^k with p the probability of sending.
    """
    p = Options.of(job).probability
    if job.workers == 1 or p == 0.0:
        return None
    p90 = math.ceil(math.log(0.1) / math.log1p(-p)) - 1 if p < 0.9 else 0
    return ModelAge(exchange_every=1.0 / p, mean=(1.0 - p) / p, p90=p90)


def memory(job: Job) -> Parts:
    """Return the memory of a worker: a replica, a received model, and the copies in its queue."""
    options = Options.of(job)
    sends = job.workers > 1 and options.probability > 0.0
    model = job.workload.gradient_bytes if sends else 0.0
    kept = replica_of(job.workload)
    return Parts(with_copies(kept, received_models=model, models_being_sent=options.queue * model))


ARCHITECTURE = Architecture(
    name="gosgd",
    title="GoSGD (gossip, asynchronous)",
    options=Options,
    build=build,
    few=build,
    fewest=FEWEST,
    memory=memory,
    assumptions=(
        "a model goes to one of the other workers, all equally likely",
        "each worker sends its models one after the other, in order; its device keeps computing "
        "unless it is queue/probability steps ahead",
        "models that have arrived are merged before the next step; what is sent is a copy of the "
        "model, which takes no time to make",
    ),
    source="Blot, Picard, Cord, Thome, 2016, arXiv 1611.01852",
    model_age=model_age,
    variants=(
        {},
        {"probability": 0},
        {"probability": 0.5, "queue": 1},
        {"probability": 0.5, "queue": 2, "merge_per_model_s": 0.1},
        {"probability": 1, "queue": 1, "merge_per_model_s": 0.1},
    ),
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out),
    meaning=meaning,
)
