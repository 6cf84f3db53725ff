"""Times of layers from their operators, by hand on a device with simple figures."""

from __future__ import annotations

import time

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, Source
from perfmodel.catalogue import catalogue
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import layers_of
from perfmodel.inputs.device import Device, PeakRates
from perfmodel.inputs.operator_shapes import (
    Attention,
    Grouped,
    MemoryBound,
    OperatorShape,
    Product,
)
from perfmodel.inputs.operators import (
    AttentionFigures,
    GroupedFigures,
    Operators,
    ProductFigures,
)
from perfmodel.inputs.profile import Layer
from perfmodel.theory.attention import BACKWARD
from perfmodel.theory.memory_bound import ACHIEVED
from perfmodel.times.operator_times import (
    kernels_of,
    layers_s,
    most_kernels_of,
    weight_casts_bytes,
)
from tests.clock import work_s

KNOWN = {name: catalogue.device(name) for name in catalogue.device_names()}

SIMPLE = Device(
    name="simple",
    title="one multiprocessor, whose memory bounds nothing but what is bound by memory",
    peak_flop_per_s=PeakRates(float32=1e12, tf32=2e12, mixed=4e12),
    memory_bandwidth_bytes_per_s=1e12,
    multiprocessors=1,
    operators=Operators(
        products={
            "mixed": ProductFigures(
                flop_per_s=4e12, bytes_per_s=1e18, launch_s=1e-6, tile_s=0.0, rounding=1.0
            )
        },
        attention=AttentionFigures(
            flop_per_s=1e12, bytes_per_s=1e18, launch_s=2e-6, tile_s=0.0, softmax=0.0, tail=0.0
        ),
        source=Source("exact", "made for a test"),
        grouped={
            "mixed": GroupedFigures(flop_per_s=8e12, bytes_per_s=1e18, launch_s=1e-6, tile_s=0.0)
        },
    ),
    source=Source("exact", "made for a test"),
)


def times(
    *operators: OperatorShape, batch_size: int = 1, precision: str = "mixed", first: bool = False
) -> tuple[float, float]:
    """Forward and backward seconds of a layer, by default after one that computes nothing."""
    layer = Layer("it", operators=operators)
    layers = [layer] if first else [Layer("input"), layer]
    return layers_s(SIMPLE, layers, batch_size, precision, {})[-1]


def test_a_product_by_hand() -> None:
    """Tiles of 64 x 64: a batch of two adds rows; each product launches."""
    forward, backward = times(Product(64, 128, 256), batch_size=2)
    alone_s = 2 * (2 * 64) * 128 * 256 / 4e12
    assert forward == pytest.approx(alone_s + 1e-6)
    assert backward == pytest.approx(2 * (alone_s + 1e-6))


def test_the_first_layer_passes_no_gradient_back() -> None:
    forward, backward = times(Product(64, 128, 256), first=True)
    assert backward == pytest.approx(forward)


def test_products_of_activations_share_a_launch() -> None:
    """A batch of two adds products of three heads to those of another sample."""
    forward, backward = times(Product(64, 64, 64, count=3, weights=False), batch_size=2)
    alone_s = 6 * 2 * 64**3 / 4e12
    assert forward == pytest.approx(alone_s + 1e-6)
    assert backward == pytest.approx(2 * (alone_s + 1e-6))


def test_the_dimensions_of_backward_are_in_another_order() -> None:
    """65 rows need two tiles of 64, as rows of the result, but not where they are summed over in
    steps of 64, nor in another order; forward and the gradient of the input have four tiles."""
    forward, backward = times(Product(65, 128, 128))
    tile_s = 2 * 64 * 64 * 128 / 4e12
    assert forward == pytest.approx(4 * tile_s + 1e-6)
    assert backward == pytest.approx(4 * tile_s + 4 * tile_s + 2e-6)


