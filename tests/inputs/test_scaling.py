"""Times at unmeasured batch sizes and on unmeasured devices, where the truth is known."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from benchmarks.accuracy import scaling as benchmark
from perfmodel import InputError, Profile, Source
from perfmodel.catalogue import catalogue
from perfmodel.inputs import batch_scaling
from perfmodel.inputs.batch_scaling import at_batch_size, batch_error, together
from perfmodel.inputs.device import Device, PeakRates, roofline_s
from perfmodel.inputs.profile import Gradients, Layer, Tensor, Timing
from perfmodel.inputs.workload import Workload
from perfmodel.times import device_transfer
from perfmodel.times.device_transfer import estimate, group, transferred

MEASURED = Source("measured", "a test")
DATA = Path(
    os.environ.get("PERFMODEL_SCALING", Path(__file__).resolve().parents[3] / "shared" / "data")
)
Law = Callable[[int], Sequence[float]]


# -- batch sizes -----------------------------------------------------------------------------------


def off(law: Law, sizes: Sequence[int], batch_size: int) -> float:
    """Error of the times at a batch size, extrapolated from a law measured at others."""
    found = at_batch_size(sizes, [law(b) for b in sizes], batch_size, tensors=4)
    truth = np.asarray(law(batch_size))
    return float(np.max(np.abs(found - truth) / np.maximum(truth, 1e-12)))


def affine(b: int) -> list[float]:
    return [0.01 + 0.002 * b, 0.05, 0.003 * b, 0.0]


@pytest.mark.parametrize("sizes", [(8, 16), (4, 16, 64), (1, 2, 3, 100)])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 16, 50, 128, 4096])
def test_affine_layers_are_recovered_at_every_size(sizes: tuple[int, ...], batch_size: int) -> None:
    assert off(affine, sizes, batch_size) < 1e-9


def test_canary_a_non_affine_law_is_not_recovered() -> None:
    assert off(lambda b: [0.01 + 0.002 * b**1.5], (4, 16, 64), 256) > 0.1


seconds = st.floats(1e-5, 10.0)


@st.composite
def measured(draw: st.DrawFn) -> tuple[list[int], NDArray[np.float64]]:
    """Batch sizes with arbitrary times, of up to three layers."""
    sizes = sorted(draw(st.sets(st.integers(1, 512), min_size=1, max_size=5)))
    layers = draw(st.integers(1, 3))
    row = st.lists(st.one_of(st.just(0.0), seconds), min_size=layers, max_size=layers)
    return sizes, np.array([draw(row) for _ in sizes])


@given(measured(), st.integers(1, 4096), st.integers(1, 300))
def test_any_measurements_give_plausible_times(
    points: tuple[list[int], NDArray[np.float64]], batch_size: int, tensors: int
) -> None:
    sizes, t = points
    found = at_batch_size(sizes, t, batch_size, tensors=tensors)
    assert np.all(np.isfinite(found))
    assert np.all(found >= 0.0)
    if batch_size in sizes:
        assert np.array_equal(found, t[sizes.index(batch_size)])
    tolerance = 1e-9 * (1.0 + t.max())
    if batch_size > sizes[-1]:  # no faster than at the largest size, no slower than proportional
        assert np.all(found >= t[-1] - tolerance)
        assert np.all(found <= t[-1] * batch_size / sizes[-1] + tolerance * batch_size)
    if batch_size < sizes[0]:
        assert np.all(found <= t[0] + tolerance)
        assert np.all(found >= t[0] * batch_size / sizes[0] - tolerance)


def test_times_are_continuous_at_the_measured_ends() -> None:
    sizes, t = [1000, 2000, 4000], [[1.0, 3.0], [2.5, 2.0], [4.0, 5.0]]
    for end, i in ((999, 0), (4001, -1)):
        assert at_batch_size(sizes, t, end, tensors=1) == pytest.approx(t[i], rel=2e-3)


def test_extrapolation_uses_all_sizes_not_only_the_nearest_two() -> None:
    sizes, t = [8, 16, 32, 64], [[0.9], [1.7], [3.3], [3.2]]  # the last one is an outlier
    assert at_batch_size(sizes, t, 128, tensors=1)[0] > 5.0
    assert at_batch_size(sizes[2:], t[2:], 128, tensors=1)[0] == pytest.approx(3.2)


def test_small_batches_take_more_than_their_proportional_time() -> None:
    for launch_s in (batch_scaling.LAUNCH_S, batch_scaling.RECENT_LAUNCH_S):
        found = at_batch_size([64], [[0.3, 0.1]], 1, tensors=100, launch_s=launch_s)
        fixed = 100 * launch_s
        assert found.sum() == pytest.approx(fixed + (0.4 - fixed) / 64)
        assert found[0] == pytest.approx(3 * found[1])
        short = at_batch_size([64], [[1e-3]], 128, tensors=100, launch_s=launch_s)[0]
        assert short == pytest.approx(1e-3 * (2 - batch_scaling.MOST_LAUNCHING))


def test_a_large_step_on_a_recent_device_is_nearly_proportional_to_its_batch() -> None:
    """A compiled GPT-2 small, 32 samples in 112 ms on a device that the catalogue does not know:
    8 samples take 28 ms if nothing is fixed. Eager language models on an H100 (NeuSight, ASPLOS
    2025: BERT-large, 2 of 8 samples, 74.8 of 236 ms) have 9 % that is fixed: 35 ms."""
    timing = Timing("gpu", 32, MEASURED, step_s=0.112)
    model = Profile(
        name="gpt2", source=MEASURED, gradients=Gradients(500e6, tensors=148), timings=(timing,)
    )
    found = catalogue.workload(model, batch_size=8)
    assert 0.028 <= found.compute_s <= 0.032
    assert found.error_fraction == dict(batch_scaling.RECENT_SINGLE_ERROR)[4.0]
    known = msgspec.structs.replace(
        model, timings=(msgspec.structs.replace(timing, device="h100"),)
    )
    assert catalogue.workload(known, batch_size=8).compute_s == found.compute_s


def test_devices_without_tf32_have_more_time_that_does_not_depend_on_the_batch() -> None:
    recent = {name for name in catalogue.device_names() if _launch_s(name) < 0.1e-3}
    assert {"a100", "h100", "l4", "rtx3090", "b200"} <= recent
    assert not {"k80", "p100", "v100", "t4", "rtx2080ti", "cpu-epyc-2core"} & recent
    for name in ("v100", "h100"):
        timing = Timing(name, 64, MEASURED, step_s=0.4)
        model = Profile(
            name="net", source=MEASURED, gradients=Gradients(4e8, tensors=100), timings=(timing,)
        )
        fixed = 100 * _launch_s(name)
        found = catalogue.workload(model, batch_size=16)
        assert found.compute_s == pytest.approx(fixed + (0.4 - fixed) / 4)
        assert found.error_fraction == batch_error([64], 16, launch_s=_launch_s(name))


def _launch_s(name: str) -> float:
    return catalogue.device(name).launch_s


def test_errors_grow_with_distance_and_shrink_with_more_measurements() -> None:
    assert batch_error([8, 16], 16) is None
    several = [batch_error([8, 16], b) for b in (12, 32, 64, 128, 1024)]
    assert None not in several
    assert several == sorted(several, key=lambda e: e or 0.0)
    for launch_s in (batch_scaling.LAUNCH_S, batch_scaling.RECENT_LAUNCH_S):
        one = [batch_error([16], b, launch_s=launch_s) for b in (32, 64, 128, 1024)]
        assert all(
            s is not None and o is not None and s < o for s, o in zip(several[1:], one, strict=True)
        )
    assert batch_error([8, 16], 4) == batch_error([8, 16], 32)


def test_combined_errors_exceed_each_one_but_not_their_product() -> None:
    both = together(0.5, 0.5)
    assert together(None, None) is None
    assert both is not None
    assert 0.5 < both < 1.5**2 - 1


# -- devices ---------------------------------------------------------------------------------------


def device(name: str, flop: float, memory: float, kind: str = "gpu") -> Device:
    return Device(
        name=name,
        title=name,
        kind=kind,  # type: ignore[arg-type]
        peak_flop_per_s=PeakRates(float32=flop),
        memory_bandwidth_bytes_per_s=memory,
        source=MEASURED,
    )


DEVICES = {
    d.name: d
    for d in (
        device("slow", 1e12, 1e11),
        device("fast", 8e12, 3e11),
        device("host", 2e11, 3e10, "cpu"),
    )
}
LAYERS = (
    Layer("embed", "embedding", (Tensor("e", 4e6),), 0.0, 1e5),
    Layer("conv1", "conv2d", (Tensor("c1", 1e5),), 4e9, 1e6),
    Layer("norm1", "batchnorm2d", (Tensor("n1", 1e3),), 1e6, 1e6),
    Layer("conv2", "conv2d", (Tensor("c2", 1e6),), 8e9, 1e6),
    Layer("head", "linear", (Tensor("h", 4e6),), 2e7, 1e3),
)
FORWARD = {"embedding": 0.2, "convolution": 0.7, "norm": 0.4, "linear": 0.5}
BACKWARD = {"embedding": 0.1, "convolution": 0.6, "norm": 0.5, "linear": 0.3}


def truth(where: str, batch_size: int, layers: Sequence[Layer] = LAYERS) -> Timing:
    """A step from the roofline with an efficiency per layer kind and pass."""
    place = DEVICES[where]
    least = roofline_s(place, layers, batch_size, "float32")
    kinds = [group(layer.kind) for layer in layers]
    products = [1.0] + [2.0] * (len(layers) - 1)
    forward = [s / FORWARD[k] for s, k in zip(least, kinds, strict=True)]
    backward = [p * s / BACKWARD[k] for p, s, k in zip(products, least, kinds, strict=True)]
    return Timing(
        where,
        batch_size,
        MEASURED,
        forward_s=tuple(forward),
        backward_s=tuple(backward),
        optimizer_s=1e9 / place.memory_bandwidth_bytes_per_s,
    )


def net(*timings: Timing, name: str = "net", layers: Sequence[Layer] = LAYERS) -> Profile:
    return Profile(name=name, source=MEASURED, layers=tuple(layers), timings=timings)


def on(
    target: str, profile: Profile, others: Sequence[Profile] = (), batch_size: int = 32
) -> Workload:
    return estimate(profile, target, "float32", batch_size, devices=DEVICES, others=others)


def layer_errors(found: Workload, expected: Timing) -> float:
    """The largest relative error of a layer's pass, or of the optimizer."""
    passes = [la.forward_s for la in found.layers] + [la.backward_s for la in found.layers]
    assert isinstance(expected.forward_s, tuple)
    assert isinstance(expected.backward_s, tuple)
    right = [*expected.forward_s, *expected.backward_s, expected.optimizer_s]
    return max(abs(f / r - 1) for f, r in zip([*passes, found.optimizer_s], right, strict=True))


