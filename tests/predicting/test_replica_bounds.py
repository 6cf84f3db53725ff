"""The least time of a step is never more than what formulas say, and close to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.predicting import replica_bounds
from perfmodel.predicting.replica_bounds import PART
from perfmodel.predicting.tensor_sums import slowdown_of
from perfmodel.sweeping.layouts import Combinations, combinations

AXES: dict[str, Any] = {"tensor": (1, 2, 8), "pipeline": (1, 2, 4), "virtual_stages": (1, 2)}
AXES |= {"micro_batch_size": (1, 2), "recompute": ("none", "full"), "global_batch_size": (64, 256)}


def made(**more: Any) -> pm.Job:
    given: dict[str, Any] = {"model": "llama-8b", "device": "h100", "cluster": "dgx-h100"}
    shape = {"arch": "ring", "devices": 64, "tensor": 2, "pipeline": 2, "micro_batches": 8}
    return pm.make_job(**given | shape | {"batch_size": 8} | more)


def parts_of(choices: Combinations) -> list[float]:
    """The least time of each layout over that of the formulas."""
    least = choices.bounded()
    found = choices.evaluated()
    known = {_key(found, k): found.step_s[k] for k in range(len(found))}
    several = [k for k in range(len(least)) if _key(least, k) in known]  # some have no schedule
    return [float(least.step_s[k] / known[_key(least, k)]) for k in several]


def _key(of: pm.Layouts, k: int) -> tuple[int, int]:
    return id(of.shapes[of.shape[k]]), int(of.micro_batches[k])


def test_equal_stages_by_hand() -> None:
    """Of p stages that take 3 s each, the last one begins after the others' forward passes, and
    their backward passes follow: 3 m + 3 (p - 1)."""
    layers = [pm.WorkloadLayer(f"layer{k}", 1.0, 2.0, (0.001,)) for k in range(4)]
    job = pm.make_job(workload=pm.Workload.of("made", layers), devices=4, pipeline=4, arch="ring",
                      transfers="ahead", cluster="infiniband-100g")  # fmt: skip
    least = combinations(job, pipeline=(2, 4), micro_batches=(1, 16)).bounded()
    layers_each, m, p = 4 / least.pipeline, least.micro_batches, least.pipeline
    by_hand = 3.0 * layers_each * (m + p - 1)
    assert least.step_s == pytest.approx(PART * slowdown_of(job) * by_hand, rel=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "more",
    [
        {"arch": ("ring", "zero3", "ps")},
        {"schedule": ("gpipe", "zb_h1")},
        {"context": (1, 4)},
    ],
)
def test_no_layout_is_faster(more: dict[str, Any]) -> None:
    parts = parts_of(combinations(made(), **AXES | more))
    assert len(parts) > 100
    assert max(parts) <= 1.0
    assert np.median(parts) > 0.7


@pytest.mark.slow
def test_no_layout_of_packed_sequences_is_faster() -> None:
    """Micro-batches that differ only add waits to the mean."""
    job = made(devices=16, sequence_length=32768, document_length=2000, document_spread=2.0)
    axes = {"tensor": (1, 2), "pipeline": (1, 4), "context": (1, 4), "global_batch_size": (32,)}
    parts = parts_of(combinations(job, **axes, arch=("ring",)))
    assert len(parts) == 7
    assert 0.9 < max(parts) <= 1.0


@pytest.mark.slow
def test_no_layout_with_experts_is_faster() -> None:
    job = made(model="mixtral-8x7b", devices=16)
    axes = {**AXES, "tensor": (1, 2), "expert": (1, 2, 8), "global_batch_size": (32,)}
    parts = parts_of(combinations(job, **axes, arch=("ring", "zero3")))
    assert len(parts) > 50
    assert max(parts) <= 1.0


def test_nothing_is_known_of_workers_at_their_own_pace() -> None:
    least = combinations(made(arch="ad_psgd"), micro_batches=(4,), pipeline=(2,)).bounded()
    assert least.step_s.tolist() == [0.0]


def test_a_planted_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_bounds, "PART", 1.3)
    assert max(parts_of(combinations(made(), **AXES))) > 1.0
