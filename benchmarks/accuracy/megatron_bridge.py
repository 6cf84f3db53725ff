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
from perfmodel.catalogue import catalogue

SOURCE, FILE = "megatron_bridge", "runs.csv"
ABOUT = about(SOURCE)

PRECISIONS = {"FP8-CS": "FP8", "FP8-MX": "MXFP8"}
"""Earlier names of precisions."""

FOUR_BITS = "NVFP4"
"""Precision whose rows are predicted from nothing, or from others of it only."""

FIGURES = {("llama3-8b", device) for device in ("H100", "B200", "GB200", "GB300")}
"""Models and devices of rows that are utilisations in the catalogue."""

CLUSTERS = {"h100": "dgx-h100", "b200": "dgx-b200", "gb200": "gb200-nvl72",
            "gb300": "gb200-nvl72", "b300": "dgx-b300"}  # fmt: skip


class Row(layouts.Row, frozen=True, kw_only=True):
    """A row of the table."""

    task: str = ""
    version: str = ""
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
    if "expert" in given:  # a copy of a token for each device and node, as DeepEP sends
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
    """Return every run, from nothing measured and from up to three other rows: one of the same
    release and device, one of the release on another device, and one of another release on the
    device."""
    table = [msgspec.structs.replace(row, precision=row.bits)
             for row in rows.read(folder / FILE, Row)]  # fmt: skip
    known = layouts.known_of(table, arguments)
    found = layouts.estimated(SOURCE, known, _setting)
    known = {row: given for row, given in known.items() if not row.figure}
    for release in dict.fromkeys(row.version for row in known):  # whose hosts launch equally fast
        of_release = {row: given for row, given in known.items() if row.version == release}
        found += layouts.anchored(
            f"{SOURCE}/anchored", of_release, lambda row: (*_like(row), row.device),
            setting=_setting,
        )  # fmt: skip
        found += layouts.anchored(
            f"{SOURCE}/anchored on another device", of_release, _like,
            unlike=_unlike, apart=lambda row: row.device, setting=_setting,
        )  # fmt: skip
    found += layouts.anchored(
        f"{SOURCE}/anchored in another release", known,
        lambda row: (row.task, row.model, row.device, row.precision, row.seq_len),
        apart=lambda row: row.version, setting=_setting,
    )  # fmt: skip
    return predicted(found)


def _like(row: Row) -> tuple[object, ...]:
    """Return what a row and its reference have in common: 4 bits are not predicted from others."""
    return row.task, row.model, row.precision == FOUR_BITS


def _unlike(row: Row, other: Row) -> float:
    """Return how far a row is from one on another device: in the architecture, which counts most,
    and in the precision."""
    kinds = [catalogue.device(one.device.lower()).architecture for one in (row, other)]
    return 2.0 * (kinds[0] != kinds[1]) + (row.precision != other.precision)


def _setting(row: Row) -> str:
    return f"{row.task} of {row.model} on {row.devices} {row.device}"
