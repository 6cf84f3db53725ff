"""BERT and GPT-2 on 1 to 8 devices in LiBai and Megatron-LM, by data, tensor and pipeline.

``runs.csv`` has samples per second of both frameworks at equal layouts. Neither devices nor network
are named; the speeds are those of a V100 with 32 GB, eight on a node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.accuracy import layouts, rows
from benchmarks.accuracy.cases import Case, about

SOURCE, FILE = "libai", "runs.csv"
ABOUT = about(SOURCE)

VOCABULARIES = {"bert": 30592, "gpt2": 50304}
"""Rows of the token embedding: the usual vocabularies, padded to a multiple of 128 as by default in
Megatron-LM."""


def arguments(row: layouts.Row) -> dict[str, Any]:
    """Return the arguments of a row's job."""
    megatron = row.framework == "Megatron-LM"
    given = layouts.layout_of(row)
    if (row.pp or 1) > 1:
        given |= {"transfers": "blocking"} if megatron else {"transfers": "ahead", "balance": True}
    given |= layouts.SUMMED_AT_END if megatron else {"arch": "ring"}
    given |= layouts.without_overlap(row) if megatron else {"framework": "libai"}
    return given | {
        "workload": layouts.profile_of(
            row,
            ABOUT.citation,
            vocabulary=VOCABULARIES.get(row.model, row.vocab),
            **layouts.OF_MEGATRON,
        ),
        "device": "v100-32",
        "cluster": "dgx-1",
    }


def cases(folder: Path) -> list[Case]:
    """Return every run; anchored ones from that on one device with the same recomputation."""
    return layouts.cases_of(
        SOURCE,
        rows.read(folder / FILE, layouts.Row),
        arguments,
        alike=lambda row: (row.model, row.framework, row.recompute),
        setting=lambda row: f"{row.framework}, {row.model} of {row.layers} on {row.devices}",
    )
