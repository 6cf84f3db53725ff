"""Layouts of one job side by side: what they need, what they reach, and which fit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import InputError, LayoutComparison, compare_layouts, make_job, predict
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli
from perfmodel.predicting.memory import memory_on

SMALL: dict[str, Any] = {
    "model": "gpt3-2.7b",
    "device": "a100",
    "cluster": "dgx-a100",
    "devices": 8,
}
AXES: dict[str, Any] = {"tensor": (1, 2), "pipeline": (1, 2, 4), "virtual_stages": 1}
AXES |= {"micro_batch_size": 1, "recompute": "none", "global_batch_size": 32}


@pytest.fixture(scope="module")
def found() -> LayoutComparison:
    return compare_layouts(**SMALL, **AXES, arch=["ring", "zero1"])


@pytest.mark.slow
def test_each_layout_is_that_of_a_prediction(found: LayoutComparison) -> None:
    """Rates, bubbles and memory equal those of the job that a user makes of the layout."""
    assert len(found.layouts) == found.evaluated == 2 * 2 * 3
    names = ("workers", "arch", "micro_batches", "recompute")
    device = catalogue.device("a100")
    for layout in found.layouts[::3]:
        given: dict[str, Any] = {name: getattr(layout, name) for name in names}
        shape = {"tensor": layout.tensor, "pipeline": layout.pipeline, "schedule": layout.schedule}
        job = make_job(**{k: v for k, v in SMALL.items() if k != "devices"}, **given,
                       **shape if layout.tensor * layout.pipeline > 1 else {},
                       batch_size=layout.micro_batches * layout.micro_batch_size)  # fmt: skip
        assert job.devices == 8
        then = predict(job, fidelity="coarse")
        rate = pytest.approx(then.throughput_samples_per_s, rel=1e-9)
        assert layout.throughput_samples_per_s == rate
        bubble = then.idle_fraction.by_cause.get("pipeline", 0.0)
        assert layout.bubble_fraction == pytest.approx(bubble, abs=1e-9)
        memory = memory_on(device, job)
        assert layout.needed_bytes == pytest.approx(memory.needed_bytes(0.9), rel=1e-9)
        assert layout.fits is memory.is_enough(0.9)


def test_shares_add_up_by_hand(found: LayoutComparison) -> None:
    """Four stages and 16 micro-batches: the bubble is about 3 of 19 passes; beside it and what is
    exposed there is computation only."""
    (one,) = [o for o in found.layouts if (o.arch, o.tensor, o.pipeline) == ("ring", 1, 4)]
    assert one.micro_batches == 16  # 32 samples, two replicas
    assert 3 / 19 < one.bubble_fraction < 1.6 * 3 / 19  # the head makes the last stage slower
    assert 0.0 < one.exposed_fraction < 0.1
    alone = next(o for o in found.layouts if (o.tensor, o.pipeline, o.arch) == (1, 1, "ring"))
    assert alone.bubble_fraction == 0.0


def test_those_that_fit_come_first_each_part_the_fastest_first(found: LayoutComparison) -> None:
    keys = [(not layout.fits, -layout.throughput_samples_per_s) for layout in found.layouts]
    assert keys == sorted(keys)
    assert {layout.fits for layout in found.layouts} == {True, False}
    assert found.rows()[0]["of_best_fraction"] == 1.0


def best_trades(found: LayoutComparison) -> set[tuple[float, float]]:
    """Rate and memory of layouts that fit, of which no other is better in one and as good in the
    other."""
    points = {(o.throughput_samples_per_s, o.needed_bytes) for o in found.layouts if o.fits}
    return {
        point
        for point in points
        if not any(p[0] >= point[0] and p[1] <= point[1] and p != point for p in points)
    }


def test_the_front_is_what_nothing_dominates(found: LayoutComparison) -> None:
    front = [(o.throughput_samples_per_s, o.needed_bytes) for o in found.layouts if o.pareto]
    assert set(front) == best_trades(found)
    assert len(front) == len(set(front)) >= 2


def test_a_front_of_all_that_fit_is_noticed(found: LayoutComparison) -> None:
    """The check above fails for a front that takes everything."""
    every = {(o.throughput_samples_per_s, o.needed_bytes) for o in found.layouts if o.fits}
    assert every != best_trades(found)


def test_the_map_has_every_layout_once_and_those_that_do_not_fit_apart(
    found: LayoutComparison,
) -> None:
    panel = found.figure().rows[0][0]
    points = {mark.name: mark for mark in panel.marks}
    outside = points.pop("does not fit")
    assert all(layout.fits is False for layout in found.layouts if layout.label in outside.labels)  # type: ignore[union-attr]
    shown = [label for name in ("ring", "zero1") for label in points[name].labels]  # type: ignore[union-attr]
    assert sorted([*shown, *outside.labels]) == sorted(layout.label for layout in found.layouts)  # type: ignore[union-attr]
    assert points["memory of a device"].low == found.device_bytes  # type: ignore[union-attr]


@pytest.mark.slow
def test_long_lists_keep_the_fastest_that_fit() -> None:
    given: dict[str, Any] = {**SMALL, **AXES, "micro_batch_size": (1, 2, 4)}
    every = compare_layouts(**given, arch=["ring", "zero1"])
    few = compare_layouts(**given, arch=["ring", "zero1"], most=3)
    fitting = [one for one in every.layouts if one.fits]
    best = {}
    for one in fitting:
        best.setdefault((one.tensor, one.pipeline, one.arch), one)
    assert [one.label for one in few.layouts if one.fits] == [o.label for o in best.values()][:3]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"batch_size": 4}, "batch_size: follows from"),
        ({"options": {"stage": 1}}, "options: layouts"),
        ({"devices": (8, 16)}, "devices: one number"),
        ({"confidence": 1.5}, "confidence"),
        ({"model": "resnet50"}, "language model"),
    ],
)
def test_mistakes_are_named(more: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        compare_layouts(**{**SMALL, **more})


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, ["compare", "--layouts", *words])
    return result.stdout + str(result.exception or "")


COMMAND = ("--model", "gpt3-2.7b", "--device", "a100", "--cluster", "dgx-a100", "--devices", "8",
           "--tensor", "1,2", "--pipeline", "1,2", "--virtual-stages", "1", "--recompute", "none",
           "--micro-batch-size", "1", "--global-batch-size", "32", "--arch", "zero1")  # fmt: skip


def test_the_command_ranks_layouts() -> None:
    answer = json.loads(run(*COMMAND, "--json"))
    assert answer["schema"] == "perfmodel.layouts/1"
    assert {row["tensor"] for row in answer["layouts"]} == {1, 2}
    text = run(*COMMAND)
    assert "of best" in text
    assert answer["layouts"][0]["arch"] == "zero1"


def test_the_command_refuses_what_it_does_not_do() -> None:
    assert "--fidelity: layouts" in run(*COMMAND, "--fidelity", "fine")
    assert "micro_batches: follows from" in run(*COMMAND, "--micro-batches", "4")
    result = CliRunner().invoke(cli, ["compare", "--micro-batch-size", "2"])
    assert "--micro-batch-size: needs --layouts" in str(result.exception)
