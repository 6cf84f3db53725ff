"""Memory of devices of replicas, by hand: tensor and pipeline parallelism.

States of the model per device, and activations in flight, as Korthikanti et al. count them,
"Reducing activation recomputation in large transformer models", 2022, arXiv 2205.05198, sections 4
and 5, and figures 1 and 7. Schedules: Narayanan et al., "Efficient large-scale language model
training on GPU clusters using Megatron-LM", SC 2021, arXiv 2104.04473.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Job, Source, make_job, predict, remedies
from perfmodel.cli.printing.prediction import components
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import layers_of
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.replica import Replica, ReplicaStage
from perfmodel.inputs.workload import Workload, WorkloadLayer
from perfmodel.pipelines.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.predicting.memory import memory_of, stages_of
from perfmodel.replicas.stage_memory import counts_before, on_device
from perfmodel.replicas.stage_work import order_of
from perfmodel.results.memory import Footprint, Memory
from perfmodel.results.sections import memory_panel
from perfmodel.studies.fitting import largest_batch
from tests.jobs import cluster

GPT3 = Decoder(
    hidden=12288, blocks=96, heads=96, vocabulary=51200, sequence_length=2048, dropout=True,
    flash=False, fused_loss=True, biases=False,
)  # fmt: skip
MTNLG = msgspec.structs.replace(GPT3, hidden=20480, blocks=105, heads=128)

LLAMA = Decoder(
    hidden=8192, blocks=80, heads=64, kv_heads=8, feed_forward=28672, gated=True,
    vocabulary=128256, sequence_length=4096, tied=False, biases=False,
)  # fmt: skip

MEGATRON: dict[str, Any] = {
    "device": "a100-80", "precision": "mixed", "optimizer": "adam", "cluster": "dgx-a100",
    "precision_policy": "bf16_master_fp32_gradients", "arch": "zero1", "transfers": "blocking",
}  # fmt: skip
"""2 bytes of a parameter, 4 of its gradient, and 12 of states and master copy."""


def made(decoder: Decoder, **given: Any) -> Job:
    profile = Profile(name="net", decoder=decoder, source=Source("exact", "made for a test"))
    given = MEGATRON | {"workers": 1, "batch_size": given.get("micro_batches", 1)} | given
    return make_job(workload=profile, **given)


def memory(decoder: Decoder, **given: Any) -> Memory:
    return memory_of(made(decoder, **given))


def activations(footprint: Footprint) -> float:
    return sum(footprint.activations_bytes.values())


def gpt3(**given: Any) -> Memory:
    return memory(GPT3, **{"tensor": 8, "pipeline": 8, "micro_batches": 64, **given})


TOKENS_HIDDEN = 2048 * 12288
SCORES = 5 * 96 * 2048 / 12288
"""5 a s / h of GPT-3: 80 bytes per token and unit of width."""


@pytest.mark.parametrize(
    ("given", "per_block"),
    [
        ({}, 10 + 24 / 8 + SCORES / 8),  # equation 2
        ({"sequence_parallel": True}, 34 / 8 + SCORES / 8),  # equation 4
        ({"recompute": "selective"}, 10 + 24 / 8),
        ({"recompute": "selective", "sequence_parallel": True}, 34 / 8),  # equation 6
        ({"recompute": "full"}, 2),
        ({"recompute": "full", "sequence_parallel": True}, 2 / 8),
    ],
)
def test_the_first_stage_of_gpt3_keeps_as_many_blocks_as_the_model_has(
    given: dict[str, Any], per_block: float
) -> None:
    """p micro-batches of L / p blocks; of the last stage one. While part of a block is computed
    again, it is there in full once."""
    stages = gpt3(**given).stages
    whole = TOKENS_HIDDEN * ((34 / 8 if "sequence_parallel" in given else 10 + 24 / 8) + SCORES / 8)
    again = {"selective": TOKENS_HIDDEN * SCORES / 8, "full": whole}.get(
        given.get("recompute", ""), 0.0
    )
    share = 8 if "sequence_parallel" in given else 1
    for number, many in enumerate((8, 7, 6, 5, 4, 3, 2)):
        mask = 0 if number else TOKENS_HIDDEN / share  # of the embedding's dropout
        kept = many * (12 * TOKENS_HIDDEN * per_block + mask) + again
        assert activations(stages[number]) == pytest.approx(kept, rel=1e-9)
    norm = 2 * TOKENS_HIDDEN / share  # the last one's output, which the head needs
    kept = 12 * TOKENS_HIDDEN * per_block + norm + again + 2 * TOKENS_HIDDEN / share
    assert activations(stages[7]) == pytest.approx(kept, rel=1e-9)  # what it received, and its own


@pytest.mark.parametrize("decoder", [GPT3, LLAMA], ids=["gpt3", "llama"])
def test_a_device_keeps_its_part_of_every_layer(decoder: Decoder) -> None:
    """As the layers say that are made for one of eight devices."""
    model = msgspec.structs.replace(decoder, blocks=2, positions=4096)
    job = made(model, tensor=8)
    assert job.replica is not None
    for layer, part in zip(
        job.workload.layers, layers_of(model, model.sequence_length, "mixed", 8), strict=True
    ):
        own = on_device(layer, job.replica)
        assert (own.name, own.kind) == (part.name, part.kind)
        assert own.activation_bytes == pytest.approx(
            part.activation_bytes if part.saved_bytes is None else part.saved_bytes
        )
        assert own.passed_on_bytes == pytest.approx(part.activation_bytes)
        assert sum(own.tensor_bytes) == pytest.approx(sum(one.bytes for one in part.tensors))


def test_published_savings_of_gpt3_and_mt_nlg() -> None:
    """Selective recomputation saves 70 % of GPT-3's activations and 65 % of MT-NLG's on one device
    (section 5); of GPT-3's on 8 devices, with sequence parallelism, it leaves less than a fifth
    (figure 7). Only with both does a device of 80 GB hold GPT-3 (figure 1)."""
    for decoder, saved in ((GPT3, 0.70), (MTNLG, 0.65)):
        one = msgspec.structs.replace(decoder, blocks=96)
        plain = memory(one, pipeline=8, micro_batches=8).stages[0]
        less = memory(one, pipeline=8, micro_batches=8, recompute="selective").stages[0]
        scores = 5 * one.heads * 2048**2
        assert 1.0 - (activations(less) - scores) / activations(plain) == pytest.approx(
            saved, abs=0.005
        )
    both = {"recompute": "selective", "sequence_parallel": True}
    assert activations(gpt3(**both).stages[0]) / activations(gpt3().stages[0]) < 0.2
    fits = [gpt3(**given).is_enough() for given in ({}, {"sequence_parallel": True},
            {"recompute": "selective"}, both)]  # fmt: skip
    assert fits == [False, False, False, True]


def test_the_states_of_gpt3_by_hand() -> None:
    """12 blocks of 12 h^2 + 2 h parameters, of which h are a norm's, over 8 devices; the embedding
    in the first stage, and a copy of it in the last."""
    h = 12288
    blocks, norms = 12 * 12 * h**2, 12 * 2 * h
    embedding = 51200 * h
    stages = gpt3().stages
    for number, values in (
        (0, (blocks + embedding) / 8 + norms),
        (3, blocks / 8 + norms),
        (7, (blocks + embedding) / 8 + norms + h),
    ):
        assert stages[number].parameters_bytes == pytest.approx(2 * values)
        assert stages[number].gradients_bytes == pytest.approx(4 * values)
        assert stages[number].optimizer_states_bytes == pytest.approx(8 * values)
        assert stages[number].copies_bytes == pytest.approx(4 * values)
    shared = gpt3(workers=4).stages[0]
    assert shared.optimizer_states_bytes == stages[0].optimizer_states_bytes / 4
    assert shared.gradients_bytes == stages[0].gradients_bytes


def test_llama_70b_on_32_devices_by_hand() -> None:
    """20 blocks in each of four stages; 4, 3, 2 and 1 micro-batches in flight, in values of 16
    bits: per token 6 h of norms, sums and attention's output, of which the last is divided, q, k,
    v, gate and up, and their product. Logits and loss are in the last stage, divided."""
    t, tokens, h, f = 8, 4096, 8192, 28672
    block = 2 * tokens * (4 * h + (h + h + 2 * 1024 + 3 * f) / t)
    found = memory(LLAMA, tensor=8, pipeline=4, micro_batches=16)
    assert [activations(stage) for stage in found.stages[:3]] == pytest.approx(
        [4 * 20 * block, 3 * 20 * block, 2 * 20 * block]
    )
    assert [stage.logits_bytes for stage in found.stages[:3]] == [0.0] * 3
    assert found.stages[3].logits_bytes == tokens * 128256 / t * (2 + 4)
    assert activations(found.stages[3]) == pytest.approx(20 * block + 2 * tokens * h * 2)
    values = (128256 * h + 20 * (2 * h * h + 2 * h * 1024 + 3 * h * f)) / t + 20 * 2 * h
    assert found.stages[0].parameters_bytes == pytest.approx(2 * values)
    assert found.stages[3].parameters_bytes == pytest.approx(2 * (values + h))
    assert found.fullest_stage == 0
    assert found.worker == found.stages[0]
    assert found.worker_bytes == max(stage.allocated_bytes for stage in found.stages)
    fewer = memory(LLAMA, tensor=8, pipeline=4, micro_batches=2)
    assert activations(fewer.stages[0]) == pytest.approx(2 * 20 * block)


def counts(replica: Replica, micro_batches: int, number: int) -> int:
    """Most chunks' micro-batches in flight on a stage."""
    stage = ReplicaStage(number, replica, (1,) * replica.virtual_stages)
    kind, chunk, _ = order_of(stage, micro_batches)[:3]
    return int(counts_before(kind, chunk, replica.virtual_stages).sum(axis=1).max())


