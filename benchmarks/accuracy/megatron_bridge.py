"""Llama 3, and models with experts, on H100 to GB300 in Megatron-Bridge, tuned.

``runs.csv`` has tokens per second and device of several releases, nearly all in 8 or 4 bits. Rows
in 4 bits are predicted from others in 4 bits only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import expert_rows, layouts, rows
from benchmarks.accuracy.cases import Case, about, predicted

SOURCE, FILE = "megatron_bridge", "runs.csv"
ABOUT = about(SOURCE)

PRECISIONS = {"FP8-CS": "FP8", "FP8-MX": "MXFP8"}
"""Earlier names of precisions."""

FIGURES = {("llama3-8b", "H100"), ("llama3-8b", "B200")}
"""Models and devices of rows that are utilisations in the catalogue."""

CLUSTERS = {"h100": "dgx-h100", "b200": "dgx-b200", "gb200": "gb200-nvl72",
            "gb300": "gb200-nvl72", "b300": "dgx-b300"}  # fmt: skip


class Row(layouts.Row, frozen=True, kw_only=True):
    """A row of the table."""

    task: str = ""
    shard_group: int | None = None

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.task == "LoRA":
            return "adapters of unknown rank"
        if self.device.lower() not in CLUSTERS:
            return f"device {self.device}"
        return super().why_not

    @property
    def figure(self) -> bool:
        """Whether the catalogue knows the row."""
        return (self.model, self.device) in FIGURES

    @property
    def bits(self) -> str:
        """The precision; the first release has 8 bits only, in the second way where ``id`` ends in
        b."""
        if not self.precision:
            return "MXFP8" if self.id.endswith("b") else "FP8"
        return PRECISIONS.get(self.precision, self.precision)


def arguments(row: Row) -> dict[str, Any]:
    """Return the arguments of a row's job."""
    given = layouts.layout_of(row) | {"framework": "megatron"}
    if (row.tp or 1) > 1:
        given["sequence_parallel"] = True
    if (row.pp or 1) > 1:
        given["transfers"] = "ahead"
    if "expert" in given:  # a copy of a token for each node, as DeepEP sends
        given["expert_exchange"] = "hierarchical"
    sharded: dict[str, Any] = {"arch": "zero1"}
    if row.zero == 3:
        unit = layouts.block_bytes(layouts.decoder_of(row))
        sharded = {"arch": "fsdp", "options": {"unit_bytes": unit}}
    return given | sharded | {
        "workload": layouts.profile_of(row, ABOUT.citation),
        "device": row.device.lower(),
        "stack": "tuned",
        "precision_policy": "bf16_master_fp32_gradients",
        "cluster": expert_rows.cluster_of(row, CLUSTERS[row.device.lower()]),
    }  # fmt: skip


def cases(folder: Path) -> list[Case]:
    """Return every run; anchored ones from that of the same task, model, device and precision on
    the fewest devices."""
    table = [msgspec.structs.replace(row, precision=row.bits)
             for row in rows.read(folder / FILE, Row)]  # fmt: skip
    return predicted(
        layouts.runs(
            SOURCE,
            table,
            arguments,
            alike=lambda row: (row.task, row.model, row.device, row.precision, row.seq_len),
            setting=lambda row: f"{row.task} of {row.model} on {row.devices} {row.device}",
        )
    )