def test_values_that_repeat_move_once() -> None:
    """A 3 x 3 convolution reads a ninth of its rows: bound by memory alone."""
    assert SIMPLE.operators is not None
    slow = msgspec.structs.replace(
        SIMPLE.operators.products["mixed"], flop_per_s=1e23, bytes_per_s=1e9, launch_s=0.0
    )
    operators = msgspec.structs.replace(SIMPLE.operators, products={"mixed": slow})
    device = msgspec.structs.replace(SIMPLE, operators=operators)
    layer = Layer("it", operators=(Product(100, 20, 90, reuse=9.0),))
    forward, backward = layers_s(device, [layer], 1, "mixed", {})[0]
    moved = 2 * (100 * 90 / 9 + 90 * 20 + 100 * 20)
    assert forward == pytest.approx(moved / 1e9)
    assert backward == pytest.approx(moved / 1e9)


def test_products_of_groups_by_hand() -> None:
    """A batch of two adds rows: 512 of two groups, each with half a tile of 16 more. Gradients of
    weights have 2 x 128 rows that fill tiles, and sum over 256."""
    forward, backward = times(Grouped(256, 128, 128, groups=2), batch_size=2)
    alone_s = 2 * (512 + 16) * 128 * 128 / 8e12
    of_weights_s = 2 * 256 * 128 * 256 / 8e12
    assert forward == pytest.approx(alone_s + 1e-6)
    assert backward == pytest.approx(alone_s + of_weights_s + 2e-6)
    assert kernels_of([Layer("it", operators=(Grouped(256, 128, 128, groups=2),))]) == 3
    assert most_kernels_of([Layer("it", operators=(Grouped(256, 128, 128, groups=2),))]) == 6


def with_groups(device: Device, **grouped: GroupedFigures) -> Device:
    """A device with other figures of products of groups."""
    assert device.operators is not None
    figures = {**device.operators.grouped, **grouped}
    return msgspec.structs.replace(
        device, operators=msgspec.structs.replace(device.operators, grouped=figures)
    )


@pytest.mark.parametrize("precision", ["mixed", "fp8"])
def test_large_groups_are_not_slower_than_a_product_for_each(precision: str) -> None:
    """Two groups of 256 rows, where one kernel for all reaches little; in 8 bits there are casts
    besides. Half as large matrices have the kernel."""
    slow = GroupedFigures(flop_per_s=1e11, bytes_per_s=1e18, launch_s=1e-6, tile_s=0.0)
    device = with_groups(in_8_bits(), mixed=slow, fp8=slow)
    shapes = [Grouped(512, columns, 4096, groups=2) for columns in (8192, 4096)]
    layers = [Layer("input"), *(Layer(str(k), operators=(one,)) for k, one in enumerate(shapes))]
    (_, (forward, backward), (small, _)) = layers_s(device, layers, 1, precision, {})
    each_s = 2 * 256 * 8192 * 4096 / (8e12 if precision == "fp8" else 4e12) + 1e-6
    cast_s = [1e-6 + 4 * 512 * values / ACHIEVED / 1e12 for values in (4096, 8192)]
    casts_s = cast_s if precision == "fp8" else [0.0, 0.0]
    assert forward == pytest.approx(2 * each_s + casts_s[0])
    assert backward == pytest.approx(4 * each_s + casts_s[1])
    assert small > 10 * forward


def test_groups_without_rows_take_no_time() -> None:
    """Two rows reach two of 1000 groups at most."""
    assert times(Grouped(2, 128, 128, groups=1000)) == times(Grouped(2, 128, 128, groups=2))


def test_products_of_groups_in_8_bits_by_hand() -> None:
    """Casts of rows of the input, and of gradients of the output, read two bytes and write two.

    The gradient of the input has 64 columns, for which tiles have 64 rows."""
    short = GroupedFigures(flop_per_s=16e12, bytes_per_s=1e18, launch_s=1e-6, tile_s=0.0)
    device = with_groups(in_8_bits(), fp8=short)
    layers = [Layer("input"), Layer("it", operators=(Grouped(256, 128, 64, groups=2),))]
    (_, (forward, backward)) = layers_s(device, layers, 2, "fp8", {})
    alone_s = 2 * (512 + 16) * 128 * 64 / 16e12
    casts_s = [1e-6 + 4 * 512 * values / ACHIEVED / 1e12 for values in (64, 128)]
    assert forward == pytest.approx(alone_s + 1e-6 + casts_s[0])
    passes_s = 2 * (512 + 64) * 128 * 64 / 16e12 + 2 * 2 * 64 * 128 * 256 / 16e12
    assert backward == pytest.approx(passes_s + 2e-6 + casts_s[1])


