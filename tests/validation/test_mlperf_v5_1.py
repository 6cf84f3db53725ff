"""Rows of MLPerf v5.1, completed by what its benchmarks say."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.accuracy import mlperf_v5_1
from benchmarks.accuracy.sources import adapter, named
from perfmodel import InputError, make_job
from tests.measured import predicted_cases

ROW: dict[str, Any] = {
    "id": "one", "model": "llama2-70b (LoRA)", "benchmark": "llama2_70b_lora", "hidden": 256,
    "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 128, "gated": 1,
    "device": "GB200", "devices": 8, "precision": "fp4", "tp": 1, "pp": 1, "dp": 4, "cp": 2,
    "global_batch": 8, "iteration_s": 1.0,
}  # fmt: skip


def row(**given: Any) -> mlperf_v5_1.Row:
    return mlperf_v5_1.Row(**ROW | given).complete


def test_a_benchmark_completes_a_row_of_adapters() -> None:
    """Eight sequences in four pipelines, one at a time, are two passes."""
    assert mlperf_v5_1.Row(**ROW).why_not == "seq_len, micro_batch, microbatches not stated"
    one = row()
    assert (one.seq_len, one.micro_batch, one.microbatches) == (8192, 1, 2)
    assert (one.computed_in, one.why_not) == ("nvfp4", "")
    assert row(seq_len=4096, micro_batch=2).seq_len == 4096
    assert row(seq_len=4096, micro_batch=2).microbatches == 1
    assert mlperf_v5_1.arguments(one)["lora"] == "16:attention"
    lora = make_job(**mlperf_v5_1.arguments(one)).workload.lora
    assert lora is not None
    assert (lora.rank, lora.targets) == (16, ("q", "k", "v", "o"))


def test_a_row_of_other_training_is_taken_as_it_is() -> None:
    whole = {"model": "llama3-8b", "benchmark": "llama31_8b", "precision": "fp8"}
    assert row(**whole).why_not == "seq_len, micro_batch, microbatches not stated"
    stated = row(**whole, seq_len=8192, micro_batch=1, microbatches=2)
    assert "lora" not in mlperf_v5_1.arguments(stated)
    assert row(**whole | {"benchmark": "flux1"}, hidden=None).why_not == "no language model"
    assert row(device="abacus").why_not == "device abacus"


@pytest.mark.parametrize(("replicas", "values"), [(4, 40_000_000), (64, 64_000_000)])
def test_buckets_grow_with_replicas(replicas: int, values: int) -> None:
    given = mlperf_v5_1.arguments(row(dp=replicas, devices=2 * replicas, global_batch=replicas))
    assert given["options"] == {"unit_bytes": 4 * values}


@pytest.mark.parametrize(
    ("devices", "each"), [(8, 72), (72, 72), (512, 64), (1152, 72), (144, 72), (149, 72)]
)
def test_racks_hold_equally_many_devices(devices: int, each: int) -> None:
    """Eight racks for 512 devices; 149 are a prime."""
    cluster = mlperf_v5_1.cluster_of(row(devices=devices))
    assert (cluster.devices_per_node, cluster.nics_per_node) == (each, each)


def test_a_source_has_the_name_of_its_module_and_of_its_folder() -> None:
    assert named("mlperf_v5.1") == named("mlperf_v5_1") == "mlperf_v5_1"
    assert adapter("mlperf_v5.1") is adapter("mlperf_v5_1")
    with pytest.raises(InputError, match="unknown source 'mlperf_v5'"):
        named("mlperf_v5")


def test_published_runs_of_eight_devices_and_a_rack() -> None:
    """All but adapters in 8 bits, which are predicted to take too long."""
    names = {
        "tyche_ngpu8_ngc25.09_nemo-llama2_70b_lora",
        "tyche_ngpu8_ngc25.09_nemo-llama31_8b",
        "tyche_ngpu72_ngc25.09_nemo-llama31_8b",
    }
    cases = predicted_cases(adapter("mlperf_v5_1"), "runs.csv")
    near = {c.name: abs(c.predicted / c.measured - 1.0) for c in cases if c.name in names}
    assert set(near) == names
    assert max(near.values()) < 0.08
