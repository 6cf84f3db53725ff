"""Single published rows: Llama 2 under FSDP, Megatron-LM's large models in 3D, and long sequences.

``runs.csv`` has rows of several pages. What they leave open is stated with its source in
``about/small_tables.toml``, by the name of a row or a pattern of names.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import layouts, rows
from benchmarks.accuracy.cases import Case, about
from perfmodel.base.errors import InputError

SOURCE, FILE = "small_tables", "runs.csv"
ABOUT = about(SOURCE)

DEVICES = {"A100-80GB": "a100-80", "A100": "a100-80", "H100": "h100", "B200": "b200",
           "MI325X": "mi325x"}  # fmt: skip
"""Names of devices in the table, and here."""

RECOMPUTATIONS = {"fsdp": {"selective": "selective:products"}}
"""What words for recomputation mean under an architecture."""


class Row(layouts.Row, frozen=True, kw_only=True):
    """A row of the table; with facts, it has a ``seq_len`` and an ``iteration_s``."""

    devices: int = 1
    recompute: str = ""
    tokens_per_s_per_device: float | None = None
    shard_group: str = ""
    global_batch: int | None = None
    tflops_per_device: float | None = None

    @property
    def why_not(self) -> str:
        """Return why the row is not predicted; "" if it is."""
        if self.device not in DEVICES:
            return f"device {self.device or 'not stated'}"
        if not super().why_not and not self.recompute:
            return "recomputation not stated"
        return super().why_not

    @property
    def figure(self) -> bool:
        """Whether the catalogue knows the row."""
        return self.id == "fms-fsdp-7b-A100"

    @property
    def complete(self) -> Row:
        """The row with its facts, and the time of a step from the tokens per second."""
        facts = {name: value for names, known in ABOUT.facts.items() if fnmatchcase(self.id, names)
                 for name, value in known.items()}  # fmt: skip
        row = msgspec.structs.replace(self, **facts)
        rate, passes = row.tokens_per_s_per_device, row.microbatches
        if rate and row.seq_len and row.micro_batch and passes and not row.iteration_s:
            tokens = row.micro_batch * passes * row.seq_len / row.replica
            row = msgspec.structs.replace(row, iteration_s=tokens / rate)
        if row.nemo and row.tflops_per_device and row.global_batch and row.dp:
            passes, left = divmod(row.global_batch, row.dp)
            flop = flop_of(row) * row.global_batch / row.devices
            row = msgspec.structs.replace(
                row,
                microbatches=None if left else passes,
                iteration_s=flop / (row.tflops_per_device * 1e12),
            )
        return row

    @property
    def nemo(self) -> bool:
        """Whether the row is of NeMo, which states utilisations."""
        return self.framework == "NeMo"


def flop_of(row: Row) -> float:
    """Return the operations of a sequence as utilisations count them: attention in full, and no
    look-ups."""
    decoder = layouts.decoder_of(row)
    look_up = 6.0 * decoder.hidden * decoder.vocabulary
    return (decoder.model_flop(decoder.sequence_length) - look_up) * decoder.sequence_length


def arguments(row: Row) -> dict[str, Any]:
    """Return the arguments of a row's job."""
    given = layouts.layout_of(row)
    if (row.pp or 1) > 1:
        given["transfers"] = "ahead" if (row.vp or 1) > 1 else "blocking"
    given |= {"arch": "ring" if row.zero == 0 else "zero1"}
    if row.nemo:
        given |= {"framework": "megatron", "stack": "tuned", "cluster": "dgx-b200",
                  "precision_policy": "bf16_master_fp32_gradients"}  # fmt: skip
    if row.zero == 3:
        unit = layouts.block_bytes(layouts.decoder_of(row))
        given |= {"arch": "fsdp", "options": {"unit_bytes": unit}}
        if "node" in row.shard_group:
            given["options"]["shard_group"] = "node"
    elif row.zero == 2:
        raise InputError("sharding of gradients in an unknown layout")
    again = RECOMPUTATIONS.get(given["arch"], {}).get(row.recompute, row.recompute)
    return given | {
        "workload": layouts.profile_of(row, ABOUT.citation, fused_loss=row.zero != 3),
        "recompute": again,
        "device": DEVICES[row.device],
    }


def cases(folder: Path) -> list[Case]:
    """Return every row that states its layout, or whose layout is a fact; NeMo's are also predicted
    from that with the shortest sequences."""
    table = [row.complete for row in rows.read(folder / FILE, Row)]
    return layouts.cases_of(
        SOURCE,
        table,
        arguments,
        alike=lambda row: (row.model, row.device, row.precision) if row.nemo else row.id,
        unlike=lambda _, other: other.seq_len or 0,
    )