def test_groups_in_8_bits_are_not_slower_than_in_16() -> None:
    """But for the casts."""
    slow = GroupedFigures(flop_per_s=1e12, bytes_per_s=1e18, launch_s=1e-6, tile_s=0.0)
    device = with_groups(in_8_bits(), fp8=slow)
    shape = Grouped(256, 128, 128, groups=2)
    layers = [Layer("input"), Layer("it", operators=(shape,))]
    (_, (forward, _)) = layers_s(device, layers, 2, "fp8", {})
    cast_s = 1e-6 + 4 * 512 * 128 / ACHIEVED / 1e12
    assert forward == pytest.approx(times(shape, batch_size=2)[0] + cast_s)


def test_attention_of_a_window_by_hand() -> None:
    """Four tiles of 128 queries: a window of 128 tokens reaches into one tile before; three tiles
    have two of keys, the first one. Two sequences of a sample are twice as many."""
    step_s = 4 * 128 * 128 * 128 / 1e12
    longest, tiles = 2 * step_s, 1 + 3 * 2
    forward, _ = times(Attention(512, 1, 1, 128, window=128, count=2))
    spread = 2 * tiles * step_s
    assert forward == pytest.approx((spread**4 + longest**4) ** 0.25 + 2e-6)
    wide = times(Attention(512, 1, 1, 128, window=512))
    assert wide == times(Attention(512, 1, 1, 128))


def test_values_of_another_width_count_half() -> None:
    """Heads of 192 with values of 64 are as heads of 128."""
    found = times(Attention(256, 2, 1, 192, value_width=64))
    assert found == times(Attention(256, 2, 1, 128))


def in_8_bits(architecture: str | None = None) -> Device:
    """The simple device with 8-bit products at twice the rate. Kernels of an inference engine are
    slower; training has others."""
    assert SIMPLE.operators is not None
    slow = msgspec.structs.replace(
        SIMPLE.operators.products["mixed"], flop_per_s=1e12, cast_bytes_per_s=1e9
    )
    products = {**SIMPLE.operators.products, "fp8": slow}
    return msgspec.structs.replace(
        SIMPLE,
        architecture=architecture,
        peak_flop_per_s=PeakRates(
            float32=1e12, tf32=2e12, mixed=4e12, fp8=8e12, mxfp8=8e12, nvfp4=8e12
        ),
        operators=msgspec.structs.replace(SIMPLE.operators, products=products),
    )


@pytest.mark.parametrize(
    ("precision", "architecture", "cast_bytes", "in_norm_bytes"),
    [
        ("fp8", "hopper", 4.0, 2.0),
        ("fp8", "blackwell", 3.0, 0.0),
        ("fp8_current", "hopper", 6.0, 6.0),
        ("fp8_current", "blackwell", 5.0, 5.0),
        ("fp8_block", "hopper", 4.0 + 8 / 128, 4.0 + 8 / 128),
        ("fp8_block", "blackwell", 4.0 + 8 / 128, 4.0 + 8 / 128),
        ("mxfp8", "blackwell", 4.0 + 2 / 32, 0.0),
        ("nvfp4", "blackwell", 4.0 + 2 * (0.5 + 1 / 16), 4.0 + 2 * (0.5 + 1 / 16)),
    ],
)
def test_8_bits_by_hand(
    precision: str, architecture: str, cast_bytes: float, in_norm_bytes: float
) -> None:
    """Casts of the input (forward) and of the gradient of the output (backward) read two bytes and
    write one (half of one in 4 bits), or two where products need transposes, with scales; a scale
    of the tensor itself needs two more bytes. Each product launches twice. A norm casts what it
    makes itself, if the recipe does so, and only the transpose is left. The output layer, attention
    and norms have 16 bits."""
    device = in_8_bits(architecture)
    shape = Product(64, 128, 256)
    layer = Layer("it", operators=(shape,))
    (_, (forward, backward)) = layers_s(device, [Layer("input"), layer], 2, precision, {})
    alone_s = 2 * 128 * 128 * 256 / 8e12
    value_s = [128 * values / ACHIEVED / 1e12 for values in (256, 128)]
    assert forward == pytest.approx(alone_s + cast_bytes * value_s[0] + 2e-6)
    assert backward == pytest.approx(2 * alone_s + cast_bytes * value_s[1] + 4e-6)
    normed = Layer("it", operators=(msgspec.structs.replace(shape, normed=True),))
    (_, passes) = layers_s(device, [Layer("input"), normed], 2, precision, {})
    assert sum(passes) == pytest.approx(
        forward + backward + (in_norm_bytes - cast_bytes) * value_s[0]
    )
    others = (
        msgspec.structs.replace(shape, wide=True), Attention(256, 2, 1, 128), MemoryBound(1e6, 1e6)
    )  # fmt: skip
    for other in others:
        layers = [Layer("input"), Layer("it", operators=(other,))]
        (_, found) = layers_s(device, layers, 2, precision, {})
        assert found == times(other, batch_size=2)


