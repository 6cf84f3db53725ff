"""What many layouts of replicas share: times of layers, clusters, seats and quantities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base import files
from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.same import Same
from perfmodel.communication.fabric import Fabric
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.expert_parallel import ExpertParallel
from perfmodel.inputs.job import Job
from perfmodel.inputs.replica import Replica, ReplicaStage, RoutedLayers
from perfmodel.inputs.workload import Workload, WorkloadLayer
from perfmodel.phases.layers import Layers
from perfmodel.phases.quantities import Quantities, quantities_of, same_quantities
from perfmodel.predicting.context import with_context
from perfmodel.predicting.experts import Placed, routed_layers, updated
from perfmodel.predicting.replicas import replica_of, shares_sent
from perfmodel.predicting.tensor_sums import slowdown_of, sums_of
from perfmodel.replicas.seats import Seats, of_groups, positions_of, seats_of
from perfmodel.replicas.stage_work import WholePass
from perfmodel.replicas.stages import chunks_of
from perfmodel.training.passes import with_passes
from perfmodel.training.stages import by_kind, seconds_alone, seconds_of_layers, seconds_of_sums

UNLIKE = ("pipedream", "dual")
"""Starts of the names of schedules without a flush, or with two copies of each stage."""


def as_arrays(job: Job) -> bool:
    """Return whether :func:`.replica_arrays.along` evaluates layouts of a job: its devices are
    alike, its times do not vary, its layers are divided by their number, its schedule is a named
    one with a flush and one copy of each stage, and all layers that send tokens to experts send as
    many."""
    replica = job.replica
    if job.unequal or job.jitter is not None or job.cluster.sites or replica is None:
        return False
    if job.workload.packing is not None:
        return False
    named = not files.looks_like_path(replica.schedule)
    usual = named and not replica.schedule.startswith(UNLIKE)
    sent = {one.routed for one in job.workload.layers} if replica.experts is not None else set()
    return usual and not replica.balance and len(sent - {None}) <= 1


def timed(
    job: Job, q: Quantities, handed_s: Floats, forward_s: Floats, backward_s: Floats
) -> Quantities:
    """Return quantities of a job whose layers take other times, as arrays.

    Parameters
    ----------
    handed_s : how long the gradients of each layer are handed over for in an update, (layers of the
        workload,).
    forward_s, backward_s : of the layers of the workload without that in one of the job's passes,
        (layers, ...).
    """
    if not isinstance(q.layers, Layers):
        raise TypeError("quantities of a model as a whole have no layers")
    handed_s = handed_s.reshape(-1, *(1,) * (backward_s.ndim - 1))
    passes = job.workload.accumulation
    of_pass = {}
    if passes > 1:
        in_each = handed_s / job.reductions
        of_pass = {False: q.layers.timed(forward_s, backward_s),
                   True: q.layers.timed(forward_s, backward_s + in_each)}  # fmt: skip
        earlier_s = (passes - 1) * (forward_s.sum(axis=0) + backward_s.sum(axis=0))
        forward_s = np.concatenate([forward_s[:1] + earlier_s, forward_s[1:]])
    backward_s = backward_s + handed_s
    return msgspec.structs.replace(
        q,
        forward_s=forward_s.sum(axis=0) * q.scale,
        backward_s=backward_s.sum(axis=0) * q.scale,
        layers=with_passes(q.layers.timed(forward_s, backward_s), of_pass),
    )


class Work(NamedTuple):
    """A model on the devices that divide its layers and sequences, for one micro-batch: seconds of
    each layer by kind of action, and of what these devices exchange and wait for, (kinds, layers);
    forward and backward, and the bytes that a layer passes on to another stage, (layers,); a number
    for its gradients; and seconds of sums of these over the devices that divide sequences,
    (layers,). ``whole`` is a pass of it, for stages."""

    workload: Workload
    whole: WholePass
    seconds: Floats
    sums: Floats
    forward_s: Floats
    backward_s: Floats
    passed_bytes: Floats
    tensors: Ids
    gradients_s: Floats


class OfExperts(NamedTuple):
    """The devices of a stage that divide experts, and whether they share updates."""

    experts: ExpertParallel
    placed: Placed
    shares_update: bool

    def updated(self, work: Workload) -> Workload:
        """Return the workload of the stage with gradients as these devices reduce them."""
        return updated(work, self.experts, self.placed, shares_update=self.shares_update)


class Known:
    """What several groups of layouts share."""

    def __init__(self) -> None:
        self.works: dict[Hashable, Work] = {}
        self.clusters: dict[Hashable, Cluster] = {}
        self.fabrics: dict[Hashable, Fabric] = {}
        self.seats: dict[Hashable, tuple[list[Seats], list[int]]] = {}
        self.firsts: dict[Hashable, Seats] = {}
        self.quantities: dict[tuple[int, int, int], tuple[Job, Quantities, Floats]] = {}
        self.tensors: dict[tuple[float, ...], int] = {}
        self.parts: dict[Hashable, Workload] = {}
        self.placed: dict[Hashable, list[Placed]] = {}
        self.routed: dict[Hashable, Floats] = {}
        self.of_device: dict[int, list[tuple[Job, Quantities]]] = defaultdict(list)
        self.numbers: dict[Hashable, int] = {}
        self.chunks: dict[Hashable, tuple[range, ...]] = {}
        self.names: dict[Same[Workload], int] = {}

    def work(self, job: Job) -> Work:
        """Return the layers of a job's replicas."""
        key = column_of(job)
        if key not in self.works:
            slower = slowdown_of(job)
            one = job.workload if slower == 1.0 else job.workload.scaled("compute_s", slower)
            together, gradients_s = _together(job)
            self.works[key] = Work(
                one,
                WholePass.of(one, tied=True),
                seconds_of_layers(one),
                together,
                np.array([layer.forward_s for layer in one.layers]),
                np.array([layer.backward_s for layer in one.layers]),
                np.array([layer.passed_on_bytes for layer in one.layers]) * shares_sent(job),
                self._tensors_of(one.layers),
                gradients_s,
            )
        return self.works[key]

    def part(
        self, work: Work, held: list[range], stage: ReplicaStage, experts: OfExperts | None
    ) -> Workload:
        """Return the workload of the layers that a stage holds, but for their times: those of other
        layouts with the same tensors and updates."""
        whole, rows = work.workload, np.concatenate([np.array(one) for one in held])
        loads = whole.data_loading_s if stage.number == 0 else 0.0
        copies = work.whole.copies(held)
        key = (*updates_of(whole), loads, copies, work.tensors[rows].tobytes(), experts)
        if key not in self.parts:
            made = work.whole.stage(whole, stage, held).workload
            self.parts[key] = made if experts is None else experts.updated(made)
        return self.parts[key]

    def placed_of(self, job: Job) -> list[Placed]:
        """Return the devices of each stage, which divide experts."""
        replica = replica_of(job)
        seats, _ = self.seats_of(job)
        key = (id(seats), replica.tensor, replica.context)
        if key not in self.placed:
            within = job.counted_as_one
            self.placed[key] = [Placed.of(job.cluster, one, replica, within) for one in seats]
        return self.placed[key]

    def routed_s(self, job: Job, placed: Placed) -> Floats:
        """Return the seconds of what each layer exchanges with experts, and of waits for the
        busiest of these, by kind of action, (kinds, layers)."""
        work, experts = job.workload, replica_of(job).experts
        key = (id(work), experts, placed)
        if key not in self.routed:
            routing = None if experts is None else routed_layers(work, experts, placed)
            routing, many = routing or RoutedLayers(), len(work.layers)
            self.routed[key] = seconds_of_sums(many, routing.forward, routing.backward)
            self.routed[key] += by_kind(many, routing.forward_waits_s, routing.backward_waits_s)
        return self.routed[key]

    def quantities_of(self, device: int, job: Job) -> Quantities:
        """Return the quantities of the job of a device with this number."""
        several = self.of_device[device]
        for other, known in several:
            if same_quantities(job, other):
                return known
        several.append((job, quantities_of(job)))
        return several[-1][1]

    def number(self, key: Hashable) -> int:
        """Return a number for a value, the same for equal ones."""
        return self.numbers.setdefault(key, len(self.numbers))

    def _tensors_of(self, layers: Iterable[WorkloadLayer]) -> Ids:
        """Return a number for the gradients of each layer, (layers,)."""
        sizes = [layer.tensor_bytes for layer in layers]
        return np.array([self.tensors.setdefault(one, len(self.tensors)) for one in sizes])

    def cluster(self, job: Job) -> Cluster:
        """Return the cluster in which the devices that divide a layer count as one."""
        key = (id(job.cluster), job.counted_as_one)
        if key not in self.clusters:
            self.clusters[key] = of_groups(job.cluster, key[1])
        return self.clusters[key]

    def chunks_of(self, job: Job, like: Replica | None = None) -> tuple[range, ...]:
        """Return the layers of each chunk of a job, or with another replica.

        Raises
        ------
        InputError : there are too few layers.
        """
        replica, work = like or replica_of(job), Same(job.workload)
        if work not in self.names:
            self.names[work] = self.number(tuple(layer.name for layer in job.workload.layers))
        layers = work if replica.balance else self.names[work]
        key = layers, replica.pipeline, replica.virtual_stages, replica.stage_layers
        if key not in self.chunks:
            self.chunks[key] = chunks_of(job.workload.layers, replica)
        return self.chunks[key]

    def seats_of(self, job: Job) -> tuple[list[Seats], list[int]]:
        """Return the seats of each stage, and a number for what each sees of the cluster."""
        key = self._placing(job)
        if key not in self.seats:
            seats = self._seats(job)
            distinct: list[Cluster] = []
            numbers = []
            for one in seats:
                if one.cluster not in distinct:
                    distinct.append(one.cluster)
                numbers.append(distinct.index(one.cluster))
            self.seats[key] = seats, numbers
        return self.seats[key]

    def first_seats(self, job: Job) -> Seats:
        """Return the seats of the first stage, in less time."""
        key = self._placing(job)
        if key not in self.firsts:
            (self.firsts[key],) = self._seats(job, 1)
        return self.firsts[key]

    def _placing(self, job: Job) -> tuple[Hashable, ...]:
        """Return what the seats of a job depend on."""
        replica = replica_of(job)
        return (
            *(id(job.cluster), replica.pipeline, replica.order, job.workers),
            *(job.counted_as_one, job.context_workers),
        )

    def _seats(self, job: Job, most: int | None = None) -> list[Seats]:
        position = positions_of(job.workers, replica_of(job), job.context_workers)
        return seats_of(self.cluster(job), position, most)

    def fabric_of(self, job: Job) -> Fabric:
        """Return the links between the devices of all stages of all replicas."""
        count = job.devices // job.counted_as_one
        key = (id(job.cluster), job.counted_as_one, count)
        if key not in self.fabrics:
            self.fabrics[key] = Fabric.of(self.cluster(job), count)
        return self.fabrics[key]


