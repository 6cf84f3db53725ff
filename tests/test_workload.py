"""Profiles and the workloads they resolve to."""

from __future__ import annotations

import pytest

from perfmodel import InputError, Profile, Source, predict
from perfmodel.profile import Gradients, Layer, Tensor, Timing, timings_on
from perfmodel.workload import expanded, resolve
from tests.jobs import cluster, job

MEASURED = Source("measured", "a test")
PUBLISHED = Source("published", "a table")


def profile(*timings: Timing) -> Profile:
    layers = (
        Layer("a", "conv", (Tensor("a.w", 8.0), Tensor("a.b", 4.0)), forward_flop=100.0),
        Layer("b", "linear", (Tensor("b.w", 40.0),), forward_flop=300.0),
    )
    return Profile(name="net", source=MEASURED, layers=layers, timings=timings)


def per_layer(batch_size: int, scale: float) -> Timing:
    return Timing(
        "cpu",
        batch_size,
        MEASURED,
        forward_s=(1.0 * scale, 2.0 * scale),
        backward_s=(3.0 * scale, 4.0 * scale),
        optimizer_s=0.5,
    )


def test_a_measured_batch_size_is_taken_as_it_is() -> None:
    timings = [per_layer(8, 1.0), per_layer(16, 1.5)]
    w = resolve(profile(*timings), timings, batch_size=16)
    assert (w.forward_s, w.backward_s, w.quality) == (4.5, 10.5, "measured")
    assert [layer.tensor_bytes for layer in w.layers] == [(4.0, 8.0), (40.0,)]
    assert w.assumptions == ()


@pytest.mark.parametrize(("batch_size", "forward_s"), [(12, 3.75), (24, 6.0), (4, 2.25)])
def test_other_batch_sizes_lie_on_the_line_through_the_two_nearest(
    batch_size: int, forward_s: float
) -> None:
    timings = [per_layer(8, 1.0), per_layer(16, 1.5)]
    w = resolve(profile(*timings), timings, batch_size=batch_size)
    assert w.forward_s == pytest.approx(forward_s)
    assert w.quality == "estimated"
    assert w.assumptions[0].source == "linear in the batch size from the profile's 8, 16"


def test_a_single_batch_size_is_scaled_in_proportion() -> None:
    w = resolve(profile(per_layer(8, 1.0)), [per_layer(8, 1.0)], batch_size=2)
    assert w.forward_s == pytest.approx(0.75)
    assert w.quality == "estimated"


def test_a_published_step_is_shared_by_operations_and_never_called_measured() -> None:
    timing = Timing("gpu", 10, PUBLISHED, samples_per_s=5.0)
    w = resolve(profile(timing), [timing])
    assert w.forward_s + w.backward_s == pytest.approx(2.0)
    a, b = w.layers
    assert b.forward_s == pytest.approx(3 * a.forward_s)
    assert a.backward_s == pytest.approx(a.forward_s)  # no gradient for the network's input
    assert b.backward_s == pytest.approx(2 * b.forward_s)
    assert w.quality == "estimated"


def coarse(timing: Timing) -> Profile:
    gradients = Gradients(100.0, 5, 60.0)
    return Profile(name="net", source=MEASURED, gradients=gradients, timings=(timing,))


def test_a_coarse_workload_keeps_its_totals_and_can_be_expanded() -> None:
    p = coarse(Timing("gpu", 8, MEASURED, forward_s=1.0, backward_s=4.0))
    w = resolve(p, timings_on(p, None, None))
    assert (w.layers, w.tensors, w.largest_tensor_bytes, w.quality) == ((), 5, 60.0, "measured")
    fine = expanded(w)
    assert fine.quality == "estimated"
    assert [layer.tensor_bytes for layer in fine.layers] == [(10.0,)] * 4 + [(60.0,)]
    assert sum(layer.forward_s for layer in fine.layers) == pytest.approx(1.0)
    assert sum(layer.backward_s for layer in fine.layers) == pytest.approx(4.0)


def test_a_prediction_from_a_coarse_workload_says_that_it_is_estimated() -> None:
    p = coarse(Timing("gpu", 8, MEASURED, step_s=6.0))
    result = predict(job(resolve(p, p.timings), cluster(1e9), 2, "ring"))
    assert result.quality == "estimated"
    assert "layer shares" in {a.name for a in result.assumptions}
    assert result.iteration_s == pytest.approx(6.0, rel=1e-3)


def test_a_huge_single_tensor_keeps_all_its_time() -> None:
    p = Profile(
        name="net",
        source=MEASURED,
        gradients=Gradients(100.0, 4, 100.0),
        timings=(Timing("gpu", 8, MEASURED, forward_s=1.0, backward_s=2.0),),
    )
    fine = expanded(resolve(p, p.timings))
    assert sum(layer.forward_s for layer in fine.layers) == pytest.approx(1.0)


def test_the_default_device_is_one_with_per_layer_times() -> None:
    published = Timing("gpu", 10, PUBLISHED, samples_per_s=5.0)
    p = profile(published, per_layer(8, 1.0))
    assert [t.device for t in timings_on(p, None, None)] == ["cpu"]
    with pytest.raises(InputError, match="unknown device for net 'gpuu'; did you mean 'gpu'"):
        timings_on(p, "gpuu", None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "a timing needs exactly one of"),
        ({"forward_s": 1.0}, "a timing needs exactly one of"),
        ({"step_s": 1.0, "samples_per_s": 1.0}, "a timing needs exactly one of"),
        ({"step_s": 0.0}, "step_s: must be more than 0, got 0"),
        ({"forward_s": (1.0,), "backward_s": 1.0}, "both per layer"),
        (
            {"forward_s": (float("nan"),), "backward_s": (1.0,)},
            r"forward_s\[0\]: expected a finite",
        ),
    ],
)
def test_timings_that_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Timing("gpu", 8, MEASURED, **fields)


@pytest.mark.parametrize("largest", [101.0, 10.0])
def test_a_largest_tensor_that_cannot_be(largest: float) -> None:
    with pytest.raises(InputError, match="largest_bytes"):
        Gradients(100.0, 5, largest)
