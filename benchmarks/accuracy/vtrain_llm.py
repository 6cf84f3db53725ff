"""GPT models on 2 to 8 A100 of one node, by data, tensor and pipeline, in Megatron-LM.

``ground_truth_single_node.csv`` has the iteration time of every layout of a few small models;
``ground_truth_multi_node.csv``, if it is there, of large models on many nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import layouts, rows
from benchmarks.accuracy.cases import Case, about
from perfmodel.base.errors import number, whole_number

SOURCE = "vtrain_llm"
FILES = ("ground_truth_single_node.csv", "ground_truth_multi_node.csv")
ABOUT = about(SOURCE)

VOCABULARY = 51200
"""Rows of the token embedding: that of GPT-2, padded as in Megatron-LM's examples."""

NODE_GPUS = 8


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    GPUs: int
    global_batch: int
    micro_batch: int
    hidden_size: int
    attention_heads: int
    layers: int
    sequence_length: int
    tensor_parallelism: int
    data_parallelism: int
    pipeline_parallelism: int
    iteration_time_ms: float

    def __post_init__(self) -> None:
        number("iteration_time_ms", self.iteration_time_ms, above=0.0)
        for name in ("global_batch", "micro_batch", "data_parallelism"):
            whole_number(name, getattr(self, name))

    @property
    def row(self) -> layouts.Row:
        """The same in common columns."""
        passes = self.global_batch / (self.micro_batch * self.data_parallelism)
        tp, dp, pp = self.tensor_parallelism, self.data_parallelism, self.pipeline_parallelism
        batch = f"batch {self.global_batch} by {self.micro_batch}"
        return layouts.Row(
            id=f"{self.layers} x {self.hidden_size}, tp{tp} dp{dp} pp{pp}, {batch}",
            model="gpt",
            hidden=self.hidden_size,
            layers=self.layers,
            heads=self.attention_heads,
            vocab=VOCABULARY,
            seq_len=self.sequence_length,
            devices=self.GPUs,
            tp=tp,
            pp=pp,
            dp=dp,
            micro_batch=self.micro_batch,
            microbatches=int(passes) if passes.is_integer() else None,
            iteration_s=self.iteration_time_ms / 1e3,
        )


def arguments(row: layouts.Row) -> dict[str, Any]:
    """Return the arguments of a row's job."""
    given = layouts.layout_of(row)
    if (row.pp or 1) > 1:
        given["transfers"] = "blocking"
    given |= layouts.without_overlap(row)
    return {
        **given,
        **layouts.SUMMED_AT_END,
        "workload": layouts.profile_of(row, ABOUT.citation, **layouts.of_megatron(row)),
        "device": "a100-80",
        "cluster": "dgx-a100",
    }


def cases(folder: Path) -> list[Case]:
    """Return every run; anchored ones from that of the same model and micro-batch on the fewest
    devices."""
    table = [one.row for name in FILES if name == FILES[0] or (folder / name).is_file()
             for one in rows.read(folder / name, Measured)]  # fmt: skip
    return layouts.cases_of(
        SOURCE,
        table,
        arguments,
        alike=lambda row: (row.hidden, row.layers, row.heads, row.seq_len),
        unlike=lambda row, other: float(row.micro_batch != other.micro_batch),
        setting=lambda row: (
            f"{row.layers} x {row.hidden} on {row.devices}, batch of "
            f"{(row.dp or 1) * (row.micro_batch or 1) * (row.microbatches or 1)}"
        ),
    )
