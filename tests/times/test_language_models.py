"""Language models: layers from dimensions, estimated times, checkpointing and accumulation."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from perfmodel import InputError, make_job, predict
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import layers_of, with_layers
from perfmodel.inputs.job_files import read_job
from perfmodel.inputs.operator_shapes import Product
from perfmodel.inputs.passes import accumulated
from perfmodel.inputs.recomputation import recomputed
from perfmodel.inputs.software import Software
from perfmodel.inputs.storage import Storage
from perfmodel.inputs.workload import Workload, WorkloadLayer
from perfmodel.predicting.effects import effects
from perfmodel.times import language_estimate
from perfmodel.times.operator_times import kernels_of, layers_s
from perfmodel.times.operator_transfer import stack_of

PUBLISHED = {
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-1b": 1_235_814_400,
    "llama-3b": 3_212_749_824,
    "llama-7b": 6_738_415_616,
    "llama-8b": 8_030_261_248,
    "llama-13b": 13_015_864_320,
    "llama-70b": 68_976_648_192,
    "llama-33b": 32_528_943_616,
    "llama3-70b": 70_553_706_496,
    "codellama-34b": 33_743_970_304,
    "mistral-7b": 7_241_732_096,
    "gpt-neox-20b": 20_554_567_680,
    "mpt-7b": 6_658_859_008,
    "mpt-30b": 29_975_214_080,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "mistral-small-24b": 23_572_403_200,
}
"""Parameter counts given on model cards."""

NEARLY = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "bloom-176b": 176_247_271_424,
    "bloom-7b": 7_069_016_064,
    "gemma3-27b": 1.416e9 + 25.6e9,  # embedding, and all else but the vision encoder
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12.85e9,
    "opt-30b": 29.97e9,
    "opt-66b": 65.7e9,
    "opt-175b": 174.6e9,
    "llama-405b": 405e9,
    "megatron-22b": 22e9,
    "megatron-530b": 529.6e9,
    "megatron-1t": 1008e9,
}
"""Published counts of models of which a few vectors are left out, or counts that are rounded."""

TINY = Decoder(hidden=4, blocks=2, heads=2, vocabulary=10, sequence_length=3, positions=8)


def workload(name: str = "llama-7b", device: str = "a100-80", **given: Any) -> Workload:
    return catalogue.workload(catalogue.model(name), device_name=device, **given)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    decoder = catalogue.model(name).decoder
    assert decoder is not None
    assert decoder.parameters(decoder.sequence_length) == PUBLISHED[name]


@pytest.mark.parametrize("name", NEARLY)
def test_parameter_counts_are_nearly_the_published_ones(name: str) -> None:
    decoder = catalogue.model(name).decoder
    assert decoder is not None
    count = decoder.parameters(decoder.sequence_length)
    assert count == pytest.approx(NEARLY[name], rel=0.005)


def test_biases_of_queries_keys_and_values_are_all_that_is_left_out() -> None:
    decoder = catalogue.model("qwen2.5-7b").decoder
    assert decoder is not None
    biases = decoder.blocks * (decoder.hidden + 2 * decoder.kv_width)
    assert decoder.parameters(1) + biases == NEARLY["qwen2.5-7b"]
    norm = 2 * 14336  # of the embedding
    bloom = catalogue.model("bloom-176b").decoder
    assert bloom is not None
    assert bloom.parameters(1) + norm == NEARLY["bloom-176b"]


@pytest.mark.parametrize("name", ["llama-8b", "mpt-125m", "gpt2-xl"])
def test_layers_contain_all_parameters(name: str) -> None:
    decoder = catalogue.model(name).decoder
    assert decoder is not None
    layers = layers_of(decoder, 512, "mixed")
    assert sum(t.bytes for la in layers for t in la.tensors) == 4 * decoder.parameters(512)


def test_dimensions_agree_with_the_recorded_layers() -> None:
    """GPT-2 small from transformers: same tensors, and same matrix products in the blocks."""
    profile = catalogue.model("gpt2-small")
    assert profile.decoder is not None
    made = layers_of(profile.decoder, 128, "float32")
    recorded = [t.bytes for layer in profile.layers for t in layer.tensors]
    assert sorted(t.bytes for layer in made for t in layer.tensors) == sorted(recorded)
    products = sum(la.forward_flop for la in profile.layers if la.kind == "conv1d")
    blocks = [la for la in made if la.name.startswith("blocks.")]
    assert sum(la.forward_flop for la in blocks) == pytest.approx(products, rel=1e-6)


def test_a_tiny_model_by_hand() -> None:
    """3 tokens, width 4: matrix products of a block 2 * 3 * 12 * 4**2, attention 4 * 3**2 * 4."""
    layers = layers_of(TINY, 3, "float32")
    flop = sum(layer.forward_flop for layer in layers)
    assert flop == 2 * (2 * 3 * 12 * 16 + 4 * 9 * 4) + 2 * 3 * 4 * 10
    kept = 2 * (1 + 3 + 1 + 1 + 1 + 1 + 4 + 4 + 1 + 1) * 4 + 3 * 4 + 2 * 10
    assert sum(layer.activation_bytes for layer in layers) == 4 * 3 * kept
    assert TINY.parameters(3) == 2 * (12 * 16 + 13 * 4) + 4 * (10 + 8) + 2 * 4


def test_canary_a_wrong_count_is_noticed() -> None:
    assert TINY.parameters(3) != 2 * (12 * 16 + 13 * 4) + 4 * (10 + 8)


def test_sixteen_bits_halve_activations_but_not_the_loss() -> None:
    full, half = (layers_of(TINY, 3, name) for name in ("float32", "mixed"))
    for a, b in zip(full, half, strict=True):
        assert b.activation_bytes == a.activation_bytes / (1 if a.kind == "loss" else 2)
        assert b.tensors == a.tensors


def test_attention_is_quadratic_in_the_length_and_the_rest_linear() -> None:
    short, long = (layers_of(TINY, length, "mixed") for length in (2, 8))
    for a, b in zip(short, long, strict=True):
        assert b.forward_flop == a.forward_flop * (16 if a.kind == "attention" else 4)
        assert b.activation_bytes == 4 * a.activation_bytes


def test_longer_sequences_take_longer_and_need_more_memory() -> None:
    short, long = (workload(sequence_length=length) for length in (2048, 4096))
    assert 2.0 < long.forward_s / short.forward_s < 2.2
    assert long.activation_bytes == 2 * short.activation_bytes
    assert (short.sequence_length, long.sequence_length) == (2048, 4096)
    assert short.optimizer_s == long.optimizer_s


def test_layers_take_their_operators_times_the_factors_of_the_software() -> None:
    """Attention, and everything else, by the factors of the device file."""
    devices = {name: catalogue.device(name) for name in catalogue.device_names()}
    place, profile = devices["h100"], with_layers(catalogue.model("llama-8b"), "mixed")
    assert place.operators is not None
    for stack in ("as_found", "tuned"):  # for recent, see below
        fused = stack == "tuned"
        alone = layers_s(place, profile.layers, 2, "mixed", devices, fused=fused)
        factors = place.operators.stacks[stack]
        w = workload("llama-8b", "h100", batch_size=2, software=Software(stack=stack))
        for layer, (forward, backward) in zip(w.layers, alone, strict=True):
            if layer.kind == "linear":
                assert layer.forward_s == pytest.approx(factors.products * forward)
                assert layer.backward_s == pytest.approx(factors.products * backward)
            if layer.kind == "attention":  # which also turns queries and keys
                rest = factors.attention / factors.products
                low, high = sorted((factors.products, factors.attention))
                assert low * backward <= layer.backward_s * 1.001 <= 1.002 * high * backward, rest
        assert w.error_fraction == round(factors.error_fraction, 2)
        assert w.quality == "estimated"


def test_recent_software_under_autocast_by_hand() -> None:
    """On H100 an update takes 3.52 times as long as its bytes, 28 for each parameter at 3350 GB/s;
    under autocast kernels bound by memory take 1.49 times as long, and each weight of 4 bytes moves
    6 more in both passes, at 85 % of the bandwidth. With parameters in 16 bits there is neither,
    and an update moves half."""
    recent = Software(stack="recent")
    autocast, halved = (
        workload("llama-8b", "h100", batch_size=2, software=recent, storage=Storage(policy=policy))
        for policy in (None, "bf16")
    )
    parameters = autocast.gradient_bytes / 4.0
    assert autocast.optimizer_s == pytest.approx(3.52 * 28.0 * parameters / 3350e9)
    assert halved.optimizer_s == pytest.approx(0.5 * autocast.optimizer_s)
    for one, other in zip(autocast.layers, halved.layers, strict=True):
        casts_s = 6.0 * sum(one.tensor_bytes) / 4.0 / (0.85 * 3350e9)
        longer = 1.49 if one.kind in ("layernorm", "activation", "loss") else 1.0
        if one.kind in ("layernorm", "activation", "loss", "linear"):
            assert one.forward_s == pytest.approx(longer * other.forward_s + casts_s)
            assert one.backward_s == pytest.approx(longer * other.backward_s + casts_s)
    assert autocast.error_fraction == 0.15


@pytest.mark.parametrize("level", ["as_found", "tuned"])
def test_other_software_contains_what_autocast_takes(level: str) -> None:
    autocast, halved = (
        workload(
            "llama-8b", software=Software(stack=level), storage=Storage(policy=policy)
        ).forward_s
        for policy in ("amp", "bf16")
    )
    assert autocast == halved


@pytest.mark.parametrize(
    ("optimizer", "policy", "share"),
    [
        ("adamw", "fp32", 1.0),
        ("momentum", "fp32", 5.0 / 7.0),  # one moment instead of two
        ("sgd", "fp32", 3.0 / 7.0),
        ("adamw", "bf16_master", 1.0),  # 2 + 2 + 2 x 4 + 2 x 8 bytes, as 28 in 32 bits
        ("adamw", "bf16", 0.5),
        ("adam_8bit", "fp32", (12.0 + 4.0 + 4.0 / 64.0) / 28.0),
    ],
)
def test_an_update_takes_as_long_as_what_it_moves(
    optimizer: str, policy: str, share: float
) -> None:
    usual = workload("llama-8b", "h100").optimizer_s
    stored = Storage(optimizer=optimizer, policy=policy)
    moved = workload("llama-8b", "h100", storage=stored).optimizer_s
    assert moved == pytest.approx(share * usual)


def test_recent_software_on_another_chip_follows_tuned() -> None:
    """As found is of another year on each chip, and says nothing of what is recent there."""
    devices = {name: catalogue.device(name) for name in catalogue.device_names()}
    recent = stack_of(devices["a100-80"], "recent", devices)
    assert recent.attention == pytest.approx(0.935 * 0.93 / 1.03)
    assert recent.products == pytest.approx(1.25 * 1.02 / 1.26)
    assert (recent.optimizer, recent.autocast) == (pytest.approx(3.52), pytest.approx(0.49))
    assert recent.alike is False
    older = stack_of(devices["a100-80"], "as_found", devices)
    assert (older.optimizer, older.autocast) == (1.0, None)


def test_the_error_reaches_tuned_software_if_nobody_says_which_it_is() -> None:
    """Products take 1.34 times and attention 3.12 times as long as alone as found, 1.26 and 1.03
    times tuned, which may be 15 % off."""
    unsaid = workload("llama-8b", "h100", batch_size=2)
    attention_s = sum(
        one.forward_s + one.backward_s for one in unsaid.layers if one.kind == "attention"
    )
    others_s = unsaid.forward_s + unsaid.backward_s - attention_s
    tuned_s = attention_s / 3.12 * 1.03 + others_s / 1.34 * 1.26
    expected = 1.15 * (attention_s + others_s) / tuned_s - 1.0
    assert expected > 0.2
    assert unsaid.error_fraction == pytest.approx(expected, abs=0.005)
    said = workload("llama-8b", "h100", batch_size=2, software=Software(stack="as_found"))
    assert said.error_fraction == 0.2
    assert (said.forward_s, said.backward_s) == (unsaid.forward_s, unsaid.backward_s)


def test_chips_without_factors_have_those_of_their_architecture_or_of_all() -> None:
    software = Software(stack="as_found")
    same, other, alike = (
        workload(device=name, software=software) for name in ("h200", "v100", "h100-pcie")
    )
    assert same.error_fraction == 0.2
    assert other.error_fraction == alike.error_fraction == language_estimate.OTHER_ERROR
    assert same.forward_s <= workload(device="h100").forward_s
    assert workload(device="v100").error_fraction == other.error_fraction
    why = {w.device: w.assumptions[0].source for w in (same, other, alike)}
    assert why["h200"].endswith("as on h100")
    assert why["h100-pcie"].endswith("as on h100")
    assert why["v100"].endswith("as on a100-80, h100")


@pytest.mark.parametrize(("launches", "per_kernel_s"), [("eager", 30e-6), ("compiled", 10e-6)])
def test_a_short_step_is_bound_by_launches(launches: str, per_kernel_s: float) -> None:
    """12 blocks: 4 products of 3 kernels, 4 biases, 2 norms, 2 sums and an activation of 2, and
    attention of 2; besides two look-ups, a norm, a product, and a loss of 3."""
    software = Software(launches=launches)
    w = workload("gpt2-small", "b200", batch_size=1, sequence_length=16, software=software)
    kernels = 12 * (4 * 3 + (4 + 2 + 2 + 1) * 2 + 2) + 2 * 2 + 2 + 3 + 2 * 3
    assert w.forward_s + w.backward_s == pytest.approx(per_kernel_s * kernels)
    (note,) = [a for a in w.assumptions if a.name == "launches"]
    assert note.value == launches
    assert f"bound by launches: {per_kernel_s * 1e6:g} us of the host for each of {kernels}" in (
        note.source
    )
    graphs = workload(
        "gpt2-small", "h100", batch_size=1, sequence_length=16, software=Software(launches="graphs")
    )
    assert graphs.forward_s < w.forward_s
    assert (w.slow_host, graphs.slow_host) == (pytest.approx(3.0), 1.0)
    assert "launches" not in {a.name for a in graphs.assumptions}


def test_a_slow_host_may_set_the_pace_where_the_device_does() -> None:
    """90 us for each kernel, if devices take less; a measured time per kernel is certain."""
    one = workload("gpt2-small", "a100-80", batch_size=4, sequence_length=512)
    kernels = 12 * (4 * 3 + (4 + 2 + 2 + 1) * 2 + 2) + 2 * 2 + 2 + 3 + 2 * 3
    passes_s = one.forward_s + one.backward_s
    assert 30e-6 * kernels < passes_s < 90e-6 * kernels
    assert one.slow_host == pytest.approx(90e-6 * kernels / passes_s)
    measured = Software(launches="30us")
    sure = workload("gpt2-small", "a100-80", batch_size=4, sequence_length=512, software=measured)
    assert (sure.slow_host, sure.forward_s) == (1.0, one.forward_s)
    assert workload("llama-8b", "a100-80").slow_host == 1.0


@pytest.mark.parametrize("device", ["h100", "h200", "l40s", "rtx4090", "b200", "rtx5090"])
def test_8_bits_are_faster_where_the_device_has_them(device: str) -> None:
    given: dict[str, Any] = {"batch_size": 1, "sequence_length": 8192}
    wide = workload("llama-8b", device, precision="mixed", **given)
    short = workload("llama-8b", device, precision="fp8", **given)
    assert 1.15 < (wide.forward_s + wide.backward_s) / (short.forward_s + short.backward_s) < 2.0
    assert short.activation_bytes == wide.activation_bytes
    assert short.stored.parameters < wide.stored.parameters  # of the policy fp8


@pytest.mark.parametrize(
    ("precision", "kept"),
    [
        *(("fp8_current", 1.0), ("fp8_block", 1 + 4 / 128), ("mxfp8", 1 + 1 / 32)),
        ("nvfp4", 0.5 + 1 / 16),
    ],
)
def test_recipes_keep_inputs_of_products_in_8_bits(precision: str, kept: float) -> None:
    """Per token and block: two norms of 2048 and 8192 activated values have 8 bits instead of 16,
    and the output of attention has a copy with 8."""
    decoder = catalogue.model("llama-1b").decoder
    assert decoder is not None
    wide, short = (layers_of(decoder, 512, name) for name in ("mixed", precision))
    saved = sum(a.kept_bytes - b.kept_bytes for a, b in zip(wide, short, strict=True))
    values = (2 * 2048 + 8192) * (2 - kept) - 2048 * kept
    assert saved == pytest.approx(512 * 16 * values)
    assert [a.activation_bytes for a in wide] == [b.activation_bytes for b in short]
    assert layers_of(decoder, 512, "fp8") == wide


@pytest.mark.parametrize(
    ("precision", "weight"),
    [("fp8", 2.0), ("fp8_current", 2.0), ("fp8_block", 2 + 8 / 128**2), ("mxfp8", 2 + 2 / 32),
     ("nvfp4", 1 + 2 / 16)],
)  # fmt: skip
def test_recipes_store_casts_of_weights(precision: str, weight: float) -> None:
    """Weights and their transposes in 8 bits, with scales."""
    w = workload("llama-1b", "b200", precision=precision)
    assert w.stored.casts == pytest.approx(weight * 1_235_814_400)
    assert w.stored.parameters == 2 * 1_235_814_400


def test_the_interval_of_4_bits_reaches_the_time_of_8() -> None:
    """Nothing was measured of products in 4 bits, so that they may be as slow as those in 8."""
    eight, four = (workload("llama-70b", "gb300", precision=name) for name in ("mxfp8", "fp4"))
    assert four.precision == "nvfp4"
    longer = (eight.forward_s + eight.backward_s) / (four.forward_s + four.backward_s)
    assert 1.2 < longer < 3.0
    assert eight.error_fraction is not None
    assert four.error_fraction is not None
    # casts read a tensor twice in 4 bits, with layers that are else alike
    assert four.error_fraction == pytest.approx(
        math.hypot(eight.error_fraction, longer - 1.0), rel=0.02
    )


def test_reading_a_tensor_twice_takes_longer() -> None:
    once, twice = (workload("llama-8b", "h100", precision=name) for name in ("fp8", "fp8_current"))
    assert 1.0 < twice.forward_s / once.forward_s < 1.1


def test_experts_keep_their_inputs_in_8_bits_and_the_router_in_16() -> None:
    """Of Qwen3 30B-A3B, per token and block: the norm before attention, 8 copies of 2048 values and
    8 x 768 activated ones, and a copy of 4096 values of attention."""
    decoder = catalogue.model("qwen3-30b-a3b").decoder
    assert decoder is not None
    wide, short = (layers_of(decoder, 512, name) for name in ("mixed", "fp8_current"))
    saved = sum(a.kept_bytes - b.kept_bytes for a, b in zip(wide, short, strict=True))
    assert saved == 512 * 48 * (2048 + 8 * 2048 + 8 * 768 - 4096)


def test_chips_with_another_level_only_have_the_usual_ratio_of_both() -> None:
    """B200 has factors of tuned software; found software is slower as on A100 and H100."""
    devices = {name: catalogue.device(name) for name in catalogue.device_names()}
    tuned, found = (stack_of(devices["b200"], name, devices) for name in ("tuned", "as_found"))
    ratio = ((1.51 / 0.935) * (3.12 / 1.03)) ** 0.5
    assert found.attention / tuned.attention == pytest.approx(ratio, rel=1e-6)
    assert (tuned.alike, found.alike) == (True, False)
    assert found.devices == ("b200",)


def test_eager_frameworks_compute_norms_in_parts() -> None:
    eager, compiled = (
        workload("llama-8b", "h100", software=Software(launches=how))
        for how in ("eager", "compiled")
    )
    tuned = workload("llama-8b", "h100", software=Software(stack="tuned", launches="eager"))
    norms = [
        sum(layer.forward_s for layer in w.layers if layer.kind == "layernorm")
        for w in (eager, compiled, tuned)
    ]
    assert norms[0] / norms[1] == pytest.approx(8.4, rel=0.05)
    assert norms[2] < norms[1]
    assert 1.05 < eager.forward_s / compiled.forward_s < 1.2
    assert [note.value for note in eager.assumptions if note.name == "launches"] == ["eager"]
    same = [
        workload("gpt2-xl", "h100", software=Software(launches=how)) for how in ("eager", "graphs")
    ]
    assert same[0].forward_s == same[1].forward_s


def test_software_is_an_argument_of_jobs_and_its_effect_is_listed() -> None:
    given: dict[str, Any] = {"model": "llama-1b", "device": "a100-80", "arch": "allreduce"}
    found = make_job(**given)
    tuned = make_job(**given, stack="tuned", launches="compiled")
    assert tuned.workload.forward_s < found.workload.forward_s
    effect = next(one for one in effects(found) if one.assumption.name == "stack")
    assert [one.value for one in effect.alternatives] == ["recent", "tuned"]
    assert effect.alternatives[0].ratio > 1.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"precision": "fp8", "device": "a100"},
            "A100 SXM4 40 GB has no fp8 (it has: float32",
        ),
        (
            {"precision": "mxfp8", "device": "h100"},
            "H100 SXM5 80 GB has no mxfp8 (it has: fl",
        ),
        (
            {"precision": "fp7"},
            "precision: NVIDIA H100 SXM5 80 GB has no fp7 (it",
        ),
        ({"precision": "fp4"}, "precision: NVIDIA H100 SXM5 80 GB has no nvfp4 (it has: "),
        ({"precision": "mxfp4", "device": "b200"}, "has no mxfp4 (it has: "),
        ({"model": "resnet50", "device": "h100", "precision": "fp8"}, "resnet50 at fp8 are not"),
        ({"stack": "tunned"}, "unknown stack 'tunned'; did you mean 'tuned'"),
        ({"launches": "graph"}, "unknown launches 'graph'; did you mean 'graphs'"),
        ({"model": "resnet50", "stack": "tuned"}, "stack, launches: times of resnet50 are not"),
        ({"model": "gpt2-small", "launches": "eager"}, "stack, launches: times of gpt2-small"),
    ],
)
def test_mistakes_in_software_are_one_clear_line(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        make_job(**{"model": "llama-1b"} | given)


def test_defaults_are_listed_as_assumptions() -> None:
    w = catalogue.workload(catalogue.model("gpt2-xl"))
    said = {a.name: a.value for a in w.assumptions}
    assert (w.device, w.precision) == ("h100", "mixed")
    assert (said["device"], said["precision"], said["batch_size"]) == ("h100", "mixed", 8)
    assert workload("gpt2-xl", "p100").precision == "float32"


def test_measured_timings_are_used_at_their_length_only() -> None:
    profile = catalogue.model("gpt2-small")
    assert catalogue.workload(profile).quality == "measured"
    with pytest.raises(InputError, match=r"precision: .* has no mixed"):
        catalogue.workload(profile, device_name="k80", precision="mixed", sequence_length=64)
    longer = catalogue.workload(profile, device_name="cpu-epyc-2core", sequence_length=256)
    assert longer.quality == "estimated"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"model": "gpt2-xl", "sequence_length": 2048}, "2048 tokens, but the model has 1024"),
        ({"model": "gpt2-xl", "sequence_length": 0}, "sequence_length: must be at least 1, got 0"),
        ({"model": "resnet50", "sequence_length": 9}, "resnet50 is not a language model with"),
        ({"model": "alexnet", "activation_checkpointing": True}, "form no blocks"),
        ({"model": "gpt2-xl", "accumulation": 0}, "accumulation: must be at least 1, got 0"),
        ({"model": "gpt2-xl", "batch_size": 6, "accumulation": 4}, "be split into 4 equal passes"),
        ({"model": "gpt2-xl", "device": "h10"}, "did you mean h100"),
    ],
)
def test_mistakes_are_one_clear_line(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        make_job(**given)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"heads": 3}, "heads: 3 do not divide the hidden width 4"),
        ({"kv_heads": 4}, "kv_heads: 4 do not divide 2 heads"),
        ({"positions": 2}, "3 tokens, but the model has 2 positions"),
        ({"blocks": 0}, "blocks: must be at least 1, got 0"),
    ],
)
def test_inconsistent_dimensions_are_refused(changed: dict[str, Any], text: str) -> None:
    given = {name: getattr(TINY, name) for name in TINY.__struct_fields__}
    with pytest.raises(InputError, match=re.escape(text)):
        Decoder(**given | changed)


LAYERS = [
    WorkloadLayer("embed", 1.0, 1.0, (8.0,), 100.0),
    *(
        WorkloadLayer(f"blocks.{i}.{part}", 2.0, 4.0, (8.0,), size)
        for i in range(3)
        for part, size in (("a", 50.0), ("b", 10.0))
    ),
]


def test_checkpointing_by_hand() -> None:
    """Three blocks of two layers of 2 s: 12 s again; 100 + 3 * 10 + (50 + 10) bytes are kept."""
    plain = msgspec.structs.replace(Workload.of("three", LAYERS), activation_bytes=280.0)
    again = recomputed(plain, "full")
    assert (again.forward_s, again.backward_s) == (13.0, 25.0 + 12.0)
    assert again.activation_bytes == 190.0
    assert [layer.backward_s for layer in again.layers] == [1.0, *[6.0] * 6]


def test_checkpointing_costs_a_third_and_saves_memory() -> None:
    plain, again = workload(), workload(recompute="full")
    ratio = (again.forward_s + again.backward_s) / (plain.forward_s + plain.backward_s)
    assert 1.31 < ratio < 4 / 3
    assert again.activation_bytes < plain.activation_bytes / 5


def test_accumulation_by_hand() -> None:
    """Four passes of 13 s and 25 s; the last one communicates."""
    whole = accumulated(Workload.of("three", LAYERS, batch_size=2), 4)
    assert whole.batch_size == 8
    assert whole.layers[0].forward_s == 1.0 + 3 * 38.0
    assert (whole.forward_s, whole.backward_s) == (13.0 + 3 * 38.0, 25.0)


def test_accumulation_reduces_the_network_share() -> None:
    """The same samples in four passes: the same computation, a quarter of the gradient traffic."""
    given: dict[str, Any] = {
        "model": "gpt2-xl", "device": "a100", "workers": 4, "arch": "allreduce", "cluster":
        "ethernet-10g", "sequence_length": 512,
    }  # fmt: skip
    each = predict(make_job(**given, batch_size=4))
    whole = predict(make_job(**given, batch_size=16, accumulation=4))
    assert whole.exposed_communication_s == pytest.approx(each.exposed_communication_s, rel=0.05)
    assert whole.throughput_samples_per_s > 2 * each.throughput_samples_per_s
    assert whole.memory.worker.activations_bytes == each.memory.worker.activations_bytes


def test_sharded_training_sends_16_bit_values_if_it_computes_with_them() -> None:
    given: dict[str, Any] = {
        "model": "llama-1b", "device": "a100-80", "workers": 4, "arch": "fsdp", "cluster":
        "ethernet-10g", "batch_size": 1,
    }  # fmt: skip
    low = predict(make_job(**given))
    full = predict(make_job(**given, options={"mixed_precision": False}))
    assert 1.7 < full.exposed_communication_s / low.exposed_communication_s < 2.3
    assert low.memory.worker_bytes < full.memory.worker_bytes


def test_70b_fits_on_many_devices_but_not_on_one() -> None:
    given: dict[str, Any] = {
        "model": "llama-70b", "device": "h100", "arch": "fsdp", "batch_size": 1,
        "activation_checkpointing": True,
    }  # fmt: skip
    needs = {n: predict(make_job(**given, workers=n), fidelity="coarse").memory for n in (8, 64)}
    assert needs[64].device_bytes is not None
    assert needs[64].worker_bytes < needs[64].device_bytes < needs[8].worker_bytes


def test_a_resolved_workload_cannot_be_changed() -> None:
    done = workload("gpt2-xl")
    with pytest.raises(InputError, match="sequence_length: the workload is already resolved"):
        make_job(workload=done, sequence_length=512)
    assert make_job(workload=done, sequence_length=1024).workload is done


def test_flags_job_file_and_python_agree(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        'schema = "perfmodel.job/1"\nmodel = "llama-1b"\ndevice = "h200"\narch = "fsdp"\n'
        "workers = 4\nbatch_size = 4\nsequence_length = 1024\nactivation_checkpointing = true\n"
        "accumulation = 2\n"
    )
    flags = "--model llama-1b --device h200 --arch fsdp --workers 4 --batch-size 4"
    flags += " --sequence-length 1024 --activation-checkpointing --accumulation 2"
    made = predict(make_job(**read_job(tmp_path / "job.toml")))
    for words in (flags.split(), ["--job", str(tmp_path / "job.toml")]):
        done = CliRunner().invoke(cli, ["predict", *words, "--json"])
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        assert said["throughput_samples_per_s"] == made.throughput_samples_per_s
        assert said["sequence_length"] == 1024
        assert any(note.startswith("accumulation: ") for note in said["notes"])


def test_a_sweep_can_vary_the_length() -> None:
    words = "--model gpt2-xl --arch ring --workers 2 --sequence-length 256,512 --csv -"
    done = CliRunner().invoke(cli, ["sweep", *words.split()])
    assert done.exit_code == 0, done.output
    header, *lines = csv.reader(done.stdout.splitlines())
    column = header.index("sequence_length")
    assert [line[column] for line in lines] == ["256", "512"]


def test_the_host_launches_adapters_too() -> None:
    """Llama 1B on 1 x 16 tokens: each of 16 blocks has adapters of four matrices, with two products
    of three kernels and four kernels bound by memory; frozen products have a kernel less."""
    profile = catalogue.model("llama-1b")
    layers = with_layers(profile, "mixed").layers
    products = sum(isinstance(one, Product) for layer in layers for one in layer.operators)
    kernels = kernels_of(layers) - products + 16 * 4 * 10

    def passes_s(**given: str) -> float:
        job = make_job(
            workload=profile, device="h200", precision="mixed", workers=1, arch="ring",
            batch_size=1, sequence_length=16, lora="16:attention", **given,
        )  # fmt: skip
        return job.workload.forward_s + job.workload.backward_s

    assert passes_s() == pytest.approx(kernels * 30e-6, rel=0.04)  # no backward of the embedding
    assert passes_s(launches="graphs") < 0.25 * passes_s()  # which reads all weights


def board_over_a100(sustained: float) -> float:
    """Mean throughput of a board of two MI250 over that of an A100, of MPT models in 16 bits."""
    devices = {name: catalogue.device(name) for name in catalogue.device_names()}
    devices["mi250"] = msgspec.structs.replace(devices["mi250"], sustained=sustained)
    ratios = []
    for name in ("mpt-1b", "mpt-3b", "mpt-7b", "mpt-13b"):
        profile = catalogue.model(name)
        board, other = (
            language_estimate.estimate(profile, devices[one], "mixed", 8, devices=devices)
            for one in ("mi250", "a100")
        )
        ratios.append(2.0 * other.compute_s / board.compute_s)
    return sum(ratios) / len(ratios)


def test_mi250_trains_as_slowly_as_others_published_in_16_bits() -> None:
    # Databricks, "Training LLMs with AMD MI250 GPUs and MosaicML", 2023: a board has 0.8 of the
    # throughput of an A100 with 40 GB, for MPT models of 1 to 13 billion parameters
    assert board_over_a100(catalogue.device("mi250").sustained) == pytest.approx(0.8, rel=0.1)
    assert board_over_a100(1.0) > 1.2 * 0.8  # the figure of peak rates would be seen
