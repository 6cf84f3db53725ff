"""Memory of a job by component, and the bytes that its processes take of their devices."""

from __future__ import annotations

import functools
import os

import msgspec

from perfmodel.architectures.base import architecture_of
from perfmodel.architectures.memory import Parts, with_copies
from perfmodel.base.files import read_bytes
from perfmodel.catalogue import catalogue
from perfmodel.inputs.device import CPU, Device
from perfmodel.inputs.expert_parallel import is_of_experts
from perfmodel.inputs.job import Job
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.replica import Replica
from perfmodel.inputs.storage import OF_DEEPSPEED
from perfmodel.results.memory import Footprint, Memory, Reserved

PATH = f"{os.path.dirname(__file__)}/memory.json"


class ProcessMemory(msgspec.Struct, frozen=True):
    """What a process takes besides its tensors, and the error of their prediction.

    Attributes
    ----------
    reserved_over_allocated : quantiles (0.05, 0.5, 0.95) of reserved memory as measured over
        allocated memory as predicted.
    deepspeed_over_allocated : the same with one of the precision policies of DeepSpeed.
    allocator : the same of what the allocator reserves over what is allocated, both as measured.
    tensors_over_allocated : the same of all tensors on a CPU, as measured, over allocated memory as
        predicted.
    context_bytes : the context of an accelerator and its kernels, outside of the allocator.
    sources : where the numbers come from, by name.
    """

    reserved_over_allocated: tuple[float, float, float]
    deepspeed_over_allocated: tuple[float, float, float]
    allocator: tuple[float, float, float]
    tensors_over_allocated: tuple[float, float, float]
    context_bytes: float
    sources: dict[str, str]


@functools.cache
def overhead() -> ProcessMemory:
    """Return the shipped numbers."""
    return msgspec.json.decode(read_bytes(PATH), type=ProcessMemory)


def parts_of(job: Job) -> Parts:
    """Return the memory of a worker, or of a device of an island, and of a server.

    Of replicas, it is that of a device of the fullest stage. Devices of an island each need what
    their own job needs, and an equal share of the copies of the model that islands keep to exchange
    it.
    """
    if job.replica is not None:
        return _fullest(stages_of(job, job.replica), job.replica.tensor)
    parts = architecture_of(job).memory(job)
    if not job.islands:
        return parts
    inside = (parts_of(island.job).worker for island in job.islands)
    largest = max(inside, key=lambda footprint: footprint.allocated_bytes)
    devices = min(island.devices for island in job.islands)
    shared = {name: size / devices for name, size in parts.worker.model_copies_bytes.items()}
    copies = {**largest.model_copies_bytes, **shared}
    return Parts(msgspec.structs.replace(largest, model_copies_bytes=copies), parts.server)


def stages_of(job: Job, replica: Replica, most: int | None = None) -> list[Parts]:
    """Return the memory of a device of each stage, and what it adds to that of a server; of two
    copies of stages, those of the ranks that hold them first. With ``most``, only of the first so
    many stages.

    Each is a worker of its stage's job; its architecture shards states, gradients and parameters of
    a stage among its devices at the same place of all replicas.
    """
    from perfmodel.predicting.replicas import placed_stages
    from perfmodel.replicas.stage_memory import device_works

    device = catalogue.known_device(job.workload.device)
    accelerator = device is not None and device.kind == "gpu"
    jobs = [one.job for one in placed_stages(job, most)]
    together = 1 if replica.experts is None else replica.experts.devices // job.counted_as_one
    stages = []
    works = device_works(job.workload, replica, accelerator=accelerator, most=most)
    for one, (work, buffers, versions) in zip(jobs, works, strict=True):
        alone = msgspec.structs.replace(one, workload=work)
        worker, server = architecture_of(alone).memory(alone)
        if together > 1:
            worker = _with_experts(worker, alone, together)
        worker = with_copies(worker, other_versions=(versions - 1) * worker.parameters_bytes)
        stages.append(Parts(msgspec.structs.replace(worker, replica_buffers_bytes=buffers), server))
    return stages


