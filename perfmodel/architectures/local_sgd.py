"""Local SGD: workers train independently, and average their models every few steps."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

import numpy as np

from perfmodel.architectures.base import Architecture, Coarse, Traffic, ring_traffic, uniform_age
from perfmodel.architectures.memory import Parts, replica_of, with_copies
from perfmodel.base.arrays import Ids
from perfmodel.base.errors import whole_number
from perfmodel.base.quantities import where
from perfmodel.communication.collectives import measured_notes
from perfmodel.communication.communicator import Communicator
from perfmodel.communication.costs import LinkCosts
from perfmodel.communication.formulas import Formulas, exact_formula
from perfmodel.communication.members import Members
from perfmodel.communication.network import Network
from perfmodel.communication.reduction import REDUCTION_ASSUMPTIONS, Reduction
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import Option
from perfmodel.phases.phases import Phase, Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.results.prediction import ModelAge
from perfmodel.training.workers import (
    FOLDED,
    Workers,
    add_optimizer,
    add_workers,
    alike,
    left_out,
    log_steps,
    stagger_s,
)

if TYPE_CHECKING:
    from perfmodel.training.recorder import Meaning, Recorder

PERIOD = 8
MOST_PERIOD = 1000
"""Largest number of steps between two averages; catches typing errors."""


class Options(Reduction, frozen=True, forbid_unknown_fields=True):
    """Options of local SGD."""

    period: Annotated[int, Option("steps between two averages")] = PERIOD

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("period", self.period, at_most=MOST_PERIOD)

    @property
    def exchanged_share(self) -> float:
        """Mean share of a model that a worker sends per step."""
        return 1 / self.period


def build(job: Job, *, fold: bool = False) -> OpGraph:
    """Build the op graph; with ``fold``, of the first worker only, which represents all."""
    b = GraphBuilder()
    workers = add_workers(b, job, some=FOLDED if fold else None)
    optimizer = add_optimizer(b, job, workers).last
    if job.workers > 1:
        _add_average(b, job, workers, optimizer, fold)
    if not fold:
        b.stagger(workers.forward[:, 0], stagger_s(job))
    counter = b.counters(optimizer)
    b.probe("staleness", optimizer, optimizer, lag=1, counter=counter, group=workers.index)
    log_steps(b, workers)
    b.log("update", optimizer)
    return b.build(device=workers.device, mark=optimizer, count=job.workers if fold else 1)


def _add_average(b: GraphBuilder, job: Job, workers: Workers, optimizer: Ids, fold: bool) -> None:
    """Average all models once every worker has done ``period`` steps.

    The op fires with the tokens of that many steps of all workers, and then permits each worker as
    many steps. So workers wait for each other only before an average, not in the steps between.
    """
    options = Options.of(job)
    members = Members.of(job.cluster, job.workers)
    cost = LinkCosts(members, np.array([job.workload.gradient_bytes])).all_reduce(options)
    network = Network(b, job, fold=fold and cost.symmetric(members.fabric))
    communicator = Communicator(b, network)
    average = communicator.add("average", cost, axis="model")
    b.edge(optimizer, average)
    if options.period == 1:
        b.edge(np.broadcast_to(average, optimizer.shape), workers.forward[:, 0], lag=1)
    else:
        b.every(int(average[0]), options.period * len(optimizer))
        step = b.ops("step", optimizer.shape, group=workers.index, axes=(("worker", None),))
        permits = np.broadcast_to(average, (len(step), options.period))
        b.edge(permits, step[:, None], lag=1)
        for op in step.tolist():
            b.every(op, 1)
        b.edge(step, workers.forward[:, 0])
    b.probe("average", average, average, at_ready=True)
    b.log("average", average)


def memory(job: Job) -> Parts:
    """Return the memory of a worker: a replica, and the model in one piece for an average
    (torch, ``distributed/algorithms/model_averaging/utils.py``)."""
    average = job.workload.gradient_bytes if job.workers > 1 else 0.0
    return Parts(with_copies(replica_of(job.workload), model_to_average=average))


def meaning(job: Job, recorder: Recorder) -> Meaning:
    """Record the workers' own steps, and the mean of all models at the end of each average."""
    workers = range(job.workers)

    def average(_index: int, _drawn: int) -> None:
        for model, other in itertools.permutations(workers, 2):
            recorder.part(model, (other, recorder.version(other), 1.0 / job.workers), model)
        recorder.together(workers)

    return {"update": recorder.own_step, "average": average}


def model_age(job: Job) -> ModelAge | None:
    """Return the steps since the last average: uniform on 0 to period - 1."""
    return None if job.workers == 1 else uniform_age(Options.of(job).period)


def phases(job: Job, q: Quantities) -> Phases:
    """Return computation, and each step's share of the average."""
    period = Options.of(job).period
    late, alone = q.slowest(steps=period), q.workers <= 1
    compute = q.forward_s + q.backward_s + q.optimizer_s
    rate = Formulas(job, q).all_reduce(Options.of(job))
    average = rate.seconds(q.gradient_bytes) / period
    return Phases(
        parts={
            "compute": Phase(compute, "compute"),
            "wait for the slowest": Phase(compute * (late - 1.0), "straggler"),
            "average": Phase(where(alone, 0.0, average), "network"),
        },
        busy_s=rate.busy(q.gradient_bytes).times(1.0 / period).by_link(job),
        updates=1.0 / q.workers,
    )


def notes(job: Job) -> tuple[str, ...]:
    """Return notes for a job that extrapolates the measured collectives of its cluster."""
    if not Options.of(job).by_measurements:
        return ()
    return measured_notes(job, {"all_reduce": np.array([job.workload.gradient_bytes])})


def exact(job: Job) -> bool:
    """Return whether the coarse model equals the simulation."""
    data = job.workload.data_loading_s == 0.0
    return exact_formula(job, Options.of(job)) and data and alike(job) and leaves_out(job) is None


def leaves_out(job: Job) -> str | None:
    """Return the first feature of a job that the coarse model leaves out, or None."""
    return left_out(job, core=False, connections=False, sites=Options.of(job).algorithm != "ring")


def _fold(job: Job) -> OpGraph:
    return build(job, fold=True)


def traffic(job: Job) -> Traffic | None:
    """Return a worker's bytes on a ring, in one of ``period`` steps."""
    options = Options.of(job)
    sent_bytes = job.workload.gradient_bytes / options.period
    return ring_traffic(job.workers, sent_bytes, options.algorithm)


ARCHITECTURE = Architecture(
    name="local_sgd",
    title="local SGD (synchronous every few steps, no server)",
    options=Options,
    build=build,
    memory=memory,
    assumptions=(
        *REDUCTION_ASSUMPTIONS,
        "whole models are averaged every period steps, without overlap with computation",
        "between two averages workers do not wait for each other",
        "parameters have as many bytes as gradients",
    ),
    source="Stich, ICLR 2019, arXiv 1805.09767; Lin et al., ICLR 2020, arXiv 1808.07217",
    fold=_fold,
    notes=notes,
    model_age=model_age,
    variants=(
        {"period": 1},
        {"period": 2, "algorithm": "ring"},
        {"period": 1, "algorithm": "tree"},
        {"period": 2, "algorithm": "double_tree", "chunks": 2},
        {"period": 3, "algorithm": "halving_doubling"},
        {"period": 3},
        {"period": 2, "algorithm": "hierarchical", "reduce_per_byte_s": 0.001},
        {"period": 2, "algorithm": "node_tree"},
    ),
    traffic=traffic,
    meaning=meaning,
    coarse=Coarse(phases=phases, exact=exact, leaves_out=leaves_out),
)
