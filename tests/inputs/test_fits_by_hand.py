"""Times at other batch sizes and on other devices: every number by hand, on made data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, Profile, Source
from perfmodel.inputs.batch_scaling import (
    FITTED_ERROR,
    INTERPOLATION_ERROR,
    at_batch_size,
    batch_error,
    launching,
    together,
)
from perfmodel.inputs.device import Device, PeakRates
from perfmodel.inputs.profile import Gradients, Layer, Tensor, Timing
from perfmodel.inputs.workload import Workload
from perfmodel.times.device_transfer import (
    COMMON_ERROR,
    KIND_ERROR,
    SPEED_ERROR,
    estimate,
    transferred,
)

MEASURED = Source("measured", "a test")


def fitted(sizes: Sequence[int], seconds: Sequence[float], batch_size: int) -> float:
    times = at_batch_size(sizes, [[s] for s in seconds], batch_size, tensors=0)
    return float(times[0])


# -- several batch sizes ---------------------------------------------------------------------------


def test_least_squares_are_of_relative_errors() -> None:
    """Steps of 1, 2 and 2 s at batch sizes 1, 2 and 4 weigh 1, 1/4 and 1/4, the squares of 1 over
    their times. With means 5/3 of the sizes and 4/3 of the times,

        c = (4 (-2/3)(-1/3) + (1/3)(2/3) + (7/3)(2/3)) / (4 (2/3)^2 + (1/3)^2 + (7/3)^2) = 4/11

    and a = 4/3 - 5/3 c = 8/11. At 8 that is 40/11, at 4 it is 24/11, where 2 s were measured."""
    assert fitted((1, 2, 4), (1.0, 2.0, 2.0), 8) == pytest.approx(2.0 * 40.0 / 24.0)


def test_a_layer_is_weighed_by_its_whole_step() -> None:
    """The layer above beside another, so that all steps take 4 s and weigh the same: with means 7/3
    and 5/3, c = (4/3 x 2/3 - 1/3 x 1/3 + 5/3 x 1/3) / ((4/3)^2 + (1/3)^2 + (5/3)^2) = 2/7 and
    a = 1. At 8 that is 23/7, at 4 it is 15/7."""
    found = at_batch_size((1, 2, 4), [[1.0, 3.0], [2.0, 2.0], [2.0, 2.0]], 8, tensors=0)
    assert found[0] == pytest.approx(2.0 * 23.0 / 15.0)


def test_a_negative_fixed_part_is_a_fit_through_zero() -> None:
    """1 s at 1 and 3 s at 2: a would be -1. Through zero both ends grow in proportion."""
    assert fitted((1, 2), (1.0, 3.0), 4) == pytest.approx(6.0)
    assert fitted((2, 4), (1.0, 3.0), 1) == pytest.approx(0.5)


def test_a_negative_slope_is_a_constant() -> None:
    assert fitted((1, 2), (3.0, 1.0), 64) == pytest.approx(1.0)
    assert fitted((2, 4), (3.0, 1.0), 1) == pytest.approx(3.0)


def test_times_between_two_sizes_are_interpolated() -> None:
    """Of 4, 8 and 16, a size of 10 is a quarter of the way from the second to the third."""
    assert fitted((4, 8, 16), (1.0, 2.0, 6.0), 10) == pytest.approx(2.0 + 0.25 * 4.0)
    assert fitted((4, 8, 16), (1.0, 2.0, 6.0), 5) == pytest.approx(1.25)


def test_the_curve_is_scaled_to_the_nearest_size() -> None:
    """0.5 + 0.25 b, fitted to noisy steps: relative to either end, it is exact in shape."""
    rng = np.random.default_rng(1)
    sizes = [2**k for k in range(2, 9)]
    below, above = [], []
    for _ in range(400):
        steps = [(0.5 + 0.25 * b) * math.exp(0.05 * rng.normal()) for b in sizes]
        below.append(fitted(sizes, steps, 1) / steps[0] * (0.5 + 0.25 * 4))
        above.append(fitted(sizes, steps, 1024) / steps[-1] * (0.5 + 0.25 * 256))
    assert np.mean(below) == pytest.approx(0.75, rel=0.02)
    assert np.mean(above) == pytest.approx(256.5, rel=0.01)
    # steps of 1.5 to 64 s with equal relative errors: the shape at small sizes is not drowned
    assert np.std(below) < 0.05


# -- one batch size --------------------------------------------------------------------------------


def test_one_size_has_a_fixed_part_by_tensor() -> None:
    """40 tensors of 0.5 ms are 20 of 100 ms: twice the batch takes 20 + 160, a quarter 20 + 20."""
    for batch_size, expected in ((16, 0.180), (2, 0.040)):
        found = at_batch_size([8], [[0.1]], batch_size, tensors=40, launch_s=0.5e-3)
        assert float(found[0]) == pytest.approx(expected)
    assert launching(40, 0.1, 0.5e-3) == pytest.approx(0.2)
    assert launching(1000, 0.1, 0.5e-3) == 0.7
    assert launching(40, 0.0, 0.5e-3) == 0.0


def test_the_fixed_part_leaves_what_the_samples_take_at_least() -> None:
    """Of 100 ms, 8 samples take 90 or more: 10 are fixed instead of 20, and 16 take 10 + 180."""
    found = at_batch_size([8], [[0.1]], 16, tensors=40, launch_s=0.5e-3, least_s=0.09)
    assert float(found[0]) == pytest.approx(0.190)
    assert launching(40, 0.1, 0.5e-3, 0.05) == pytest.approx(0.2)  # 50 ms are left
    assert launching(40, 0.1, 0.5e-3, 0.12) == 0.0  # faster than the roofline, as Winograd is


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [(12, INTERPOLATION_ERROR), (32, 0), (33, 1), (64, 1), (65, 2), (128, 2), (129, 3), (4, 0)],
)
def test_the_ratio_to_the_nearest_size_gives_the_error(
    batch_size: int, expected: float | int
) -> None:
    """Sizes 8 and 16: up to 2, 4 and 8 times the larger, and 2 times less than the smaller."""
    error = FITTED_ERROR[expected][1] if isinstance(expected, int) else expected
    assert batch_error([8, 16], batch_size) == error


def test_independent_errors_add_as_squares_of_logarithms() -> None:
    """Factors exp(0.3) and exp(0.4) make exp(0.5)."""
    found = together(math.expm1(0.3), None, math.expm1(0.4))
    assert found == pytest.approx(math.expm1(0.5))


# -- other devices ---------------------------------------------------------------------------------


def device(name: str, flop: float, memory: float) -> Device:
    return Device(
        name=name,
        title=name,
        kind="gpu",
        peak_flop_per_s=PeakRates(float32=flop),
        memory_bandwidth_bytes_per_s=memory,
        source=MEASURED,
    )


DEVICES = {
    one.name: one
    for one in (device("old", 1e12, 1e11), device("new", 4e12, 9e11), device("near", 2e12, 4e11))
}


def steps(device: str, *rates: float) -> list[Timing]:
    """Timings at batch sizes 8, 16, ... of so many samples per second."""
    return [Timing(device, 8 * 2**k, MEASURED, samples_per_s=rate) for k, rate in enumerate(rates)]


def whole(name: str, *timings: Timing) -> Profile:
    """A model without operation counts."""
    return Profile(name=name, source=MEASURED, gradients=Gradients(1e6, 4), timings=timings)


def on_new(model: Profile, *others: Profile) -> Workload:
    return estimate(model, "new", "float32", 32, devices=DEVICES, others=others)


TIMED = Timing("old", 32, MEASURED, forward_s=1.0, backward_s=2.0, optimizer_s=0.9)


def test_speeds_are_averaged_as_ratios() -> None:
    """10 and 90 samples/s, at two batch sizes of another model on the old device, are 30 as a
    geometric mean. 120 on the new one make a model four times as fast."""
    other = whole("other", *steps("old", 10.0, 90.0), *steps("new", 120.0))
    found = on_new(whole("net", TIMED), other)
    assert (found.forward_s, found.backward_s) == pytest.approx((0.25, 0.5))
    assert found.optimizer_s == pytest.approx(0.1)  # by bandwidth alone
    assert found.error_fraction == round(COMMON_ERROR, 2)


def test_the_median_of_other_models_counts() -> None:
    """Three that are 2, 4 and 16 times as fast on the new device."""
    others = [
        whole(f"other {k}", *steps("old", 10.0), *steps("new", 10.0 * times))
        for k, times in enumerate((16.0, 2.0, 4.0))
    ]
    assert on_new(whole("net", TIMED), *others).forward_s == pytest.approx(0.25)


def test_without_other_models_the_root_of_rate_and_bandwidth_counts() -> None:
    """4 times the peak rate and 9 times the bandwidth: 6 times as fast."""
    found = on_new(whole("net", TIMED))
    assert (found.forward_s, found.backward_s) == pytest.approx((1.0 / 6.0, 2.0 / 6.0))
    assert found.error_fraction == round(SPEED_ERROR, 2)


def test_two_devices_give_the_mean_of_their_estimates() -> None:
    """From the old one 3 s / 6; from the near one, half the rate and 4/9 of the bandwidth, 0.9 s
    times the root of 2/9."""
    near = Timing("near", 32, MEASURED, step_s=0.9)
    old = Timing("old", 32, MEASURED, step_s=3.0)
    found = on_new(whole("net", old, near))
    assert found.compute_s == pytest.approx((3.0 / 6.0 + 0.9 * math.sqrt(2.0 / 9.0)) / 2.0)


def test_the_nearest_devices_in_rate_and_bandwidth_are_used() -> None:
    """Factors of 3 x 1 and 1 x 3.5 are nearer than 2 x 2, either way up."""
    places = {"new": DEVICES["new"]}
    for name, rate, bandwidth in (("both", 2.0, 2.0), ("rate", 1 / 3, 1.0), ("memory", 1.0, 3.5)):
        places[name] = device(name, rate * 4e12, bandwidth * 9e11)
    times = [Timing(name, 32, MEASURED, step_s=1.0) for name in ("both", "rate", "memory")]
    found = estimate(whole("net", *times), "new", "float32", 32, devices=places, others=())
    assert "from rate (batch 32), memory (batch 32)" in str(found.assumptions[0])


LAYERS = (Layer("only", "linear", (Tensor("w", 4.0),), 1e9, 0.0),)
"""1 GFLOP per sample forward, and hardly any bytes."""


def counted(name: str, *timings: Timing) -> Profile:
    return Profile(name=name, source=MEASURED, layers=LAYERS, timings=timings)


def test_efficiencies_are_averaged_as_ratios() -> None:
    """32 samples are 3 x 32 GFLOP, 24 ms at the new device's peak. Another model reaches a tenth
    and nine tenths of it at two batch sizes, so 0.3 as a geometric mean."""
    other = counted(
        "other",
        Timing("new", 8, MEASURED, step_s=3 * 8e9 / 4e12 / 0.1),
        Timing("new", 16, MEASURED, step_s=3 * 16e9 / 4e12 / 0.9),
    )
    assert on_new(counted("net"), other).compute_s == pytest.approx(0.024 / 0.3)


def test_the_efficiency_on_one_device_holds_on_another() -> None:
    """60 % forward and 30 % backward of the old device's peak, with as much work per group."""
    there = Timing(
        "old",
        32,
        MEASURED,
        forward_s=(32e9 / 1e12 / 0.6,),
        backward_s=(32e9 / 1e12 / 0.3,),  # of the first layer only the weights' gradient
    )
    found = on_new(counted("net", there))
    assert found.forward_s == pytest.approx(32e9 / 4e12 / 0.6)
    assert found.backward_s == pytest.approx(32e9 / 4e12 / 0.3)
    assert found.error_fraction == round(KIND_ERROR, 2)


