"""Times moved to other devices by operators: exact where each kind of layer has one efficiency."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from perfmodel import InputError, Source
from perfmodel.catalogue import catalogue
from perfmodel.inputs.device import roofline_s
from perfmodel.inputs.operator_shapes import MemoryBound, Product
from perfmodel.inputs.profile import Layer, Profile, Tensor, Timing
from perfmodel.inputs.software import EAGER, LAUNCH_S
from perfmodel.inputs.workload import Workload
from perfmodel.times import device_transfer
from perfmodel.times.device_transfer import LAUNCHED_ERROR, estimate
from perfmodel.times.operator_times import kernels_of, layers_s, stated

KNOWN = {name: catalogue.device(name) for name in catalogue.device_names()}
MEASURED = Source("measured", "made for a test")

LAYERS = (
    Layer("a", "conv2d", (Tensor("a.w", 1e6),), 2e9, 1e6, operators=(Product(4096, 256, 1024),)),
    Layer(
        "b",
        "batchnorm2d",
        (Tensor("b.w", 1e3),),
        1e6,
        1e6,
        operators=(MemoryBound(3e6, 5e6, kernels=2),),
    ),
    Layer("c", "linear", (Tensor("c.w", 4e6),), 2e9, 1e3, operators=(Product(64, 1024, 4096),)),
)

EFFICIENCIES = {"conv2d": (0.5, 0.4), "batchnorm2d": (0.8, 0.9), "linear": (0.25, 0.3)}
"""Of forward and backward, by the kind of a layer."""


def net(*timings: Timing, name: str = "net", layers: Sequence[Layer] = LAYERS) -> Profile:
    return Profile(name=name, source=MEASURED, layers=tuple(layers), timings=timings)


def truth(device: str, batch_size: int = 32, precision: str = "float32") -> Timing:
    """The times of operators over the efficiencies of their layers."""
    pairs = layers_s(KNOWN[device], LAYERS, batch_size, precision, KNOWN)
    passes = [
        [pair[k] / EFFICIENCIES[layer.kind][k] for layer, pair in zip(LAYERS, pairs, strict=True)]
        for k in (0, 1)
    ]
    return Timing(
        device,
        batch_size,
        MEASURED,
        precision=precision,
        forward_s=tuple(passes[0]),
        backward_s=tuple(passes[1]),
    )


def on(
    device: str,
    profile: Profile,
    others: Sequence[Profile] = (),
    precision: str = "float32",
    batch_size: int = 32,
) -> Workload:
    return estimate(profile, device, precision, batch_size, devices=KNOWN, others=others)


def passes(found: Workload) -> list[float]:
    return [la.forward_s for la in found.layers] + [la.backward_s for la in found.layers]


@pytest.mark.parametrize("precision", ["float32", "mixed"])
@pytest.mark.parametrize(("there", "here"), [("v100", "h100"), ("h100", "l40s")])
def test_an_efficiency_per_kind_of_layer_is_exact(there: str, here: str, precision: str) -> None:
    found = on(here, net(truth(there, precision=precision)), precision=precision)
    right = truth(here, precision=precision)
    assert isinstance(right.forward_s, tuple)
    assert isinstance(right.backward_s, tuple)
    assert passes(found) == pytest.approx([*right.forward_s, *right.backward_s])
    assert found.error_fraction == device_transfer.KIND_OPERATORS_ERROR
    assert "by operators" in str(found.assumptions[0])


def test_models_measured_on_both_devices_correct_the_roofline() -> None:
    """Their speedup says more than operators; the other model has the same layers."""
    mine, other = net(truth("v100")), net(truth("v100"), truth("h100"), name="other")
    found = on("h100", mine, [other])
    total_s = truth("h100").total_s
    assert found.compute_s == pytest.approx(total_s, rel=0.05)
    assert found.error_fraction == device_transfer.COMMON_ERROR
    assert "by the roofline" in str(found.assumptions[0])


def test_without_timings_other_models_say_how_efficient_a_device_is() -> None:
    def other(device: str, efficiency: float) -> Profile:
        least = sum(map(sum, layers_s(KNOWN[device], LAYERS, 8, "float32", KNOWN)))
        timing = Timing(device, 8, MEASURED, step_s=least / efficiency)
        return net(timing, name=f"{device} {efficiency}")

    others = [other("h100", 0.5), other("h100", 0.25), other("h100", 0.4), other("v100", 0.1)]
    found = on("h100", net(), others, batch_size=512)
    pairs = layers_s(KNOWN["h100"], LAYERS, 512, "float32", KNOWN)
    expected = [forward / 0.4 for forward, _ in pairs] + [backward / 0.4 for _, backward in pairs]
    assert passes(found) == pytest.approx(expected)
    assert found.error_fraction == device_transfer.OPERATORS_ERROR
    away = on("h200", net(), others[-1:], batch_size=4096)
    assert away.error_fraction == device_transfer.FOREIGN_OPERATORS_ERROR


def test_a_step_takes_as_long_as_its_launches() -> None:
    least = sum(map(sum, layers_s(KNOWN["h100"], LAYERS, 8, "float32", KNOWN)))
    other = net(Timing("h100", 8, MEASURED, step_s=least), name="other")
    found = on("h100", net(), [other], batch_size=1)
    assert kernels_of(LAYERS) == 3 + 2 * 2 + 3
    assert found.compute_s == pytest.approx(10 * LAUNCH_S[EAGER])
    assert found.error_fraction == LAUNCHED_ERROR
    assert found.assumptions[0].name == "launches of operations"


def test_a_layer_without_operators_takes_the_roofline() -> None:
    layers = (msgspec.structs.replace(LAYERS[0], operators=()), *LAYERS[1:])
    assert stated(LAYERS)
    assert not stated(layers)
    assert not stated(())
    mine = msgspec.structs.replace(net(truth("v100")), layers=layers)
    found = on("h100", mine)
    assert found.error_fraction == device_transfer.KIND_ERROR
    other = net(Timing("h100", 8, MEASURED, step_s=1.0), name="other")
    plain = on("h100", net(layers=layers), [other])
    least = sum(roofline_s(KNOWN["h100"], LAYERS, 8, "float32"))
    expected = sum(roofline_s(KNOWN["h100"], layers, 32, "float32")) / least
    assert plain.compute_s == pytest.approx(expected)


def test_models_without_operators_say_nothing_about_efficiency_by_operators() -> None:
    layers = tuple(msgspec.structs.replace(layer, operators=()) for layer in LAYERS)
    other = net(Timing("h100", 8, MEASURED, step_s=1.0), name="other", layers=layers)
    with pytest.raises(InputError, match="has no timing on 'h100'"):
        on("h100", net(), [other])


def test_all_models_of_the_catalogue_but_language_models_state_their_operators() -> None:
    for name in catalogue.model_names():
        model = catalogue.model(name)
        if model.layers:
            assert stated(model.layers), name


def test_operators_of_the_catalogue_have_the_operations_of_their_layers() -> None:
    """But for operations of norms, and of depthwise convolutions, which have no products."""
    depthwise = ("mobilenet_v2", "efficientnet-b0", "efficientnet-b4")
    for name in catalogue.model_names():
        layers = catalogue.model(name).layers
        flop = sum(layer.forward_flop for layer in layers)
        of_operators = sum(one.flop for layer in layers for one in layer.operators)
        if layers:
            least = 0.88 if name in depthwise else 0.99
            assert least * flop < of_operators <= flop * 1.0001, name


def test_the_nearest_devices_count_whether_or_not_their_times_are_per_layer() -> None:
    """An H200, whose times are per layer, has 16 times the memory bandwidth of an L4, whose 52
    TFLOP/s are near those of an RTX 3090 (71) and of an A10 (125)."""
    resnet = catalogue.model("resnet50")
    assert any(one.device == "h200" and one.per_layer for one in resnet.timings)
    w = catalogue.workload(resnet, device_name="l4", precision="mixed", batch_size=128)
    found = next(note for note in w.assumptions if note.name == "layer times")
    assert str(found.value).startswith("from rtx3090 (batch 448), a10 ")
    assert "h200" not in str(found.value)
