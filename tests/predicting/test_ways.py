"""Vectorised evaluation: the longest paths through the layers equal a walk through them."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Job, Variants, evaluate, make_job, predict
from perfmodel.base import quantities
from perfmodel.catalogue import catalogue
from perfmodel.phases import lines
from perfmodel.phases.layers import Layers, Part, Stage
from tests.jobs import ETHERNET

SIZE = 600

CASES: tuple[Any, ...] = (
    pytest.param("resnet50", "asp", {}, marks=pytest.mark.slow),
    ("vgg16", "asp", {"servers": 3}),
    ("alexnet", "ssp", {}),
    ("alexnet", "bsp", {}),
    ("alexnet", "asp", {"compression": "quantised", "encode_per_byte_s": 1e-10}),
    ("alexnet", "asp", {"duplex": True}),
)


def job(model: str, arch: str, options: dict[str, Any]) -> Job:
    return make_job(
        model=model, device="v100", cluster=ETHERNET, arch=arch, workers=8, options=options
    )


def axes(size: int = SIZE) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        "workers": draw.integers(1, 12, size),
        "bandwidth_bytes_per_s": 10.0 ** draw.uniform(7.5, 11.0, size),
        "batch_size": draw.integers(1, 200, size),
    }


def both(one: Job, monkeypatch: pytest.MonkeyPatch) -> tuple[Variants, Variants]:
    """Phases by the longest paths, and by a walk through the layers."""
    monkeypatch.setattr(quantities, "MANY", 2)
    fast = evaluate(one, **axes())
    monkeypatch.setattr(quantities, "MANY", 10 * SIZE)
    return fast, evaluate(one, **axes())


def off(fast: Variants, slow: Variants) -> float:
    """The largest difference of any phase, relative to the iteration."""
    pairs = [(fast.phases_s[name], slow.phases_s[name]) for name in slow.phases_s]
    return max(float(np.max(np.abs(a - b) / slow.iteration_s)) for a, b in pairs)


@pytest.mark.parametrize(("model", "arch", "options"), CASES)
def test_the_longest_path_equals_the_walk(
    model: str, arch: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert off(*both(job(model, arch, options), monkeypatch)) < 1e-13


def test_canary_a_missing_path_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = job("alexnet", "asp", {})
    good = lines.pull

    def wrong(*given: Any) -> Any:
        ways = good(*given)
        assert ways is not None
        return ways._replace(lines=tuple(each[:-1] for each in ways.lines))

    monkeypatch.setattr(lines, "pull", wrong)
    assert off(*both(one, monkeypatch)) > 1e-3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{}, {"servers": 2}])
def test_layers_cost_little_more_than_the_whole(options: dict[str, Any]) -> None:
    """Measured in the same run. A walk through the layers would cost a hundred times as much."""
    one, size = job("resnet50", "asp", options), 10 * quantities.MANY

    def seconds(sharpness: float | None) -> float:
        draw = np.random.default_rng(0)
        given = draw.integers(1, 9, size), 10.0 ** draw.uniform(8.0, 10.5, size)
        begin = time.process_time()
        evaluate(one, workers=given[0], bandwidth_bytes_per_s=given[1], sharpness=sharpness)
        return time.process_time() - begin

    seconds(None)
    layered, whole = (min(seconds(s) for _ in range(3)) for s in (None, np.inf))
    assert layered < 6.0 * whole


@pytest.mark.parametrize("options", [{}, {"duplex": True}, {"duplex": True, "overlap": False}])
@pytest.mark.parametrize("threads", [1, 3])
def test_many_parts_take_as_long_at_once_as_one_by_one(
    options: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tensors that are divided among 64 servers."""
    one = job("vgg16", "asp", {"servers": 64, **options})
    server = msgspec.structs.replace(one.cluster.server, threads=threads)
    one = msgspec.structs.replace(one, cluster=msgspec.structs.replace(one.cluster, server=server))
    taken = []
    for at_once in (True, False):
        monkeypatch.setattr(Layers, "_has_many_parts", at_once)
        taken.append(predict(one, fidelity="coarse"))
    assert taken[0].phases_s == pytest.approx(taken[1].phases_s, rel=1e-12)


def test_parts_of_two_places_at_once_by_hand() -> None:
    """The backward pass ends after 2 s; place 0 has 4 and 2 bytes, place 1 has 3 of the first
    layer. At 2 s per byte, those of place 0 are sent after 5 and 13 s, and are updated, at 1 s per
    byte, after 7 and 17 s; those of place 1 after 8 and 11 s."""
    parts = (Part(0, 4.0, 1.0), Part(1, 3.0, 1.0)), (Part(0, 2.0, 1.0),)
    layers = Layers(
        (1.0, 1.0), (1.0, 1.0), (7.0, 2.0), parts, (0, 1), 0.0, 0.0, (0.0, 0.0), (0.0, 0.0)
    )
    stages = [Stage(0.0, 1, times=2.0), Stage(0.0, 1.0)]
    computed, ends = layers._at_once(1.0, stages, 0.0, True)
    assert (computed, ends) == (2.0, [13.0, 17.0])
    computed, ends = layers._at_once(1.0, stages, 0.0, False)
    assert (computed, ends) == (2.0, [14.0, 18.0])


def test_by_hand() -> None:
    """Two layers of 1 s and of 4 and 2 bytes: sent at x, then updated at y per byte."""
    parts = (Part(0, 4.0, 1.0),), (Part(0, 2.0, 1.0),)
    layers = Layers(
        (1.0, 1.0), (1.0, 1.0), (4.0, 2.0), parts, (0, 1), 0.0, 0.0, (0.0, 0.0), (0.0, 0.0)
    )
    x, y = np.full(quantities.MANY, 1.0), np.linspace(0.1, 3.0, quantities.MANY)
    stages = [Stage(0.0, 1, times=x), Stage(0.0, 1.0, times=y)]
    computed, sent, updated, last = layers.backward_and_send_s(1.0, stages, latency_s=0.5)
    assert set(computed.tolist()) == {2.0}
    assert set(sent.tolist()) == {7.0}
    assert updated == pytest.approx(np.maximum(7.0, 3.0 + 2.0 * y) + 4.0 * y, rel=1e-15)
    assert last == pytest.approx(updated + 0.5)


def test_too_many_paths_are_not_enumerated() -> None:
    """A third stage, such as pulls during pushes, and layers with too many remaining paths."""
    service = lines.StageService(0.0, 1.0, 0.0)
    backward = lines.Backward((1.0,), (1.0,), (((0, 1.0, 1.0),),), 0.0)
    assert lines.send(backward, (service,) * 2, overlap=True, encoded=False) is not None
    assert lines.send(backward, (service,) * 3, overlap=True, encoded=False) is None


@pytest.mark.parametrize("model", ["bert-base", "vit-b16", "gpt2-small"])
@pytest.mark.slow
def test_layers_of_the_catalogue_have_few_paths(model: str) -> None:
    profile = catalogue.model(model)
    layers = Layers.of(catalogue.workload(profile, device_name="v100", batch_size=32))
    stages = lines.StageService(0.0, 1.0, 0.0), lines.StageService(2e-4, 9e-11, 0.0)
    backward = lines.Backward(layers.backward_s, layers.bytes, layers._loads, layers.last_s)
    found = lines.send(backward, stages, overlap=True, encoded=False)
    assert found is not None
    assert max(map(len, found.lines)) <= lines.MOST_LINES