@pytest.mark.parametrize(("there", "here"), [("slow", "fast"), ("fast", "slow")])
@pytest.mark.parametrize("layers", [LAYERS, LAYERS[1:]], ids=["embedding first", "conv first"])
def test_a_roofline_with_an_efficiency_per_layer_kind_is_exact(
    there: str, here: str, layers: Sequence[Layer]
) -> None:
    profile = net(truth(there, 32, layers), truth(there, 64, layers), layers=layers)
    found = on(here, profile)
    assert layer_errors(found, truth(here, 32, layers)) < 1e-9
    assert (found.device, found.quality, found.source.kind) == (here, "estimated", "estimated")
    assert found.error_fraction == device_transfer.KIND_ERROR


def test_canary_a_slower_layer_of_the_same_kind_is_not_recovered() -> None:
    right = truth("slow", 32)
    assert isinstance(right.forward_s, tuple)
    wrong = (*right.forward_s[:3], 2 * right.forward_s[3], right.forward_s[4])
    planted = msgspec.structs.replace(right, forward_s=wrong)
    assert layer_errors(on("fast", net(planted)), truth("fast", 32)) > 0.1


def test_an_unmeasured_batch_size_adds_to_the_error() -> None:
    profile = net(truth("slow", 32), truth("slow", 64))
    found = on("fast", profile, batch_size=256)
    assert layer_errors(found, truth("fast", 256)) < 0.02  # rooflines bend where memory limits
    assert found.error_fraction is not None
    assert found.error_fraction > device_transfer.KIND_ERROR