@pytest.mark.parametrize(("p", "v"), [(4, 2), (8, 3), (2, 4)])
def test_interleaved_stages_keep_more(p: int, v: int) -> None:
    """Rank r begins with 2 (p - r - 1) + (v - 1) p forward passes, and has one more in flight. The
    first has pv + p - 1 chunks of L / pv blocks: L (1 + (p - 1) / pv) (Korthikanti et al., 4.2.3).
    """
    replica = Replica(pipeline=p, virtual_stages=v, schedule="interleaved_1f1b")
    for rank in range(p):
        assert counts(replica, 4 * p, rank) == 2 * (p - rank - 1) + (v - 1) * p + 1
    given: dict[str, Any] = {"pipeline": p, "micro_batches": 4 * p, "tensor": 1}
    model = msgspec.structs.replace(GPT3, blocks=2 * p * v, dropout=False)
    plain = memory(model, **given).stages[0]
    more = memory(model, virtual_stages=v, **given).stages[0]
    ratio = 1 + (p - 1) / (p * v)
    assert activations(more) / activations(plain) == pytest.approx(ratio, rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "in_flight"),
    [("gpipe", [12] * 4), ("1f1b", [4, 3, 2, 1]), ("zb_h1", [4] * 4), ("zb_h2", [7, 7, 7, 7])],
)
def test_micro_batches_in_flight_of_other_schedules(schedule: str, in_flight: list[int]) -> None:
    """Half of a backward pass keeps all (Qi et al., 2023, arXiv 2401.10241: ZB-H1 as much as the
    first stage of 1F1B, ZB-H2 up to 2 p - 1)."""
    replica = Replica(pipeline=4, schedule=schedule)
    assert [counts(replica, 12, rank) for rank in range(4)] == in_flight


