"""Rows of the components of a prediction's memory."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.base.units import show as quantity
from perfmodel.results.memory import Memory

Row = tuple[str, str, str]
"""Name, value and remark of a figure."""

MOST = 4
"""Most components of a stage that are printed."""


def components(memory: Memory) -> Iterator[Row]:
    """Yield a row for each component that a worker has, what its process reserves, and a row for a
    device of each stage."""
    worker = memory.worker
    details = {
        "activations": worker.activations_bytes,
        "copies of the model": worker.model_copies_bytes,
    }
    for name, size in worker.tensors.items():
        if size != 0.0:
            yield f"- {name}", quantity(size, "bytes"), _listed(details.get(name, {}))
    if worker.host_bytes > 0.0:
        yield "- on the host", quantity(worker.host_bytes, "bytes"), "offloaded"
    if worker.reserved_bytes is not None:
        low, high = worker.reserved_bytes.p5, worker.reserved_bytes.p95
        remark = f"90% interval {quantity(low, 'bytes')} to {quantity(high, 'bytes')}"
        if worker.library_bytes > 0.0:
            remark += f", {quantity(worker.library_bytes, 'bytes')} of them by libraries"
        yield "- reserved", quantity(worker.reserved_bytes.median, "bytes"), remark
    if len(memory.stages) > 1:
        for number, stage in enumerate(memory.stages):
            allocated = quantity(stage.allocated_bytes, "bytes")
            yield f"- stage {number}", allocated, _listed(stage.at_peak, MOST)


def _listed(sizes: dict[str, float], most: int | None = None) -> str:
    """Return several sizes by name, the largest first, at ``most`` so many."""
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{name} {quantity(size, 'bytes')}" for name, size in largest)
