"""Memory of published models by component, against the formulas of the literature.

States of the model: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion
parameter models", SC 2020, arXiv 1910.02054, section 3 and figure 1. Activations: Korthikanti et
al., "Reducing activation recomputation in large transformer models", 2022, arXiv 2205.05198,
equations 1 and 2, and section 5.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfmodel import InputError, Source, Workload, make_job, predict
from perfmodel.catalogue import catalogue
from perfmodel.inputs.activations import in_precision
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.profile import Layer, Profile, Tensor
from perfmodel.predicting.memory import memory_of, overhead
from perfmodel.results.memory import Footprint

MODELS = {
    "gpt2-xl": (1600, 48, 25, 50257, 1024),
    "llama-8b": (4096, 32, 32, 128256, 4096),
    "llama-70b": (8192, 80, 64, 128256, 4096),
    "bert-large": (1024, 24, 16, 30522, 512),
}
"""Width, blocks, heads, vocabulary and sequence length."""

BATCH = 4

MASTER = "bf16_master"


def decoder(name: str, **more: Any) -> Decoder:
    hidden, blocks, heads, vocabulary, length = MODELS[name]
    return Decoder(
        hidden=hidden, blocks=blocks, heads=heads, vocabulary=vocabulary, sequence_length=length,
        **more,
    )  # fmt: skip


def footprint(
    model: Decoder, arch: str = "ring", workers: int = 8, devices: int = 1, **given: Any
) -> Footprint:
    profile = Profile(name="net", decoder=model, source=Source("exact", "made for a test"))
    options = {} if arch == "ring" else {"unit_bytes": 0.0}
    given = {"precision": "mixed", "batch_size": BATCH, "optimizer": "adam", **given}
    where = msgspec.structs.replace(
        catalogue.cluster("dgx-a100"), devices_per_node=devices, nics_per_node=1
    )
    made = make_job(
        workload=profile, device="a100-80", workers=workers, arch=arch, options=options,
        cluster=where, **given,
    )  # fmt: skip
    return memory_of(made).worker


def blocks_bytes(of: Footprint, model: Decoder) -> float:
    """Activations inside of blocks: without the embedding's output, the mask of its dropout, and
    the output of the last norm."""
    values = BATCH * model.sequence_length * model.hidden
    outside = (5.0 if model.dropout else 4.0) * values
    return sum(of.activations_bytes.values()) - outside


@pytest.mark.parametrize("name", MODELS)
def test_activations_of_blocks_are_those_of_korthikanti_et_al(name: str) -> None:
    """s b h (34 + 5 a s / h) bytes a block; 34 s b h if attention is computed again, with one
    block's scores while it is; 2 s b h if all is, with one whole block."""
    model = decoder(name, dropout=True, flash=False)
    s, h, a, count = model.sequence_length, model.hidden, model.heads, model.blocks
    plain = s * BATCH * h * (34.0 + 5.0 * a * s / h)
    scores = 5.0 * a * s**2 * BATCH
    whole = footprint(model)
    assert blocks_bytes(whole, model) == pytest.approx(count * plain, rel=1e-9)
    attention = footprint(model, recompute="selective")
    kept = count * 34.0 * s * BATCH * h + scores
    assert blocks_bytes(attention, model) == pytest.approx(kept, rel=1e-9)
    full = footprint(model, recompute="full")
    assert blocks_bytes(full, model) == pytest.approx(count * 2.0 * s * BATCH * h + plain, rel=1e-9)


def test_flash_attention_keeps_no_scores_and_a_model_without_dropout_no_masks() -> None:
    """34 s b h without scores; less a byte for each of two masks."""
    model = decoder("gpt2-xl", dropout=True)
    values = BATCH * model.sequence_length * model.hidden * model.blocks
    assert blocks_bytes(footprint(model), model) == pytest.approx(34.0 * values)
    bare = decoder("gpt2-xl")
    assert blocks_bytes(footprint(bare), bare) == pytest.approx(32.0 * values)
    scores = decoder("gpt2-xl", flash=False)  # the softmax's output alone
    more = 2.0 * model.heads * model.sequence_length**2 * BATCH * model.blocks
    assert blocks_bytes(footprint(scores), scores) == pytest.approx(32.0 * values + more)


