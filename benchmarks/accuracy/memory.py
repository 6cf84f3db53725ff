"""Memory of language models: allocated by Megatron-LM, reserved by Megatron-LM and torchtitan.

The folder holds ``simumax_b200`` and ``torchtitan``. Of layouts with tensor, context or pipeline
parallelism, the memory of one device is predicted from its part of the model: products and, with
sequence parallelism, all activations are divided by the tensor-parallel size, sequences by the
context-parallel size; a stage keeps its blocks, for as many micro-batches as are in flight (1F1B).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, about
from benchmarks.accuracy.ranks import Layout, rank_work
from perfmodel import Job, make_job
from perfmodel.base.errors import InputError
from perfmodel.inputs.storage import Storage
from perfmodel.predicting.memory import memory_of
from perfmodel.results.memory import Footprint

ABOUT = about("memory")

MEGATRON, TORCHTITAN = "simumax_b200/runs.csv", "torchtitan/runs.csv"

GIB = 2.0**30


class Row(Layout, frozen=True, kw_only=True):
    """A row of a table."""

    id: str
    memory_gib: float | None = None
    reserved_gib: float | None = None
    allocated_gib_by_rank: str = ""
    memory_run: str = ""

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.memory_gib is None:
            return "without memory"
        if self.experts:
            return "mixture of experts"
        return "memory of another run" if self.memory_run not in ("", self.id) else ""


def megatron_job(row: Row, stage: int) -> Job:
    """Return a device's job under Megatron-LM's distributed optimizer."""
    storage = Storage(optimizer="adam", policy="bf16_master_fp32_gradients")
    work = rank_work(row, stage, storage, fused_loss=True)
    return make_job(workload=work, workers=row.shards, arch="zero1", cluster="dgx-h100")


def torchtitan_job(row: Row) -> Job:
    """Return a device's job under FSDP, with a unit for each block."""
    work = rank_work(row, 0, Storage(optimizer="adamw"), fused_loss=False)
    block = sum(sum(one.tensor_bytes) for one in work.layers if one.name.startswith("blocks.0."))
    return make_job(workload=work, workers=row.shards, arch="fsdp", cluster="dgx-h100",
                    options={"unit_bytes": block})  # fmt: skip


def cases(folder: Path) -> list[Case]:
    """Return the allocated memory of each stage, and the reserved memory of each run."""
    compared = [*_megatron(_table(folder / MEGATRON)), *_torchtitan(_table(folder / TORCHTITAN))]
    if not compared:
        raise InputError(f"{folder}: no memory that is predicted")
    return compared


def _table(path: Path) -> list[Row]:
    table = rows.read(path, Row)
    rows.say_left_out("not predicted", [f"{r.why_not}: {r.id}" for r in table if r.why_not])
    return [row for row in table if not row.why_not]


def _megatron(table: list[Row]) -> Iterator[Case]:
    for row in table:
        measured = [float(gib) * GIB for gib in row.allocated_gib_by_rank.split()]
        stages = [memory_of(megatron_job(row, stage)).worker for stage in range(row.pp)]
        for footprint, allocated in zip(stages, measured[:: len(measured) // row.pp], strict=True):
            yield Case(
                "memory/allocated", row.id, footprint.allocated_bytes, allocated, unit="bytes"
            )
        largest = max(stages, key=lambda footprint: footprint.allocated_bytes)
        yield _reserved("megatron", row.id, largest, row.reserved_gib)


def _torchtitan(table: list[Row]) -> Iterator[Case]:
    for row in table:
        footprint = memory_of(torchtitan_job(row)).worker
        yield _reserved("torchtitan", row.id, footprint, row.memory_gib)


def _reserved(name: str, run: str, footprint: Footprint, measured_gib: float | None) -> Case:
    """Return the case of what the allocator reserves, which does not include the libraries."""
    reserved = footprint.reserved_bytes
    if reserved is None or measured_gib is None:
        raise InputError(f"{run}: no reserved memory")
    ends = (reserved.p5 - footprint.library_bytes, reserved.p95 - footprint.library_bytes)
    return Case(
        f"memory/reserved/{name}",
        run,
        reserved.median - footprint.library_bytes,
        measured_gib * GIB,
        interval=ends,
        pools=("memory/reserved",),
        unit="bytes",
    )
