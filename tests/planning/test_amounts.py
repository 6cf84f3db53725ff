"""Plans to a loss and with batches that need more samples, by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import InputError, PlanLimits, plan
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli
from perfmodel.theory.scaling_laws import LAWS

OWN: dict[str, Any] = {"model": "llama-7b", "device": "h100", "cluster": "dgx-h100"}
OWN |= {"devices": [8], "objective": "time", "sequence_length": 2048, "fidelity": "coarse"}
OWN |= {"tensor": [2], "pipeline": [1], "micro_batch_size": [1], "recompute": ["full"]}
ONE: dict[str, Any] = {"model": "resnet50", "instance": ["p3.16xlarge"], "arch": ["ring"]}
ONE |= {"batch_size": [64], "fidelity": "coarse", "objective": "time"}
LAW = """
schema = "perfmodel.scaling-law/1"
irreducible_loss = 1.0
parameters_factor = 0.0
parameters_exponent = 1.0
tokens_factor = 1e5
tokens_exponent = 0.5
source = "by hand"
"""


@pytest.mark.slow
def test_a_plan_to_a_loss_is_one_to_its_tokens() -> None:
    decoder = catalogue.model("llama-7b").decoder
    assert decoder is not None
    parameters = decoder.parameters(4096)
    assert parameters == pytest.approx(6.74e9, rel=0.001)
    made = plan(**OWN, loss=2.1)
    # 1.8172 + 482.01 / 6.738e9^0.3478 = 1.8172 + 482.01 / 2620.4 = 2.00114
    assert made.target is not None
    assert made.target.lowest_loss == pytest.approx(2.00114, abs=2e-5)
    assert made.target.tokens == pytest.approx((2085.43 / 0.09886) ** (1 / 0.3658), rel=3e-3)
    assert made.samples == math.ceil(made.target.tokens / 2048)
    same = plan(**OWN, tokens=made.target.tokens)
    assert same.first.time_s == made.first.time_s
    assert same.target is None
    # 0.01 less: the slope of the curve
    less = LAWS["chinchilla"].tokens(parameters, 2.0999) / made.target.tokens - 1.0
    assert made.target.percent_per_hundredth == pytest.approx(less * 1e4, rel=0.01)


def test_a_law_of_a_file(tmp_path: Path) -> None:
    """1 + 10^5 / sqrt(D) = 1.5 at 4 x 10^10 tokens."""
    path = tmp_path / "law.toml"
    path.write_text(LAW, encoding="utf-8")
    made = plan(**OWN, loss=1.5, scaling_law=str(path))
    assert made.target is not None
    assert made.target.tokens == pytest.approx(4e10)
    assert made.target.source == "by hand"


def test_a_law_of_dense_models_refuses_experts(tmp_path: Path) -> None:
    given = {**OWN, "model": "mixtral-8x7b", "tensor": [8]}
    with pytest.raises(InputError, match="'chinchilla' is of dense models"):
        plan(**given, loss=2.1)


@pytest.mark.slow
def test_the_command_prints_tokens_and_the_lowest_loss() -> None:
    words = "plan --model llama-7b --device h100 --cluster dgx-h100 --devices 8 --tensor 2"
    words += " --pipeline 1 --micro-batch-size 1 --recompute full --sequence-length 2048"
    words += " --objective time --fidelity coarse --scaling-law chinchilla --loss 2.1"
    text = " ".join(CliRunner().invoke(cli, words.split()).stdout.split())
    assert "by chinchilla; 0.01 less takes about" in text
    assert "the lowest is 2.00" in text
    read = json.loads(CliRunner().invoke(cli, [*words.split(), "--json"]).stdout)
    assert read["target"]["tokens"] == plan(**OWN, loss=2.1).target.tokens  # type: ignore[union-attr]
    low = words.replace("2.1", "1.9").split()
    with pytest.raises(InputError, match=r"loss: 1.9 is out of reach") as raised:
        CliRunner().invoke(cli, low, catch_exceptions=False, standalone_mode=False)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"loss": 2.1, "tokens": 1e9}, "leave out tokens"),
        ({"loss": 2.1, "dataset_size": 5}, "leave out tokens"),
        ({"scaling_law": "chinchilla"}, "needs a loss"),
        ({"loss": 2.1, "scaling_law": "chinchila"}, "did you mean 'chinchilla'"),
        ({"loss": 2.1, "scaling_law": "none.toml"}, "none.toml"),
        ({"loss": 1.0}, "out of reach"),
        ({"loss": 2.001144}, "takes .* tokens with 6.74e.09 parameters"),
        ({"loss": -1.0}, "loss: must be more than 0"),
        ({"noise_scale_samples": 100.0, "tokens": 1e9}, "needs reference_batch_size"),
        ({"reference_batch_size": 100, "tokens": 1e9}, "needs noise_scale_samples"),
        ({"noise_scale_samples": -1.0, "reference_batch_size": 8, "tokens": 1e9}, "at least 0"),
    ],
)
def test_impossible_amounts_say_why(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why) as raised:
        plan(**OWN, **given)
    assert "\n" not in str(raised.value)


def test_a_loss_needs_a_language_model() -> None:
    with pytest.raises(InputError, match="is no language model"):
        plan(**ONE, workers=[8], loss=2.1)


@pytest.mark.slow
def test_the_noise_scale_by_hand() -> None:
    """Noise scale 1000, given for updates of 256: 512 need (1000 + 512) / 1256 times the samples,
    and 256 updates' samples as given."""
    given = {**ONE, "dataset_size": 1281167, "epochs": 90}
    for workers in (4, 8):
        plain = plan(**given, workers=[workers]).first
        noisy = plan(**given, workers=[workers], noise_scale_samples=1000.0,
                     reference_batch_size=256).first  # fmt: skip
        more = (1000.0 + 64 * workers) / 1256.0
        assert noisy.time_s == pytest.approx(plain.time_s * more, rel=1e-9)
        assert noisy.statistical_efficiency == pytest.approx(1.0 / more)
        assert plain.statistical_efficiency is None
    endless = plan(**given, workers=[8], noise_scale_samples=math.inf, reference_batch_size=256)
    assert endless.first.time_s == pytest.approx(plan(**given, workers=[8]).first.time_s)


def test_the_noise_scale_changes_the_choice() -> None:
    """Without it the most workers are fastest; with a small one they waste samples, and cost."""
    given = {**ONE, "dataset_size": 1281167, "epochs": 90, "workers": [8, 64]}
    budget = PlanLimits(budget_usd=1000.0)
    assert plan(**given, limits=budget).first.workers == 64
    small = plan(**given, limits=budget, noise_scale_samples=256.0, reference_batch_size=512)
    assert small.first.workers == 8


@pytest.mark.slow
def test_workers_on_their_own_update_with_their_own_batch() -> None:
    given: dict[str, Any] = {**ONE, "arch": ["asp"], "workers": [8], "servers": [4]}
    given |= {"dataset_size": 1281167, "noise_scale_samples": 1000.0, "reference_batch_size": 64}
    assert plan(**given).first.statistical_efficiency == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_layouts_with_smaller_batches_win_if_noise_is_small() -> None:
    """16 or 1024 sequences: pipelines are busier with many, which a small noise scale wastes."""
    given = {**OWN, "tensor": [2], "pipeline": [4], "global_batch_size": [16, 1024]}
    given |= {"tokens": 1e10, "recompute": ["full"]}
    assert plan(**given).first.global_batch_size == 1024
    noisy = plan(**given, noise_scale_samples=64.0, reference_batch_size=16).first
    assert noisy.global_batch_size == 16
    assert noisy.statistical_efficiency == 1.0
