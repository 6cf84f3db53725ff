"""Memory of a job by component, and the bytes that its processes take of their devices."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from perfmodel.architectures.base import architecture_of
from perfmodel.architectures.memory import Parts
from perfmodel.inputs import catalogue
from perfmodel.inputs.device import Device
from perfmodel.inputs.job import Job
from perfmodel.results.memory import Footprint, Memory, Reserved

PATH = Path(__file__).with_name("memory.json")


class Overhead(msgspec.Struct, frozen=True):
    """What a process on an accelerator takes besides its tensors.

    Attributes
    ----------
    reserved_over_allocated : quantiles (0.05, 0.5, 0.95) of reserved memory as measured over
        allocated memory as predicted.
    allocator : the same of what the allocator reserves over what is allocated, both as measured.
    library_bytes : the context of the device and its libraries, outside of the allocator.
    sources : where the numbers come from, by name.
    """

    reserved_over_allocated: tuple[float, float, float]
    allocator: tuple[float, float, float]
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
    """Return the memory of a worker on a device and of a server; on none, what is allocated."""
    worker, server = parts_of(job)
    if device is None:
        return Memory.of(worker, server, None)
    if device.kind == "gpu":
        worker = on_accelerator(worker)
    return Memory.of(worker, server, device.memory_bytes)


def on_accelerator(footprint: Footprint) -> Footprint:
    """Return a footprint with the libraries of an accelerator and what its allocator reserves."""
    more = overhead()
    reserved = Reserved(
        *(
            footprint.allocated_bytes * factor + more.library_bytes
            for factor in more.reserved_over_allocated
        )
    )
    return msgspec.structs.replace(
        footprint, library_bytes=more.library_bytes, reserved_bytes=reserved
    )