def test_blocks_of_llama_by_hand() -> None:
    """Values per token: two norms and two sums, queries, keys and values, attention's output, gate
    and up, their product."""
    model = decoder("llama-8b", gated=True, kv_heads=8, feed_forward=14336, biases=False)
    per_token = 4 * 4096 + (4096 + 2 * 1024) + 4096 + 3 * 14336
    tokens = BATCH * model.sequence_length
    found = footprint(model)
    assert blocks_bytes(found, model) == pytest.approx(2.0 * tokens * per_token * 32)
    assert found.activations_bytes["mlp"] == pytest.approx(2.0 * tokens * 3 * 14336 * 32)
    assert found.activations_bytes["sums"] == pytest.approx(2.0 * tokens * 2 * 4096 * 32)
    assert found.activations_bytes["norms"] == pytest.approx(2.0 * tokens * (2 * 32 + 1) * 4096)
    of_attention = 4096 + 2 * 1024 + 4096
    assert found.activations_bytes["attention"] == pytest.approx(2.0 * tokens * of_attention * 32)


def test_every_second_product_and_every_second_block() -> None:
    """By products: a block's output, attention's, half of the products' outputs; and the largest
    block. Every second block: half of the blocks keep their output."""
    model = decoder("llama-8b", gated=True, kv_heads=8, feed_forward=14336, biases=False)
    tokens, h = BATCH * model.sequence_length, 4096
    block = 2.0 * tokens * (4 * h + h + 2048 + h + 3 * 14336)
    products = (h + 2048) + h + 2 * 14336 + h
    kept = 2.0 * tokens * (h + h + products / 2)
    found = footprint(model, recompute="selective:products")
    assert blocks_bytes(found, model) == pytest.approx(32 * kept + block)
    found = footprint(model, recompute="selective:2")
    assert blocks_bytes(found, model) == pytest.approx(16 * block + 16 * 2.0 * tokens * h + block)


def test_logits_and_loss() -> None:
    """Per logit: itself in 16 bits, the logarithmic softmax in 32; two or one gradients."""
    model = decoder("llama-8b")
    logits = BATCH * 4096 * 128256
    kept = footprint(model, "zero1")
    assert kept.logits_bytes == pytest.approx((2 + 4) * logits)
    assert kept.temporary_bytes == pytest.approx((4 + 4) * logits)
    assert kept.absent_bytes == {}
    fused = footprint(decoder("llama-8b", fused_loss=True), "zero1")
    assert fused.logits_bytes == pytest.approx((2 + 4) * logits)
    assert fused.temporary_bytes == pytest.approx(4 * logits)
    exact = footprint(model, "zero1", precision="float32")
    assert exact.logits_bytes == pytest.approx((4 + 4) * logits)


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-8b", "llama-70b", "bert-large"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("arch", "devices", "parameters", "gradients", "states"),
    [
        ("ring", 1, 1, 1, 1),
        ("zero1", 1, 1, 1, 8),
        ("zero2", 1, 1, 8, 8),
        ("zero3", 1, 8, 8, 8),
        ("hsdp", 4, 4, 4, 4),
    ],
)
def test_states_of_a_model_are_those_of_zero(
    name: str,
    recompute: str,
    arch: str,
    devices: int,
    parameters: int,
    gradients: int,
    states: int,
) -> None:
    """2, 2 and 12 bytes per parameter, each divided by the workers that share it."""
    model = decoder(name)
    count = model.parameters(model.sequence_length)
    found = footprint(model, arch, devices=devices, precision_policy=MASTER, recompute=recompute)
    assert found.parameters_bytes == pytest.approx(2.0 * count / parameters)
    assert found.gradients_bytes == pytest.approx(2.0 * count / gradients)
    assert found.copies_bytes == pytest.approx(4.0 * count / states)
    assert found.optimizer_states_bytes == pytest.approx(8.0 * count / states)
    assert found.buckets_bytes == (2.0 * count if arch == "ring" else 0.0)
    assert (found.gathered_bytes > 0.0) == (gradients > 1)
    assert found.allocated_bytes == pytest.approx(sum(found.tensors.values()))


def test_figure_1_of_zero() -> None:
    """7.5 billion parameters on 64 devices: 120, 31.4, 16.6 and 1.9 GB."""
    model = Decoder(hidden=4096, blocks=36, heads=32, vocabulary=51200, sequence_length=1024)
    count = model.parameters(1024)
    assert count == pytest.approx(7.5e9, rel=0.01)
    for arch, gigabytes in (("ring", 120.0), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)):
        found = footprint(model, arch, workers=64, precision_policy=MASTER)
        states = (
            found.parameters_bytes + found.gradients_bytes + found.copies_bytes
            + found.optimizer_states_bytes
        )  # fmt: skip
        assert states == pytest.approx(gigabytes * 1e9, rel=0.02)


