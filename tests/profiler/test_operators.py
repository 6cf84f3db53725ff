"""Operators that the profiler records, against shapes by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the profiler measures PyTorch models")

from perfmodel.inputs.operator_shapes import (  # noqa: E402
    Attention,
    MemoryBound,
    OperatorShape,
    Product,
)
from perfmodel.inputs.profile import Layer  # noqa: E402
from perfmodel.profiler import Profiler  # noqa: E402
from perfmodel.profiler.layers import Inspection  # noqa: E402

nn, functional = torch.nn, torch.nn.functional

SAMPLES = 2


def layers(
    make: Callable[[], Any],
    *shape: int,
    device: str = "cpu",
    passes: int = 1,
    samples: int = SAMPLES,
) -> tuple[Layer, ...]:
    """The layers of a model, from one step on samples of a shape."""
    with torch.device(device):
        model = make()
        inspection = Inspection(model)
        inspection.begin()
        for _ in range(passes):
            model(torch.zeros(samples, *shape)).float().mean().backward()
        inspection.end()
    return inspection.result().profile_layers(samples * passes, passes)


def operators(make: Callable[[], Any], *shape: int, **given: Any) -> list[OperatorShape]:
    """The operators of all layers."""
    return [one for layer in layers(make, *shape, **given) for one in layer.operators]


class Function(nn.Module):
    """Calls a function of its input and of a parameter of width 8."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(8))

    def forward(self, x: Any) -> Any:
        return self.function(x, self.weight)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("make", "shape", "product"),
    [
        # 5 words of 16 values
        (lambda: nn.Linear(16, 7, bias=False), (5, 16), Product(5, 7, 16)),
        # 14 x 14 positions after a 3 x 3 kernel without padding; a value is in 9 rows
        (
            lambda: nn.Conv2d(4, 6, 3, bias=False),
            (4, 16, 16),
            Product(196, 6, 36, reuse=9.0, layout="patches"),
        ),
        # every second position: a value is in 9 / 4 rows
        (
            lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
            (4, 16, 16),
            Product(64, 6, 36, reuse=2.25, layout="patches"),
        ),
        # a quarter of the positions is read
        (
            lambda: nn.Conv2d(4, 6, 1, stride=2, bias=False),
            (4, 16, 16),
            Product(64, 6, 4, reuse=0.25, layout="patches"),
        ),
        (lambda: nn.Conv2d(4, 6, 1, bias=False), (4, 8, 8), Product(64, 6, 4, layout="columns")),
        (
            lambda: nn.Conv2d(4, 8, 3, padding=1, groups=2, bias=False),
            (4, 8, 8),
            Product(64, 4, 18, count=2, reuse=9.0, layout="patches"),
        ),
        (
            lambda: nn.Conv1d(3, 5, 4, bias=False),
            (3, 11),
            Product(8, 5, 12, reuse=4.0, layout="patches"),
        ),
        (
            lambda: nn.Conv3d(2, 3, (1, 3, 3), bias=False),
            (2, 4, 6, 6),
            Product(64, 3, 18, reuse=9.0, layout="patches"),
        ),
        # 8 x 8 values make patches of 2 x 2 in 5 channels
        (
            lambda: nn.ConvTranspose2d(3, 5, 2, stride=2, bias=False),
            (3, 8, 8),
            Product(64, 20, 3, layout="patches"),
        ),
    ],
)
def test_products_with_weights(
    make: Callable[[], Any], shape: tuple[int, ...], product: Product, device: str
) -> None:
    assert operators(make, *shape, device=device) == [product]
    (layer,) = layers(make, *shape, device=device)
    assert layer.forward_flop == product.flop  # as PyTorch counts it


def attend(x: Any, weight: Any) -> Any:
    x = x * weight
    scores = torch.softmax(x @ x.transpose(-1, -2), dim=-1)
    return scores @ x


