"""Rows of models with experts, and those of DGX Cloud's recipes, on made rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy import dgxc_benchmarking, expert_rows, layouts
from benchmarks.accuracy.summaries import summarise
from perfmodel.catalogue import catalogue
from perfmodel.inputs.decoder_parts import Experts
from tests.measured import predicted_cases
from tests.validation.test_layouts import ROW, write

EXPERTS: dict[str, Any] = {
    **ROW, "experts": 8, "top_k": 2, "expert_ffn": 128, "ffn": 512, "kv_heads": 2,
}  # fmt: skip


def row(**given: Any) -> layouts.Row:
    return layouts.Row(**{**EXPERTS, **given})


def test_a_model_without_a_name_has_what_the_row_says() -> None:
    found = layouts.decoder_of(row(shared_ffn=64, dense_layers=1))
    assert found.experts == Experts(routed=8, active=2, width=128, shared_width=64, dense_first=1)
    assert (found.gated, found.biases, found.positions) == (True, False, None)
    assert (found.blocks, found.inner, found.kv_heads) == (8, 512, 2)
    assert expert_rows.decoder_fields(layouts.Row(**ROW)) == {}


@pytest.mark.parametrize(
    ("name", "model"), [("deepseekv2", "deepseek-v2"), ("gpt-oss-120b", "gpt-oss-120b")]
)
def test_a_known_model_has_its_attention(name: str, model: str) -> None:
    """The row says everything but the widths of heads, latent vectors and windows."""
    whole = catalogue.model(model).decoder
    assert whole is not None
    assert whole.experts is not None
    found = layouts.decoder_of(
        row(model=name, hidden=whole.hidden, heads=whole.heads, layers=whole.blocks,
            kv_heads=whole.kv_heads, vocab=whole.vocabulary, ffn=whole.feed_forward,
            experts=whole.experts.routed, top_k=whole.experts.active,
            expert_ffn=whole.experts.width, shared_ffn=whole.experts.shared_width,
            dense_layers=whole.experts.dense_first)
    )  # fmt: skip
    assert found.parameters(256) == whole.parameters(256)
    assert (found.latent, found.window) == (whole.latent, whole.window)


def test_devices_divide_experts_whose_loads_are_equal() -> None:
    assert expert_rows.layout_fields(row(ep=4)) == {"expert": 4, "expert_capacity": 1.0}
    assert expert_rows.layout_fields(row(ep=4, etp=2))["expert_tensor"] == 2
    assert expert_rows.layout_fields(row()) == {}
    assert expert_rows.layout_fields(layouts.Row(**ROW)) == {}


def test_8_bits_are_predicted_from_16_of_the_same_layout(tmp_path: Path) -> None:
    """The speed is that of the run in 16 bits on as many devices, which takes four times as long as
    the one on fewer."""
    given = {**ROW, "device": "H100", "framework": "NeMo", "version": "v1"}
    changes: list[dict[str, Any]] = [
        {"id": "few"},
        {"id": "many", "devices": 2, "dp": 2, "iteration_s": 32.0},
        {"id": "short", "devices": 2, "dp": 2, "precision": "fp8", "iteration_s": 20.0},
    ]
    write(tmp_path / "runs.csv", [given | change for change in changes])
    cases = dgxc_benchmarking.cases(tmp_path)
    found = {case.name: case for case in cases if "/anchored-" in case.group}
    assert set(found) == {"many", "short"}
    estimated = {case.name: case for case in cases if "/estimated-" in case.group}
    ratio = estimated["short"].predicted / estimated["many"].predicted
    assert found["short"].predicted == pytest.approx(32.0 * ratio, rel=0.05)
    assert found["many"].predicted == pytest.approx(8.0, rel=0.1)


@pytest.mark.slow
def test_measured_recipes_are_predicted() -> None:
    cases = predicted_cases(dgxc_benchmarking, "runs.csv")
    assert summarise(cases)["dgxc_benchmarking/estimated"]["median"] < 0.15
    anchored = [case for case in cases if "/anchored-" in case.group]
    sixteen = [abs(case.error) for case in anchored if "-bf16-" in case.name]
    eight = [case.error for case in anchored if "-fp8-" in case.name]
    assert len(sixteen) >= 15
    assert np.median(sixteen) < 0.01
    assert max(sixteen) < 0.05
    # small experts gain more from 8 bits than measured, long sequences less
    assert len(eight) >= 35
    assert np.median(np.abs(eight)) < 0.08
    assert abs(np.median(eight)) < 0.06
