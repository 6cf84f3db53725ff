"""Memory of language models: allocated by Megatron-LM, reserved by Megatron-LM and torchtitan.

The folder holds ``simumax_b200`` and ``torchtitan``. Of layouts with tensor, context or pipeline
parallelism, the memory of one device is predicted from its part of the model: products and, with
sequence parallelism, all activations are divided by the tensor-parallel size, sequences by the
context-parallel size; a stage keeps its blocks, for as many micro-batches as are in flight (1F1B).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, about
from perfmodel import Job, Source, Workload, make_job
from perfmodel.base.errors import InputError, whole_number
from perfmodel.inputs import catalogue
from perfmodel.inputs.activations import by_kind, kind_of
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.recomputation import recomputed
from perfmodel.inputs.storage import Storage
from perfmodel.predicting.memory import memory_of
from perfmodel.results.memory import Footprint

ABOUT = about("memory")

MEGATRON, TORCHTITAN = "simumax_b200/runs.csv", "torchtitan/runs.csv"

GIB = 2.0**30

LOSS = "loss"
"""Kind of the layer whose activations only one micro-batch has at a time."""

RECOMPUTATIONS = {"none": "none", "selective": "selective:products", "full": "full"}
"""Kinds of recomputation by their word in the tables; torchtitan's *selective* is by product."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table."""

    id: str
    hidden: int
    layers: int
    heads: int
    vocab: int
    ffn: int
    seq_len: int
    devices: int
    recompute: str
    micro_batch: int
    kv_heads: int | None = None
    experts: int | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    microbatches: int = 1
    memory_gib: float | None = None
    reserved_gib: float | None = None
    allocated_gib_by_rank: str = ""
    memory_run: str = ""

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "micro_batch", "microbatches"):
            whole_number(name, getattr(self, name))

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.memory_gib is None:
            return "without memory"
        if self.experts:
            return "mixture of experts"
        return "memory of another run" if self.memory_run not in ("", self.id) else ""

    @property
    def shards(self) -> int:
        """Devices that share the optimizer's state, or all of the model."""
        return self.devices // self.tp // self.pp


def profile_of(row: Row, *, fused_loss: bool) -> Profile:
    """Return the profile of a row's model, by its dimensions."""
    decoder = Decoder(
        hidden=row.hidden,
        blocks=row.layers,
        heads=row.heads,
        kv_heads=row.kv_heads,
        feed_forward=row.ffn,
        gated=True,
        vocabulary=row.vocab,
        sequence_length=row.seq_len // row.cp,
        tied=False,
        biases=False,
        fused_loss=fused_loss,
    )
    return Profile(name="llama", decoder=decoder, source=Source("published", ABOUT.citation))


def rank_work(row: Row, stage: int, storage: Storage, *, fused_loss: bool) -> Workload:
    """Return the workload of a device of a pipeline's ``stage``."""
    profile = profile_of(row, fused_loss=fused_loss)
    whole = catalogue.workload(
        profile,
        device_name="b200",
        precision="mixed",
        batch_size=row.micro_batch,
        storage=storage,
    )
    flight = min(row.pp - stage, row.microbatches)
    kept = [
        msgspec.structs.replace(
            layer,
            tensor_bytes=tuple(size / row.tp for size in layer.tensor_bytes),
            activation_bytes=layer.activation_bytes
            / row.tp
            * (1 if layer.kind == LOSS else flight),
            output_bytes=layer.passed_on_bytes / row.tp * flight,
        )
        for layer in whole.layers
        if _stage_of(layer.name, row) == stage
    ]
    sizes = [size for layer in kept for size in layer.tensor_bytes]
    parts = by_kind([(kind_of(one.name, one.kind), one.activation_bytes) for one in kept])
    mine = msgspec.structs.replace(
        whole,
        layers=tuple(kept),
        gradient_bytes=sum(sizes),
        tensors=len(sizes),
        largest_tensor_bytes=max(sizes),
        optimizer_state_bytes=whole.optimizer_state_bytes * sum(sizes) / whole.gradient_bytes,
        activation_bytes=sum(size for _, size in parts),
        activations=parts,
    )
    return recomputed(mine, RECOMPUTATIONS[row.recompute])


def _stage_of(name: str, row: Row) -> int:
    """Return the stage of a layer: equal blocks, the embedding first, the head last."""
    part, _, rest = name.partition(".")
    if part == "blocks":
        return int(rest.partition(".")[0]) * row.pp // row.layers
    return 0 if part in ("embedding", "positions") else row.pp - 1


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
    found = [*_megatron(_table(folder / MEGATRON)), *_torchtitan(_table(folder / TORCHTITAN))]
    if not found:
        raise InputError(f"{folder}: no memory that is predicted")
    return found


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
