"""Recomputation: the words, and the time of what is computed again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfmodel import InputError, Job, make_job, sweep
from perfmodel.inputs.recomputation import read_recomputation, recomputed
from perfmodel.inputs.workload import Workload, WorkloadLayer
from perfmodel.replicas.stages import blocks_before

LAYERS = [
    WorkloadLayer("embed", 1.0, 1.0, (8.0,), 100.0, "embedding"),
    *(
        WorkloadLayer(f"blocks.{i}.{name}", seconds, 2 * seconds, (8.0,), kept, kind, out)
        for i in range(4)
        for name, seconds, kept, kind, out in (
            ("qkv", 4.0, 30.0, "linear", 30.0),
            ("scores", 3.0, 50.0, "attention", 10.0),
            ("sum", 1.0, 10.0, "sum", 10.0),
        )
    ),
]
PLAIN = msgspec.structs.replace(Workload.of("four", LAYERS), activation_bytes=460.0)
BACKWARD_S = 1.0 + 4 * 2 * 8.0


@pytest.mark.parametrize(
    ("how", "again_s", "kept"),
    [
        ("none", 0.0, 460.0),
        # the scores alone; 40 bytes of them for one block at a time
        ("selective", 4 * 3.0, 460.0 - 4 * 40.0 + 40.0),
        # half of the product, and the sum; kept are half of 30, 10 of attention and the sum
        ("selective:products", 4 * (2.0 + 1.0), 100.0 + 4 * (15.0 + 10.0 + 10.0) + 90.0),
        # blocks 0 and 2
        ("selective:2", 2 * 8.0, 100.0 + 2 * 10.0 + 2 * 90.0 + 90.0),
        ("selective:1", 4 * 8.0, 100.0 + 4 * 10.0 + 90.0),
        ("full", 4 * 8.0, 100.0 + 4 * 10.0 + 90.0),
    ],
)
def test_time_and_memory_by_hand(how: str, again_s: float, kept: float) -> None:
    again = recomputed(PLAIN, how)
    assert again.backward_s == pytest.approx(BACKWARD_S + again_s)
    assert sum(layer.backward_s for layer in again.layers) == pytest.approx(again.backward_s)
    assert again.forward_s == PLAIN.forward_s
    assert again.activation_bytes == kept
    if how != "none":
        assert sum(size for _, size in again.activations) == kept
        assert again.recompute == how
        assert again.assumptions[-1].name in ("recompute", "activation checkpointing")


def test_the_old_spelling_is_full() -> None:
    given: dict[str, Any] = {"model": "gpt2-xl", "device": "a100", "batch_size": 2}
    old, new = (make_job(**given, **how) for how in (
        {"activation_checkpointing": True}, {"recompute": "full"}
    ))  # fmt: skip
    assert old.workload == new.workload
    assert old.workload.activation_checkpointing
    assert read_recomputation(None, None) == read_recomputation("none", checkpointing=False)
    assert isinstance(old, Job)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"recompute": "some"}, "expected none, selective"),
        ({"recompute": "selective:0"}, "selective"),
        ({"recompute": "selective:x"}, "expected none"),
        ({"recompute": "none", "activation_checkpointing": True}, "give one of them"),
        ({"recompute": "full", "model": "alexnet"}, "form no blocks"),
        ({"recompute": "selective", "model": "alexnet"}, "no attention"),
        ({"lora": "0"}, "rank"),
        ({"lora": "8:middle"}, "lora target"),
        ({"lora": "8:q:5"}, "4, 8, 16 or 32 bits"),
        ({"lora": "many"}, "cannot read 'many'"),
        ({"lora": "8", "model": "alexnet"}, "no decoder"),
        ({"optimizer": "adamm"}, "optimizer"),
        ({"precision_policy": "fp16"}, "precision policy"),
    ],
)
def test_errors(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_job(**{"model": "gpt2-xl", "device": "a100", **words})


def test_a_resolved_workload_keeps_its_storage() -> None:
    done = make_job(model="gpt2-xl", device="a100", optimizer="lion").workload
    assert make_job(workload=done, optimizer="lion").workload is done
    assert make_job(workload=done).workload is done
    with pytest.raises(InputError, match="already resolved"):
        make_job(workload=done, optimizer="sgd")


def test_a_sweep_and_a_changed_job_vary_storage() -> None:
    given: dict[str, Any] = {"model": "gpt2-xl", "device": "a100", "batch_size": 2, "arch": "ring"}
    rows = sweep(**given, workers=[2], optimizer=["sgd", "lion"], recompute=["none", "full"])
    assert len(list(rows.rows())) == 4
    job = make_job(**given, workers=2)
    sgd, lion = (job.with_(optimizer=name).workload for name in ("sgd", "lion"))
    assert lion.optimizer_state_bytes == lion.gradient_bytes
    assert (sgd.optimizer, sgd.optimizer_state_bytes) == ("sgd", 0.0)
    adapted = job.with_(lora="8", precision_policy="bf16", offload_optimizer=True).workload
    assert adapted.lora is not None
    assert (adapted.lora.rank, adapted.precision_policy, adapted.offload_optimizer) == (
        8, "bf16", True
    )  # fmt: skip


def test_blocks_before_layers_by_hand() -> None:
    names = ("embedding", "blocks.0.up", "blocks.0.down", "blocks.1.up", "head", "loss")
    assert blocks_before(names) == (0, 0, 1, 1, 2, 2)
