"""Devices that divide sequences (context parallelism), against times worked out by hand."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import (
    Cluster,
    InputError,
    IntraNode,
    Job,
    Link,
    Source,
    Straggler,
    Workload,
    WorkloadLayer,
    layouts,
    make_job,
    predict,
)
from perfmodel.inputs.decoder import Decoder
from perfmodel.inputs.decoder_layers import layers_of
from perfmodel.inputs.decoder_parts import Window
from perfmodel.inputs.operator_shapes import Attention
from perfmodel.inputs.passes import accumulated, one_pass
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.replica import Replica
from perfmodel.predicting.memory import stages_of
from perfmodel.predicting.replicas import stage_jobs
from perfmodel.replicas.seats import of_groups, positions_of, seats_of
from perfmodel.replicas.stage_memory import on_device
from perfmodel.times.context_parallel import part_layers
from tests.settings import thinned

MB, F_S, B_S = 1e6, 1.0, 2.0
"""All sizes are in this unit, links have as many bytes per second; passes of a layer."""

SOURCE = Source("assumed", "made for a test")
TINY = Decoder(hidden=64, blocks=2, heads=16, kv_heads=4, vocabulary=1024, sequence_length=1024)


def cluster(**fields: Any) -> Cluster:
    """Nodes of one device with links of 1 MB/s, unless given."""
    given = {"name": "made", "nic": Link(MB, 0.0), "source": SOURCE, "losses": "none"}
    return Cluster(**given | fields)


def work(passes: int = 1, *, gradient: float = 1e-9, layers: int = 1, keys: float = 4.0,
         recompute: str = "none", name: str = "layer") -> Workload:  # fmt: skip
    """Attention of so many layers with ``keys`` MB of keys, and as much of queries."""
    made = [
        WorkloadLayer(f"{name}{k}", F_S, B_S, (gradient * MB,), 1e-3,
                      keys_bytes=keys * MB, queries_bytes=keys * MB)
        for k in range(layers)
    ]  # fmt: skip
    one = msgspec.structs.replace(Workload.of("made", made), recompute=recompute)
    return accumulated(one, passes)


def job(workload: Workload, context: int = 4, arch: str = "ring", **given: Any) -> Job:
    fields = {"cluster": cluster(), "workers": 1, "arch": arch, "context": context}
    return make_job(workload=workload, **fields | given)


def step_s(made: Job, fidelity: Any = "fine") -> float:
    return predict(made, fidelity=fidelity).iteration_s


def both_s(made: Job) -> float:
    """The step by both routes, which agree."""
    fine = step_s(made)
    assert step_s(made, "coarse") == pytest.approx(fine, rel=1e-9)
    return fine


# -- exchanges ---------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [2, 4, 8])
def test_a_ring_hides_behind_the_blocks_before(context: int) -> None:
    """Of 4 MB of keys each device sends its part c - 1 times, and twice as much in backward; all
    blocks but the last hide it."""
    sends, hidden = (context - 1) * 4.0 / context, (context - 1) / context
    forward = F_S + max(sends - hidden * F_S, 0.0)
    backward = B_S + max(2.0 * sends - hidden * B_S, 0.0)
    assert both_s(job(work(), context)) == pytest.approx(forward + backward, rel=1e-6)
    fast = work(keys=0.1)  # sends of less than a block
    assert both_s(job(fast, context)) == pytest.approx(F_S + B_S, rel=1e-6)


def test_a_ring_equals_its_rounds() -> None:
    """Another program: round by round, a block is computed while the next one is sent."""
    for context, keys in itertools.product((2, 3, 4), (0.3, 1.3, 5.0)):
        ends = []
        for computing, times in ((F_S, 1.0), (B_S, 2.0)):
            clock = 0.0
            for number in range(context):
                block = computing / context
                sending = times * keys / context if number < context - 1 else 0.0
                clock += max(block, sending)
            ends.append(clock)
        assert both_s(job(work(keys=keys), context)) == pytest.approx(sum(ends), rel=1e-6)


def test_an_all_gather_is_exposed() -> None:
    """3/4 of 4 MB in forward, and in backward the same and the sum of gradients."""
    made = job(work(), context_exchange="all-gather")
    assert both_s(made) == pytest.approx(F_S + B_S + 3.0 * (1 + 2), rel=1e-6)


def test_an_all_to_all_sends_parts_of_heads() -> None:
    """Each device has 2 MB of queries, keys, values and outputs, and sends 3/4 of them."""
    made = job(work(), context_exchange="all-to-all")
    assert both_s(made) == pytest.approx(F_S + B_S + 1.5 * (1 + 1), rel=1e-6)


def test_a_hierarchical_exchange_by_hand() -> None:
    """Two nodes of two devices, joined by 10 MB/s inside. All-to-alls of 2 MB per device inside:
    half of it at 10 MB/s, 0.1 s. Rings of two devices across nodes, each with half of the heads:
    half of 2 MB, on links that both devices of a node share: 2 s; one of two blocks hides it."""
    where = cluster(devices_per_node=2, intra_node=IntraNode(10 * MB, 0.0, kind="per_device"))
    made = job(work(), cluster=where, context_exchange="hierarchical", context_inside=2)
    forward, backward = 0.1 + F_S + (2.0 - F_S / 2), 0.1 + B_S + (4.0 - B_S / 2)
    assert both_s(made) == pytest.approx(forward + backward, rel=1e-6)


def test_recomputation_exchanges_again() -> None:
    """A block that is computed again gathers its keys again."""
    layers = work(name="blocks.0.attention", recompute="full")
    made = job(layers, context_exchange="all-gather")
    assert both_s(made) == pytest.approx(F_S + B_S + 3.0 * (1 + 3), rel=1e-6)
    made = job(layers, context_exchange="all-to-all")
    assert both_s(made) == pytest.approx(F_S + B_S + 1.5 * (1 + 2), rel=1e-6)


def test_groups_of_a_node_send_at_the_same_time() -> None:
    """Tensor 2 x context 2 on nodes of two: two groups share the link between both nodes."""
    layers = [WorkloadLayer("layer", F_S, B_S, (1e-3,), 1e-3, forward_summed_bytes=1e-3,
                            keys_bytes=4 * MB)]  # fmt: skip
    where = cluster(devices_per_node=2, intra_node=IntraNode(1e15, 0.0))
    made = job(Workload.of("made", layers), 2, cluster=where, tensor=2,
               context_exchange="all-gather")  # fmt: skip
    assert both_s(made) == pytest.approx(F_S + B_S + 4.0 * (1 + 2), rel=1e-6)


@pytest.mark.parametrize("exchange", ["ring", "all-gather"])
def test_contiguous_parts_wait_for_the_last(exchange: str) -> None:
    """Of 4 x 4 blocks the last device has 7 of those below the diagonal, the mean is 4."""
    more = 7 / 4
    given = {"context_exchange": exchange, "context_split": "contiguous"}
    made = job(work(keys=1e-9), **given)
    assert both_s(made) == pytest.approx(more * (F_S + B_S), rel=1e-6)
    for fidelity in ("fine", "coarse"):
        idle = predict(made, fidelity=fidelity).idle_fraction
        assert idle.by_cause["straggler"] == pytest.approx(1.0 - 1.0 / more, rel=1e-6)
        assert idle.mean == pytest.approx(1.0 - 1.0 / more, rel=1e-6)


def test_whole_sequences_of_heads_are_balanced() -> None:
    given = {"context_exchange": "all-to-all", "context_split": "contiguous"}
    assert both_s(job(work(keys=1e-9), **given)) == pytest.approx(F_S + B_S, rel=1e-6)


def test_exchanges_are_idle_time_of_the_network() -> None:
    made = job(work(), context_exchange="all-gather")
    prediction = predict(made)
    assert prediction.idle_fraction.by_cause["network"] == pytest.approx(9 / 12, rel=1e-6)
    parts = predict(made, fidelity="coarse").idle_fraction.by_cause
    assert parts["network"] == pytest.approx(9 / 12, rel=1e-6)


# -- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_collectives_are_over_data_and_context(workers: int) -> None:
    """A ring among all devices that have the same parameters, as Megatron-LM's group of data and
    context."""
    ranks = 2 * workers
    made = job(work(gradient=4.0, keys=1e-9), 2, workers=workers)
    assert step_s(made) == pytest.approx(F_S + B_S + 2 * (ranks - 1) / ranks * 4.0, rel=1e-6)


def test_parameters_are_sharded_over_data_and_context() -> None:
    """Two replicas of two devices shard as four workers do; and shard groups are of replicas."""
    given: dict[str, Any] = {"arch": "fsdp", "options": {"stage": 3}}
    layers = work(gradient=4.0, keys=1e-9, layers=2)
    alone = make_job(workload=layers, cluster=cluster(), workers=4, **given)
    made = job(layers, 2, workers=2, **given)
    assert step_s(made) == pytest.approx(step_s(alone), rel=1e-6)
    states = [predict(one).memory.worker for one in (alone, made)]
    assert states[0].optimizer_states_bytes == states[1].optimizer_states_bytes
    grouped = job(layers, 2, workers=4, arch="fsdp", options={"shard_group": 2})
    assert [one.job.options.shard_group for one in stage_jobs(grouped)] == [4]


def test_other_architectures_sum_inside_a_replica_first() -> None:
    """Two devices sum 4 MB: 4 s. Then they count as one, with two links to a server with as many:
    2 s to push and 2 s to pull."""
    made = job(work(gradient=4.0, keys=1e-9), 2, "ps", options={"servers": 1, "overlap": False})
    assert both_s(made) == pytest.approx(F_S + B_S + 4.0 + 2.0 + 2.0, rel=1e-6)


def test_a_straggler_delays_the_devices_of_its_replica() -> None:
    slow = job(work(keys=1e-9), 2, workers=2, stragglers=[Straggler(1, 2.0)])
    assert [s.worker for s in stage_jobs(slow)[0].job.stragglers] == [2, 3]
    assert step_s(slow) == pytest.approx(2 * (F_S + B_S), rel=1e-6)


def test_random_times_wait_for_each_other() -> None:
    """Devices of a replica end each action together: the mean of the longer of two."""
    made = job(work(keys=1e-9), 2, "asp", jitter="0.2:op")
    alone = make_job(workload=work(), cluster=cluster(), workers=1, arch="asp", jitter="0.2:op")
    assert step_s(made) == pytest.approx(step_s(alone), rel=0.02)  # one device stands for both
    members = job(work(keys=1e-9), 2, "ring", jitter="0.2:op", seed=3)
    assert step_s(members) > 1.05 * (F_S + B_S)


ARCHITECTURES = ("ring", "fsdp", "ps", "asp", "local_sgd", "diloco", "gosgd", "ad_psgd", "easgd",
                 "p2p", "d_psgd")  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("pipeline", thinned([1, 2], first=1))
def test_every_architecture_runs_between_such_replicas(arch: str, pipeline: int) -> None:
    """One exchange of 0.75 s and 1.5 s of 1 MB per layer and micro-batch is always there."""
    layers = work(4, layers=2, keys=1.0)
    given: dict[str, Any] = {"workers": 2, "pipeline": pipeline, "transfers": "ahead"}
    if pipeline == 1:
        given = {"workers": 2}
    none = job(work(4, layers=2, keys=1e-9), arch=arch, context_exchange="all-gather", **given)
    made = job(layers, arch=arch, context_exchange="all-gather", **given)
    passes = 4 * 2 if pipeline == 1 else 4 + 1
    gap = step_s(made) - step_s(none)
    assert gap == pytest.approx(passes * (0.75 + 1.5), rel=1e-3)


def test_without_context_nothing_changes() -> None:
    given: dict[str, Any] = {"model": "llama-8b", "device": "h100", "cluster": "dgx-h100",
                             "batch_size": 4, "workers": 2, "arch": "zero1"}  # fmt: skip
    for more in ({}, {"tensor": 2}, {"tensor": 2, "pipeline": 2, "micro_batches": 4}):
        assert make_job(**given, **more, context=1) == make_job(**given, **more)


def test_layouts_divide_the_same_sequences() -> None:
    """Layouts of a job keep what divides its sequences, also without tensors and stages."""
    given: dict[str, Any] = {"model": "llama-8b", "device": "h100", "cluster": "dgx-h100",
                             "batch_size": 8, "micro_batches": 8, "workers": 2, "arch": "zero1",
                             "sequence_length": 16384, "context": 4, "pipeline": 2}  # fmt: skip
    many = layouts(make_job(**given), tensor=(1, 2), pipeline=(1, 2), micro_batches=(8,))
    assert len(many) == 4
    for number in range(len(many)):
        made = many.job_of(number)
        assert made.replica is not None
        assert (made.replica.context, made.devices) == (4, 16)
        assert step_s(made, "coarse") == pytest.approx(float(many.step_s[number]), rel=1e-9)


# -- compute -----------------------------------------------------------------------------------


def attention(replica: Replica, length: int = 1024) -> list[Attention]:
    layers = part_layers(TINY, length, "mixed", replica)
    named = next(layer for layer in layers if layer.name.endswith("attention.scores"))
    return [one for one in named.operators if isinstance(one, Attention)]


def pairs(kernels: list[Attention]) -> float:
    """Pairs of a query and a key that kernels compute, below the diagonal where they are causal."""
    return sum(one.heads * one.length**2 / (2 if one.causal else 1) for one in kernels)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(
    ("context", "given"),
    [
        *((c, {"context_exchange": way}) for c in (2, 4, 8) for way in ("ring", "all-gather")),
        *((c, {"context_exchange": "all-to-all"}) for c in (2, 8)),
        (8, {"context_exchange": "hierarchical", "context_inside": 4}),
    ],
)
def test_each_device_computes_its_share_of_attention(
    tensor: int, context: int, given: dict[str, Any]
) -> None:
    whole = pairs(attention(Replica(tensor=tensor, pipeline=2)))
    part = pairs(attention(Replica(tensor=tensor, context=context, **given)))
    assert part == whole / context


@pytest.mark.parametrize("context", [2, 4, 8])
def test_zigzag_is_balanced_and_contiguous_is_not(context: int) -> None:
    """Count every pair of tokens below the diagonal, for each device."""
    tokens = 16 * context
    query, key = np.indices((tokens, tokens))
    below = key <= query
    part = np.arange(tokens) * 2 * context // tokens
    zigzag = np.minimum(part, 2 * context - 1 - part)
    counts = np.array([below[zigzag == k].sum() for k in range(context)])
    assert len(set(counts.tolist())) == 1
    contiguous = np.array([below[part // 2 == k].sum() for k in range(context)])
    blocks = (2 * context - 1) / context  # half a block on the diagonal is left out
    assert contiguous.max() / contiguous.mean() == pytest.approx(blocks, abs=1 / 16)


def test_tokens_and_kernels_of_a_device() -> None:
    """Of 1024 tokens 256 are on each of four devices; all else but attention is a quarter."""
    whole = layers_of(TINY, 1024, "mixed")
    part = part_layers(TINY, 1024, "mixed", Replica(context=4))
    for a, b in zip(whole, part, strict=True):
        if "attention.scores" not in a.name and a.forward_flop:
            assert b.forward_flop == a.forward_flop / 4
    own, *others = attention(Replica(context=4))
    assert (own.length, own.causal, len(others)) == (256, True, 3)
    assert {(one.length, one.heads, one.causal) for one in others} == {(128, 32, False)}


@pytest.mark.parametrize(("kind", "tokens"), [("sliding", 192), ("sliding", 64), ("chunked", 512)])
def test_windows_need_fewer_blocks(kind: str, tokens: int) -> None:
    """Pairs within a window are as many as for whole sequences, but for those at the start."""
    window = Window(tokens=tokens, kind=kind)
    decoder = msgspec.structs.replace(TINY, window=window)

    def counted(replica: Replica) -> float:
        layer = part_layers(decoder, 1024, "mixed", replica)[4]
        total = 0.0
        for one in layer.operators:
            if isinstance(one, Attention):
                seen = min(one.window or one.length, one.length)
                below = one.length * seen - seen**2 / 2 if one.causal else one.length**2
                total += one.count * one.heads * below
        return total

    whole = counted(Replica(pipeline=2))
    assert counted(Replica(context=4)) == pytest.approx(whole / 4, rel=0.2)


def decoder_job(**given: Any) -> Job:
    profile = Profile(name="tiny", decoder=TINY, source=SOURCE)
    fields = {"device": "a100", "precision": "mixed", "batch_size": 3, "cluster": "dgx-a100"}
    return make_job(workload=profile, **fields | {"workers": 1, "arch": "ring"} | given)


def test_bytes_of_keys_and_queries() -> None:
    """3 sequences of 1024 tokens, 2 values of 4 heads of 4; of queries and outputs 16 heads."""
    layers = one_pass(decoder_job(context=4).workload).layers
    sizes = {(one.keys_bytes, one.queries_bytes) for one in layers}
    keys, queries = 3 * 1024 * 2 * 4 * 4 * 2, 3 * 1024 * 2 * 16 * 4 * 2
    assert sizes == {(0.0, 0.0), (keys, queries)}
    layers = one_pass(decoder_job(context=8, context_exchange="all-to-all").workload).layers
    assert max(one.keys_bytes for one in layers) == 2 * keys  # a head for each of eight devices
    layers = one_pass(decoder_job(context=2, tensor=2).workload).layers
    assert max(one.keys_bytes for one in layers) == keys / 2
    assert max(one.forward_summed_bytes for one in layers) == 3 * 512 * 64 * 2


# -- devices and memory ------------------------------------------------------------------------


def test_placement_on_two_nodes_of_four() -> None:
    """tp, cp, dp, pp: neighbours divide layers, then sequences, then come replicas."""
    two = cluster(devices_per_node=4, nics_per_node=4)
    replica = Replica(tensor=2, context=2)
    by_tensor = of_groups(two, 2)  # four ends, two on each node
    (seats,) = seats_of(by_tensor, positions_of(2, replica, within=2))
    assert seats.position.tolist() == [0, 1, 2, 3]
    assert seats.node.tolist() == [0, 1]
    outer = positions_of(2, Replica(context=2, pipeline=2), within=2)
    assert outer.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    inner = positions_of(2, Replica(context=2, pipeline=2, order="tp-pp-dp"), within=2)
    assert inner.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_activations_are_divided_and_parameters_are_not() -> None:
    layer = WorkloadLayer("layer", 1.0, 2.0, (8.0,), 16.0, kind="linear", output_bytes=12.0)
    part = on_device(layer, Replica(context=4))
    assert (part.tensor_bytes, part.activation_bytes, part.output_bytes) == ((8.0,), 4.0, 3.0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 4 * 1.0),  # two parts of keys, and two of their gradients
        ({"context_exchange": "all-gather"}, 2 * 4.0),
        ({"context_exchange": "all-to-all"}, 2 * 2.0),
        ({"context_exchange": "hierarchical", "context_inside": 2}, 4 * 1.0 + 2 * 2.0),
    ],
)
def test_buffers_of_exchanges(given: dict[str, Any], expected: float) -> None:
    made = job(work(), **given)
    assert made.replica is not None
    (parts,) = stages_of(made, made.replica)
    assert parts.worker.replica_buffers_bytes == expected * MB


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"context": 3}, "1024 tokens do not form equal pairs of parts for 3 devices .possible: 1, "
                         "2, 4"),
        ({"context": 32, "context_exchange": "all-to-all"},
         "32 devices cannot share 16 heads in all-to-alls .16 heads of tensor 1; possible: 1, 2, "
         "4, 8, 16"),
        ({"context": 8, "tensor": 4, "context_exchange": "all-to-all"}, "possible: 1, 2, 4"),
        ({"context": 4, "context_exchange": "hierarchical"}, "context_inside: 1 of 4 .*: 2"),
        ({"context": 4, "context_inside": 2}, "needs context_exchange hierarchical"),
        ({"context": 2, "context_exchange": "rings"}, "did you mean 'ring'"),
        ({"context": 2, "context_split": "zag"}, "unknown context_split"),
        ({"tensor": 2, "context_split": "contiguous"}, "needs context parallelism"),
        ({"context_exchange": "ring"}, "need tensor, context or pipeline above 1"),
        ({"context": 0}, "context"),
        ({"context": 2, "devices": 3, "workers": None}, "possible: 2 or 4"),
    ],
)  # fmt: skip
def test_impossible_divisions(given: dict[str, Any], why: str) -> None:
    if "workers" in given:
        with pytest.raises(InputError, match=why):
            make_job(model="llama-8b", **{k: v for k, v in given.items() if k != "workers"})
        return
    with pytest.raises(InputError, match=why):
        decoder_job(**given)


def test_a_part_of_a_node_is_no_group() -> None:
    with pytest.raises(InputError, match="tensor x context: 12 devices do not divide a node of 8"):
        predict(decoder_job(tensor=4, context=3, context_split="contiguous", sequence_length=3072))


def test_scores_that_are_stored_cannot_be_divided() -> None:
    stored = msgspec.structs.replace(TINY, flash=False)
    with pytest.raises(InputError, match="does not store its scores"):
        part_layers(stored, 1024, "mixed", Replica(context=2))


def test_a_workload_without_keys_cannot_be_divided() -> None:
    plain = Workload.of("made", [WorkloadLayer("layer", 1.0, 2.0, (1.0,))])
    with pytest.raises(InputError, match="context: the layers of 'made' do not say the size of"):
        job(plain)


@pytest.mark.slow
def test_the_command_line_names_the_number() -> None:
    line = "-m perfmodel predict --model llama-8b --device h100 --arch ring --context 64"
    line += " --context-exchange all-to-all"
    done = subprocess.run(
        [sys.executable, *line.split()], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "64 devices cannot share 32 heads" in done.stderr
    assert "possible: 1, 2, 4, 8, 16, 32" in done.stderr
