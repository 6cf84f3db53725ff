"""Shapes of operators in workload files."""

import msgspec
import pytest

from perfmodel.base.errors import InputError
from perfmodel.inputs.operator_shapes import Attention, MemoryBound, Product
from perfmodel.inputs.profile import Layer


def test_operations_of_a_convolution_by_hand():
    # 3 x 3 kernel from 64 to 128 channels at 56 x 56 positions: 2 * 3136 * 128 * 576
    shape = Product(rows=3136, columns=128, depth=576, reuse=9.0)
    assert shape.flop == 462_422_016.0


def test_operations_of_attention_by_hand():
    # two products of 1024 x 1024 scores with 64 values, in each of 12 heads
    assert Attention(length=1024, heads=12, kv_heads=12, head_width=64).flop == (
        2 * 2 * 1024 * 1024 * 64 * 12
    )


def test_a_layer_keeps_its_operators_in_a_file():
    layer = Layer(
        "block",
        operators=(
            Product(rows=8, columns=4, depth=2, count=3, weights=False),
            Attention(length=8, heads=4, kv_heads=2, head_width=16, causal=False),
            MemoryBound(forward_values=2.0, backward_values=3.0, kernels=4),
        ),
    )
    assert msgspec.json.decode(msgspec.json.encode(layer), type=Layer) == layer


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Product(rows=0, columns=1, depth=1), "rows"),
        (lambda: Product(rows=1, columns=1, depth=1, reuse=float("nan")), "reuse"),
        (lambda: Attention(length=1, heads=6, kv_heads=4, head_width=1), "kv_heads: 4 do not"),
        (lambda: MemoryBound(forward_values=-1.0, backward_values=0.0), "forward_values"),
    ],
)
def test_impossible_shapes(make, why):
    with pytest.raises(InputError, match=why):
        make()
