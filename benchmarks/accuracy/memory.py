"""Memory of language models: allocated by Megatron-LM, reserved by Megatron-LM and torchtitan.

The folder holds ``simumax_b200`` and ``torchtitan``. Of torchtitan's runs with context parallelism,
each device has a part of each sequence, and the model is shared by as many more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from benchmarks.accuracy import layouts, rows, simumax_b200
from benchmarks.accuracy.cases import Case, about
from benchmarks.accuracy.ranks import Layout, arguments_of, profile_of
from perfmodel import Job, make_job
from perfmodel.base.errors import InputError
from perfmodel.inputs.decoder_layers import with_layers
from perfmodel.inputs.profile import Profile
from perfmodel.predicting.memory import memory_of
from perfmodel.results.memory import Footprint

ABOUT = about("memory")

MEGATRON, TORCHTITAN = "simumax_b200/runs.csv", "torchtitan/runs.csv"

GIB = 2.0**30


class MegatronRow(layouts.Row, frozen=True, kw_only=True):
    """A row of Megatron-LM."""

    memory_gib: float | None = None
    reserved_gib: float | None = None
    allocated_gib_by_rank: str = ""
    memory_run: str = ""

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.memory_gib is None:
            return "without memory"
        return "memory of another run" if self.memory_run not in ("", self.id) else ""


class TorchtitanRow(Layout, frozen=True, kw_only=True):
    """A row of torchtitan."""

    id: str
    memory_gib: float | None = None

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        return "without memory" if self.memory_gib is None else ""


def megatron_job(row: MegatronRow) -> Job:
    """Return the job of a row under Megatron-LM's distributed optimizer."""
    return make_job(optimizer="adam", **simumax_b200.arguments(row))


def torchtitan_job(row: TorchtitanRow) -> Job:
    """Return the job of a row under FSDP, with a unit for each block."""
    profile = profile_of(row, fused_loss=False)
    return make_job(
        workload=profile,
        device="h100",
        optimizer="adamw",
        arch="fsdp",
        cluster="dgx-h100",
        options={"unit_bytes": _block_bytes(profile) / row.tp},
        **arguments_of(row),
    )


def _block_bytes(profile: Profile) -> float:
    """Return the size of a block's parameters in 32 bits."""
    layers = with_layers(profile, "mixed").layers
    named = [layer for layer in layers if layer.name.startswith("blocks.0.")]
    return float(sum(tensor.bytes for layer in named for tensor in layer.tensors))


def cases(folder: Path) -> list[Case]:
    """Return the allocated memory of each stage, and the reserved memory of each run."""
    compared = [
        *_megatron(_kept(rows.read(folder / MEGATRON, MegatronRow))),
        *_torchtitan(_kept(rows.read(folder / TORCHTITAN, TorchtitanRow))),
    ]
    if not compared:
        raise InputError(f"{folder}: no memory that is predicted")
    return compared


R = TypeVar("R", MegatronRow, TorchtitanRow)


def _kept(table: list[R]) -> list[R]:
    rows.say_left_out("not predicted", [f"{r.why_not}: {r.id}" for r in table if r.why_not])
    return [row for row in table if not row.why_not]


def _megatron(table: list[MegatronRow]) -> Iterator[Case]:
    for row in table:
        measured = [float(gib) * GIB for gib in row.allocated_gib_by_rank.split()]
        memory = memory_of(megatron_job(row))
        stages = memory.stages or (memory.worker,)
        first = measured[:: len(measured) // (row.pp or 1)]
        for footprint, allocated in zip(stages, first, strict=True):
            yield Case(
                "memory/allocated", row.id, footprint.allocated_bytes, allocated, unit="bytes"
            )
        yield _reserved("megatron", row.id, memory.worker, row.reserved_gib)


def _torchtitan(table: list[TorchtitanRow]) -> Iterator[Case]:
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
