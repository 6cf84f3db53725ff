"""The softmax of stored scores, by the bytes that its kernels move."""

import pytest

from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import layers_of
from perfmodel.inputs.operator_shapes import MemoryBound

TOKENS, HEADS = 1024, 16


def softmax(**fields: bool) -> MemoryBound:
    """The operator of a block, of one sequence in 16 bits."""
    decoder = Decoder(
        hidden=1024, blocks=1, heads=HEADS, vocabulary=50304, sequence_length=TOKENS, flash=False,
        positions=TOKENS, **fields,
    )  # fmt: skip
    layers = layers_of(decoder, TOKENS, "mixed")
    scores = next(layer for layer in layers if layer.name.endswith("attention.scores"))
    (found,) = (one for one in scores.operators if isinstance(one, MemoryBound))
    return found


@pytest.mark.parametrize(
    ("fields", "forward", "backward", "kernels"),
    [
        ({}, 4.0, 4.0, 2),  # the mask; the softmax
        ({"dropout": True}, 8.0, 8.0, 4),
        ({"fused_softmax": True}, 2.0, 3.0, 1),  # reads, writes; reads two, writes one
        ({"fused_softmax": True, "dropout": True}, 4.5, 5.5, 2),  # and 2 more with half a mask
    ],
)
def test_values_per_score_by_hand(fields, forward, backward, kernels):
    found, scores = softmax(**fields), HEADS * TOKENS * TOKENS
    assert found.forward_values == forward * scores
    assert found.backward_values == backward * scores
    assert found.kernels == kernels