def test_buffers_between_stages() -> None:
    """2 T h bytes pass a boundary. PyTorch keeps a buffer for the input and the gradient of each of
    16 micro-batches, and outputs until backward; Megatron-LM one gradient, and with transfers
    ahead one more of each. Sequence parallelism divides them, and gathers one at a time."""
    size = 2 * TOKENS_HIDDEN
    given: dict[str, Any] = {"pipeline": 4, "tensor": 8, "micro_batches": 16}

    def buffers(**more: Any) -> list[float]:
        return [stage.replica_buffers_bytes / size for stage in gpt3(**given, **more).stages]

    assert buffers() == [1.0, 1.0, 1.0, 0.0]
    assert buffers(transfers="ahead") == [2.0, 3.0, 3.0, 1.0]
    assert buffers(transfers="torch") == [16.0, 32.0, 32.0, 16.0]
    assert buffers(sequence_parallel=True) == [1.125, 1.125, 1.125, 1.0]
    first, second = (gpt3(**given, transfers=how).stages for how in ("blocking", "torch"))
    kept = [activations(b) - activations(a) for a, b in zip(first, second, strict=True)]
    assert kept == pytest.approx([4 * size, 0.0, 0.0, -size])


LAYERS = [
    WorkloadLayer(f"layer{k}", 1.0, 2.0, (10.0 * (k + 1),), 100.0 + 7.0 * k, output_bytes=5.0)
    for k in range(12)
]

