"""Memory of language models in layouts, where it is not said what was counted.

The folder holds ``bigscience_tr11``, ``internevo`` and ``sailor``. The largest value of all devices
is compared with what a process reserves; for BigScience's runs, also whether they ran out of it.
What is reserved beyond what is allocated is learnt from the two other tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, about
from benchmarks.accuracy.ranks import Layout, arguments_of
from benchmarks.accuracy.reserved import Measured, quantiles
from perfmodel import Job, Source, make_job
from perfmodel.base.arrays import Floats
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.profile import Profile
from perfmodel.predicting.memory import memory_of

ABOUT = about("stage_memory")

TABLES = {
    "bigscience": "bigscience_tr11/runs.csv",
    "internevo": "internevo/memory.csv",
    "sailor": "sailor/runs.csv",
}

DEVICES = {"A100-80GB": "a100-80", "A800-80GB": "a100-80", "GH200-96GB": "gh200"}
CLUSTERS = {"gh200": "quad-gh200"}
"""Devices of the catalogue with the same architecture, and their nodes if not of DGX A100."""

OF_TABLE: dict[str, dict[str, Any]] = {
    "bigscience": {"gated": False, "tied": True, "flash": False, "dropout": True},
    "internevo": {"gated": True, "tied": False, "biases": False},
    "sailor": {"gated": False, "tied": True, "flash": False, "dropout": True, "positions": 2048},
}
"""What the tables do not say of their models: Megatron-DeepSpeed's and InternEvo's defaults."""

RAN_OUT = "out of memory"


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
    def measured_bytes(self) -> float | None:
        """The memory of the fullest device; None if the table does not have it."""
        return self.memory_gib and self.memory_gib * (1e9 if "GB" in self.memory_kind else 2**30)

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
    update = "cast_gradients"
    if table == "internevo" and row.zero == 1:
        update = "flat_update"
    elif table != "internevo" and row.precision == "bf16":  # DeepSpeed's optimizer for bf16
        update = "two_gradients"
    given = arguments_of(row) | {"stage_layers": row.stage_blocks or None}
    if row.tp > 1:
        given["sequence_parallel"] = None
    return make_job(
        workload=Profile(name=table, decoder=decoder, source=Source("published", "a layout")),
        device=DEVICES[row.device],
        optimizer="adam",
        precision_policy=f"bf16_master_{update}",
        arch={0: "ring", 1: "zero1", 3: "fsdp"}[row.zero],
        options={"bucketing": "one"} if row.zero == 0 else {},
        cluster=CLUSTERS.get(DEVICES[row.device], "dgx-a100"),
        **given,
    )


def cases(folder: Path) -> list[Case]:
    """Return the memory of each run, and whether it fitted: with quantiles of the other tables."""
    tables = {name: measured_of(name, folder / table) for name, table in TABLES.items()}
    ratios = {name: [ratio for one in table for ratio in one.over_allocated]
              for name, table in tables.items()}  # fmt: skip
    return [case for name, table in tables.items()
            for case in _cases(name, table, quantiles(ratios, without=name))]  # fmt: skip


def measured_of(name: str, path: Path) -> list[Measured]:
    """Return the runs of a table."""
    table = rows.read(path, Row)
    rows.say_left_out("not predicted", [f"{r.why_not}: {r.id}" for r in table if r.why_not])
    return [Measured(row.id, row.ran if name == "bigscience" else None,
                     memory_of(job_of(name, row)), row.measured_bytes)
            for row in table if not row.why_not]  # fmt: skip


def _cases(name: str, table: Sequence[Measured], factors: Floats) -> Iterator[Case]:
    for one in table:
        reserved, size = one.reserved(factors), one.memory.device_bytes
        if size is not None and one.ran is not None:
            yield Case("stage_memory/fits", one.run, reserved.below(size), float(one.ran),
                       relative=False, unit="")  # fmt: skip
        if one.measured is not None:
            yield Case(f"stage_memory/{name}", one.run, reserved.median, one.measured,
                       unit="bytes", interval=(reserved.p5, reserved.p95))  # fmt: skip