def test_products_of_activations_are_counted_by_sample() -> None:
    # 3 heads with 4 words of 8 values: scores of 4 x 4; a product with the weight reads and writes
    # 96 values, softmax 2 x 48; backward: 3 x 96, 3 x 48
    scores = Product(4, 4, 8, count=3, weights=False)
    values = Product(4, 8, 4, count=3, weights=False)
    moving = MemoryBound(2 * 96 + 2 * 48, 3 * 96 + 3 * 48, kernels=2)
    assert operators(lambda: Function(attend), 3, 4, 8) == [scores, values, moving]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    "given", [{}, {"is_causal": True}, {"dropout_p": 0.5}], ids=["plain", "causal", "dropout"]
)
def test_attention_is_one_operator_on_every_device(given: dict[str, Any], device: str) -> None:
    def function(x: Any, weight: Any) -> Any:
        x = x * weight
        return functional.scaled_dot_product_attention(
            x, x[:, :1], x[:, :1], enable_gqa=True, **given
        )

    attention, moving = operators(lambda: Function(function), 4, 6, 8, device=device)
    assert attention == Attention(6, 4, 1, 8, causal=given.get("is_causal", False))
    assert moving == MemoryBound(2 * 192, 3 * 192)  # the product with the weight


def test_attention_with_a_learnt_bias_is_one_operator() -> None:
    """As T5 has it: without scores, nothing passes the bias a gradient."""

    def function(x: Any, weight: Any) -> Any:
        bias, x = weight[:6].expand(1, 1, 6, 6), x * weight
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=bias)

    attention, moving = operators(lambda: Function(function), 4, 6, 8, device="meta")
    assert attention == Attention(6, 4, 4, 8, causal=False)
    assert moving == MemoryBound(2 * 192, 3 * 192)  # the product with the weight