def test_layers_of_a_group_share_an_efficiency() -> None:
    """Two layers of 1 and 3 s at the roofline take 10 s: 40 %. There 2 and 1 s take 5 and 2.5; a
    layer without operations keeps its share, 3/4 of 1 s as the others' rooflines shrink."""
    found = transferred(["a", "a", "b"], [8.0, 2.0, 1.0], [1.0, 3.0, 0.0], [2.0, 1.0, 0.0])
    assert found.tolist() == pytest.approx([5.0, 2.5, 0.75])


def test_a_card_within_a_power_limit_keeps_a_part_of_its_peak_rates() -> None:
    """Half of the new device's rate, 2 TFLOP/s; all of its bandwidth."""
    held = msgspec.structs.replace(DEVICES["new"], name="held", sustained=0.5)
    pass_s = (32e9 / 1e12 / 0.6,)
    there = Timing("old", 32, MEASURED, forward_s=pass_s, backward_s=pass_s, optimizer_s=0.9)
    places = DEVICES | {"held": held}
    found = estimate(counted("net", there), "held", "float32", 32, devices=places, others=())
    assert held.peak("mixed") == 2e12
    assert found.forward_s == pytest.approx(32e9 / 2e12 / 0.6)
    assert found.optimizer_s == pytest.approx(0.1)
    with pytest.raises(InputError, match=r"sustained.*1\.5"):
        msgspec.structs.replace(DEVICES["new"], sustained=1.5)


def test_more_samples_do_not_beat_the_roofline_of_a_single_measured_size() -> None:
    """8 samples at 80 % of the old device's peak: at most a fifth of the step is fixed, although
    launches of 400 tensors would be 120 ms of 30. So 32 take 0.2 + 0.8 x 4 times as long."""
    layers = (Layer("only", "linear", (Tensor("w", 4.0),) * 400, 1e9, 0.0),)
    there = Timing("old", 8, MEASURED, step_s=3 * 8e9 / 1e12 / 0.8)
    model = msgspec.structs.replace(counted("net", there), layers=layers)
    found = on_new(model)
    assert found.compute_s == pytest.approx(3 * 8e9 / 4e12 / 0.8 * 3.4, rel=1e-3)
