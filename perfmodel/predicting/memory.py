"""Memory of a job by component, and the bytes that its processes take of their devices."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from perfmodel.architectures.base import architecture_of
from perfmodel.architectures.memory import Parts
from perfmodel.inputs import catalogue
from perfmodel.inputs.device import CPU, Device
from perfmodel.inputs.job import Job
from perfmodel.results.memory import Footprint, Memory, Reserved

PATH = Path(__file__).with_name("memory.json")


class Overhead(msgspec.Struct, frozen=True):
    """What a process takes besides its tensors, and the error of their prediction.

    Attributes
    ----------
    reserved_over_allocated : quantiles (0.05, 0.5, 0.95) of reserved memory as measured over
        allocated memory as predicted.
    allocator : the same of what the allocator reserves over what is allocated, both as measured.
    tensors_over_allocated : the same of all tensors on a CPU, as measured, over allocated memory as
        predicted.
    library_bytes : the context of an accelerator and its libraries, outside of the allocator.
    sources : where the numbers come from, by name.
    """

    reserved_over_allocated: tuple[float, float, float]
    allocator: tuple[float, float, float]
    tensors_over_allocated: tuple[float, float, float]
    library_bytes: float
    sources: dict[str, str]


@functools.cache
def overhead() -> Overhead:
    """Return the shipped numbers."""
    return msgspec.json.decode(PATH.read_bytes(), type=Overhead)


def parts_of(job: Job) -> Parts:
    """Return the memory of a worker, or of a device of an island, and of a server.

    Devices of an island each need what their own job needs, and an equal share of the copies of the
    model that islands keep to exchange it.
    """
    parts = architecture_of(job).memory(job)
    if not job.islands:
        return parts
    inside = (parts_of(island.job).worker for island in job.islands)
    largest = max(inside, key=lambda footprint: footprint.allocated_bytes)
    devices = min(island.devices for island in job.islands)
    shared = {name: size / devices for name, size in parts.worker.model_copies_bytes.items()}
    copies = {**largest.model_copies_bytes, **shared}
    return Parts(msgspec.structs.replace(largest, model_copies_bytes=copies), parts.server)


def worker_bytes(job: Job) -> float:
    """Return the bytes that a worker, or a device of an island, allocates."""
    return parts_of(job).worker.allocated_bytes


def memory_of(job: Job) -> Memory:
    """Return the memory of a worker and of a server, and that of the device if known."""
    known = job.workload.device in catalogue.device_names()
    return memory_on(catalogue.device(job.workload.device) if known else None, job)


def memory_on(device: Device | None, job: Job) -> Memory:
    """Return the memory of a worker on a device, or on an unknown one, and of a server."""
    worker, server = parts_of(job)
    if device is None:
        on_device = on_cpu(worker) if job.workload.device == CPU else worker
        return Memory.of(on_device, server, None)
    worker = on_accelerator(worker) if device.kind == "gpu" else on_cpu(worker)
    return Memory.of(worker, server, device.memory_bytes)


def on_accelerator(footprint: Footprint) -> Footprint:
    """Return a footprint with the libraries of an accelerator and what its allocator reserves."""
    more = overhead()
    return _reserving(footprint, more.reserved_over_allocated, more.library_bytes)


def on_cpu(footprint: Footprint) -> Footprint:
    """Return a footprint with the interval of its tensors on a CPU, where nothing reserves more."""
    return _reserving(footprint, overhead().tensors_over_allocated, 0.0)


def _reserving(
    footprint: Footprint, factors: tuple[float, float, float], library_bytes: float
) -> Footprint:
    allocated = footprint.allocated_bytes
    reserved = Reserved(*(allocated * factor + library_bytes for factor in factors))
    return msgspec.structs.replace(footprint, library_bytes=library_bytes, reserved_bytes=reserved)
