"""Llama 3.1 on 8 to 256 H100 in torchtitan, by sharded data, tensor and context parallelism.

``runs.csv`` has tokens per second and device. The devices have slower memory than others of their
name and are held at 500 W.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.accuracy import layouts, ranks, rows
from benchmarks.accuracy.cases import Case, about

SOURCE, FILE = "torchtitan", "runs.csv"
ABOUT = about(SOURCE)

DEVICES = {"H100-SXM-96GB-HBM2e-500W": "h100"}
"""Names of devices in the table and here."""


class Row(layouts.Row, frozen=True, kw_only=True):
    """A row of the table."""

    compiled: int = 0
    shard_group: int | None = None

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.device not in DEVICES:
            return f"device {self.device}"
        return "sums overlap with products" if "async" in self.overlap else super().why_not

    @property
    def work(self) -> tuple[object, ...]:
        """What a device computes, and how."""
        bits = "16 bits" if self.computed_in == "mixed" else self.precision
        length = 0 if self.recompute == "full" else self.seq_len  # long ones are of any length
        return self.model, bits, self.compiled, self.recompute, length


def arguments(row: Row) -> dict[str, Any]:
    """Return the arguments of a row's job; blocks are the units that are gathered."""
    profile = layouts.profile_of(row, ABOUT.citation, fused_loss=False)
    decoder = layouts.decoder_of(row)
    group = {} if row.shard_group in (None, row.dp) else {"shard_group": row.shard_group}
    given = layouts.layout_of(row)
    if given["precision"] == "fp8":  # torchao takes scales from the tensors themselves
        given["precision"] = "fp8_current"
    if (row.tp or 1) > 1:
        given["sequence_parallel"] = True
    if (row.cp or 1) > 1:
        given["context_exchange"] = "all-gather"
    return given | {
        "workload": profile,
        "recompute": ranks.RECOMPUTATIONS.get(row.recompute, row.recompute),
        "launches": "compiled" if row.compiled else "eager",
        "device": DEVICES[row.device],
        "cluster": "dgx-h100",
        "arch": "fsdp",
        "options": {"unit_bytes": layouts.block_bytes(decoder), **group},
    }


def cases(folder: Path) -> list[Case]:
    """Return every run; anchored ones from that of the same work with the shortest sequences on the
    fewest devices."""
    return layouts.cases_of(
        SOURCE,
        rows.read(folder / FILE, Row),
        arguments,
        alike=lambda row: row.work,
        unlike=lambda _, other: other.seq_len or 0,
        setting=lambda row: f"{row.work}",
    )
