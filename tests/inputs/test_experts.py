"""Decoders with experts, latent attention, windows and further tokens."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from perfmodel import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import layers_of
from perfmodel.inputs.decoder_parts import Experts, Latent, Window
from perfmodel.inputs.operator_shapes import Attention, Grouped, Product

VISION = 871_932_416
"""Parameters of the vision part of Llama 4: 34 blocks of width 1408, inner width 5632, an embedding
of patches of 14 x 14 of images of 336 x 336, an adapter of 5632 x 4096 and 4096 x 4096, and a
projection of 4096 x 5120."""

TOTAL = {
    "mixtral-8x7b": 46.7e9,
    "mixtral-8x22b": 141e9,
    "deepseek-v2-lite": 15.7e9,
    "deepseek-v2": 236e9,
    "deepseek-v3": 671e9 + 11.5e9,  # with the block that predicts a second token
    "qwen3-30b-a3b": 30.5e9,
    "qwen3-235b-a22b": 235e9,
    "gpt-oss-20b": 20.91e9,
    "gpt-oss-120b": 116.83e9,
    "llama4-scout": 109e9 - VISION,
    "llama4-maverick": 400e9,
    "kimi-k2": 1026.4e9,
}
"""Published numbers of parameters.

Jiang et al., "Mixtral of experts", 2024, arXiv 2401.04088; Mistral AI, "Cheaper, better, faster,
stronger", 2024; DeepSeek-AI, arXiv 2405.04434, section 1 and appendix B, and README_WEIGHTS.md of
DeepSeek-V3; Qwen team, "Qwen3 technical report", 2025, arXiv 2505.09388; OpenAI, "gpt-oss model
card", 2025, table 1; Meta, model cards of Llama 4, 2025; sizes of tensors of Kimi-K2-Instruct on
huggingface.co.
"""

ACTIVE = {
    "mixtral-8x7b": (12.9e9, True, 0.1e9),
    "mixtral-8x22b": (39e9, True, 1e9),
    "deepseek-v2-lite": (2.4e9, False, 0.1e9),
    "deepseek-v2": (21e9, False, 1e9),
    "deepseek-v3": (36.7e9, False, 0.1e9),
    "qwen3-30b-a3b": (3.3e9, True, 0.1e9),
    "qwen3-235b-a22b": (22e9, True, 1e9),
    "gpt-oss-20b": (3.61e9, False, 0.01e9),
    "gpt-oss-120b": (5.13e9, False, 0.01e9),
    "llama4-scout": (17e9, True, 1e9),
    "llama4-maverick": (17e9, True, 1e9),
    "kimi-k2": (32e9, False, 1e9),
}
"""Published numbers of active parameters, of the same sources and of the model card of Kimi K2;
whether they contain the embedding; and the unit of their last digit."""

TINY = Decoder(
    hidden=8,
    blocks=3,
    heads=2,
    vocabulary=10,
    sequence_length=6,
    biases=False,
    gated=True,
    feed_forward=12,
    experts=Experts(routed=4, active=2, width=6, shared_width=5, dense_first=1),
)
"""One usual block, and two of four experts of 6 values, and of a shared one of 5."""


def decoder_of(name: str) -> Decoder:
    decoder = catalogue.model(name).decoder
    assert decoder is not None
    return decoder


@pytest.mark.parametrize("name", TOTAL)
def test_numbers_of_parameters_are_the_published_ones(name: str) -> None:
    count = decoder_of(name).parameters(4096)
    assert count == pytest.approx(TOTAL[name], rel=0.005)


def test_grok_1_has_its_published_number_of_parameters() -> None:
    """314 billion, of which a quarter are active: two of eight experts. The table of words is not
    part of the published number; with it there are half a per cent more."""
    d = decoder_of("grok-1")
    assert d.experts is not None
    table = d.hidden * d.vocabulary
    assert d.parameters(4096) - table == pytest.approx(314e9, rel=0.005)
    assert d.experts.active / d.experts.routed == 0.25
    experts = 64 * 8 * 3 * 6144 * 32768
    assert d.parameters(4096) - d.active_parameters(4096) == 0.75 * experts


@pytest.mark.parametrize("name", ACTIVE)
def test_numbers_of_active_parameters_are_the_published_ones(name: str) -> None:
    """To 0.5 %, or to the last digit of those that are published with one or two."""
    published, with_embedding, unit = ACTIVE[name]
    d = msgspec.structs.replace(decoder_of(name), multi_token=0)
    count = d.active_parameters(4096)
    count -= 0 if with_embedding else d.hidden * d.vocabulary
    assert count == pytest.approx(published, rel=0.005, abs=unit)


def test_the_block_of_a_second_token_has_its_published_number_of_parameters() -> None:
    """11.5 billion besides the embedding and the output layer, which it shares; the count has the
    projection of 2 x 7168 x 7168 as well."""
    d = decoder_of("deepseek-v3")
    more = d.parameters(4096) - msgspec.structs.replace(d, multi_token=0).parameters(4096)
    assert more == pytest.approx(11.5e9, rel=0.01)
    assert more - 2 * 7168**2 == pytest.approx(11.5e9, rel=0.001)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*TOTAL, "grok-1", "gemma3-27b", "qwen3-8b"])
def test_layers_contain_all_parameters(name: str) -> None:
    d = decoder_of(name)
    layers = layers_of(d, 512, "mixed")
    assert sum(t.bytes for layer in layers for t in layer.tensors) == 4 * d.parameters(512)
    names = [layer.name for layer in layers]
    assert len(set(names)) == len(names)


def test_a_tiny_model_by_hand() -> None:
    """Attention has 4 x 8 x 8 parameters, a usual feed-forward part 3 x 8 x 12; with experts there
    are 8 x 4 of the router, 3 x 8 x 6 of each expert, and 3 x 8 x 5 of the shared one."""
    attention, norms, usual = 4 * 64, 2 * 8, 3 * 8 * 12
    expert, rest = 3 * 8 * 6, 8 * 4 + 3 * 8 * 5
    ends = 10 * 8 + 8
    every = 3 * (attention + norms) + usual + 2 * rest + ends
    assert TINY.parameters(6) == every + 2 * 4 * expert
    assert TINY.active_parameters(6) == every + 2 * 2 * expert
    flop = sum(layer.forward_flop for layer in layers_of(TINY, 6, "float32"))
    products = 3 * attention + usual + 2 * (rest + 2 * expert) + 10 * 8
    assert flop == 2 * 6 * products + 3 * 4 * 6**2 * 8


def test_canary_an_expert_less_is_noticed() -> None:
    fewer = msgspec.structs.replace(TINY, experts=Experts(routed=4, active=2, width=6))
    assert fewer.parameters(6) != TINY.parameters(6)


def test_layers_of_experts_by_hand() -> None:
    """6 tokens pass 2 of 4 experts each: 12 rows; a token's output is kept twice until the products
    of the experts are done."""
    layers = {layer.name: layer for layer in layers_of(TINY, 6, "mixed")}
    place = "blocks.1.feed_forward."
    up, down = layers[f"{place}experts.up"], layers[f"{place}experts.down"]
    assert up.operators == (Grouped(rows=12, columns=12, depth=8, groups=4),)
    assert down.operators == (Grouped(rows=12, columns=8, depth=6, groups=4),)
    assert layers[f"{place}router"].operators[0] == Product(6, 4, 8, wide=True)
    assert up.tensors[0].bytes == 4 * 4 * 8 * 12
    assert up.activation_bytes == 2 * 6 * 2 * 12
    assert layers[f"{place}dispatch"].kept_bytes == 2 * 6 * 2 * 8
    assert down.kept_bytes == layers[f"{place}combine"].kept_bytes == 0.0
    assert layers[f"{place}shared.up"].operators == (Product(6, 10, 8),)
    assert "blocks.0.feed_forward.up" in layers
    assert "blocks.0.feed_forward.router" not in layers


def test_every_second_block_has_experts() -> None:
    d = msgspec.structs.replace(
        TINY, blocks=5, experts=Experts(routed=4, active=2, width=6, every=2)
    )
    assert [d.has_experts(k) for k in range(5)] == [False, True, False, True, False]
    assert decoder_of("llama4-maverick").parameters(1) == pytest.approx(
        24 * 129 * 3 * 5120 * 8192 + 24 * 3 * 5120 * 16384
        + 48 * (2 * 5120**2 + 2 * 5120 * 1024) + 2 * 202048 * 5120, rel=1e-4
    )  # fmt: skip


def test_latent_attention_by_hand() -> None:
    """Heads of 4 + 2 values for queries and keys, and of 3 for values; ranks 5 and 7."""
    latent = Latent(kv_rank=5, rope_width=2, head_width=4, value_width=3, query_rank=7)
    d = Decoder(
        hidden=8, blocks=1, heads=2, vocabulary=10, sequence_length=6, biases=False, latent=latent
    )
    attention = 8 * 7 + 7 + 7 * 12 + 8 * (5 + 2) + 5 + 5 * 2 * (4 + 3) + 6 * 8
    assert d.parameters(6) == attention + 8 * 8 * 8 + 2 * 8 + 8 + 80
    layers = {layer.name: layer for layer in layers_of(d, 6, "mixed")}
    core = layers["blocks.0.attention.scores"]
    assert core.operators[-1] == Attention(6, 2, 2, 6, value_width=3)
    assert core.forward_flop == core.operators[-1].flop == 2 * 36 * 2 * (6 + 3)
    assert core.activation_bytes == 2 * 6 * 6
    without = msgspec.structs.replace(d, latent=msgspec.structs.replace(latent, query_rank=None))
    assert without.parameters(6) - d.parameters(6) == 8 * 12 - (8 * 7 + 7 + 7 * 12)


def test_windows_by_hand() -> None:
    """Of the square of 10 x 10 pairs, a window of 4 leaves out two triangles of 6 x 6 / 2: 64."""
    given: dict[str, Any] = {
        "hidden": 8, "blocks": 4, "heads": 2, "vocabulary": 10, "sequence_length": 10,
    }  # fmt: skip
    d = Decoder(**given, window=Window(tokens=4, full_every=2))
    assert [d.attended(k, 10) for k in range(4)] == [64, 100, 64, 100]
    assert [d.attended(k, 4) for k in range(4)] == [16] * 4
    shapes = [
        layer.operators[-1] for layer in layers_of(d, 10, "mixed") if layer.kind == "attention"
    ]
    assert shapes[0] == Attention(10, 2, 2, 4, window=4)
    assert shapes[1] == Attention(10, 2, 2, 4)
    assert shapes[0].flop == 4 * 64 * 8
    chunked = Decoder(**given, window=Window(tokens=5, kind="chunked"))
    shapes = [
        layer.operators[-1]
        for layer in layers_of(chunked, 10, "mixed")
        if layer.kind == "attention"
    ]
    assert shapes == [Attention(5, 2, 2, 4, count=2)] * 4
    assert shapes[0].flop == 4 * 2 * 25 * 8 == 4 * chunked.attended(0, 10) * 8


def test_a_second_token_has_a_block_a_head_and_a_loss() -> None:
    d = msgspec.structs.replace(TINY, multi_token=1)
    layers = {layer.name: layer for layer in layers_of(d, 6, "mixed")}
    assert layers["further.0.projection"].operators == (Product(6, 8, 16),)
    assert layers["head_2"].forward_flop == layers["head"].forward_flop
    assert not layers["head_2"].tensors
    assert d.parameters(6) - TINY.parameters(6) == sum(
        tensor.bytes / 4
        for layer in layers.values()
        if layer.name.startswith("further.")
        for tensor in layer.tensors
    )


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"experts": {"routed": 4, "active": 5, "width": 3}}, "active: 5 of 4 experts (routed)"),
        ({"experts": {"routed": 4, "active": 0, "width": 3}}, "active: must be at least 1, got 0"),
        (
            {"experts": {"routed": 4, "active": 1, "width": 3, "dense_first": -1}},
            "dense_first: must be at least 0, got -1",
        ),
        ({"window": {"tokens": 0}}, "tokens: must be at least 1, got 0"),
        (
            {
                "latent": {"kv_rank": 4, "rope_width": 2, "head_width": 4, "value_width": 4},
                "kv_heads": 1,
            },
            "kv_heads: not with latent attention, which has its own widths",
        ),
        ({"multi_token": -1}, "multi_token: must be at least 0, got -1"),
    ],
)
def test_inconsistent_dimensions_are_refused(changed: dict[str, Any], text: str) -> None:
    given = msgspec.to_builtins(TINY) | {"experts": None} | changed
    with pytest.raises((InputError, msgspec.ValidationError), match=re.escape(text)):
        msgspec.convert(given, Decoder)
