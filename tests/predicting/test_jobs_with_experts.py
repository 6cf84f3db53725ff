"""Jobs of models with experts: computation by active parameters, all else by all of them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Source, make_job, predict
from perfmodel.catalogue import catalogue
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_parts import Experts
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import Profile
from perfmodel.predicting.fine import build_graph
from perfmodel.predicting.job_facts import with_layers
from perfmodel.times.frameworks import FRAMEWORK_ERROR
from perfmodel.times.operator_transfer import grouped_rates

SMALL = Decoder(
    hidden=256,
    blocks=2,
    heads=4,
    vocabulary=1000,
    sequence_length=512,
    gated=True,
    biases=False,
    tied=False,
    experts=Experts(routed=8, active=2, width=512),
)

TOTAL = 2 * 256 * 1000 + 256 + 2 * (4 * 256**2 + 2 * 256 + 8 * 256 + 8 * 3 * 256 * 512)
"""Both tables, the last norm, and in each of two blocks attention, two norms, the router and eight
experts."""


def job(decoder: Decoder = SMALL, workers: int = 4, **given: Any) -> Job:
    profile = Profile(
        name="small",
        decoder=decoder,
        optimizer_state_bytes_per_parameter_byte=2.0,
        source=Source("exact", "made for a test"),
    )
    fields = {"device": "a100", "arch": "fsdp", "batch_size": 2, "bandwidth": "10Gbps"}
    return make_job(workload=profile, workers=workers, **fields | given)


def test_memory_is_that_of_all_parameters() -> None:
    """A quarter of 4 bytes of each parameter, and of its gradient, and of 8 of its states."""
    assert SMALL.parameters(512) == TOTAL
    memory = predict(job()).memory.worker
    assert memory.parameters_bytes == memory.gradients_bytes == pytest.approx(4 * TOTAL / 4)
    assert memory.optimizer_states_bytes == pytest.approx(8 * TOTAL / 4)


@pytest.mark.parametrize("arch", ["fsdp", "allreduce"])
def test_gradients_of_all_parameters_are_communicated(arch: str) -> None:
    """Rings send 3/4 of the bytes: twice in all-reduce, in 32 bits; FSDP gathers twice and scatters
    once, in 16 bits."""
    graph = build_graph(with_layers(job(arch=arch)))
    times_bytes = {"fsdp": 3 * 2, "allreduce": 2 * 4}[arch]
    sent = graph.bytes_by_link()
    assert np.count_nonzero(sent) == 8  # out of and into four workers
    np.testing.assert_allclose(sent[sent > 0.0], times_bytes * 0.75 * TOTAL, rtol=1e-9)


@pytest.mark.parametrize("stage", [1, 3])
def test_parameters_may_be_gathered_in_8_bits(stage: int) -> None:
    """A gather sends 1 byte instead of 2; at stage 3 there are two of them. Units in memory are
    half as large, and formulas agree with the simulation."""
    given: dict[str, Any] = {"device": "h100", "precision": "fp8"}
    wide, short = (
        job(**given, options={"stage": stage, "gather_8_bits": eight}) for eight in (False, True)
    )
    sent = build_graph(with_layers(short)).bytes_by_link()
    gathers = 2 if stage == 3 else 1
    np.testing.assert_allclose(sent[sent > 0.0], (gathers + 2) * 0.75 * TOTAL, rtol=1e-9)
    before, after = (predict(one).memory.worker.gathered_bytes for one in (wide, short))
    assert after < before if stage == 3 else after == before
    fine, coarse = (predict(short, fidelity=name).iteration_s for name in ("fine", "coarse"))
    assert coarse == pytest.approx(fine, rel=0.02)
    sixteen = job(options={"stage": stage, "gather_8_bits": True})
    assert predict(sixteen).iteration_s == predict(job(options={"stage": stage})).iteration_s


def more_experts(decoder: Decoder) -> Decoder:
    assert decoder.experts is not None
    experts = msgspec.structs.replace(decoder.experts, routed=2 * decoder.experts.routed)
    return msgspec.structs.replace(decoder, experts=experts)


def test_more_experts_compute_no_more_but_need_more_memory() -> None:
    """Twice the experts of Mixtral: twice the memory, nearly the same computation."""
    decoder = catalogue.model("mixtral-8x7b").decoder
    assert decoder is not None
    few, many = (
        predict(job(one, 64, device="h100", batch_size=8), fidelity="coarse")
        for one in (decoder, more_experts(decoder))
    )
    assert many.memory.worker.parameters_bytes > 1.9 * few.memory.worker.parameters_bytes
    passes = [
        job(one, device="h100", batch_size=8).workload for one in (decoder, more_experts(decoder))
    ]
    computed = [one.forward_s + one.backward_s for one in passes]
    assert 1.0 <= computed[1] / computed[0] < 1.15


def test_canary_a_model_without_experts_computes_its_active_parameters() -> None:
    """Mixtral takes about as long as a model with feed-forward parts of two experts, and far less
    than one of eight."""
    decoder = catalogue.model("mixtral-8x7b").decoder
    assert decoder is not None
    dense = [
        msgspec.structs.replace(decoder, experts=None, feed_forward=many * 14336) for many in (2, 8)
    ]
    seconds = [
        one.forward_s + one.backward_s
        for one in (job(d, device="h100", batch_size=8).workload for d in (decoder, *dense))
    ]
    assert 0.9 < seconds[0] / seconds[1] < 1.6
    assert seconds[0] < 0.6 * seconds[2]


def test_the_error_of_experts_widens_the_interval() -> None:
    """By their part of the time: it is at least that of dense models. Kernels of small experts
    differ between frameworks; those of large ones are as any product's."""
    known = {name: catalogue.device(name) for name in catalogue.device_names()}
    of_shapes = grouped_rates(known["h100"], "mixed", known).error_fraction
    given: dict[str, Any] = {"device": "h100", "launches": "graphs", "stack": "as_found"}
    large = catalogue.model("mixtral-8x7b").decoder
    assert large is not None
    for decoder, batch_size, of_kernels in ((SMALL, 64, FRAMEWORK_ERROR), (large, 8, 0.0)):
        dense = msgspec.structs.replace(decoder, experts=None)
        without, found = (
            job(one, batch_size=batch_size, **given).workload for one in (dense, decoder)
        )
        assert without.error_fraction == 0.2
        assert 0.2 < found.error_fraction < math.hypot(0.2, of_shapes, of_kernels)
        if of_kernels:
            assert found.error_fraction > math.hypot(0.2, of_shapes)


def test_the_catalogue_predicts_each_model() -> None:
    names = [
        name
        for name in catalogue.model_names()
        if (decoder := catalogue.model(name).decoder) is not None and decoder.experts is not None
    ]
    assert len(names) == 13
    for name in names:
        made = make_job(model=name, device="h100", workers=64, arch="fsdp", batch_size=1)
        assert made.workload.forward_s > 0.0
