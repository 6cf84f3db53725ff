"""Measured memory of language models, which is not part of the repository: tests skip without it.
Tests on synthetic folders always run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import memory, stage_memory
from benchmarks.accuracy.reserved import quantiles
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from perfmodel.predicting.memory import overhead
from tests.measured import measured, predicted_cases

GIB = 2.0**30

ROW: dict[str, Any] = {
    "id": "one", "model": "llama", "gated": 1, "seq_parallel": 1, "hidden": 1024, "layers": 4,
    "heads": 16, "vocab": 32000, "ffn": 2816,
    "seq_len": 2048, "devices": 8, "recompute": "none", "micro_batch": 1, "tp": 2, "pp": 2,
    "dp": 2, "cp": 1, "microbatches": 4, "memory_gib": 2.0, "reserved_gib": 2.1,
    "allocated_gib_by_rank": "2 2 2 2 1 1 1 1",
}  # fmt: skip

EMBEDDING = 32000 * 1024
BLOCK = 4 * 1024**2 + 3 * 1024 * 2816 + 2 * 1024
BLOCK_VALUES = 2048 * (4 * 1024 + 3 * 1024 + 1024 + 3 * 2816)


def folder(path: Path, **changes: Any) -> Path:
    """A folder with one row in each table."""
    for name in (memory.MEGATRON, memory.TORCHTITAN):
        (path / name).parent.mkdir()
        with (path / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(ROW | changes))
            writer.writeheader()
            writer.writerow(ROW | changes)
    return path


def test_stages_by_hand(tmp_path: Path) -> None:
    """Two blocks a stage, halved by tensor parallelism, but for norms; 2, 4 and 12/2 bytes per
    parameter. Two micro-batches are in flight in the first stage, whose output is freed once it is
    sent, and one in the last, which received its input; logits take ten bytes there. In the first
    stage most exists when the gradients of gate and up are made of that of their product, which
    then is gone like the block's output; it also has the gradient that it received, and each stage
    an activation gathered of both devices."""
    first, last = memory.cases(folder(tmp_path, recompute="none"))[:2]
    states, tokens = 2 + 4 + 12 / 2, 2048
    norms, passed = 2 * 2 * 1024, 2 * tokens * 1024
    parameters = (EMBEDDING + 2 * BLOCK - norms) / 2 + norms
    kept = 2 * 2 * BLOCK_VALUES / 2
    gradients = 2 * tokens * (3 * 2816 - 2816) / 2
    assert first.predicted == pytest.approx(
        states * parameters + 2 * kept + gradients + passed / 2 + passed
    )
    assert first.measured == 2 * GIB
    parameters += 1024
    kept += 2 * passed / 2 + 10 * tokens * 32000 / 2
    assert last.predicted == pytest.approx(states * parameters + kept + passed)
    assert last.measured == 1 * GIB


def test_experts_by_hand(tmp_path: Path) -> None:
    """Eight experts of two devices each, in the second of two layers: a device has a quarter of
    their parameters, whose states are not shared, and an eighth of the others' states."""
    changes = {"tp": 1, "pp": 1, "ep": 4, "dp": 4, "devices": 4, "layers": 2, "experts": 8,
               "top_k": 2, "expert_ffn": 512, "dense_layers": 1,
               "allocated_gib_by_rank": "1 1 1 1"}  # fmt: skip
    (case, *_) = memory.cases(folder(tmp_path, **changes))
    row = memory.rows.read(tmp_path / memory.MEGATRON, memory.MegatronRow)[0]
    found = memory.memory_of(memory.megatron_job(row)).worker
    experts = 2 * 3 * 1024 * 512
    others = 2 * EMBEDDING + BLOCK + BLOCK - 3 * 1024 * 2816 + 1024 * 8 + 1024
    assert found.parameters_bytes == pytest.approx(2 * (experts + others))
    assert found.gradients_bytes == pytest.approx(4 * (experts + others))
    assert found.optimizer_states_bytes == pytest.approx(8 * (experts + others / 4))
    assert case.predicted == found.allocated_bytes


def test_rows_without_memory_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no memory"):
        memory.cases(folder(tmp_path, memory_gib=""))


def test_published_memory_is_predicted() -> None:
    for table in (memory.MEGATRON, memory.TORCHTITAN):
        measured(table.partition("/")[0], table.partition("/")[2])
    cases = predicted_cases(memory)
    dense = [case for case in cases if "deepseek" not in case.name]
    assert summarise(dense)["memory/allocated"]["median"] < 0.01
    found = summarise(cases)
    assert found["memory/allocated"]["median"] < 0.02
    assert found["memory/allocated"]["p90"] < 0.07
    assert found["memory/reserved"]["median"] < 0.05
    assert 0.85 <= found["memory/reserved"]["coverage90"] <= 0.97


def test_quantiles_give_each_table_the_same_weight() -> None:
    """One value of a table weighs as much as two of another: levels 0.25, 0.5 + 0.125, 0.875."""
    ratios = {"one": [1.0], "two": [2.0, 3.0], "other": [9.0], "none": []}
    assert quantiles(ratios, without="other") == pytest.approx([1.0, 1.0 + 0.25 / 0.375, 3.0])
    assert quantiles({}) == pytest.approx([1.0, 1.0, 1.0])


@pytest.mark.slow
def test_memory_of_stages_is_predicted_from_other_tables() -> None:
    """Of BigScience's runs that ran out of memory, none would be planned."""
    for table in stage_memory.TABLES.values():
        measured(table.partition("/")[0], table.partition("/")[2])
    found = summarise(predicted_cases(stage_memory))
    assert found["stage_memory/bigscience"]["median"] < 0.08
    assert found["stage_memory/bigscience"]["coverage90"] > 0.9
    assert found["stage_memory/internevo"]["median"] < 0.12
    assert found["stage_memory/sailor"]["median"] < 0.15
    fits = [case for case in predicted_cases(stage_memory) if case.group == "stage_memory/fits"]
    out = [case.predicted for case in fits if not case.measured]
    assert len(out) == 2
    assert max(out) < 0.4


@pytest.mark.slow
def test_shipped_quantiles_are_those_of_all_tables() -> None:
    ratios = {}
    for name, table in stage_memory.TABLES.items():
        folder, _, file = table.partition("/")
        known = stage_memory.measured_of(name, measured(folder, file) / file)
        ratios[name] = [ratio for one in known for ratio in one.over_allocated]
    assert overhead().deepspeed_over_allocated == pytest.approx(quantiles(ratios), abs=0.006)