def test_gradients_of_weights_in_8_bits_are_added_to_sums_in_32_by_hand() -> None:
    """At 1 GB/s fetching is all: one byte of both matrices and two of the result; the last pass
    reads and writes four bytes instead."""
    device = in_8_bits("blackwell")
    assert device.operators is not None
    slow = msgspec.structs.replace(
        device.operators.products["mixed"], flop_per_s=1e23, bytes_per_s=1e9, launch_s=0.0
    )
    operators = msgspec.structs.replace(device.operators, products={"mixed": slow})
    device = msgspec.structs.replace(device, operators=operators)
    layers = [Layer("input"), Layer("it", operators=(Product(64, 128, 256, normed=True),))]
    (_, (forward, backward)) = layers_s(device, layers, 1, "fp8", {})
    inputs, weights, outputs = 64 * 256, 128 * 256, 64 * 128
    assert forward == pytest.approx((inputs + weights + 2 * outputs) / 1e9)
    cast_s = 3 * outputs / ACHIEVED / 1e12
    of_input, of_weights = outputs + weights + 2 * inputs, inputs + outputs + 8 * weights
    assert backward == pytest.approx((of_input + of_weights) / 1e9 + cast_s)


def test_weights_are_cast_once_per_step_by_hand() -> None:
    """The matrices of products with weights, and of each group, but not what stays in 16 bits."""
    layers = [
        Layer("one", operators=(Product(7, 10, 20), Product(7, 10, 20, weights=False))),
        Layer("two", operators=(Grouped(7, 10, 30, groups=4), Product(7, 1000, 20, wide=True))),
    ]
    values = 10 * 20 + 4 * 10 * 30
    assert weight_casts_bytes(in_8_bits("hopper"), layers, "fp8") == 4 * values
    assert weight_casts_bytes(in_8_bits("blackwell"), layers, "fp8") == 3 * values
    assert weight_casts_bytes(in_8_bits("hopper"), layers, "mixed") == 0.0


def test_the_output_layer_of_a_decoder_stays_in_16_bits() -> None:
    decoder = catalogue.model("llama-1b").decoder
    assert decoder is not None
    wide = [
        layer.name
        for layer in layers_of(decoder, 512, "fp8")
        for one in layer.operators
        if isinstance(one, Product) and one.wide
    ]
    assert wide == ["head"]


def test_attention_by_hand() -> None:
    """Two tiles of 128 queries: the first with one tile of keys, the second with two; without a
    causal mask both with two."""
    step_s = 4 * 128 * 128 * 128 / 1e12
    longest = 2 * step_s
    for causal, steps in ((True, 3), (False, 4)):
        forward, backward = times(Attention(256, 2, 1, 128, causal), batch_size=3)
        spread = 2 * 3 * steps * step_s
        assert forward == pytest.approx((spread**4 + longest**4) ** 0.25 + 2e-6)
        assert backward == pytest.approx(BACKWARD * forward)


