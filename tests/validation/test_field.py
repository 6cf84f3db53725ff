"""Runs that people reported: how their words become jobs, and how far predictions are off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.accuracy import field, internevo
from benchmarks.accuracy.field import kind_of
from benchmarks.field.reading import NVLINK_BRIDGE, Row, case_of, cluster_of, training_of
from benchmarks.field.table import CASES, FOUND, named, table
from perfmodel import InputError, Prediction, predict
from perfmodel.catalogue import catalogue
from perfmodel.validation import read_cases
from perfmodel.validation.cases import MeasuredJob
from tests.measured import measured

pytestmark = pytest.mark.slow  # what they compare with is rarely at hand


def row(**fields: Any) -> Row:
    given = {"id": "r", "source": "thread", "model": "resnet50", "devices": 4,
             "measured_step_s": 1.0, "batch_per_device": "32",
             "one_device_samples_per_s": 100.0} | fields  # fmt: skip
    return Row(**given)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("PCIe 3.0 x16 GTX 1080 Ti", "gtx1080ti"),
        ("RTX 3090 NVLink", "rtx3090"),
        ("V100 NVLink p3.16xlarge", "v100"),
        ("A100 PCIe", "a100-pcie"),
        ("A100 NVLink", "a100"),
        ("PCIe", "gpu"),
    ],
)
def test_the_device_is_the_longest_name_in_the_text(text: str, device: str) -> None:
    assert row(inside_node=text).device == device


def test_links_are_those_that_are_stated_or_usual() -> None:
    nvlink = cluster_of(row(inside_node="V100 NVLink", devices_per_node=8)).intra_node
    assert nvlink == catalogue.cluster("dgx-1").intra_node
    bridge = cluster_of(row(inside_node="RTX 3090 NVLink", devices_per_node=2)).intra_node
    assert bridge == NVLINK_BRIDGE
    third = cluster_of(row(inside_node="PCIe 3.0 V100", devices_per_node=4)).intra_node
    assert third == catalogue.cluster("pcie3").intra_node
    tcp = cluster_of(row(network="25 Gbit/s TCP"))
    assert (tcp.nic.bandwidth_bytes_per_s, tcp.nic.latency_s) == (3.125e9, 25e-6)
    two = cluster_of(row(network="2 x HDR100 InfiniBand"))
    assert (two.nic.bandwidth_bytes_per_s, two.nics_per_node) == (12.5e9, 2)
    assert two.nic.latency_s < 20e-6


def test_frameworks_are_architectures() -> None:
    assert training_of(row(framework="horovod"))["arch"] == "horovod"
    servers = row(framework="MXNet", network="servers on both machines", devices_per_node=2)
    assert training_of(servers) == {"arch": "mxnet", "options": {"servers": 2}}
    assert training_of(row(model="InternLM-7B ZeRO-1")) == {"arch": "zero1"}
    half = training_of(row(precision="16-bit all-reduce"))["options"]
    assert half == {"compression": "quantised", "quantised_bits": 16}


def test_the_smallest_run_of_a_thread_stands_for_one_device() -> None:
    small = row(one_device_samples_per_s=None, devices=2, measured_step_s=0.4)
    large = row(one_device_samples_per_s=None, devices=8)
    case, _ = case_of(large, [small, large])
    assert (case.job.one_device_step_s, case.job.one_device_batch_size) == (0.4, 32)
    with pytest.raises(InputError, match="no speed of one device"):
        case_of(small, [small, large])


def test_a_model_that_the_catalogue_lacks_needs_its_gradients() -> None:
    with pytest.raises(InputError, match="the catalogue has no MaxViT"):
        case_of(row(model="MaxViT"), [])
    _, profile = case_of(row(model="MaxViT", gradient_bytes=8e8, tensors=900), [])
    assert profile is not None
    assert profile.parameter_bytes == 8e8


@pytest.fixture(scope="module")
def predicted() -> list[tuple[MeasuredJob, Prediction]]:
    return [(one, predict(one.job)) for one in read_cases(CASES)]


def errors(predicted: Sequence[tuple[MeasuredJob, Prediction]]) -> np.ndarray:
    return np.array([p.iteration_s / (one.measured.step_s or 0.0) - 1.0 for one, p in predicted])


def test_predictions_of_reported_runs_are_medians(
    predicted: list[tuple[MeasuredJob, Prediction]],
) -> None:
    found = errors(predicted)
    assert len(found) == 28
    assert np.median(np.abs(found)) < 0.08
    assert np.quantile(np.abs(found), 0.9) < 0.30
    assert abs(np.median(found)) < 0.03
    inside = [
        p.interval.iteration_s[0] <= (one.measured.step_s or 0.0) <= p.interval.iteration_s[1]
        for one, p in predicted
    ]
    assert np.mean(inside) > 0.85


def test_canary_without_losses_they_are_too_fast() -> None:
    bare = []
    for one in read_cases(CASES):
        where = msgspec.structs.replace(one.job.cluster, **NOTHING)
        bare.append((one, predict(msgspec.structs.replace(one.job, cluster=where))))
    found = errors(bare)
    assert np.median(found) < -0.05


NOTHING: dict[str, Any] = {
    "handover": catalogue.cluster("ethernet-10g").handover,
    "slowdown_per_neighbour": 0.0,
    "device_spread": 0.0,
    "intra_node": catalogue.cluster("dgx-h100").intra_node,
}


def test_bottlenecks_that_threads_found_are_named(
    predicted: list[tuple[MeasuredJob, Prediction]],
) -> None:
    found = {one.name: named(FOUND[one.name], p) for one, p in predicted if one.name in FOUND}
    assert found.keys() == FOUND.keys()
    assert {name for name, right in found.items() if not right} == {"Q2", "Q3"}
    any_run, prediction = predicted[0]
    assert not named("inside", prediction)  # canary: its slow link is that between nodes
    assert any_run.name == "Q1"


def test_the_table_has_a_row_for_each_run() -> None:
    lines = table().splitlines()
    assert len(lines) == 2 + 28
    assert any("horovod/horovod#752" in line and "named" in line for line in lines)


def test_the_file_holds_the_visible_rows() -> None:
    cases = field.cases_file(measured("field_cases"))
    ours = {one.name: one.measured for one in read_cases(CASES)}
    assert {case.name: case.measured for case in cases.cases} == ours
    for one in field.ready(cases, Path(), "cases.csv"):
        assert kind_of(one.job) in ("host", "pcie", "nvlink", "tcp", "rdma", "other")


def test_one_node_calibrates_larger_scales() -> None:
    """A run on one node is met after calibration; four nodes take longer."""
    given = {"hidden": 512, "layers": 2, "heads": 8, "kv_heads": 8, "ffn": 1024, "vocab": 1000,
             "seq_len": 128, "devices_per_node": 8, "tp": 1, "micro_batch": 2, "microbatches": 2,
             "recompute": "none"}  # fmt: skip
    node = internevo.Row(id="node", devices=8, shard_group=8, iteration_s=0.5, **given)
    alone_s = internevo.alone_s(node)
    assert predict(internevo.job(node, alone_s)).iteration_s == pytest.approx(0.5, rel=1e-3)
    far = internevo.Row(id="far", devices=32, shard_group=32, iteration_s=0.6, **given)
    assert predict(internevo.job(far, alone_s)).iteration_s > 0.5


def test_devices_that_divide_layers_take_their_share_of_the_step() -> None:
    """Two devices with twice the sequences compute about as long as one with all layers: wide ones,
    so that norms and launches do not count; and sum besides."""
    given = {"hidden": 8192, "layers": 2, "heads": 64, "kv_heads": 64, "ffn": 28672, "vocab": 1000,
             "seq_len": 4096, "devices_per_node": 8, "devices": 8, "microbatches": 2,
             "recompute": "none", "iteration_s": 0.5, "shard_group": 4}  # fmt: skip
    plain = internevo.Row(id="plain", tp=1, micro_batch=2, **given)
    divided = internevo.Row(id="divided", tp=2, micro_batch=4, **given)
    assert divided.work == plain.work
    alone_s = internevo.alone_s(plain)
    job = internevo.job(divided, alone_s)
    assert (job.devices, job.workers) == (8, 4)
    assert 0.48 < predict(job).iteration_s < 0.6