def updates_of(work: Workload) -> tuple[Hashable, ...]:
    """Return what quantities of a device depend on of a whole workload, besides its layers."""
    return (work.optimizer_s, work.data_loading_s, work.buffer_bytes, work.storage)


def _together(job: Job) -> tuple[Floats, Floats]:
    """Return the seconds of what the devices that divide each of a job's layers and its sequences
    exchange, and wait for, by kind of action, (kinds, layers); and of sums of its gradients over
    those that divide sequences, (layers,)."""
    replica, layers = replica_of(job), job.workload.layers
    many = len(layers)
    summed = sums_of(job.cluster, replica, layers, job.workload.precision)
    seconds = seconds_of_sums(many, *summed)
    if replica.context == 1:
        return seconds, np.zeros(many)
    work, within = job.workload, job.context_workers
    stage = with_context(job.cluster, ReplicaStage(0, replica, (many,)), work.layers, work, within)
    seconds += seconds_of_sums(many, stage.forward_exchanges, stage.backward_exchanges)
    seconds += by_kind(many, stage.forward_waits_s, stage.backward_waits_s)
    gradients = seconds_alone(stage.gradient_sums) if stage.gradient_sums else [0.0] * many
    return seconds, np.array(gradients)


def structure_of(job: Job) -> Replica:
    """Return what decides the order of a replica's actions, as a replica of single devices."""
    return msgspec.structs.replace(
        replica_of(job),
        tensor=1,
        sequence_parallel=False,
        overlap_sums=False,
        context=1,
        context_exchange="ring",
        context_inside=1,
        context_split="zigzag",
        experts=None,
    )


def column_of(job: Job) -> tuple[Hashable, ...]:
    """Return what the times of a layout's actions depend on, besides its schedule."""
    replica = replica_of(job)
    same = id(job.workload), id(job.cluster), replica.tensor, job.devices
    sequences = replica.context, replica.context_exchange, replica.context_inside
    rest = replica.sequence_parallel, replica.overlap_sums, replica.context_split
    return (*same, *sequences, *rest, job.context_workers, replica.experts)