def test_operations_of_grouped_attention_are_counted_by_older_counters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before PyTorch 2.13, counters refuse fewer heads of keys than of queries."""
    from torch.utils import flop_counter

    packet = torch.ops.aten._scaled_dot_product_flash_attention

    def strict(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        assert query.shape == key.shape == value.shape
        samples, heads, length, width = query.shape
        return int(samples * heads * 2 * 2 * length * length * width)

    monkeypatch.setitem(flop_counter.flop_registry, packet, strict)

    def function(x: Any, weight: Any) -> Any:
        x = x * weight
        return functional.scaled_dot_product_attention(x, x[:, :2], x[:, :2], enable_gqa=True)

    (layer,) = layers(lambda: Function(function), 4, 6, 8)
    # two products for each of 4 heads, of 6 words with 6 words, of 8 values
    assert layer.forward_flop == 4 * 2 * 2 * 6 * 6 * 8


def test_modules_of_pytorch_call_attention() -> None:
    make = lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)  # noqa: E731
    found = [one for one in operators(make, 6, 16) if isinstance(one, Attention)]
    assert found == [Attention(6, 2, 2, 8, causal=False)]


def test_attention_is_as_before_after_a_step() -> None:
    before = functional.scaled_dot_product_attention
    operators(lambda: nn.Linear(2, 2), 2)
    assert functional.scaled_dot_product_attention is before


@pytest.mark.parametrize(
    ("function", "forward", "backward"),
    [
        (lambda x, w: functional.relu(x * w), 2 * 64, 3 * 64),
        (lambda x, w: functional.gelu(x * w), 2 * 64, 3 * 64),
        # two gradients are written
        (lambda x, w: (x * w) + (x * w), 3 * 64 + 2 * 64, 3 * 64 + 3 * 64),
        (lambda x, w: torch.softmax(x * w, -1), 2 * 64, 3 * 64),
        # norms of rows are read once; the second pass of backward is for the weights
        (lambda x, w: functional.layer_norm(x * w, (8,), w, w), 2 * 64, 5 * 64),
        # statistics over the batch: the input is read twice
        (lambda x, w: functional.batch_norm(x * w, None, None, w, w, True), 3 * 64, 5 * 64),
        # the mask of a dropout is made and read: three values of input, mask and result
        (lambda x, w: functional.dropout(x * w, 0.5), 3 * 64, None),
        (lambda x, w: (x * w).mean(dim=(1, 2)), 64 + 1, 64 + 1),
        (lambda x, w: functional.max_pool1d(x * w, 2, 2), None, None),
        # views take no time
        (lambda x, w: (x * w).transpose(1, 2)[:, ::2].unsqueeze(0), 0, 0),
        (lambda x, w: (x * w).transpose(1, 2).reshape(-1, 8), 2 * 64, 2 * 64),  # copied
    ],
)
def test_values_read_and_written(
    function: Callable[[Any, Any], Any], forward: float | None, backward: float | None
) -> None:
    # samples of 8 x 8; the product with the weight comes first: 2 x 64 and 3 x 64
    (moving,) = operators(lambda: Function(function), 8, 8)
    assert isinstance(moving, MemoryBound)
    if forward is not None:
        assert moving.forward_values == 2 * 64 + forward
    if backward is not None:
        assert moving.backward_values == 3 * 64 + backward


def test_a_look_up_reads_what_it_returns_and_has_a_gradient_of_the_table() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 8)

        def forward(self, x: Any) -> Any:
            return self.table(x.long())

    look_up, cast = (MemoryBound(2 * 5 * 8, 2 * 5 * 8, 100 * 8), MemoryBound(10, 0))
    assert operators(Words, 5) == [
        MemoryBound(
            look_up.forward_values + cast.forward_values,
            look_up.backward_values,
            look_up.fixed_backward_values,
            kernels=2,
        )
    ]


def test_the_gradient_of_a_bias_is_a_sum() -> None:
    product, bias = operators(lambda: nn.Linear(4, 3), 5, 4)
    assert (product, bias) == (Product(5, 3, 4), MemoryBound(0, 15))


def test_weights_made_from_parameters_are_weights() -> None:
    def function(x: Any, weight: Any) -> Any:
        return x @ (weight[:, None] * weight).tanh()

    assert operators(lambda: Function(function), 5, 8) == [Product(5, 8, 8)]


def test_weights_repeated_for_each_sample_are_one_product() -> None:
    def function(x: Any, weight: Any) -> Any:
        return torch.bmm(x, (weight[:, None] * weight).expand(len(x), 8, 8))

    assert operators(lambda: Function(function), 5, 8) == [Product(5, 8, 8)]


def test_experts_are_products_with_weights_of_their_own() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 4, 5))

        def forward(self, x: Any) -> Any:  # 2 x 3 x 6 x 4: 6 words of each sample per expert
            return torch.bmm(x.transpose(0, 1).reshape(3, -1, 4), self.weight)

    found = [one for one in operators(Experts, 3, 6, 4) if isinstance(one, Product)]
    assert found == [Product(6, 5, 4, count=3)]


def test_accumulated_passes_are_recorded_once() -> None:
    make = lambda: nn.Linear(4, 3, bias=False)  # noqa: E731
    assert operators(make, 5, 4, passes=3) == [Product(5, 3, 4)]


def test_what_samples_do_not_divide_is_rounded_up_and_noted() -> None:
    class Relative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x: Any) -> Any:  # 5 positions, whatever the batch
            return x + self.linear(torch.ones(5, 4))

    model = Relative()
    with Profiler(model, batch_size=2, warmup=1, steps=2) as profiler:
        for _ in range(4):
            model(torch.zeros(2, 5, 4)).sum().backward()
            profiler.step()
    (layer,) = profiler.profile().layers
    assert layer.operators[0] == Product(3, 4, 4)
    assert "operators that 2 samples do not divide, rounded up: linear" in profiler.notes


def test_operators_belong_to_the_layer_before_them() -> None:
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)
    )
    first, second = layers(make, 3, 4)
    assert first.operators == (Product(3, 4, 4), MemoryBound(2 * 12, 3 * 12))
    assert second.operators == (Product(3, 2, 4),)


def test_images_by_pixel_are_rows() -> None:
    class ByPixel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(4, 6, 3, bias=False)

        def forward(self, x: Any) -> Any:
            return self.inner(x.to(memory_format=torch.channels_last))

    (product, _) = operators(ByPixel, 4, 16, 16)  # the other is the copy
    assert product == Product(196, 6, 36, reuse=9.0)


def test_depthwise_convolutions_are_bound_by_memory() -> None:
    """4 channels of 8 x 8 pixels are read and written, in backward twice."""
    make = lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)  # noqa: E731
    assert operators(make, 4, 8, 8) == [MemoryBound(2 * 256, 4 * 256)]


def test_a_bias_is_added_to_images_by_a_kernel_of_its_own() -> None:
    """6 channels of 14 x 14 pixels are read and written; in backward they are summed."""
    product, bias = operators(lambda: nn.Conv2d(4, 6, 3), 4, 16, 16)
    assert isinstance(product, Product)
    assert bias == MemoryBound(2 * 6 * 196, 6 * 196)