def test_fsdp_gathers_the_largest_units_in_16_bits() -> None:
    """One unit's gradients while they are reduced, and the two largest units: embedding, head."""
    model = decoder("llama-8b", tied=False)
    unit = 128256 * 4096
    found = footprint(model, "fsdp")
    assert found.gathered_bytes == pytest.approx(2.0 * unit + 2.0 * 2 * unit)
    count = model.parameters(4096)
    assert found.parameters_bytes == pytest.approx(4.0 * count / 8)
    assert found.copies_bytes == 0.0  # 16-bit copies are the gathered units


def published(name: str, arch: str = "ring", **given: Any) -> Footprint:
    return memory_of(make_job(model=name, arch=arch, workers=8, **given)).worker


@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet50", 25_557_032), ("bert-large", 335_174_458)]
)
def test_measured_models_keep_32_bits_of_everything(name: str, parameters: int) -> None:
    found = published(name, optimizer="momentum", precision_policy="fp32")
    assert found.parameters_bytes == pytest.approx(4.0 * parameters, rel=0.01)
    assert found.gradients_bytes == found.buckets_bytes == found.parameters_bytes
    assert found.optimizer_states_bytes == found.parameters_bytes
    work = make_job(model=name).workload
    kept = sum(layer.activation_bytes for layer in work.layers)
    assert sum(found.activations_bytes.values()) == pytest.approx(kept)
    cut = published(name, "zero3", optimizer="adam", precision_policy=MASTER)
    assert cut.parameters_bytes == pytest.approx(2.0 * parameters / 8, rel=0.01)


GPU_PEAKS = (
    ("resnet50", 128, "tf32", 11.396e9),
    ("resnet50", 32, "mixed", 1.781e9),
    ("resnet50", 128, "mixed", 6.085e9),
    ("resnet50", 256, "mixed", 11.806e9),
    ("resnet101", 64, "mixed", 4.726e9),
    ("vgg16", 64, "tf32", 6.546e9),
    ("vgg16", 64, "mixed", 4.684e9),
    ("densenet121", 64, "mixed", 4.486e9),
    ("mobilenet_v2", 64, "mixed", 2.778e9),
    ("efficientnet-b0", 64, "mixed", 3.119e9),
    ("vit-b16", 64, "mixed", 5.428e9),
    ("bert-base", 32, "mixed", 4.537e9),
    ("bert-large-384", 16, "mixed", 13.087e9),
)
"""Largest allocated memory of a training step on one H100, PyTorch 2.11, bf16 autocast if mixed:
``torch.cuda.max_memory_allocated``; SGD with momentum, AdamW for BERT."""


@pytest.mark.parametrize(("model", "samples", "precision", "measured_bytes"), GPU_PEAKS)
def test_memory_of_a_step_on_a_gpu(
    model: str, samples: int, precision: str, measured_bytes: float
) -> None:
    """Predicted memory has no inputs of the step and no workspaces: a few per cent."""
    optimizer = "adam" if "bert" in model else "momentum"
    given = {"model": model, "batch_size": samples, "precision": precision}
    job = make_job(**given, device="h100", workers=1, arch="ring", optimizer=optimizer)
    assert -0.1 < memory_of(job).worker_bytes / measured_bytes - 1.0 < 0.0


def test_autocast_halves_activations_but_those_of_norms_over_features() -> None:
    tensor = Tensor("weight", 4.0)
    kinds = ("conv2d", "batchnorm2d", "layernorm", "embedding", "linear")
    layers = tuple(
        Layer(kind, kind, (tensor,), activation_bytes=8.0, saved_bytes=16.0, temporary_bytes=4.0)
        for kind in kinds
    )
    profile = Profile(name="net", source=Source("exact", "made up"), layers=layers)
    halved = in_precision(profile, "mixed")
    assert [layer.saved_bytes for layer in halved.layers] == [8.0, 8.0, 16.0, 16.0, 8.0]
    assert [layer.activation_bytes for layer in halved.layers] == [4.0, 4.0, 8.0, 8.0, 4.0]
    assert [layer.temporary_bytes for layer in halved.layers] == [2.0, 2.0, 4.0, 4.0, 2.0]
    assert in_precision(halved, "float32").layers == profile.layers
    assert {layer.saved_bytes for layer in in_precision(profile, "bf16").layers} == {8.0}
    assert in_precision(profile, "tf32") is profile
    assert in_precision(halved, "fp8") is halved
    with pytest.raises(
        InputError, match="unknown activation_precision 'mixd'; did you mean 'mixed'"
    ):
        Profile(name="net", source=profile.source, layers=layers, activation_precision="mixd")
    unknown = msgspec.structs.replace(layers[0], saved_bytes=None)
    assert in_precision(msgspec.structs.replace(profile, layers=(unknown,)), "mixed").layers[0] == (
        msgspec.structs.replace(unknown, activation_bytes=4.0, temporary_bytes=2.0)
    )


