"""Steps of recorded networks as PyTorch runs them, against the sum of their parts by hand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from perfmodel import InputError, Job, Source, make_job, predict
from perfmodel.catalogue import catalogue
from perfmodel.inputs.operator_shapes import Attention, MemoryBound, OperatorShape, Product
from perfmodel.inputs.profile import Layer, Profile, Tensor, Timing
from perfmodel.inputs.software import Software
from perfmodel.inputs.storage import Storage
from perfmodel.times import eager_estimate
from perfmodel.times.eager_estimate import ERROR, TENSOR_S
from perfmodel.times.operator_times import layers_s

KNOWN = {name: catalogue.device(name) for name in catalogue.device_names()}
H200 = KNOWN["h200"]
MEASURED = Source("measured", "made for a test")
SIZE = 64
MOVED = MemoryBound(3e8, 5e8)
CONVOLUTION = Product(12544, 64, 576, reuse=9.0, layout="patches")
WIDE = Product(1024, 50258, 768)
FIRST = Layer("first", "embedding")
"""The first layer of a network passes no gradient back, which is not what is tested here."""


def layer(kind: str, *operators: OperatorShape, values: float = 8.0) -> Layer:
    flop = sum(one.flop for one in operators if isinstance(one, Product))
    return Layer("one", kind, (Tensor("one.weight", 4.0 * values),), flop, operators=operators)


def passes(one: Layer, *, autocasts: bool = True) -> tuple[float, float]:
    """Seconds of the device for both passes of a layer after the first."""
    stack = eager_estimate.stack_of(H200, "recent", KNOWN)
    given = [FIRST, one], H200, SIZE, stack, KNOWN
    forward, backward = eager_estimate.passes_s(*given, autocasts=autocasts)[1].tolist()
    return forward, backward


def alone(one: Layer) -> tuple[float, float]:
    """The same of its operators alone."""
    return layers_s(H200, [FIRST, one], SIZE, "mixed", KNOWN)[1]


def times(factor: float, pair: tuple[float, float]) -> tuple[float, float]:
    return factor * pair[0], factor * pair[1]


@pytest.mark.parametrize(
    ("one", "autocast", "plain"),
    [
        (layer("conv2d", CONVOLUTION), 1.80, 1.80),
        (layer("linear", WIDE), 1.02, 1.02),
        (layer("conv1d", WIDE), 1.02, 1.02),  # as GPT-2 calls its linear layers
        (layer("linear", Attention(1024, 12, 12, 64)), 0.93, 0.93),
        (layer("layernorm", MOVED), 2.85, 1.56),
        (layer("conv2d", MOVED), 2.85, 1.56),  # of one channel each
    ],
)
def test_each_kind_of_operator_has_its_factor(one: Layer, autocast: float, plain: float) -> None:
    assert passes(one) == pytest.approx(times(autocast, alone(one)))
    assert passes(one, autocasts=False) == pytest.approx(times(plain, alone(one)))


def test_a_batch_norm_sums_a_channel_in_one_thread_block() -> None:
    """64 samples of 3e8 values in 16 bits at 7.94 GB/s for each of 256 channels."""
    one = layer("batchnorm2d", MOVED, values=256.0)
    forward, backward = times(1.02, alone(one))
    more_s = 64 * 3e8 * 2 / 256 / (1.0 / 0.126e-9)
    assert more_s == pytest.approx(18.9e-3)
    assert passes(one) == pytest.approx((forward + more_s, backward + more_s * 5 / 3))
    fewer = passes(layer("batchnorm2d", MOVED, values=64.0))
    assert fewer[0] == pytest.approx(forward + 4.0 * more_s)


def test_rows_with_an_odd_number_of_values_are_loaded_one_by_one() -> None:
    """GPT-2's vocabulary: 2 x 64 x 1024 x 50257 x 768 operations at 146 TFLOP/s, twice in
    backward."""
    odd = layer("linear", msgspec.structs.replace(WIDE, columns=50257))
    forward, backward = times(1.02, alone(odd))
    more_s = 2.0 * 64 * 1024 * 50257 * 768 * 6.85e-15
    assert more_s == pytest.approx(34.65e-3, rel=1e-3)
    assert passes(odd) == pytest.approx((forward + more_s, backward + 2.0 * more_s))
    of_inputs = layer("linear", Product(1024, 768, 50257))
    forward, backward = times(1.02, alone(of_inputs))
    assert passes(of_inputs) == pytest.approx((forward + more_s, backward + 2.0 * more_s))
    without = layer("linear", Product(1024, 1023, 64, weights=False))
    assert passes(without) == pytest.approx(times(1.02, alone(without)))


def net(*layers: Layer, timings: Sequence[Timing] = (), state: float = 1.0) -> Profile:
    return Profile(
        name="net",
        source=MEASURED,
        layers=layers,
        timings=tuple(timings),
        optimizer_state_bytes_per_parameter_byte=state,
    )


NET = net(layer("conv2d", CONVOLUTION), layer("linear", WIDE, values=1e6), layer("relu", MOVED))


def job_of(profile: Profile, *, stack: str | None = None, batch_size: int = SIZE) -> Job:
    return make_job(
        workload=profile,
        device="h200",
        precision="mixed",
        batch_size=batch_size,
        workers=1,
        arch="ring",
        stack=stack,
    )


def test_a_step_is_the_sum_of_its_layers_and_of_the_update() -> None:
    stack = eager_estimate.stack_of(H200, "recent", KNOWN)
    seconds = eager_estimate.passes_s(NET.layers, H200, SIZE, stack, KNOWN, autocasts=True)
    made = eager_estimate.estimate(NET, H200, KNOWN, "mixed", SIZE)
    assert made is not None
    assert made.forward_s + made.backward_s == pytest.approx(float(seconds.sum()))
    assert made.optimizer_s == pytest.approx(8.0 / 0.85 * NET.parameter_bytes / 4800e9)
    adam = eager_estimate.estimate(net(*NET.layers, state=2.0), H200, KNOWN, "mixed", SIZE)
    assert adam is not None
    assert adam.optimizer_s == pytest.approx(7.0 * 3.52 * NET.parameter_bytes / 4800e9, rel=1e-3)
    assert made.error_fraction == ERROR
    assert predict(job_of(NET)).iteration_s == pytest.approx(made.compute_s)


def test_the_host_takes_its_time_for_each_kernel_and_tensor() -> None:
    """A hundred small layers of one product and one tensor each: 3 x 30 and 73 us."""
    small = net(*[layer("linear", Product(8, 8, 8))] * 100)
    made = eager_estimate.estimate(small, H200, KNOWN, "mixed", 1)
    assert made is not None
    assert TENSOR_S == 73e-6
    assert made.forward_s + made.backward_s == pytest.approx(100 * (3 * 30e-6 + 73e-6))
    assert "100 tensors" in str(made.assumptions[1])
    assert made.slow_host == pytest.approx(3 * 90.0 / (90.0 + 73.0))
    bf16 = Storage(policy="bf16")
    plain = eager_estimate.estimate(small, H200, KNOWN, "mixed", 1, storage=bf16)
    assert plain is not None
    assert plain.forward_s + plain.backward_s == pytest.approx(100 * (3 * 30e-6 + 36.5e-6))


def test_timings_elsewhere_say_more_unless_the_software_is_stated() -> None:
    timing = Timing("a100", SIZE, MEASURED, precision="mixed", step_s=1.0)
    timed = net(*NET.layers, timings=[timing])
    assert eager_estimate.estimate(timed, H200, KNOWN, "mixed", SIZE) is None
    stated = eager_estimate.estimate(timed, H200, KNOWN, "mixed", SIZE, Software("recent"))
    assert stated == eager_estimate.estimate(NET, H200, KNOWN, "mixed", SIZE)


@pytest.mark.parametrize(
    ("device", "precision", "software"),
    [
        ("h200", "tf32", Software()),
        ("a100", "mixed", Software()),  # no step of plain PyTorch was measured there
        ("h200", "mixed", Software("tuned")),
        ("h200", "mixed", Software(launches="compiled")),
    ],
)
def test_nothing_is_estimated_of_what_was_not_measured(
    device: str, precision: str, software: Software
) -> None:
    assert eager_estimate.estimate(NET, KNOWN[device], KNOWN, precision, SIZE, software) is None


def test_other_software_of_a_recorded_network_is_an_error() -> None:
    assert job_of(NET, stack="recent").workload == job_of(NET).workload
    with pytest.raises(InputError, match="times of net are not estimated from operators"):
        job_of(NET, stack="tuned")


def test_a_layer_without_operators_is_left_to_the_roofline() -> None:
    vague = net(*NET.layers, Layer("vague", "linear", forward_flop=1e9))
    assert eager_estimate.estimate(vague, H200, KNOWN, "mixed", SIZE) is None


@pytest.mark.parametrize("model", ["gpt2-medium", "gpt2-large"])
def test_a_decoder_has_the_same_odd_products_with_recent_software(model: str) -> None:
    """Of 8 x 1024 tokens, three passes over the vocabulary."""

    profile = catalogue.model(model)
    assert profile.decoder is not None
    assert profile.decoder.vocabulary == 50257
    padded = msgspec.structs.replace(profile.decoder, vocabulary=50258)

    def step_s(profile: Profile, stack: str) -> float:
        return job_of(profile, stack=stack, batch_size=8).workload.compute_s

    even = msgspec.structs.replace(profile, decoder=padded)
    more_s = 6.0 * 8 * 1024 * 50257 * padded.hidden * 6.85e-15
    assert step_s(profile, "recent") - step_s(even, "recent") == pytest.approx(more_s, rel=0.02)
    assert step_s(profile, "tuned") == pytest.approx(step_s(even, "tuned"), rel=1e-3)
