"""What devices that divide layers sum, and what they hand over, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel import make_job, predict
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.job import Job
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.profile import Profile, Source
from perfmodel.predicting.replicas import stage_jobs

TINY = Decoder(hidden=64, blocks=2, heads=16, vocabulary=1024, sequence_length=128)

WIDTH = 3 * 128 * 64 * 2
"""Bytes between blocks: 3 sequences of 128 tokens, 64 values of 16 bits."""


def job(**given: Any) -> Job:
    profile = Profile(name="tiny", decoder=TINY, source=Source("exact", "made"))
    fields = {"device": "a100", "precision": "mixed", "batch_size": 3, "cluster": "dgx-a100"}
    return make_job(workload=profile, **fields | {"workers": 2, "tensor": 2} | given)


@pytest.mark.parametrize(("recompute", "sums"), [("none", 2), ("selective", 2), ("full", 4)])
def test_a_block_that_is_computed_again_sums_again(recompute: str, sums: int) -> None:
    """Two sums in backward, and with full recomputation the two of forward as well; the head's sum
    and the embedding's are not repeated."""
    layers = one_pass(job(recompute=recompute).workload).layers
    forward = sum(layer.forward_summed_bytes for layer in layers)
    backward = sum(layer.backward_summed_bytes for layer in layers)
    assert forward == (2 * TINY.blocks + 1) * WIDTH
    assert backward == (sums * TINY.blocks + 1) * WIDTH


@pytest.mark.parametrize("precision", ["mixed", "fp8", "mxfp8"])
def test_sums_have_sixteen_bits(precision: str) -> None:
    """Also where products have eight."""
    layers = one_pass(job(device="b200", cluster="dgx-b200", precision=precision).workload).layers
    assert max(layer.forward_summed_bytes for layer in layers) == WIDTH


def test_devices_of_two_nodes_may_divide_layers() -> None:
    inside, across = (predict(job(tensor=n, workers=1)).iteration_s for n in (4, 16))
    assert across > inside


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_each_device_hands_its_part_of_the_gradients_over(tensor: int) -> None:
    """A stage of a quarter of the parameters hands over a quarter of the bytes. The last has a copy
    of the embedding, which is the output layer."""
    made = job(tensor=tensor, pipeline=2, one_device_step_s=1.0, micro_batches=3, arch="ring")
    parameters = tensors = 0.0
    added_s = 0.0
    for stage in (one.job for one in stage_jobs(made)):
        handed = stage.pass_work(reduced=True).compute_s
        added_s += handed - stage.pass_work(reduced=False).compute_s
        parameters += stage.workload.gradient_bytes
        tensors += stage.workload.tensors
    assert parameters == 4 * (TINY.parameters(128) + 1024 * 64)
    assert added_s == pytest.approx(
        made.cluster.handover.seconds(int(tensors), parameters / tensor)
    )