def test_other_models_correct_the_ratio_of_device_peaks() -> None:
    def faster(timing: Timing) -> Timing:
        assert isinstance(timing.forward_s, tuple)
        assert isinstance(timing.backward_s, tuple)
        return msgspec.structs.replace(
            timing,
            forward_s=tuple(s / 1.5 for s in timing.forward_s),
            backward_s=tuple(s / 1.5 for s in timing.backward_s),
            optimizer_s=0.0,
        )

    def steady(timing: Timing) -> Timing:
        return msgspec.structs.replace(timing, optimizer_s=0.0)

    other = net(
        steady(truth("slow", 16, LAYERS[1:2])),
        faster(truth("fast", 128, LAYERS[1:2])),
        name="other",
        layers=LAYERS[1:2],
    )
    found = on("fast", net(truth("slow", 32)), [other])
    plain = on("fast", net(truth("slow", 32)))
    assert found.forward_s == pytest.approx(plain.forward_s / 1.5)
    assert found.backward_s == pytest.approx(plain.backward_s / 1.5)
    assert found.error_fraction == device_transfer.COMMON_ERROR


def test_the_most_similar_devices_are_used() -> None:
    def like(device: Device, name: str, rate: float) -> Device:
        peak = msgspec.structs.replace(
            device.peak_flop_per_s, float32=rate * device.peak_flop_per_s.float32
        )
        bandwidth = rate * device.memory_bandwidth_bytes_per_s
        return msgspec.structs.replace(
            device, name=name, peak_flop_per_s=peak, memory_bandwidth_bytes_per_s=bandwidth
        )

    def step(name: str, seconds: float) -> Timing:
        return Timing(name, 32, MEASURED, step_s=seconds)

    fast = DEVICES["fast"]
    rates = {"twin": 1.0, "sibling": 1.25, "cousin": 4.0, "stranger": 20.0}
    devices = DEVICES | {name: like(fast, name, rate) for name, rate in rates.items()}
    timings = [step("stranger", 9.0), step("cousin", 9.0), step("twin", 1.0), step("sibling", 1.2)]
    found = estimate(net(*timings), "fast", "float32", 32, devices=devices, others=())
    assert found.compute_s == pytest.approx((1.0 + 1.2 * 1.25) / 2)
    assert "twin (batch 32), sibling (batch 32)" in str(found.assumptions[0])
    farther = estimate(net(*timings[:2]), "fast", "float32", 32, devices=devices, others=())
    assert farther.compute_s > 10.0 * found.compute_s