UNEVEN = [
    msgspec.structs.replace(
        layer, activation_bytes=50.0 * (k % 5) ** 3 + 1.0, output_bytes=90.0 * (7 * k % 12)
    )
    for k, layer in enumerate(LAYERS)
]

EARLY = [
    msgspec.structs.replace(layer, output_bytes=3000.0 if k < 5 else 5.0)
    for k, layer in enumerate(LAYERS)
]
"""The first layers have large outputs: most temporary tensors when little is in flight."""

HEAVY = [
    msgspec.structs.replace(layer, activation_bytes=2000.0 if k < 3 else 10.0)
    for k, layer in enumerate(LAYERS)
]

AS_RING: dict[str, Any] = {"workers": 2, "arch": "ring"}


def plain(layers: Sequence[WorkloadLayer], passes: int, **given: Any) -> Job:
    work = msgspec.structs.replace(
        Workload.of("chain", layers, batch_size=passes), accumulation=passes,
        activation_bytes=sum(layer.activation_bytes for layer in layers),
    )  # fmt: skip
    return make_job(workload=work, cluster=cluster(), **{**AS_RING, **given})


def naive_peak(job: Job, number: int, chunk_layers: list[list[WorkloadLayer]]) -> float:
    """Activations and temporary tensors of a stage when these are largest, action by action and
    layer by layer: two gradients of the output at the end of a chunk, then those of the output and
    the input of each layer."""
    assert job.replica is not None
    stage = ReplicaStage(number, job.replica, tuple(len(one) for one in chunk_layers))
    kind, chunk, micro = order_of(stage, job.workload.accumulation)[:3]
    exists: dict[tuple[int, int], float] = {}
    most = 0.0
    for action, held, k in zip(kind.tolist(), chunk.tolist(), micro.tolist(), strict=True):
        layers = chunk_layers[held]
        size = sum(layer.activation_bytes for layer in layers)
        if action == FORWARD:
            exists[held, k] = size
        if action in (BACKWARD, INPUT):
            others = sum(exists.values()) - size
            left = size
            most = max(most, others + left + 2 * layers[-1].passed_on_bytes)
            for i in reversed(range(len(layers))):
                temporary = layers[i].passed_on_bytes + (layers[i - 1].passed_on_bytes if i else 0)
                most = max(most, others + left + temporary)
                left -= layers[i].activation_bytes
        if action in (BACKWARD, WEIGHT):
            del exists[held, k]
    assert not exists
    return most


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"])
@pytest.mark.parametrize("passes", [4, 8])
@pytest.mark.parametrize(
    "layers", [LAYERS, UNEVEN, UNEVEN[::-1], EARLY, HEAVY],
    ids=["even", "uneven", "back", "early", "heavy"],
)  # fmt: skip
def test_the_peak_of_every_schedule_is_that_of_a_walk_through_it(
    schedule: str, passes: int, layers: list[WorkloadLayer]
) -> None:
    v = 2 if schedule in ("interleaved_1f1b", "zb_v") else 1
    job = plain(layers, passes, pipeline=2, virtual_stages=v, schedule=schedule)
    order = {"zb_v": [[0, 3], [1, 2]]}.get(schedule, [[0, 2], [1, 3]] if v == 2 else [[0], [1]])
    size = 12 // (2 * v)
    assert job.replica is not None
    for number, part in enumerate(stages_of(job, job.replica)):
        worker = part.worker
        chunks = [layers[k * size : (k + 1) * size] for k in order[number]]
        found = (
            activations(worker) + worker.temporary_bytes
            - sum(worker.absent_bytes.values())
        )  # fmt: skip
        assert found == pytest.approx(naive_peak(job, number, chunks))


