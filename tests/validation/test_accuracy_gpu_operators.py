"""Measured products, attention and experts, which are not part of the repository: tests skip
without them. Tests on a synthetic folder always run."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from benchmarks.accuracy import gpu_operators
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from perfmodel.calibration import fused_experts
from perfmodel.calibration.kernel_choices import fit_choice
from perfmodel.calibration.operators import LEFT_OUT, SEQUENCES
from perfmodel.catalogue import catalogue
from perfmodel.theory.attention import attention_s
from perfmodel.theory.products import product_s
from perfmodel.times.operator_transfer import attention_rates, grouped_rates, product_rates
from tests.measured import DATA, measured, predicted_cases

pytestmark = pytest.mark.slow  # what they compare with is rarely at hand

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
    found = summarise(predicted_cases(gpu_operators, gpu_operators.PRODUCTS))
    for device, median, p90 in (
        ("a100", 0.05, 0.13),
        ("h100", 0.05, 0.12),
        ("b200", 0.05, 0.13),
        ("l40s", 0.08, 0.19),
        ("rtx-pro-6000", 0.04, 0.09),
    ):
        group = found[f"gpu_operators/{device}-gemm"]
        assert group["median"] < median
        assert group["p90"] < p90
        assert found[f"gpu_operators/{device}-attention"]["median"] < 0.06
        assert found[f"gpu_operators/{device}-attention"]["p90"] < 0.15
        assert found[f"gpu_operators/{device}-attention-narrow"]["p90"] < 0.4


def test_products_of_weights_that_were_left_out() -> None:
    """The choice of kernels is fitted anew without a quarter of the pairs of n and k, whatever the
    rows m; the other figures were fitted to 1 200 of all shapes."""
    measured("gpu_operators", gpu_operators.PRODUCTS)
    known = {name: catalogue.device(name) for name in catalogue.device_names()}
    every = pd.read_csv(DATA / "gpu_operators" / gpu_operators.PRODUCTS)
    for name, median, p90 in (
        ("a100_sxm", 0.05, 0.15),
        ("h100_sxm", 0.05, 0.15),
        ("b200_sxm", 0.05, 0.15),
        ("l40s", 0.08, 0.19),
        ("rtx_pro_6000_server", 0.05, 0.15),
    ):
        rows = every[(every["device"] == name) & (every["dtype"] == "bfloat16")]
        device = gpu_operators.device_of(name, known)
        assert device is not None
        multiprocessors = float(device.multiprocessors or 0)
        shapes = rows[["m", "n", "k"]].to_numpy(np.float64).T
        seconds, wide = rows["ms"].to_numpy() * 1e-3, shapes.min(axis=0) >= 512.0
        pairs = rows["n"].astype(str) + "x" + rows["k"].astype(str)
        drawn = np.random.default_rng(11).random(pairs.nunique()) < LEFT_OUT
        held = pairs.isin(np.sort(pairs.unique())[drawn]).to_numpy()
        rates = product_rates(device, "mixed", known)._replace(kernel_choice=())
        given = (rates, multiprocessors, wide[~held])
        choice = fit_choice(shapes[:, ~held], seconds[~held], *given)
        rates = rates._replace(kernel_choice=choice)
        some = held & wide
        errors = np.abs(product_s(*shapes[:, some], rates, multiprocessors) / seconds[some] - 1.0)
        assert np.median(errors) < median, name
        assert np.quantile(errors, 0.9) < p90, name


def test_attention_of_shapes_and_devices_that_were_left_out() -> None:
    """Shapes as the fit leaves them out; devices without figures of their own have those of others.
    The shapes with which it was fitted have the same errors."""
    measured("gpu_operators", gpu_operators.ATTENTION)
    known = {name: catalogue.device(name) for name in catalogue.device_names()}
    shapes = pd.read_csv(DATA / "gpu_operators" / gpu_operators.ATTENTION)
    transferred: list[float] = []
    for name, rows in shapes.groupby("device", sort=False):
        device = gpu_operators.device_of(str(name), known)
        assert device is not None
        values = [rows[column].to_numpy(np.float64) for column in SEQUENCES]
        seconds, wide = rows["ms"].to_numpy() * 1e-3, values[1] >= 512.0
        left_out = np.random.default_rng(0).random(len(rows)) < LEFT_OUT
        others = {one: other for one, other in known.items() if one != device.name}
        bare = msgspec.structs.replace(device, operators=None)
        own, foreign = (
            np.abs(attention_s(*values, rates, float(device.multiprocessors or 0)) / seconds - 1.0)
            for rates in (attention_rates(device, known), attention_rates(bare, others))
        )
        for some in (left_out & wide, ~left_out & wide):
            assert np.median(own[some]) < 0.06, name
            assert np.quantile(own[some], 0.9) < 0.15, name
        transferred += foreign[wide].tolist()
    assert np.median(transferred) < 0.12
    assert np.quantile(transferred, 0.9) < 0.30


def test_measured_layers_of_experts_are_predicted() -> None:
    measured(gpu_operators.ABOUT.folder, gpu_operators.EXPERTS)
    found = summarise(predicted_cases(gpu_operators, gpu_operators.PRODUCTS))
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
