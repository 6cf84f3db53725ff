"""Figures of operators are recovered from made times, and written as part of a device file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel import InputError, Source
from perfmodel.calibration.operators import block_of, fit_operators
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli
from perfmodel.inputs.operators import Operators
from perfmodel.theory.attention import AttentionRates, attention_s
from perfmodel.theory.products import ProductRates, product_s

TRUE = ProductRates(2.6e14, 1.4e12, 4e-6, 2e-6, 0.6)
ATTENTION = AttentionRates(
    1.7e14, 1.2e12, 8e-6, 3e-6, 0.4, 0.5, 0.6, 2.0, 128.0, cache_bytes_per_s=9e11, token_s=4e-9
)
SEED = 7


def tables(path: Path, noise: float = 0.03) -> list[Path]:
    """Times of 400 products and 400 sequences on an A100, and on another device."""
    draw = np.random.default_rng(SEED)
    m, n, k = 2 ** draw.uniform(6, 13, (3, 400)).round(1)
    m, n, k = m.round(), n.round(), k.round()
    seconds = product_s(m, n, k, TRUE, 108.0) * np.exp(noise * draw.normal(size=400))
    lines = ["device,dtype,m,n,k,ms", "other,bfloat16,64,64,64,1"]
    for row in zip(m, n, k, seconds, strict=True):
        lines.append("a100,bfloat16,{:.0f},{:.0f},{:.0f},{}".format(*row[:3], row[3] * 1e3))
    products = path / "gemm.csv"
    products.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sizes = draw.choice([1, 2, 4, 8], 400), draw.choice([128, 512, 1000, 4096, 8192], 400)
    heads, head = draw.choice([8, 16, 32], 400), draw.choice([64, 128], 400)
    batch, length, heads, head = (value.astype(float) for value in (*sizes, heads, head))
    seconds = attention_s(batch, length, heads, heads, head, ATTENTION, 108.0)
    lines = ["device,batch_size,sequence_length,heads,kv_heads,head_dim,ms"]
    for b, s, h, d, t in zip(batch, length, heads, head, seconds, strict=True):
        lines.append(f"a100,{b:.0f},{s:.0f},{h:.0f},{h:.0f},{d:.0f},{t * 1e3}")
    sequences = path / "attention.csv"
    sequences.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [products, sequences]


def run(*arguments: str | Path) -> str:
    words = ["calibrate", "operators", *map(str, arguments)]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_the_true_figures_are_recovered(tmp_path: Path) -> None:
    source = Source("measured", "made for a test")
    found = fit_operators(catalogue.device("a100-80"), tables(tmp_path), source, called="a100")
    mixed = found.products["mixed"]
    assert mixed.flop_per_s == pytest.approx(TRUE.flop_per_s, rel=0.03)
    assert mixed.bytes_per_s == pytest.approx(TRUE.bytes_per_s, rel=0.05)
    assert mixed.launch_s == pytest.approx(TRUE.launch_s, rel=0.2)
    assert mixed.rounding == pytest.approx(TRUE.rounding, abs=0.15)
    assert mixed.error_fraction < 0.08
    assert found.attention.queries == 128.0
    assert found.attention.flop_per_s == pytest.approx(ATTENTION.flop_per_s, rel=0.02)
    assert found.attention.softmax == pytest.approx(ATTENTION.softmax, rel=0.1)
    again = msgspec.convert(tomllib.loads(block_of(found))["operators"], Operators)
    assert again == found


@pytest.mark.slow
def test_the_command_prints_a_part_of_a_device_file(tmp_path: Path) -> None:
    options = ("--device", "a100-80", "--called", "a100", "--source", "mine")
    paths, output = tables(tmp_path), tmp_path / "block.toml"
    printed = run(*paths, *options)
    assert tomllib.loads(printed)["operators"]["source"]["text"] == "mine"
    run(*paths, *options, "--output", output)
    assert output.read_text(encoding="utf-8") == printed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("dtype", "type"), "column 'dtype' is missing"),
        (("bfloat16", "int4"), "line 3: unknown dtype 'int4'"),
        (("a100,bfloat16,", "a100,bfloat16,-"), "line 3: m: must be at least 1"),
        (("a100", "b100"), "no table has products in 16 bits"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    paths = tables(tmp_path)
    paths[0].write_text(paths[0].read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        run(*paths, "--device", "a100-80", "--called", "a100")


def test_a_device_without_multiprocessors_and_few_rows_are_named(tmp_path: Path) -> None:
    paths = tables(tmp_path)
    with pytest.raises(InputError, match="cpu-epyc-2core: needs the number of multiprocessors"):
        run(*paths, "--device", "cpu-epyc-2core", "--called", "a100")
    lines = paths[0].read_text(encoding="utf-8").splitlines()
    paths[0].write_text("\n".join(lines[:12]), encoding="utf-8")
    with pytest.raises(InputError, match="10 shapes of mixed; needs 40 or more"):
        run(*paths, "--device", "a100-80", "--called", "a100")
