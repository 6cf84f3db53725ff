"""Sharded language models of llm-foundry, each predicted from other models.

The measurements are not part of the repository; tests that need them are skipped if they are
missing. Tests on synthetic folders always run.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy import fitted, llm_foundry, stacks
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError, predict
from perfmodel.catalogue import catalogue
from perfmodel.times.operator_transfer import stack_of
from tests.measured import predicted_cases

ROW: dict[str, Any] = {
    "model": "1b", "seq_len": 2048, "num_gpus": 8, "gpu": "a100_80gb", "micro_batch": 4,
    "grad_accum": 2, "tokens_per_s": 131072.0, "precision": "amp_bf16", "sharding": "FULL_SHARD",
    "act_ckpt": "False",
}  # fmt: skip


def table(folder: Path, *changes: dict[str, Any]) -> Path:
    """A folder with one row for each change."""
    with (folder / llm_foundry.FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(ROW | change for change in changes)
    return folder


@pytest.mark.slow
def test_published_rows_are_predicted_from_other_models() -> None:
    groups = summarise(predicted_cases(llm_foundry))
    assert groups["llm_foundry/fp8"]["median"] < 0.08
    found = groups["llm_foundry/models"]
    assert found["median"] < 0.08
    assert found["p90"] < 0.20
    assert 0.85 <= found["coverage90"] <= 0.97


def test_a_row_by_hand(tmp_path: Path) -> None:
    """8 devices with 4 sequences of 2048 tokens in a pass, at 131072 tokens/s: half a second. The
    factors are those without the model, and move the time of the passes."""
    (case,) = llm_foundry.cases(table(tmp_path, {}))
    assert case.measured == 0.5
    assert case.group == "llm_foundry/models/a100_80gb"
    job = llm_foundry.job(llm_foundry.Row(**ROW))
    step = stacks.step_of(job, case.measured)
    without = fitted.read("llm_foundry", stacks.StackFit)["models/a100/1b"]
    passes_s = without.products * step.products_s + without.attention * step.attention_s
    assert case.predicted == pytest.approx(passes_s + step.rest_s, rel=0.02)
    assert predict(job).iteration_s != case.predicted


def test_catalogued_factors_are_those_of_all_models() -> None:
    fits = fitted.read("llm_foundry", stacks.StackFit)
    for name, chip in (("a100-80", "a100"), ("h100", "h100")):
        operators = catalogue.device(name).operators
        assert operators is not None
        shipped, fit = operators.stacks["as_found"], fits[f"models/{chip}"]
        assert (shipped.products, shipped.attention) == (fit.products, fit.attention)
        assert shipped.error_fraction > fit.error_fraction
        assert f"fitted to {fit.rows} rows" in shipped.source.text


def test_factors_of_tuned_software_follow_from_the_figures_of_device_files() -> None:
    for name in ("a100-80", "h100", "b200", "gb200", "gb300"):
        device = catalogue.device(name)
        assert device.operators is not None
        shipped, fit = device.operators.stacks["tuned"], stacks.of_figures(device, "tuned")
        assert (shipped.products, shipped.attention) == (fit.products, fit.attention)


def test_published_utilisations_are_near_and_their_losses_not_below() -> None:
    """Figures of one node are within the stated errors; those of large clusters, or with some
    recomputation, take up to half as long again, but none is much faster than predicted."""
    devices = {name: catalogue.device(name) for name in catalogue.device_names()}
    errors = []
    for device in devices.values():
        for figure in device.language_models:
            step, used = stacks.published(device, figure), stack_of(device, figure.stack, devices)
            fit = stacks.StackFit(used.products, used.attention)
            errors.append(stacks.error(step, fit))
            passes_s = fit.products * step.products_s + fit.attention * step.attention_s
            assert passes_s / step.measured_s < 1.05, figure
    assert len(errors) >= 18
    assert float(np.median(errors)) < 0.1
    assert float(np.quantile(errors, 0.75)) < 0.2 + 0.03


def test_factors_are_recovered() -> None:
    """Steps that were made with 1.3 and 2 times their operators."""
    draw = np.random.default_rng(3)
    products, attention, rest = draw.uniform(0.1, 1.0, (3, 40))
    steps = [
        stacks.Step(p, a, r, 1.3 * p + 2.0 * a + r)
        for p, a, r in zip(products, attention, rest, strict=True)
    ]
    for level in stacks.EXPECTED:
        fit = stacks.fit_of(steps, level)
        assert (fit.products, fit.attention) == pytest.approx((1.3, 2.0), rel=0.02)
        assert max(stacks.error(step, fit) for step in steps) < 0.02


def test_jobs_match_their_rows() -> None:
    one = llm_foundry.job(llm_foundry.Row(**ROW))
    w = one.workload
    assert (w.name, w.device, w.precision, w.batch_size) == ("mpt-1b", "a100-80", "mixed", 4)
    assert (w.sequence_length, one.workers, one.cluster.name) == (2048, 8, "dgx-a100")
    rare = llm_foundry.job(llm_foundry.Row(**ROW | {"grad_accum": 4}))
    assert rare.workload.optimizer_s == w.optimizer_s / 2
    short = llm_foundry.job(llm_foundry.Row(**ROW | {"precision": "amp_fp8", "gpu": "h100_80gb"}))
    assert short.workload.precision == "fp8"
    again = llm_foundry.job(llm_foundry.Row(**ROW | {"act_ckpt": "True"}))
    assert again.workload.backward_s > 1.4 * w.backward_s


def test_rows_without_a_job_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = [
        {}, {"precision": "fp4"}, {"gpu": "b300"}, {"model": "8b"}, {"sharding": "HYBRID"},
    ]  # fmt: skip
    assert len(llm_foundry.cases(table(tmp_path, *changes))) == 1
    said = capsys.readouterr().err
    for text in ("precision fp4", "b300", "model 8b", "sharding HYBRID"):
        assert text in said


def test_mistakes_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row that there is a job of"):
        llm_foundry.cases(table(tmp_path, {"gpu": "b300"}))
    with pytest.raises(InputError, match=r"line 2: num_gpus: must be at least 1"):
        llm_foundry.cases(table(tmp_path, {"num_gpus": 0}))
