"""Many layouts of a model at once equal predictions of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from perfmodel import Job, layouts
from perfmodel.sweeping import layouts as module


def made(**more: Any) -> Job:
    given: dict[str, Any] = {"model": "llama-8b", "device": "h100", "arch": "ring", "devices": 64}
    shape = {"tensor": 2, "pipeline": 2, "micro_batches": 8, "batch_size": 8, "transfers": "ahead"}
    return pm.make_job(**given | shape | more)


def test_every_layout_equals_its_prediction() -> None:
    found = layouts(made(), tensor=(1, 2), pipeline=(2, 4), micro_batches=(1, 3, 6, *range(8, 60)),
                    virtual_stages=(1, 2), schedule=())  # fmt: skip
    assert len(found) > 200
    for k in [*range(0, len(found), 29), len(found) - 1]:
        one = pm.predict(found.job_of(k), fidelity="coarse")
        assert found.step_s[k] == pytest.approx(one.iteration_s, rel=1e-9)
        assert found.samples_per_s[k] == pytest.approx(one.throughput_samples_per_s, rel=1e-9)
        bubble = one.idle_fraction.by_cause.get("pipeline", 0.0)
        assert found.bubble_fraction[k] == pytest.approx(bubble, abs=1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1"])
@pytest.mark.parametrize("transfers", ["ahead", "torch", "blocking"])
def test_steps_grow_evenly_with_micro_batches(schedule: str, transfers: str) -> None:
    job = made(transfers=transfers)
    numbers = (*range(8, 40), 61, 90)
    found = layouts(job, tensor=(2,), pipeline=(4,), micro_batches=numbers, schedule=(schedule,))
    for k in range(0, len(found), 7):
        one = pm.predict(found.job_of(k), fidelity="coarse")
        assert found.step_s[k] == pytest.approx(one.iteration_s, rel=1e-9)


def test_a_bubble_by_hand() -> None:
    """Equal stages without transfers: (p - 1) / (m + p - 1)."""
    layers = [pm.WorkloadLayer(f"layer{k}", 1.0, 2.0, (0.001,)) for k in range(4)]
    job = pm.make_job(workload=pm.Workload.of("made", layers), devices=4, pipeline=4, arch="ring",
                      transfers="ahead", cluster="infiniband-100g")  # fmt: skip
    found = layouts(job, pipeline=(2, 4), micro_batches=(1, 16, 64))
    p, m = found.pipeline, found.micro_batches
    assert found.bubble_fraction == pytest.approx((p - 1) / (m + p - 1), rel=1e-3)
    assert found.samples_per_s.tolist() == sorted(found.samples_per_s, reverse=True)
    assert found.to_frame().shape == (6, 9)


def test_many_numbers_cost_a_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    evaluated = module._Evaluating._evaluated

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return evaluated(*arguments)

    monkeypatch.setattr(module._Evaluating, "_evaluated", counted)
    found = layouts(made(), tensor=(2,), pipeline=(4,), micro_batches=range(1, 100_001))
    assert len(found) == 100_000
    assert count < 20
    assert np.isfinite(found.step_s).all()


def test_what_is_impossible_is_counted_by_reason() -> None:
    found = layouts(made(), tensor=(2, 3, 64), pipeline=(2, 4), micro_batches=(3, 4),
                    virtual_stages=(1, 2))  # fmt: skip
    assert found.skipped["devices do not form whole replicas"] > 0
    assert found.skipped[module.NO_MULTIPLE] > 0
    with pytest.raises(pm.InputError, match="none is possible"):
        layouts(made(), tensor=(7,), pipeline=(2,))
    with pytest.raises(pm.InputError, match="single devices"):
        layouts(pm.make_job(model="resnet18"), pipeline=(2,))
    with pytest.raises(pm.InputError, match="pipeline"):
        layouts(made(), pipeline=(2.5,))  # type: ignore[arg-type]