def test_activations_of_convolutions_and_their_norms() -> None:
    found = published("resnet50").activations_bytes
    assert set(found) == {"convolutions", "norms", "linear"}
    layers = make_job(model="resnet50").workload.layers
    norms = sum(one.activation_bytes for one in layers if "norm" in one.kind)
    assert found["norms"] == pytest.approx(norms)


@pytest.mark.parametrize(
    ("optimizer", "policy", "expected"),
    [
        ("sgd", "fp32", 0.0),
        ("momentum", "fp32", 4.0),
        ("lion", "fp32", 4.0),
        ("adam", "fp32", 8.0),
        ("adamw", "amp", 8.0),
        ("adamw", "bf16", 4.0),
        ("adamw", "fp8", 8.0),
        ("adam_8bit", "bf16_master", 2.0 * (1.0 + 4.0 / 256.0)),
    ],
)
def test_bytes_of_state_per_parameter(optimizer: str, policy: str, expected: float) -> None:
    model = decoder("bert-large")
    found = footprint(model, optimizer=optimizer, precision_policy=policy)
    count = model.parameters(model.sequence_length)
    assert found.optimizer_states_bytes == pytest.approx(expected * count)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("AdamW", "adamw"),
        ("adamw_torch_fused", "adamw"),
        ("FusedAdam", "adam"),
        ("adam8bit", "adam_8bit"),
        ("adamw-8bit", "adam_8bit"),
        ("paged_adamw_8bit", "adam_8bit"),
    ],
)
def test_an_optimizer_may_be_called_as_elsewhere(given: str, expected: str) -> None:
    asked, named = (
        make_job(model="bert-large", optimizer=name, precision_policy=policy).workload.storage
        for name, policy in ((given, "BF16-master"), (expected, "bf16_master"))
    )
    assert asked == named
    assert asked.optimizer == expected


def test_an_unknown_optimizer_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown optimizer 'adm'; did you mean 'adam'\?"):
        make_job(model="bert-large", optimizer="adm")


def test_adafactor_keeps_rows_and_columns_and_muon_one_moment_of_matrices() -> None:
    model = decoder("bert-large", biases=False)
    h = model.hidden
    # qkv, out, up and down of each block; rows and columns as of square matrices
    matrices = [3 * h * h, h * h, 4 * h * h, 4 * h * h]
    factored = 24 * sum(2.0 * size**0.5 for size in matrices) + 2.0 * (30522 * h) ** 0.5
    norms = (2 * 24 + 1) * 2.0 * h**0.5
    found = footprint(model, optimizer="adafactor")
    assert found.optimizer_states_bytes == pytest.approx(4.0 * (factored + norms))
    count, inside = model.parameters(512), 24 * sum(matrices)
    found = footprint(model, optimizer="muon")
    assert found.optimizer_states_bytes == pytest.approx(4.0 * (2 * count - inside))


@pytest.mark.parametrize(
    ("policy", "parameter", "gradient", "copies"),
    [
        ("fp32", 4, 4, 0),
        ("amp", 4, 4, 2),
        ("bf16_master", 2, 2, 4),
        ("bf16_master_fp32_gradients", 2, 4, 4),
        ("bf16", 2, 2, 0),
        ("fp8", 2, 4, 6),
    ],
)
def test_bytes_of_policies_per_parameter(
    policy: str, parameter: int, gradient: int, copies: int
) -> None:
    model = decoder("bert-large")
    count = model.parameters(model.sequence_length)
    found = footprint(model, precision_policy=policy)
    assert found.parameters_bytes == pytest.approx(parameter * count)
    assert found.gradients_bytes == pytest.approx(gradient * count)
    assert found.copies_bytes == pytest.approx(copies * count)


def test_lora_trains_adapters_only() -> None:
    """Rank 16 of q and v in 32 blocks: 16 (4096 + 4096) and 16 (4096 + 1024) parameters; the other
    8 billion have 4 bits in the blocks' matrices, and 16 elsewhere."""
    model = decoder("llama-8b", gated=True, kv_heads=8, feed_forward=14336, biases=False)
    adapters = 32 * 16 * (4096 + 4096 + 4096 + 1024)
    count = model.parameters(4096)
    norms = (2 * 32 + 1) * 4096
    matrices = count - 128256 * 4096 - norms
    for bits, base in ((16, 2.0 * count), (4, 0.5 * matrices + 2.0 * (count - matrices))):
        found = footprint(model, lora=f"16:q+v:{bits}")
        assert found.parameters_bytes == pytest.approx(base + 4.0 * adapters)
        assert found.gradients_bytes == pytest.approx(4.0 * adapters)
        assert found.optimizer_states_bytes == pytest.approx(8.0 * adapters)
    whole = footprint(model, "zero3", lora="16:q+v")
    assert whole.parameters_bytes == pytest.approx((2.0 * count + 4.0 * adapters) / 8)