def test_memory_bound_operators_by_hand() -> None:
    """Two bytes a value; what is fixed does not grow with the batch; two kernels each way."""
    shape = MemoryBound(1e6, 2e6, fixed_backward_values=5e6, kernels=2)
    forward, backward = times(shape, batch_size=4)
    assert forward == pytest.approx(2 * 4e6 / ACHIEVED / 1e12 + 2e-6)
    assert backward == pytest.approx(2 * 13e6 / ACHIEVED / 1e12 + 2e-6)


def test_parts_that_are_not_fused_move_more_but_what_is_fixed() -> None:
    shape = MemoryBound(1e6, 2e6, fixed_backward_values=5e6, unfused=3.0)
    layers = [Layer("input"), Layer("it", operators=(shape,))]
    (_, apart), (_, fused) = (
        layers_s(SIMPLE, layers, 4, "mixed", {}, fused=fused) for fused in (False, True)
    )
    assert fused == times(shape, batch_size=4)
    assert apart[0] == pytest.approx(2 * 12e6 / ACHIEVED / 1e12 + 1e-6)
    assert apart[1] == pytest.approx(2 * (24e6 + 5e6) / ACHIEVED / 1e12 + 1e-6)


def test_norms_rotations_and_gates_of_a_decoder_have_parts() -> None:
    """Llama has all three; GPT-2 has layer norms and a plain activation, which are one kernel."""
    apart: dict[str, set[str]] = {}
    for name in ("llama-1b", "gpt2-xl"):
        decoder = catalogue.model(name).decoder
        assert decoder is not None
        layers = layers_of(decoder, 512, "mixed")
        apart[name] = {
            layer.kind
            for layer in layers
            for one in layer.operators
            if isinstance(one, MemoryBound) and one.unfused > 1.0
        }
    assert apart == {"llama-1b": {"layernorm", "attention", "activation"}, "gpt2-xl": set()}


def test_32_bits_have_the_ratio_of_peak_rates_and_values_twice_as_large() -> None:
    for precision, ratio in (("float32", 4.0), ("tf32", 2.0)):
        shape = Product(64, 64, 640)
        slow, fast = times(shape, precision=precision), times(shape, precision="bf16")
        assert (slow[0] - 1e-6) / (fast[0] - 1e-6) == pytest.approx(ratio)
        shape = Attention(128, 1, 1, 128)
        slow, fast = times(shape, precision=precision), times(shape)
        assert (slow[0] - 2e-6) / (fast[0] - 2e-6) == pytest.approx(ratio)
        shape = MemoryBound(1e6, 0.0)
        slow, fast = times(shape, precision=precision), times(shape)
        assert (slow[0] - 1e-6) / (fast[0] - 1e-6) == pytest.approx(2.0)


def test_operators_of_a_layer_add_up() -> None:
    shapes = Product(64, 64, 64), Attention(128, 1, 1, 64), MemoryBound(1e6, 1e6)
    alone = [times(shape) for shape in shapes]
    assert times(*shapes) == pytest.approx(np.sum(alone, axis=0))
    assert kernels_of([Layer("it", operators=shapes)]) == 3 + 2 + 2


def test_a_decoder_has_the_operations_of_its_operators() -> None:
    """Every layer with operations has as many in its products and attention."""
    decoder = catalogue.model("llama-8b").decoder
    assert decoder is not None
    for stored in (True, False):
        dense = msgspec.structs.replace(decoder, flash=not stored)
        for layer in layers_of(dense, 512, "mixed"):
            assert layer.operators
            assert sum(one.flop for one in layer.operators) == layer.forward_flop