def test_another_kind_of_device_uses_its_efficiency_on_other_models() -> None:
    mine = net(truth("host", 32))
    step = sum(roofline_s(DEVICES["fast"], LAYERS, 32, "float32"))

    def other(where: str, efficiency: float) -> Profile:
        least = 3.0 * sum(roofline_s(DEVICES[where], LAYERS, 8, "float32"))
        timing = Timing(where, 8, MEASURED, step_s=least / efficiency)
        return net(timing, name=f"{where} {efficiency}")

    found = on("fast", mine, [other("fast", 0.5), other("slow", 0.1)])
    assert found.compute_s == pytest.approx(3.0 * step / 0.5)
    assert found.error_fraction == device_transfer.TYPICAL_ERROR
    away = on("fast", mine, [other("slow", 0.1), other("host", 0.9)])
    assert away.compute_s == pytest.approx(3.0 * step / 0.1)
    assert away.error_fraction == device_transfer.FOREIGN_ERROR
    assert (
        device_transfer.COMMON_ERROR
        < device_transfer.TYPICAL_ERROR
        <= device_transfer.FOREIGN_ERROR
    )


def test_without_operation_counts_device_speeds_are_used() -> None:
    timing = Timing("slow", 32, MEASURED, forward_s=1.0, backward_s=2.0, optimizer_s=0.3)
    coarse = Profile(name="net", source=MEASURED, gradients=Gradients(1e6, 4), timings=(timing,))
    found = on("fast", coarse)
    ratio = np.sqrt(8.0 * 3.0)
    assert (found.forward_s, found.backward_s) == pytest.approx((1 / ratio, 2 / ratio))
    assert found.optimizer_s == pytest.approx(0.1)
    assert found.error_fraction == device_transfer.SPEED_ERROR
    other = net(
        Timing("slow", 8, MEASURED, samples_per_s=10.0),
        Timing("fast", 16, MEASURED, samples_per_s=40.0),
        name="other",
    )
    assert on("fast", coarse, [other]).forward_s == pytest.approx(0.25)


def test_impossible_estimates_are_refused() -> None:
    timing = Timing("host", 32, MEASURED, step_s=1.0)
    coarse = Profile(name="net", source=MEASURED, gradients=Gradients(1e6), timings=(timing,))
    with pytest.raises(
        InputError, match=r"device: net has no timing on 'fast' \(only on host\); to"
    ):
        on("fast", coarse)
    with pytest.raises(
        InputError, match=r"unknown precision 'quarter'.*known: float32, mixed, tf32"
    ):
        estimate(net(truth("slow", 8)), "fast", "quarter", 8, devices=DEVICES, others=())
    with pytest.raises(InputError, match="batch_size: must be at least 1, got 0"):
        on("fast", net(truth("slow", 8)), batch_size=0)


def test_layers_without_a_roofline_scale_with_the_rest() -> None:
    found = transferred(["other", "linear"], [1.0, 4.0], [0.0, 2.0], [0.0, 1.0])
    assert found.tolist() == [0.5, 2.0]


