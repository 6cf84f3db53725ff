"""Profiles and the workloads they resolve to."""

from __future__ import annotations

import msgspec
import pytest

from perfmodel import InputError, Profile, Source, predict
from perfmodel.catalogue import catalogue
from perfmodel.inputs.batch_scaling import RECENT_LAUNCH_S
from perfmodel.inputs.profile import Gradients, Layer, NoiseScale, Tensor, Timing, timings_on
from perfmodel.inputs.profile_files import joined
from perfmodel.inputs.workload import expanded, resolve
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


def test_a_measured_batch_size_is_used_unchanged() -> None:
    timings = [per_layer(8, 1.0), per_layer(16, 1.5)]
    w = resolve(profile(*timings), timings, batch_size=16)
    assert (w.forward_s, w.backward_s, w.quality) == (4.5, 10.5, "measured")
    assert [layer.tensor_bytes for layer in w.layers] == [(4.0, 8.0), (40.0,)]
    assert w.assumptions == ()


def test_time_before_the_communicating_pass_is_in_its_first_layer() -> None:
    """Copies, unexplained time, and three of four accumulated passes."""
    timing = msgspec.structs.replace(per_layer(8, 1.0), copy_s=0.25, other_s=0.75, accumulation=4)
    w = catalogue.workload(profile(timing))
    assert [layer.forward_s for layer in w.layers] == [0.25 + 1.0 + 0.75 * 10.0, 0.5]
    assert [layer.backward_s for layer in w.layers] == [0.75, 1.0]
    assert w.compute_s == timing.total_s == 11.5


def test_buffers_are_kept_when_joined_with_a_profile_without_them() -> None:
    plain = profile(per_layer(8, 1.0))
    buffered = msgspec.structs.replace(plain, buffer_bytes=24.0)
    assert resolve(buffered, buffered.timings, batch_size=16).buffer_bytes == 24.0
    assert resolve(plain, plain.timings).buffer_bytes == 0.0
    assert joined(plain, buffered, "file").buffer_bytes == 24.0
    assert joined(buffered, plain, "file").buffer_bytes == 24.0
    with pytest.raises(InputError, match="buffer_bytes: must be at least 0"):
        Profile(
            name="net", source=MEASURED, gradients=Gradients(1.0), timings=(per_layer(8, 1.0),),
            buffer_bytes=-1.0,
        )  # fmt: skip


def test_a_noise_scale_is_kept() -> None:
    noise = NoiseScale(120.0, 8, MEASURED, 8, 20, 9.0)
    measured = msgspec.structs.replace(profile(per_layer(8, 1.0)), noise_scale=noise)
    assert resolve(measured, measured.timings, batch_size=16).noise_scale_samples == 120.0
    assert resolve(profile(per_layer(8, 1.0)), measured.timings).noise_scale_samples is None
    assert str(noise) == "gradient noise scale: 120 ± 9 samples (20 x 8 batches of 8)"


LINEAR = "linear in the batch size from the profile's 8, 16"
FITTED = "a fixed and a proportional part, fitted to the profile's 8, 16"


@pytest.mark.parametrize(
    ("batch_size", "forward_s", "how"),
    [(12, 3.75, LINEAR), (24, 6.0, FITTED), (4, 2.25, FITTED)],
)
def test_other_batch_sizes_are_interpolated_linearly(
    batch_size: int, forward_s: float, how: str
) -> None:
    timings = [per_layer(8, 1.0), per_layer(16, 1.5)]
    w = resolve(profile(*timings), timings, batch_size=batch_size)
    assert w.forward_s == pytest.approx(forward_s)
    assert w.quality == "estimated"
    assert w.assumptions[0].source == how
    assert w.optimizer_s == 0.5


def test_a_single_batch_size_is_scaled_except_for_launch_time() -> None:
    w = resolve(profile(per_layer(8, 1.0)), [per_layer(8, 1.0)], batch_size=2)
    fixed = 3 * RECENT_LAUNCH_S / 10.0  # launches of three tensors, as a fraction of a 10 s step
    assert w.forward_s == pytest.approx(3.0 * (fixed + (1 - fixed) / 4))
    assert w.quality == "estimated"


def test_the_error_of_derived_times_is_among_the_assumptions() -> None:
    timings = [per_layer(8, 1.0), per_layer(16, 1.5)]
    near = resolve(profile(*timings), timings, batch_size=12)
    far = resolve(profile(*timings), timings, batch_size=256)
    assert near.error_fraction is not None
    assert far.error_fraction is not None
    assert 0 < near.error_fraction < far.error_fraction
    for w in (near, far):
        note = next(a for a in w.assumptions if a.name == "compute time error")
        assert (note.value, note.unit) == (w.error_fraction, "")
        assert f"factor of {1 + w.error_fraction:.2f}" in note.source
    result = predict(job(far, cluster(1e9), 2, "ring"))
    assert "compute time error" in {a.name for a in result.assumptions}


def test_measured_and_published_sizes_have_no_derivation_error() -> None:
    timings = [per_layer(8, 1.0), per_layer(16, 1.5)]
    published = Timing("gpu", 10, PUBLISHED, samples_per_s=5.0)
    for w in (resolve(profile(*timings), timings), resolve(profile(published), [published])):
        assert w.error_fraction is None
        assert "compute time error" not in {a.name for a in w.assumptions}


def test_optimizer_and_spread_are_from_the_nearest_size() -> None:
    timings = [
        Timing("cpu", size, MEASURED, forward_s=(1.0, 2.0), backward_s=(3.0, 4.0),
               forward_std_s=(spread, 0.0), backward_std_s=(0.0, 0.0), optimizer_s=spread)
        for size, spread in ((8, 0.1), (16, 0.2), (32, 0.4))
    ]  # fmt: skip
    for batch_size, nearest in ((2, 0.1), (11, 0.1), (12, 0.1), (13, 0.2), (99, 0.4)):
        w = resolve(profile(*timings), timings, batch_size=batch_size)
        assert (w.optimizer_s, w.step_cv) == pytest.approx((nearest, nearest / 10.0))


def test_data_loading_from_a_single_size_is_proportional() -> None:
    timing = Timing("cpu", 8, MEASURED, step_s=1.0, data_loading_s=0.4)
    assert resolve(profile(timing), [timing], batch_size=4).data_loading_s == pytest.approx(0.2)


def test_a_published_step_is_split_by_operations_and_marked_estimated() -> None:
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


def test_a_prediction_from_a_coarse_workload_is_marked_estimated() -> None:
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
        ({"forward_s": (1.0,), "backward_s": 1.0}, "or totals for both"),
        (
            {"forward_s": (float("nan"),), "backward_s": (1.0,)},
            r"forward_s\[0\]: expected a finite",
        ),
    ],
)
def test_impossible_timings_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Timing("gpu", 8, MEASURED, **fields)


@pytest.mark.parametrize("largest", [101.0, 10.0])
def test_an_impossible_largest_tensor_is_refused(largest: float) -> None:
    with pytest.raises(InputError, match="largest_bytes"):
        Gradients(100.0, 5, largest)