def _with_experts(worker: Footprint, job: Job, together: int) -> Footprint:
    """Return the memory of a device whose experts are sharded among every ``together``-th worker
    only: of the experts' share, what it is with so few workers."""
    layers = one_pass(job.workload).layers
    experts = sum(sum(one.tensor_bytes) for one in layers if is_of_experts(one.name))
    if experts == 0.0:
        return worker
    few = msgspec.structs.replace(job, workers=job.workers // together, stragglers=())
    return worker.towards(
        architecture_of(few).memory(few).worker, experts / job.workload.gradient_bytes
    )


def _fullest(stages: list[Parts], tensor: int) -> Parts:
    """Return the memory of the fullest device, and of the server that all of them send to."""
    worker = max((part.worker for part in stages), key=lambda one: one.allocated_bytes)
    servers = [part.server for part in stages if part.server is not None]
    return Parts(worker, _summed(servers * tensor) if servers else None)


def _summed(footprints: list[Footprint]) -> Footprint:
    """Return the memory of a server that keeps parameters, states and buffers of all of these."""
    copies: dict[str, float] = {}
    for one in footprints:
        for name, size in one.model_copies_bytes.items():
            copies[name] = copies.get(name, 0.0) + size
    return Footprint(
        parameters_bytes=sum(one.parameters_bytes for one in footprints),
        optimizer_states_bytes=sum(one.optimizer_states_bytes for one in footprints),
        model_copies_bytes=copies,
    )


def worker_bytes(job: Job) -> float:
    """Return the bytes that a worker, or a device of an island, allocates."""
    return parts_of(job).worker.allocated_bytes


def memory_of(job: Job) -> Memory:
    """Return the memory of a worker and of a server, and that of the device if known."""
    return memory_on(catalogue.known_device(job.workload.device), job)


def memory_on(device: Device | None, job: Job) -> Memory:
    """Return the memory of a worker on a device, or on an unknown one, and of a server.

    Of replicas, also that of a device of each stage.
    """
    size = None if device is None else device.memory_bytes
    if job.replica is None:
        parts = parts_of(job)
        return Memory.of(_process(parts, device, job), parts.server, size)
    of_stages = stages_of(job, job.replica)
    stages = tuple(_process(parts, device, job, i) for i, parts in enumerate(of_stages))
    if len(stages) < job.replica.pipeline:
        stages += stages[::-1]
    worker = max(stages, key=lambda one: one.allocated_bytes)
    return Memory.of(worker, _fullest(of_stages, job.replica.tensor).server, size, stages)


def first_memory_on(device: Device, job: Job) -> Memory:
    """Return the memory of a device of the first stage.

    All stages together need at least as much, which takes longer to find.
    """
    if job.replica is None:
        return memory_on(device, job)
    (parts,) = stages_of(job, job.replica, 1)
    return Memory.of(_process(parts, device, job), parts.server, device.memory_bytes)


def least_needed_bytes(device: Device, job: Job, allocated: float, confidence: float) -> float:
    """Return the least memory of a device that a process of a job needs with a probability if it
    allocates so much: it has no communicators."""
    if device.kind != "gpu":
        return allocated
    footprint = Footprint(parameters_bytes=allocated)
    process = _reserving(footprint, _factors(job), overhead().context_bytes)
    return Memory.of(process, None, device.memory_bytes).needed_bytes(confidence)


def _process(parts: Parts, device: Device | None, job: Job, stage: int = 0) -> Footprint:
    """Return the footprint of a worker, with what its process takes of a device, or of an unknown
    one."""
    footprint = parts.worker
    if device is None:
        return on_cpu(footprint) if job.workload.device == CPU else footprint
    if device.kind != "gpu":
        return on_cpu(footprint)
    from perfmodel.predicting.communicators import communicator_bytes, communicators_of

    groups = communicators_of(job, stage, servers=parts.server is not None)
    more = overhead()
    libraries = more.context_bytes + sum(communicator_bytes(job.cluster, one) for one in groups)
    return _reserving(footprint, _factors(job), libraries)


def _factors(job: Job) -> tuple[float, float, float]:
    """Return the quantiles of reserved over allocated memory of a job."""
    deepspeed = job.workload.storage.policy in OF_DEEPSPEED
    more = overhead()
    return more.deepspeed_over_allocated if deepspeed else more.reserved_over_allocated


def on_cpu(footprint: Footprint) -> Footprint:
    """Return a footprint with the interval of its tensors on a CPU, where nothing reserves more."""
    return _reserving(footprint, overhead().tensors_over_allocated, 0.0)


def _reserving(
    footprint: Footprint, factors: tuple[float, float, float], library_bytes: float
) -> Footprint:
    allocated = footprint.allocated_bytes
    reserved = Reserved(*(allocated * factor + library_bytes for factor in factors))
    return msgspec.structs.replace(footprint, library_bytes=library_bytes, reserved_bytes=reserved)
