"""Language models on H100 and GB200 by recipes of DGX Cloud, in 16 and in 8 bits.

``runs.csv`` has seconds per step of NeMo and MaxText. Runs in 8 bits are also predicted from that
in 16 bits of the same layout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.accuracy import expert_rows, layouts, rows
from benchmarks.accuracy.cases import Case, about

SOURCE, FILE = "dgxc_benchmarking", "runs.csv"
ABOUT = about(SOURCE)

CLUSTERS = {"H100": "dgx-h100", "GB200": "gb200-nvl72"}

VOCABULARY = {"gpt3-175b": 51200}
"""Vocabularies that the table does not state; that of NeMo's recipe of GPT-3, with its padding."""


class Row(layouts.Row, frozen=True, kw_only=True):
    """A row of the table."""

    version: str = ""
    shard_group: int | None = None
    mfu: float | None = None

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.device not in CLUSTERS:
            return f"device {self.device}"
        return super().why_not


def arguments(row: Row) -> dict[str, Any]:
    """Return the arguments of a row's job."""
    given = layouts.layout_of(row) | {"framework": "megatron"}
    if (row.tp or 1) > 1:
        given["sequence_parallel"] = True
    if (row.pp or 1) > 1:
        given["transfers"] = "ahead" if (row.vp or 1) > 1 else "blocking"
    fields: dict[str, Any] = {}
    if row.vocab is None and row.model in VOCABULARY:
        fields["vocabulary"] = VOCABULARY[row.model]
    sharded: dict[str, Any] = {"arch": "zero1"}
    if row.framework == "MaxText":
        unit = layouts.block_bytes(layouts.decoder_of(row, **fields))
        del given["framework"]
        shards = row.shard_group or 0
        options = {"unit_bytes": unit, "shard_group": shards if shards != row.devices else 0}
        sharded = {"arch": "fsdp", "options": options}
    return given | sharded | {
        "workload": layouts.profile_of(row, ABOUT.citation, **fields),
        "device": row.device.lower(),
        "stack": "tuned",
        "precision_policy": "bf16_master_fp32_gradients",
        "cluster": expert_rows.cluster_of(row, CLUSTERS[row.device]),
    }  # fmt: skip


def _unlike(row: Row, other: Row) -> float:
    """Return how far a row is from another as a reference: one in 16 bits, and for 8 bits of the
    same layout."""
    if other.precision != "bf16":
        return 10.0
    if row.precision == "bf16":
        return 0.0
    same = (row.devices, row.tp, row.pp, row.cp) == (other.devices, other.tp, other.pp, other.cp)
    return 0.0 if same else 1.0


def cases(folder: Path) -> list[Case]:
    """Return every run; anchored ones from one in 16 bits: that of the same layout for those in 8,
    and that on the fewest devices for others."""
    return layouts.cases_of(
        SOURCE,
        rows.read(folder / FILE, Row),
        arguments,
        alike=lambda row: (row.model, row.device, row.framework, row.version, row.layers,
                           row.seq_len),
        unlike=_unlike,
        setting=lambda row: f"{row.model} in {row.precision} on {row.devices} {row.device}",
    )  # fmt: skip