@pytest.mark.parametrize("name", ["llama-8b", "gpt2-xl"])
def test_devices_that_share_matrices_have_equal_parts(name: str) -> None:
    """Products of five devices of GPT-2 XL, which has 25 heads, or of four of Llama 8B, and their
    parameters; embeddings of a vocabulary that is not a multiple are rounded up."""
    decoder = catalogue.model(name).decoder
    assert decoder is not None
    count = 4 if name == "llama-8b" else 5
    whole, part = layers_of(decoder, 512, "mixed"), layers_of(decoder, 512, "mixed", count)
    for one, other in zip(whole, part, strict=True):
        assert count * other.forward_flop == pytest.approx(one.forward_flop, rel=1e-4)
        if one.kind == "linear":
            assert count * other.tensors[0].bytes == one.tensors[0].bytes if one.tensors else True
        if one.kind in ("layernorm", "sum"):
            assert other == one


def test_keys_of_few_heads_are_on_several_devices() -> None:
    decoder = Decoder(hidden=64, blocks=1, heads=8, kv_heads=2, vocabulary=10, sequence_length=4)
    qkv, core = layers_of(decoder, 4, "mixed", 4)[2:4]
    assert qkv.operators[0] == Product(4, 2 * 8 + 2 * 8, 64, normed=True)
    assert core.operators[-1] == Attention(4, 2, 1, 8)


@pytest.mark.parametrize(
    ("given", "count", "text"),
    [
        ({"heads": 6, "hidden": 60}, 4, "tensor: 4 devices cannot share 6 heads evenly"),
        ({"feed_forward": 6}, 4, "tensor: 4 devices cannot share 6 values of the feed-forward"),
        ({"heads": 12, "hidden": 48, "kv_heads": 6}, 4, "cannot share 6 key and value heads"),
        ({}, 0, "tensor: must be at least 1, got 0"),
    ],
)
def test_matrices_that_cannot_be_shared(given: dict[str, int], count: int, text: str) -> None:
    usual = {"hidden": 64, "blocks": 1, "heads": 8, "vocabulary": 10, "sequence_length": 4}
    with pytest.raises(InputError, match=text):
        layers_of(Decoder(**usual | given), 4, "mixed", count)


def test_mistakes_are_one_line() -> None:
    with pytest.raises(InputError, match=r"layer 'conv1': has no operators to take times from"):
        layers_s(SIMPLE, [Layer("conv1", forward_flop=1e9)], 1, "mixed", {})
    with pytest.raises(InputError, match="unknown precision 'mixd'; did you mean 'mixed'"):
        times(Product(1, 1, 1), precision="mixd")
    with pytest.raises(InputError, match="batch_size: must be at least 1"):
        times(Product(1, 1, 1), batch_size=0)


def test_times_of_a_large_model_take_a_millisecond() -> None:
    """405 billion parameters, 1264 layers; the best of ten, for a machine under load."""
    decoder = catalogue.model("llama-405b").decoder
    assert decoder is not None
    layers = layers_of(decoder, 8192, "mixed")
    taken = []
    for _ in range(10):
        began = time.process_time()
        seconds = layers_s(KNOWN["h100"], layers, 1, "mixed", KNOWN)
        taken.append(time.process_time() - began)
    assert min(taken) < 0.25 * work_s()
    reached = 3 * sum(layer.forward_flop for layer in layers) / sum(map(sum, seconds))
    assert 0.5 < reached / KNOWN["h100"].peak("mixed") < 0.9


@pytest.mark.parametrize("name", ["cpu-epyc-2core", "k80", "mi300x", "l4"])
def test_any_device_has_times(name: str) -> None:
    decoder = catalogue.model("gpt2-small").decoder
    assert decoder is not None
    for forward, backward in layers_s(
        KNOWN[name], layers_of(decoder, 128, "float32"), 2, "float32", KNOWN
    ):
        assert 0.0 < forward < 10.0
        assert 0.0 < backward < 30.0


# --- convolutions ------------------------------------------------------------------------------


def moved_s(values: float, element_bytes: float) -> float:
    """Two kernels that read and write so many values together."""
    return 2 * element_bytes * values / (ACHIEVED * 1e12) + 2e-6


