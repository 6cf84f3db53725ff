"""GPT models of 18 to 205 billion parameters on 8 to 384 A100, in 3D: the preparation of BLOOM.

``runs.csv`` has seconds per iteration of Megatron-DeepSpeed with ZeRO-1 and full recomputation.
Models of equal width are alike, so that a few layers on one node set the speed of 48 nodes.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import layouts, rows
from benchmarks.accuracy.cases import Case, about
from perfmodel.catalogue import catalogue
from perfmodel.inputs.cluster import Link

SOURCE, FILE = "bigscience_tr11", "runs.csv"
ABOUT = about(SOURCE)

CLUSTER = msgspec.structs.replace(
    catalogue.cluster("dgx-a100"),
    name="4 x 100 Gb/s OmniPath",
    nic=Link(12.5e9, latency_s=14e-6, efficiency=0.85),
    nics_per_node=4,
)


class Row(layouts.Row, frozen=True, kw_only=True):
    """A row of the table; with a ``partition``, embeddings count as layers."""

    partition: str = ""
    launch_blocking: int = 0

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        return "launches wait for kernels" if self.launch_blocking else super().why_not


def stage_layers(row: Row) -> str:
    """Return the blocks of each stage as DeepSpeed divides them: the fullest stage has as few as
    possible, the first ones are filled, and the embeddings may count.

    References
    ----------
    DeepSpeed, ``deepspeed/runtime/utils.py``, ``partition_balanced``.
    """
    layers, stages = row.layers or 1, row.pp or 1
    ends = 1 if row.partition else 0
    most = -(-(layers + 2 * ends) // stages)
    bounds = [min(max(stage * most - ends, 0), layers) for stage in range(stages)] + [layers]
    return "+".join(str(end - start) for start, end in itertools.pairwise(bounds))


def arguments(row: Row) -> dict[str, Any]:
    """Return the arguments of a row's job."""
    given = layouts.layout_of(row)
    if (row.pp or 1) > 1:
        given |= {"transfers": "blocking", "stage_layers": stage_layers(row)}
    return given | {
        "workload": layouts.profile_of(row, ABOUT.citation, **layouts.OF_MEGATRON),
        "device": "a100-80",
        "cluster": CLUSTER,
        "arch": "zero1" if row.zero else "ring",
    }


def cases(folder: Path) -> list[Case]:
    """Return every run; anchored ones from that of the same width on the fewest devices, with as
    many heads if possible."""
    return layouts.cases_of(
        SOURCE,
        rows.read(folder / FILE, Row),
        arguments,
        alike=lambda row: row.hidden,
        unlike=lambda row, other: float(row.heads != other.heads),
        setting=lambda row: f"{row.layers} x {row.hidden}, {row.heads} heads on {row.devices}",
    )
