"""The least that a first stage allocates is never more than what it allocates, and close to it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import perfmodel as pm
from perfmodel.catalogue import catalogue
from perfmodel.predicting import memory_bounds
from perfmodel.predicting.memory import first_memory_on, least_needed_bytes, overhead
from perfmodel.sweeping.layouts import Combinations, combinations

AXES: dict[str, Any] = {"tensor": (1, 2, 8), "pipeline": (1, 2, 4), "micro_batch_size": (1, 2)}
AXES |= {"recompute": ("none", "selective", "full"), "global_batch_size": (64, 256)}
AXES |= {"arch": ("ring", "zero1", "zero2", "zero3", "ps")}


def made(**more: Any) -> pm.Job:
    given: dict[str, Any] = {"model": "llama-8b", "device": "h100", "cluster": "dgx-h100"}
    shape = {"arch": "ring", "devices": 64, "tensor": 2, "pipeline": 2, "micro_batches": 8}
    return pm.make_job(**given | shape | {"batch_size": 8} | more)


def parts_of(choices: Combinations, seed: int = 0) -> list[float]:
    """The least memory of a sample of layouts over what their first stage allocates."""
    found, least, parts = choices.bounded(), choices.least_allocated(), []
    device = catalogue.device("h100")
    for k in np.random.default_rng(seed).choice(len(found), 60, replace=False):
        try:
            memory = first_memory_on(device, found.made(k))
        except pm.InputError:  # no such schedule
            continue
        parts.append(float(least[found.number[k]] / memory.worker.allocated_bytes))
    return parts


SPACES: list[dict[str, Any]] = [
    {"schedule": ("1f1b", "gpipe", "zb_h1", "zb_h2")},
    {"schedule": ("interleaved_1f1b", "interleaved_zb", "looped_bfs"), "virtual_stages": (2, 4)},
    {"context": (1, 4), "virtual_stages": (1, 2)},
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
@pytest.mark.parametrize("more", SPACES)
def test_no_first_stage_allocates_less(more: dict[str, Any], framework: str) -> None:
    axes = AXES | more
    if "virtual_stages" in more:
        axes |= {"pipeline": (2, 4)}
    parts = parts_of(combinations(made(framework=framework), **axes))
    assert len(parts) > 40
    assert max(parts) <= 1.0
    assert np.median(parts) > 0.6


def test_no_first_stage_with_experts_allocates_less() -> None:
    axes = {**AXES, "tensor": (1, 2), "pipeline": (1, 2), "expert": (1, 4)}
    parts = parts_of(combinations(made(model="mixtral-8x7b", devices=16), **axes))
    assert max(parts) <= 1.0
    assert np.median(parts) > 0.5


def test_a_planted_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_bounds, "PART", 1.2)
    assert max(parts_of(combinations(made(), **AXES))) > 1.0


def test_micro_batches_in_flight_by_hand() -> None:
    """Two stages of two layers with gradients of 8 bytes and activations of 100 each, which arrive
    in a buffer per micro-batch: with 6 micro-batches, 1F1B begins 2 and GPipe 6 before the first
    backward pass, and 100 bytes each come back from the second stage. Weights and gradients are
    kept by each worker, and nothing else: 2 x 16 bytes."""
    layer = {"tensor_bytes": (8.0,), "activation_bytes": 100.0, "output_bytes": 100.0}
    layers = [pm.WorkloadLayer(name=f"l{k}", forward_s=1.0, backward_s=2.0, **layer)
              for k in range(4)]  # fmt: skip
    job = pm.make_job(workload=pm.Workload.of("made", layers), devices=4, pipeline=2, arch="ring",
                      transfers="torch", cluster="infiniband-100g")  # fmt: skip
    choices = combinations(job, pipeline=(2,), micro_batches=(6,), schedule=("1f1b", "gpipe"))
    found, least = choices.bounded(), choices.least_allocated()
    assert found.micro_batches.tolist() == [6, 6]
    by_hand = {"1f1b": 2 * 200.0 + 6 * 100.0 + 32.0, "gpipe": 6 * 200.0 + 6 * 100.0 + 32.0}
    for k, number in enumerate(found.number.tolist()):
        expected = memory_bounds.PART * by_hand[found.schedule[k]]
        assert least[number] == pytest.approx(expected, rel=1e-12)


def test_what_a_process_needs_by_hand() -> None:
    """With a probability of a half, the median of reserved over allocated memory, and a context."""
    more, job, device = overhead(), made(), catalogue.device("h100")
    expected = 1e10 * more.reserved_over_allocated[1] + more.context_bytes
    assert least_needed_bytes(device, job, 1e10, 0.5) == pytest.approx(expected, rel=1e-12)
    host = msgspec.structs.replace(device, kind="cpu")
    assert least_needed_bytes(host, job, 1e10, 0.5) == 1e10
