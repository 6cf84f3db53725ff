"""Encoder-decoders and vision transformers: their sizes, their stages, and devices that divide
them."""

from __future__ import annotations

import math

import pytest

from perfmodel import InputError, make_job, predict
from perfmodel.catalogue import catalogue
from perfmodel.inputs.operator_shapes import Attention, Product
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.profile import Layer
from perfmodel.predicting import replicas
from perfmodel.replicas.stage_work import boundary_bytes
from perfmodel.times import named_layers

MILLIONS = {
    "t5-small": 60.5, "t5-base": 222.9, "t5-large": 737.7, "t5-3b": 2851.6, "t5-11b": 11307.3,
    "vit-h14": 632.0, "vit-g14": 1011.0, "vit-l16": 304.3, "vit-b16": 86.6, "bert-base": 109.5,
    "bert-large": 335.2,
}  # fmt: skip
"""Parameters: google-t5 on Hugging Face (Raffel et al., 2020, have them to two digits); Dosovitskiy
et al., ICLR 2021, table 1, and Zhai et al., CVPR 2022, table 2; torchvision; transformers."""


@pytest.mark.parametrize("name", sorted(MILLIONS))
def test_parameters_are_those_published(name: str) -> None:
    assert catalogue.model(name).parameter_bytes / 4e6 == pytest.approx(MILLIONS[name], rel=5e-3)


def test_operations_of_t5_by_hand() -> None:
    """Base, 512 tokens read and 128 written; two operations per multiply-add."""
    h, inner, r, w = 768, 3072, 512, 128
    encoder = 2 * r * (4 * h * h + 2 * h * inner) + 4 * r * r * h
    decoder = 2 * w * (4 * h * h + 2 * h * h + 2 * h * inner) + 2 * r * 2 * h * h
    decoder += 4 * w * w * h + 4 * w * r * h
    expected = 12 * (encoder + decoder) + 2 * w * h * 32128
    layers = catalogue.model("t5-base").layers
    assert sum(layer.forward_flop for layer in layers) == pytest.approx(expected, rel=1e-9)


def test_stages_have_whole_blocks_and_pass_on_both_streams() -> None:
    job = make_job(model="t5-base", device="a100", pipeline=4, micro_batches=4, batch_size=4,
                   precision="mixed")  # fmt: skip
    stages = replicas.stage_jobs(job)
    blocks = [
        {layer.name.split(".")[1] for layer in one_pass(one.job.workload).layers
         if layer.name.startswith("blocks.")}
        for one in stages
    ]  # fmt: skip
    assert [sorted(map(int, some)) for some in blocks] == [
        [*range(6 * k, 6 * k + 6)] for k in range(4)
    ]
    assert job.replica is not None
    # sums are in 32 bits: what is read, and words that wait for the decoder, or what was encoded
    assert boundary_bytes(job.workload, job.replica) == pytest.approx([4 * (512 + 128) * 768] * 3)
    assert predict(job, fidelity="coarse").iteration_s > 0.0


@pytest.mark.parametrize(("name", "tensor"), [("t5-large", 8), ("vit-h14", 4), ("t5-11b", 2)])
def test_devices_divide_products_heads_and_activations(name: str, tensor: int) -> None:
    layers = catalogue.model(name).layers
    parts = named_layers.on_one_of(layers, tensor)
    for layer, part in zip(layers, parts, strict=True):
        divides = layer.name.endswith((*named_layers.BY_COLUMNS, *named_layers.BY_ROWS))
        divides |= layer.kind in ("attention", "activation")
        for one, share in zip(layer.operators, part.operators, strict=True):
            if isinstance(one, Product | Attention) and divides:
                assert share.flop == pytest.approx(one.flop / tensor)  # type: ignore[union-attr]
    assert named_layers.on_one_of(layers, 1) == layers


def test_what_is_summed_by_hand() -> None:
    job = make_job(model="t5-base", device="a100", tensor=2, batch_size=2, precision="mixed")
    known = {layer.name: layer for layer in one_pass(job.workload).layers}
    read, written = 2 * 2 * 512 * 768, 2 * 2 * 128 * 768  # two sequences of 16 bits
    assert known["blocks.0.attention.out"].forward_summed_bytes == read
    assert known["blocks.0.attention.qkv"].backward_summed_bytes == read
    assert known["blocks.12.cross_attention.out"].forward_summed_bytes == written
    assert known["blocks.12.cross_attention.kv"].backward_summed_bytes == read
    assert known["blocks.12.cross_attention.q"].backward_summed_bytes == written
    assert known["embedding"].forward_summed_bytes == read + written
    assert known["head"].backward_summed_bytes == written
    assert known["blocks.0.norm_attention"].forward_summed_bytes == 0.0


def test_canary_another_sum_is_noticed() -> None:
    layer = Layer("blocks.0.attention.out", "linear", operators=(Product(8, 4, 2),))
    assert named_layers.summed_values(layer, True) == (32.0, 0.0)
    assert named_layers.summed_values(layer, True) != (16.0, 0.0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["t5-large", "vit-h14"])
def test_more_devices_take_less_time(name: str) -> None:
    one, two, four = (
        predict(
            make_job(model=name, device="a100", batch_size=64, workers=2,
                     **({"tensor": t} if t > 1 else {})),
            fidelity="coarse",
        )
        for t in (1, 2, 4)
    )  # fmt: skip
    assert one.compute_s > two.compute_s > four.compute_s
    assert two.compute_s > one.compute_s / 2
    assert four.memory.worker.parameters_bytes < one.memory.worker.parameters_bytes / 3


def test_pipelines_and_tensors_together() -> None:
    got = predict(
        make_job(model="t5-11b", device="a100", tensor=8, pipeline=2, micro_batches=8,
                 batch_size=8, workers=2),
        fidelity="coarse",
    )  # fmt: skip
    assert math.isfinite(got.iteration_s)
    assert got.layout is not None
    assert got.layout.devices == 16


def test_heads_that_cannot_be_divided_are_named() -> None:
    with pytest.raises(InputError, match=r"divide 12 heads .* \(possible: 4, 6, 12\)"):
        make_job(model="t5-base", device="a100", tensor=8)
