"""Measured layers of experts: loads of devices, times by hand, and figures that are recovered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel import InputError, Source
from perfmodel.calibration import fused_experts
from perfmodel.calibration.operators import fit_grouped, fit_operators
from perfmodel.catalogue import catalogue
from perfmodel.theory.grouped import GroupedRates, RowGroups, grouped_s
from perfmodel.theory.memory_bound import ACHIEVED
from tests.calibration.test_operators import tables

TRUE = GroupedRates(flop_per_s=1.5e14, bytes_per_s=1.2e12, launch_s=2e-5, tile_s=2e-6)
HEADER = "device,dtype,tokens,hidden,inner,topk,experts,moe_tp_size,moe_ep_size,distribution,ms"


def columns(*rows: tuple[float, ...]) -> dict[str, np.ndarray]:
    names = (*fused_experts.COLUMNS, "skew")
    return dict(zip(names, np.array(rows, np.float64).T, strict=True))


def test_balanced_loads_by_hand() -> None:
    """1024 tokens pass 8 of 128 experts, of which a device has 16 and a quarter of each."""
    layers = fused_experts.layers_of(columns((1024, 2048, 768, 8, 128, 4, 8, 0.0)))
    assert layers.rows.tolist() == [1024]
    assert layers.groups.tolist() == [16]
    assert layers.elsewhere.tolist() == [7 * 1024]
    assert (layers.inner.tolist(), layers.up.tolist()) == ([192], [384])
    assert layers.even.tolist() == [1]
    assert layers.wide.tolist() == [True]


def test_a_power_law_loads_the_busiest_device_more() -> None:
    shape = (4096, 2048, 768, 8, 128, 1, 8)
    layers = fused_experts.layers_of(columns((*shape, 0.0), (*shape, 1.01), (*shape, 1.2)))
    balanced, low, high = layers.rows
    assert balanced == 4096
    assert 1.3 * balanced < low < high < 8 * balanced
    alone = fused_experts.layers_of(columns((4096, 2048, 768, 8, 128, 1, 1, 1.2)))
    assert alone.rows[0] == pytest.approx(8 * 4096, rel=0.01)


def test_a_layer_by_hand() -> None:
    """Both products, and 3 values inside, one of the stream per pair, and one per token; pairs of
    other devices are written twice and read once."""
    layers = fused_experts.layers_of(columns((1024, 2048, 768, 2, 8, 1, 2, 0.0)))
    seconds = fused_experts.fused_s(layers, TRUE, 0.5, 1e12, 100.0)
    groups = RowGroups(1024.0, 4.0, 1.0)
    products = grouped_s(groups, 1536.0, 2048.0, TRUE, 100.0)
    products += grouped_s(groups, 2048.0, 768.0, TRUE, 100.0)
    moved = 2 * (1024 * (3 * 768 + 2048) + 1024 * 2048)
    others = 2 * 1024 * (5 * 768 + 2 * 2048)
    assert seconds[0] == pytest.approx(products + (moved + 0.5 * others) / ACHIEVED / 1e12)


def made() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """200 layers, and their true times on an A100."""
    draw = np.random.default_rng(3)
    rows = [
        (2 ** draw.integers(8, 15), draw.choice([2048, 4096, 7168]), draw.choice([768, 2048]),
         draw.choice([2, 8]), draw.choice([8, 64, 256]), 1, draw.choice([1, 2, 8]),
         draw.choice([0.0, 1.2]))
        for _ in range(200)
    ]  # fmt: skip
    table = columns(*rows)
    device = catalogue.device("a100-80")
    bandwidth = device.memory_bandwidth_bytes_per_s
    seconds = fused_experts.fused_s(fused_experts.layers_of(table), TRUE, 0.3, bandwidth, 108.0)
    return table, seconds * np.exp(0.02 * draw.normal(size=200))


def test_the_true_figures_are_recovered() -> None:
    table, seconds = made()
    found = fit_grouped(catalogue.device("a100-80"), "mixed", {**table, "seconds": seconds})
    assert found.flop_per_s == pytest.approx(TRUE.flop_per_s, rel=0.05)
    assert found.bytes_per_s == pytest.approx(TRUE.bytes_per_s, rel=0.1)
    assert found.launch_s == pytest.approx(TRUE.launch_s, rel=0.3)
    assert found.elsewhere == pytest.approx(0.3, rel=0.3)
    assert found.error_fraction < 0.06


@pytest.mark.slow
def test_tables_of_experts_are_read_beside_others(tmp_path: Path) -> None:
    table, seconds = made()
    lines = [HEADER]
    for k, time_s in enumerate(seconds):
        sizes = ",".join(f"{table[name][k]:.0f}" for name in fused_experts.COLUMNS)
        law = f"power_law_{table['skew'][k]}" if table["skew"][k] else "balanced"
        lines.append(f"a100,bfloat16,{sizes},{law},{1e3 * time_s}")
    path = tmp_path / "moe.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    source = Source("measured", "made for a test")
    device = catalogue.device("a100-80")
    found = fit_operators(device, [*tables(tmp_path), path], source, called="a100")
    assert found.grouped["mixed"].flop_per_s == pytest.approx(TRUE.flop_per_s, rel=0.05)


def test_another_distribution_is_named() -> None:
    assert fused_experts.skew_of("power_law_1.01") == 1.01
    with pytest.raises(InputError, match="expected balanced or power_law_ and an exponent"):
        fused_experts.skew_of("zipf")