def test_parts_add_up_to_the_model() -> None:
    """A replica of several stages stores what a single device does, and the server of all stages
    what it does for workers of one device."""
    for arch in ("ring", "ps"):
        one = memory_of(plain(LAYERS, 4, arch=arch))
        several = memory_of(plain(LAYERS, 4, arch=arch, pipeline=3))
        for name in ("parameters_bytes", "gradients_bytes", "optimizer_states_bytes"):
            total = sum(getattr(stage, name) for stage in several.stages)
            assert total == pytest.approx(getattr(one.worker, name))
        assert several.server_bytes == (None if arch == "ring" else pytest.approx(one.server_bytes))


def test_answers_show_every_stage() -> None:
    """In Python, as JSON, in rows of the command and as bars of the report."""
    job = plain(LAYERS, 4, pipeline=3)
    p = predict(job, fidelity="coarse")
    assert p.memory == memory_of(job)
    listed = p.to_dict()["memory"]["stages"]
    assert [one["gradients_bytes"] for one in listed] == [100.0, 260.0, 420.0]
    rows = {name: (size, remark) for name, size, remark in components(p.memory)}
    assert [name for name in rows if name.startswith("- stage")] == [
        f"- stage {k}" for k in range(3)
    ]
    kept, received = 2 * (4 * 100 + 7 * (4 + 5 + 6 + 7)), 4 * (5 + 5)
    assert p.memory.stages[1].allocated_bytes == 3 * 260 + kept + received + 2 * 5
    assert rows["- stage 1"] == (
        "1.938 kB", "activations 1.108 kB, parameters 260 B, gradients 260 B, buckets 260 B"
    )  # fmt: skip
    assert memory_panel(p).y.names == ["stage 0", "stage 1", "stage 2"]


def test_a_single_micro_batch_is_a_single_pass() -> None:
    """With one micro-batch and one stage's layers, memory is that of these layers alone."""
    found = memory_of(plain(LAYERS, 1, pipeline=2)).stages[0]
    alone = memory_of(plain(LAYERS[:6], 1)).worker
    assert activations(found) == activations(alone) == sum(x.activation_bytes for x in LAYERS[:6])
    assert found.gradients_bytes == alone.gradients_bytes


@pytest.mark.parametrize("recompute", ["full", "selective:2", "selective:3", "selective:products"])
def test_stages_recompute_the_blocks_that_the_model_does(recompute: str) -> None:
    """Every Nth block is counted through all stages: together they keep what one device does, less
    the outputs that are sent, plus those that are received, and the block that each has in full."""
    given: dict[str, Any] = {"recompute": recompute, "micro_batches": 1, "transfers": "torch"}
    model = msgspec.structs.replace(GPT3, blocks=10)
    one = memory(model, recompute=recompute, batch_size=1, transfers=None).worker
    stages = memory(model, **given, pipeline=5).stages
    block = TOKENS_HIDDEN * (34 + SCORES)  # one of them is in the single device, too
    repeated = [any((2 * k + i) % int(recompute[-1]) == 0 for i in (0, 1)) for k in range(5)] \
        if recompute[-1].isdigit() else [True] * 5  # fmt: skip
    assert sum(map(activations, stages)) - activations(one) == pytest.approx(
        block * (sum(repeated) - 1)
    )