# -- stated errors --------------------------------------------------------------------------------

BANDS = {
    "other gpu, models on both": device_transfer.COMMON_ERROR,
    "other gpu, no other model": device_transfer.KIND_OPERATORS_ERROR,
    "other gpu, no other model, no operators": device_transfer.KIND_ERROR,
    "other gpu, no operations": device_transfer.SPEED_ERROR,
    "other kind, gpu that others ran on": device_transfer.OPERATORS_ERROR,
    "other kind, gpu that others ran on, no operators": device_transfer.TYPICAL_ERROR,
    "other kind, cpu that others ran on": device_transfer.TYPICAL_ERROR,
    "other kind, gpu that none ran on": device_transfer.FOREIGN_OPERATORS_ERROR,
    "other kind, gpu that none ran on, no operators": device_transfer.FOREIGN_ERROR,
}
"""Error that :mod:`perfmodel.times.device_transfer` states for each group of the benchmark."""


def outside(cases: Sequence[benchmark.Case], bands: dict[str, float]) -> list[str]:
    """Groups with more than one in seven cases outside the stated error (nominal: one in ten)."""
    groups: dict[str, list[benchmark.Case]] = defaultdict(list)
    for case in cases:
        groups[case.group].append(case)
    assert set(groups) >= set(bands)
    return [
        name
        for name, error in bands.items()
        if benchmark.quantile(groups[name], 6 / 7) > error + 0.005
    ]


@pytest.mark.family("many draws")
@pytest.mark.slow
def test_the_stated_errors_of_devices_hold_for_the_catalogue() -> None:
    cases = list(benchmark.devices())
    assert outside(cases, BANDS) == []
    assert outside(cases, dict.fromkeys(BANDS, 0.1)) == list(BANDS)


@pytest.mark.family("many draws")
@pytest.mark.slow
def test_the_stated_errors_of_batch_sizes_hold_for_the_tables() -> None:
    if not (DATA / "neusight" / "measured_latency.csv").is_file():
        pytest.skip("the measured tables are not at hand (set PERFMODEL_SCALING to their folder)")
    series = benchmark.read(DATA)
    bands = {"batch size, between two": batch_scaling.INTERPOLATION_ERROR}
    for name, table in (
        ("beyond several", batch_scaling.FITTED_ERROR),
        ("from one, older", batch_scaling.SINGLE_ERROR),
        ("from one, recent", batch_scaling.RECENT_SINGLE_ERROR[:-1]),  # too few are farther
    ):
        bands |= {f"batch size, {name}, up to x{most:g}": error for most, error in table}
    cases = [
        *benchmark.between(series),
        *benchmark.beyond(series),
        *benchmark.single(series),
    ]
    assert outside(cases, bands) == []
    assert outside(cases, dict.fromkeys(bands, 0.1)) == list(bands)


def made(law: Callable[[int], float]) -> list[benchmark.Series]:
    return [benchmark.Series("a", "made", 10, [(b, law(b)) for b in (1, 2, 4, 8, 16, 32)])]


def test_the_benchmark_finds_no_error_in_an_affine_series() -> None:
    cases = [
        c for find in (benchmark.between, benchmark.beyond) for c in find(made(lambda b: 1 + b))
    ]
    assert {case.group for case in cases} > {"batch size, between two"}
    assert max(case.error for case in cases) < 1e-9


def test_canary_the_benchmark_notices_a_non_affine_series() -> None:
    for find in (benchmark.between, benchmark.beyond):
        assert max(case.error for case in find(made(lambda b: 1 + b**1.5))) > 0.1


def test_quantiles_weight_every_series_equally() -> None:
    many = [benchmark.Case("g", "many", 0.1)] * 99
    few = [benchmark.Case("g", "few", 0.9)]
    assert benchmark.quantile([*many, *few], 0.5) == 0.1
    assert benchmark.quantile([*many, *few], 0.51) == 0.9


def test_the_catalogue_estimates_a_device_that_a_profile_lacks() -> None:
    profile = catalogue.model("resnet18")
    found = catalogue.workload(profile, device_name="p100", batch_size=16)
    assert found.error_fraction == device_transfer.COMMON_ERROR
    note = next(a for a in found.assumptions if a.name == "compute time error")
    assert note.value == device_transfer.COMMON_ERROR
    with pytest.raises(InputError, match="unknown device 'h10'; did you mean h100"):
        catalogue.workload(profile, device_name="h10")