def test_lora_sends_less_and_computes_two_thirds() -> None:
    given: dict[str, Any] = {
        "model": "llama-7b", "device": "a100-80", "workers": 4, "arch": "ring", "batch_size": 1,
    }  # fmt: skip
    plain, adapted = (make_job(**given, lora=lora).workload for lora in (None, "8"))
    assert adapted.gradient_bytes < plain.gradient_bytes / 1000
    assert adapted.backward_s < 0.65 * plain.backward_s
    assert adapted.forward_s == pytest.approx(plain.forward_s, rel=0.01)
    assert predict(make_job(**given, lora="8"), fidelity="coarse").notes == ()


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-8b"])
@pytest.mark.parametrize(("arch", "shards"), [("ring", 1), ("zero1", 8)])
def test_policies_of_deepspeed_by_hand(name: str, arch: str, shards: int) -> None:
    """*cast*: 2 of a parameter and 2 of its gradient, and of a share 12 of states and master, and
    in the update 2 of joined gradients and 4 of their casts. *two*: 2 and 2 + 4, and 12 of a
    share. Full recomputation leaves so little in the backward pass that the update needs most."""
    model = decoder(name)
    count = model.parameters(model.sequence_length)
    given: dict[str, Any] = {"recompute": "full", "batch_size": 1, "accumulation": 1}
    cast = footprint(model, arch, precision_policy="bf16_master_cast_gradients", **given)
    adam = 4.0 * count if arch == "ring" else 0.0  # PyTorch's temporary copy of second moments
    assert cast.parameters_bytes == cast.gradients_bytes == pytest.approx(2.0 * count)
    assert cast.optimizer_states_bytes + cast.copies_bytes == pytest.approx(12.0 * count / shards)
    if arch == "ring":
        assert cast.temporary_bytes == pytest.approx(6.0 * count + adam)
    two = footprint(model, arch, precision_policy="bf16_master_two_gradients", **given)
    assert two.gradients_bytes == pytest.approx(6.0 * count)
    assert two.optimizer_states_bytes == pytest.approx(8.0 * count / shards)
    alone = footprint(model, "zero1", workers=1, precision_policy="bf16_master_cast_gradients",
                      **given)  # fmt: skip
    assert alone.allocated_bytes == pytest.approx(22.0 * count)
    flat = footprint(model, "zero1", precision_policy="bf16_master_flat_update", workers=1,
                     **given)  # fmt: skip
    assert flat.allocated_bytes == pytest.approx(30.0 * count)  # two copies of second moments more


def test_offloaded_states_are_in_the_memory_of_the_host() -> None:
    model = decoder("gpt2-xl")
    count = model.parameters(1024)
    kept = footprint(model, "zero2", precision_policy=MASTER)
    moved = footprint(model, "zero2", precision_policy=MASTER, offload_optimizer=True)
    assert moved.optimizer_states_bytes == moved.copies_bytes == 0.0
    assert moved.host_bytes == pytest.approx(12.0 * count / 8)
    assert kept.allocated_bytes - moved.allocated_bytes == pytest.approx(moved.host_bytes)


def test_reserved_memory_is_an_interval_on_accelerators() -> None:
    found = footprint(decoder("gpt2-xl"))
    reserved, shipped = found.reserved_bytes, overhead()
    assert reserved is not None
    libraries = shipped.context_bytes + 2 * 3 * 10 * 2**20  # a link of 25 GB/s has two channels
    assert found.library_bytes == libraries
    expected = shipped.reserved_over_allocated[1] * found.allocated_bytes + libraries
    assert reserved.median == pytest.approx(expected)
    assert reserved.p5 < reserved.median < reserved.p95
    cast = footprint(decoder("gpt2-xl"), "zero1", precision_policy="bf16_master_cast_gradients")
    assert cast.reserved_bytes is not None
    assert (cast.reserved_bytes.p95 - libraries) / cast.allocated_bytes == pytest.approx(
        shipped.deepspeed_over_allocated[2]
    )
    assert set(shipped.sources) <= set(type(shipped).__struct_fields__)
    chain = Workload.of("net", make_job(model="resnet18").workload.layers)
    assert memory_of(make_job(workload=chain)).worker.reserved_bytes is None
