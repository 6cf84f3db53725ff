"""Measured products, attention and experts, which are not part of the repository: tests skip
without them. Tests on a synthetic folder always run."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import gpu_operators
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from perfmodel.calibration import fused_experts
from perfmodel.catalogue import catalogue
from perfmodel.theory.products import product_s
from perfmodel.times.operator_transfer import grouped_rates, product_rates
from tests.measured import DATA, measured

GEMM = "device,dtype,m,n,k,ms\n{}"
ATTENTION = "device,batch_size,sequence_length,heads,kv_heads,head_dim,ms\n{}"


def folder(path: Path, gemm: str, attention: str) -> Path:
    for name, text in (
        (gpu_operators.PRODUCTS, GEMM.format(gemm)),
        (gpu_operators.ATTENTION, ATTENTION.format(attention)),
    ):
        (path / name).write_bytes(gzip.compress(text.encode()))
    return path


def test_every_shape_of_known_devices_is_a_case(tmp_path: Path) -> None:
    gemm = "h100_sxm,bfloat16,512,512,512,0.01\nh100_sxm,fp8,32,512,512,0.01\nv9,fp8,1,1,1,1\n"
    found = gpu_operators.cases(folder(tmp_path, gemm, "h200_sxm,1,256,8,8,128,0.02\n"))
    assert [case.group for case in found] == [
        "gpu_operators/h100-gemm",
        "gpu_operators/h100-gemm-fp8-narrow",
        "gpu_operators/h200-attention-narrow",
    ]
    known = {name: catalogue.device(name) for name in catalogue.device_names()}
    expected = product_s(512, 512, 512, product_rates(known["h100"], "mixed", known), 132.0)
    assert found[0].predicted == pytest.approx(expected)
    assert found[0].measured == pytest.approx(1e-5)


def test_layers_of_experts_are_cases(tmp_path: Path) -> None:
    path = folder(
        tmp_path, "h100_sxm,bfloat16,512,512,512,0.01\n", "h100_sxm,1,1024,8,8,128,0.02\n"
    )
    rows = "h100_sxm,bfloat16,4096,2048,768,8,128,1,8,balanced,0.3\n"
    rows += "h200_sxm,fp8,128,2048,768,8,128,1,8,power_law_1.2,0.1\n"
    names = f"device,dtype,{','.join(fused_experts.COLUMNS)},distribution,ms\n"
    (path / gpu_operators.EXPERTS).write_bytes(gzip.compress((names + rows).encode()))
    *_, wide, narrow = gpu_operators.cases(path)
    assert wide.group == "gpu_operators/h100-moe"
    assert narrow.group == "gpu_operators/h200-moe-fp8-narrow"
    known = {name: catalogue.device(name) for name in catalogue.device_names()}
    sizes = {"tokens": 4096, "hidden": 2048, "inner": 768, "topk": 8, "experts": 128,
             "moe_tp_size": 1, "moe_ep_size": 8, "skew": 0}  # fmt: skip
    layers = fused_experts.layers_of({k: np.array([float(v)]) for k, v in sizes.items()})
    rates, elsewhere, _ = grouped_rates(known["h100"], "mixed", known)
    (expected,) = fused_experts.fused_s(layers, rates, elsewhere, 3350e9, 132.0)
    assert wide.predicted == pytest.approx(expected)
    assert wide.measured == pytest.approx(3e-4)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gemm.csv.gz: no such file"):
        gpu_operators.cases(tmp_path)


def test_measured_operators_are_predicted() -> None:
    measured("gpu_operators", gpu_operators.PRODUCTS)
    found = summarise(gpu_operators.cases(DATA / "gpu_operators"))
    for device, median, p90 in (
        ("a100", 0.06, 0.17),
        ("h100", 0.06, 0.15),
        ("b200", 0.06, 0.15),
        ("l40s", 0.09, 0.2),
        ("rtx-pro-6000", 0.04, 0.11),
    ):
        group = found[f"gpu_operators/{device}-gemm"]
        assert group["median"] < median
        assert group["p90"] < p90
        assert found[f"gpu_operators/{device}-attention"]["median"] < 0.09


def test_measured_layers_of_experts_are_predicted() -> None:
    measured("gpu_operators", gpu_operators.EXPERTS)
    found = summarise(gpu_operators.cases(DATA / "gpu_operators"))
    for device, median, p90 in (
        ("a100", 0.2, 0.45),
        ("h100", 0.07, 0.22),
        ("b200", 0.14, 0.34),
        ("l40s", 0.08, 0.27),
        ("rtx-pro-6000", 0.11, 0.29),
    ):
        group = found[f"gpu_operators/{device}-moe"]
        assert group["median"] < median
        assert group["p90"] < p90