@pytest.mark.parametrize(
    ("schedule", "versions"),
    [("pipedream", [4, 3, 2, 1]), ("pipedream_2bw", [2] * 4), ("1f1b", [1] * 4)],
)
def test_pipelines_without_a_flush_keep_versions_of_parameters(
    schedule: str, versions: list[int]
) -> None:
    """Narayanan et al., "PipeDream", SOSP 2019, and "Memory-efficient pipeline-parallel DNN
    training", ICML 2021."""
    passes = 1 if schedule == "pipedream" else 12
    stages = memory_of(plain(LAYERS, passes, pipeline=4, schedule=schedule)).stages
    for stage, many in zip(stages, versions, strict=True):
        copies = sum(stage.model_copies_bytes.values())
        assert copies == (many - 1) * stage.parameters_bytes


@pytest.mark.parametrize(("schedule", "passes"), [("pipedream", 1), ("pipedream_2bw", 6)])
def test_pipelines_without_a_flush_keep_the_activations_of_1f1b(schedule: str, passes: int) -> None:
    """Stage r of p has p - r micro-batches in flight all the time, as 1F1B has at most."""
    given: dict[str, Any] = {"pipeline": 4, "transfers": "ahead"}
    endless = memory_of(plain(LAYERS, passes, schedule=schedule, **given)).stages
    flushed = memory_of(plain(LAYERS, 6, schedule="1f1b", **given)).stages
    assert [one.activations_bytes for one in endless] == [one.activations_bytes for one in flushed]


def test_a_device_of_a_stage_shards_it() -> None:
    """FSDP among four replicas: a quarter of a stage's states and gradients, and of its parameters
    unless they stay gathered between micro-batches, as pipelines keep them."""
    given: dict[str, Any] = {"tensor": 2, "micro_batches": 8, "arch": "fsdp"}
    for pipeline, share in ((4, 1), (1, 4)):
        one, four = (gpt3(**given, pipeline=pipeline, workers=n, transfers=None).stages[0]
                     for n in (1, 4))  # fmt: skip
        assert four.optimizer_states_bytes == one.optimizer_states_bytes / 4
        assert four.gradients_bytes == one.gradients_bytes / 4
        assert four.parameters_bytes == one.parameters_bytes / share
        assert four.gathered_bytes > 0.0


@pytest.mark.slow
def test_what_does_not_fit_says_which_stage_and_what_helps() -> None:
    job = made(GPT3, tensor=8, pipeline=8, micro_batches=64)
    text = memory_of(job).shortage("a100-80")
    assert text.startswith("does not fit: a device of stage 0 reserves about 110.7 GB")
    changes = {change.flags for change in remedies(job)}
    assert changes == {"--recompute selective:products", "--pipeline 32"}
    large = made(GPT3, tensor=4, pipeline=8, batch_size=24, micro_batches=8, recompute="full")
    flags = [change.flags for change in remedies(large)]
    assert "--tensor 8" in flags
    assert all(memory_of(change.job_of(large)).is_enough() for change in remedies(large))


@pytest.mark.slow
def test_the_largest_batch_keeps_the_micro_batches() -> None:
    job = largest_batch(made(GPT3, tensor=8, pipeline=16, micro_batches=32, recompute="selective",
                             sequence_parallel=True))  # fmt: skip
    assert job.workload.accumulation == 32
    size = job.workload.batch_size
    assert size % 32 == 0
    assert size > 32
    assert memory_of(job).is_enough()
    more = job.with_(batch_size=size + 32, micro_batches=32)
    assert not memory_of(more).is_enough()


@pytest.mark.slow
def test_single_devices_become_replicas_only_if_nothing_else_helps() -> None:
    given: dict[str, Any] = {"model": "llama-70b", "device": "h100", "cluster": "dgx-h100"}
    job = make_job(**given, workers=8, arch="ring", batch_size=8)
    (change,) = remedies(job)
    assert change.flags == "--pipeline 64"
    assert memory_of(change.job_of(job)).is_enough()
    assert np.isclose(memory_of(job).fits or 0.0, 0.0)
