"""Memory of language models in tensor- and pipeline-parallel layouts, where it is not said what was
counted: BigScience, InternEvo and Sailor.

The folder holds ``bigscience_tr11``, ``internevo`` and ``sailor``. A value is the largest of all
devices, and is compared with what a process reserves of its device. Of BigScience's runs that ran,
or ran out of memory, the probability of that is compared, too. Nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, about
from benchmarks.accuracy.ranks import Layout, arguments_of
from perfmodel import Job, Source, make_job
from perfmodel.base.errors import InputError
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.profile import Profile
from perfmodel.predicting.memory import memory_of

ABOUT = about("stage_memory")

TABLES = {
    "bigscience": "bigscience_tr11/runs.csv",
    "internevo": "internevo/memory.csv",
    "sailor": "sailor/runs.csv",
}

DEVICES = {"A100-80GB": "a100-80", "A800-80GB": "a100-80", "GH200-96GB": "h100"}
"""Devices of the catalogue with the same architecture; of GH200 only the kind is used."""

OF_TABLE: dict[str, dict[str, Any]] = {
    "bigscience": {"gated": False, "tied": True, "flash": False},
    "internevo": {"gated": True, "tied": False, "biases": False},
    "sailor": {"gated": False, "tied": True, "flash": False, "dropout": True, "positions": 2048},
}
"""What the tables do not say of their models: Megatron-DeepSpeed's and InternEvo's defaults."""

RAN_OUT = "out of memory"

GIB, GB = 2.0**30, 1e9


class Row(Layout, frozen=True, kw_only=True):
    """A row of a table."""

    id: str
    device: str
    layers: int = 0
    heads: int = 0
    ffn: int = 0
    recompute: str = "none"
    precision: str = ""
    zero: int = 0
    layers_per_stage: str = ""
    partition: str = ""
    iteration_s: float | None = None
    memory_gib: float | None = None
    memory_kind: str = ""
    repeat: int = 0

    @property
    def ran(self) -> bool | None:
        """Whether the run fitted into its devices; None if the table does not say."""
        return False if RAN_OUT in self.memory_kind else True if self.iteration_s else None

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.repeat:
            return "printed again"
        if not (self.layers and self.heads):
            return "without layers or heads"
        return "" if self.memory_gib or self.ran is not None else "without memory"

    @property
    def stage_blocks(self) -> tuple[int, ...]:
        """Blocks of each stage; empty for equal numbers."""
        counts = [int(number) for number in self.layers_per_stage.split()]
        if self.partition.startswith("embeddings count"):
            counts = [(self.layers + 2) // self.pp] * self.pp
        if counts:  # the embedding and the head are layers
            return (counts[0] - 1, *counts[1:-1], counts[-1] - 1) if self.pp > 1 else ()
        full = -(-self.layers // self.pp)
        return () if self.layers % self.pp == 0 else (full,) * (self.pp - 1) + (
            self.layers - full * (self.pp - 1),)  # fmt: skip


def job_of(table: str, row: Row) -> Job:
    """Return the job of a row."""
    decoder = Decoder(
        hidden=row.hidden, blocks=row.layers, heads=row.heads, kv_heads=row.kv_heads,
        feed_forward=row.ffn or None, vocabulary=row.vocab, sequence_length=row.seq_len,
        fused_loss=True, **OF_TABLE[table],
    )  # fmt: skip
    masters = "bf16_master_fp32_gradients" if row.precision == "bf16" else "bf16_master"
    given = arguments_of(row) | {"stage_layers": row.stage_blocks or None}
    if row.tp > 1:
        given["sequence_parallel"] = None
    return make_job(
        workload=Profile(name=table, decoder=decoder, source=Source("published", "a layout")),
        device=DEVICES[row.device],
        optimizer="adam",
        precision_policy=masters if table == "bigscience" else "bf16_master",
        arch={0: "ring", 1: "zero1", 3: "fsdp"}[row.zero],
        options={"bucketing": "one"} if row.zero == 0 else {},
        cluster="dgx-a100",
        **given,
    )


def cases(folder: Path) -> list[Case]:
    """Return the memory of each run, and whether it fitted."""
    compared = [case for name, table in TABLES.items() for case in _cases(name, folder / table)]
    if not compared:
        raise InputError(f"{folder}: no memory that is predicted")
    return compared


def _cases(name: str, path: Path) -> Iterator[Case]:
    table = rows.read(path, Row)
    rows.say_left_out("not predicted", [f"{r.why_not}: {r.id}" for r in table if r.why_not])
    for row in table:
        if row.why_not:
            continue
        memory = memory_of(job_of(name, row))
        reserved = memory.worker.reserved_bytes
        if name == "bigscience" and memory.fits is not None and row.ran is not None:
            yield Case("stage_memory/fits", row.id, memory.fits, float(row.ran), relative=False,
                       unit="")  # fmt: skip
        if row.memory_gib is not None and reserved is not None:
            size = row.memory_gib * (GB if "GB" in row.memory_kind else GIB)
            yield Case(f"stage_memory/{name}", row.id, reserved.median, size, unit="bytes",
                       interval=(reserved.p5, reserved.p95))  # fmt: skip
