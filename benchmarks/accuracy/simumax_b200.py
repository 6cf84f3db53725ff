"""Llama 3 70B cut to a few layers on 8 B200, by tensor, pipeline and data, in Megatron-LM.

``runs.csv`` has iterations of 4, 8 and 32 micro-batches, with the distributed optimizer and all
overlap switched off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.accuracy import layouts, rows
from benchmarks.accuracy.cases import Case, about

SOURCE, FILE = "simumax_b200", "runs.csv"
ABOUT = about(SOURCE)


def arguments(row: layouts.Row) -> dict[str, Any]:
    """Return the arguments of a row's job."""
    given = layouts.layout_of(row) | {"framework": "megatron"}
    if (row.pp or 1) > 1:
        given["transfers"] = "blocking"
    return given | {
        "workload": layouts.profile_of(row, ABOUT.citation),
        "device": "b200",
        "precision_policy": "bf16_master_fp32_gradients",
        "cluster": "dgx-b200",
        "arch": "zero1",
    }


def cases(folder: Path) -> list[Case]:
    """Return every run; anchored ones from that with the most micro-batches, without pipeline."""
    return layouts.cases_of(
        SOURCE,
        rows.read(folder / FILE, layouts.Row),
        arguments,
        alike=lambda row: (row.model, row.layers, row.seq_len),
        setting=lambda row: f"{row.model}, {row.microbatches} micro-batches",
    )