def test_images_channel_by_channel_are_transposed_for_tensor_cores() -> None:
    """3 x 3 kernels on 64 pixels of 64 channels: 4096 values go in and out, in two samples."""
    stored, rows = (Product(64, 64, 576, reuse=9.0, layout=name) for name in ("patches", "rows"))
    for precision, element in (("mixed", 2.0), ("tf32", 4.0)):
        plain = times(rows, batch_size=2, precision=precision)
        seconds = times(stored, batch_size=2, precision=precision)
        extra = moved_s(2 * 2 * 64 * 64, element)
        assert seconds[0] - plain[0] == pytest.approx(extra)
        assert seconds[1] - plain[1] == pytest.approx(2 * extra)


def test_kernels_of_one_pixel_read_each_image_as_it_is() -> None:
    """40 pixels of 4 bytes are a multiple of 16 bytes, but fill a tile of 64 rows badly: two
    samples take two tiles each way, instead of two for both; weights have 80 pixels together."""
    alone, rows = (Product(40, 64, 64, layout=name) for name in ("columns", "rows"))
    tile_s = 2 * 64 * 64 * 64 / 2e12
    assert times(rows, batch_size=2, precision="tf32")[0] == pytest.approx(2 * tile_s + 1e-6)
    forward, backward = times(alone, batch_size=3, precision="tf32")
    assert forward == pytest.approx(3 * tile_s + 1e-6)
    assert backward == pytest.approx(3 * tile_s + 2 * tile_s + 2e-6)  # 120 pixels: two steps of 64


def test_columns_of_odd_length_are_transposed() -> None:
    """49 pixels of 4 bytes, and 196 of 2 bytes, are no multiple of 16 bytes; 196 of 4 are."""
    for pixels, precision, transposed in ((49, "tf32", 1), (196, "mixed", 1), (196, "tf32", 0)):
        stored, rows = (Product(pixels, 64, 64, layout=name) for name in ("columns", "rows"))
        extra = times(stored, precision=precision)[0] - times(rows, precision=precision)[0]
        element = 2.0 if precision == "mixed" else 4.0
        expected = transposed * moved_s(2 * pixels * 64, element)
        assert extra == pytest.approx(expected, abs=1e-12)


def test_a_strided_kernel_of_one_pixel_transposes_the_whole_image() -> None:
    """Of four times as many pixels a quarter is read."""
    stored, rows = (Product(64, 64, 64, reuse=0.25, layout=name) for name in ("patches", "rows"))
    extra = times(stored)[0] - times(rows)[0]
    assert extra == pytest.approx(moved_s(5 * 64 * 64, 2.0))


def test_kernels_of_three_pixels_are_faster_in_32_bits_by_winograd() -> None:
    """With 16 x 16 pixels in 64 samples, multiplications are a quarter, and images move."""
    shape = Product(256, 64, 576, reuse=9.0, layout="patches")
    forward, _ = times(shape, batch_size=64, precision="float32")
    products = 2 * 256 * 64 * 64 * 576 / 4 / 1e12
    values = 2 * 64 * 256 * 64
    moving = 4 * 3.25 * values / (ACHIEVED * 1e12) + 2e-6
    assert forward == pytest.approx(products + 1e-6 + moving)
    strided = msgspec.structs.replace(shape, reuse=2.25)
    direct = 2 * 256 * 64 * 64 * 576 / 1e12
    assert times(strided, batch_size=64, precision="float32")[0] == pytest.approx(direct + 1e-6)


def test_winograd_is_for_gpus_in_32_bits() -> None:
    shape = Product(256, 64, 576, reuse=9.0)
    host = msgspec.structs.replace(SIMPLE, kind="cpu")
    layers = [Layer("input"), Layer("it", operators=(shape,))]
    on_host = layers_s(host, layers, 64, "float32", {})[-1][0]
    assert on_host == pytest.approx(2 * 256 * 64 * 64 * 576 / 1e12 + 1e-6)


def test_a_gpu_needs_its_number_of_multiprocessors() -> None:
    known = catalogue.device("h100")
    unknown = msgspec.structs.replace(known, multiprocessors=None)
    layer = Layer("product", forward_flop=2.0, operators=(Product(rows=1, columns=1, depth=1),))
    with pytest.raises(InputError, match=r"multiprocessors: .*H100.* needs their number"):
        layers_s(unknown, [layer], 1, "mixed", {"h100": known})
