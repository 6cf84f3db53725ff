"""Llama 3.1 8B and adapters of Llama 2 70B on 8 to 512 GB200 in MLPerf training v5.1, tuned.

``runs.csv`` has seconds per step from logs; the batch is the one that converges fastest, so that
few sequences are left for each device on many.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import layouts, rows
from benchmarks.accuracy.cases import Case, about
from perfmodel.catalogue import catalogue
from perfmodel.inputs.cluster import Cluster

SOURCE, FILE = "mlperf_v5_1", "runs.csv"
ABOUT = about(SOURCE)

CLUSTERS = {"H100": "dgx-h100", "H200": "dgx-h100", "B200": "dgx-b200", "B300": "dgx-b300",
            "GB200": "gb200-nvl72", "GB300": "gb200-nvl72"}  # fmt: skip

PRECISIONS = {"fp4": "NVFP4"}
"""Precisions with another name in other tables."""

ADAPTERS = "16:attention"
"""Rank and matrices of the benchmark's adapters."""

OF_LORA = {"seq_len": 8192, "micro_batch": 1}
"""What the benchmark of adapters says and rows do not: tokens of a sequence, and sequences that a
device trains on at a time."""

BUCKET, BUCKET_PER_REPLICA, VALUE_BYTES = 40_000_000, 1_000_000, 4
"""Gradients that are summed together: the default of Megatron-Core, on which NeMo is built, which
grows with the number of replicas (``DistributedDataParallelConfig.bucket_size``); in 32 bits."""


class Row(layouts.Row, frozen=True, kw_only=True):
    """A row of the table; ``global_batch`` is in the samples of its benchmark."""

    benchmark: str = ""
    global_batch: int | None = None

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.hidden is None:
            return "no language model"
        if self.device not in CLUSTERS:
            return f"device {self.device}"
        return super().why_not

    @property
    def lora(self) -> bool:
        """Whether adapters alone are trained."""
        return self.benchmark.endswith("_lora")

    @property
    def complete(self) -> Row:
        """The row with what its benchmark says; all sequences of a step are trained on."""
        found: dict[str, Any] = {"precision": PRECISIONS.get(self.precision, self.precision)}
        if self.lora:
            found |= {name: value for name, value in OF_LORA.items() if getattr(self, name) is None}
        row = msgspec.structs.replace(self, **found)
        if row.microbatches is not None or not (row.global_batch and row.micro_batch):
            return row
        passes = row.global_batch // ((row.dp or 1) * row.micro_batch)
        return msgspec.structs.replace(row, microbatches=passes or None)


def arguments(row: Row) -> dict[str, Any]:
    """Return the arguments of a row's job; logs are of runs with CUDA graphs."""
    given = layouts.layout_of(row)
    if (row.tp or 1) > 1:
        given["sequence_parallel"] = True
    if row.lora:
        given["lora"] = ADAPTERS
    bucket = max(BUCKET, BUCKET_PER_REPLICA * (row.dp or 1))
    return given | {
        "workload": layouts.profile_of(row, ABOUT.citation),
        "device": row.device.lower(),
        "cluster": cluster_of(row),
        "arch": "zero1",
        "options": {"unit_bytes": VALUE_BYTES * bucket},
        "framework": "megatron",
        "stack": "tuned",
        "launches": "graphs",
        "precision_policy": "bf16_master_fp32_gradients",
    }


def cluster_of(row: Row) -> Cluster:
    """Return the cluster of a row, which uses as many devices of each node or rack."""
    cluster = catalogue.cluster(CLUSTERS[row.device])
    nodes = math.ceil(row.devices / cluster.devices_per_node)
    if nodes == 1 or row.devices % nodes:
        return cluster
    each = row.devices // nodes
    return msgspec.structs.replace(cluster, devices_per_node=each, nics_per_node=each)


def cases(folder: Path) -> list[Case]:
    """Return every run; anchored ones from the same benchmark and precision on the fewest
    devices."""
    return layouts.cases_of(
        SOURCE,
        [row.complete for row in rows.read(folder / FILE, Row)],
        arguments,
        alike=lambda row: (row.model, row.device, row.precision),
        setting=lambda row: f"{row.model} in {row.precision} on {row.devices} {row.device}",
    )
