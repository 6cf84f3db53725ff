"""Experts on several devices: exchanges, waits, gradients and memory, by hand and by laws."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import (
    InputError,
    IntraNode,
    Job,
    Prediction,
    Straggler,
    explain,
    layouts,
    make_job,
    predict,
    sweep,
)
from perfmodel.catalogue import catalogue
from perfmodel.inputs.passes import one_pass
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.replica import RoutedLayers
from perfmodel.predicting.replicas import stage_jobs
from perfmodel.theory.routing import Routing, largest_load
from tests.jobs import cluster

TOKENS, HIDDEN, ACTIVE = 512, 4096, 2
NODES = cluster(
    25e9, 0.0, devices_per_node=4, nics_per_node=4,
    intra_node=IntraNode(200e9, latency_s=0.0, kind="per_device"),
)  # fmt: skip
"""Nodes of four devices with a link of 25 GB/s and a port of 200 GB/s each, without latencies."""


def model(blocks: int = 2, routed: int = 8) -> Profile:
    """Mixtral 8x7B cut to a few blocks."""
    whole = catalogue.model("mixtral-8x7b")
    assert whole.decoder is not None
    assert whole.decoder.experts is not None
    experts = msgspec.structs.replace(whole.decoder.experts, routed=routed, active=ACTIVE)
    decoder = msgspec.structs.replace(
        whole.decoder, blocks=blocks, experts=experts, sequence_length=TOKENS
    )
    return msgspec.structs.replace(whole, decoder=decoder, layers=(), timings=())


def made(workers: int = 8, **given: Any) -> Job:
    """A job of the cut model on H100."""
    fields = {"workload": model(), "device": "h100", "precision": "mixed", "batch_size": 1,
              "cluster": NODES, "arch": "allreduce"}  # fmt: skip
    return make_job(workers=workers, **{**fields, **given})


def routing_of(job: Job) -> RoutedLayers:
    """What the only stage of a job sends to experts."""
    (one,) = stage_jobs(job)
    assert one.job.stage is not None
    assert one.job.stage.routing is not None
    return one.job.stage.routing


def both(job: Job) -> tuple[Prediction, Prediction]:
    """The simulation and the formulas."""
    return predict(job), predict(job, fidelity="coarse")


# -- exchanges -------------------------------------------------------------------------------------


def seconds(routing: RoutedLayers) -> float:
    """Exchanges of a forward pass, alone on their links."""
    return sum(one.seconds + one.bytes / one.rate_bytes_per_s for one in routing.forward)


def test_exchanges_by_hand_inside_a_node() -> None:
    """Of 512 tokens, 2 copies of 4096 values of 2 bytes each, 3 of 4 parts go to others, in two
    blocks, there and back."""
    routing = routing_of(made(expert=4))
    copies = TOKENS * ACTIVE * HIDDEN * 2
    assert seconds(routing) == pytest.approx(2 * 2 * copies * 3 / 4 / 200e9)
    assert seconds(routing) != pytest.approx(2 * 2 * copies / 200e9)  # canary
    assert routing.forward == routing.backward
    assert routing.workers == 4


@pytest.mark.parametrize(("recompute", "again"), [("none", 0), ("full", 1)])
def test_tokens_are_sent_in_8_bits_by_hand(recompute: str, again: int) -> None:
    """Tokens, and the gradients of results, have one byte and 4 bytes of scales for 128 values with
    the recipe of DeepSeek-V3; results, and the gradients of tokens, have two bytes. Other recipes
    send 16 bits."""
    given = {"expert": 4, "batch_size": 1, "recompute": recompute}
    values = TOKENS * ACTIVE * HIDDEN
    short_s, long_s = (values * size * 3 / 4 / 200e9 for size in (1 + 4 / 128, 2))
    routing = routing_of(made(precision="fp8_block", **given))
    sent = [one.seconds for one in routing.forward if one.seconds]
    back = [one.seconds for one in routing.backward if one.seconds]
    assert sent == pytest.approx(2 * [short_s, long_s])
    assert back == pytest.approx(2 * [long_s + again * short_s, short_s + again * long_s])
    others = [routing_of(made(precision=one, **given)) for one in ("mixed", "fp8", "fp8_current")]
    for routing in others:
        assert [one.seconds for one in routing.forward if one.seconds] == pytest.approx(
            4 * [long_s]
        )


@pytest.mark.parametrize("over", [None, 4.0])
def test_exchanges_take_as_long_in_every_stage(over: float | None) -> None:
    """Of two stages on two nodes each: 4 of 8 parts go to the other node, at 25 GB/s, or a quarter
    of that over the core, whichever stage it is."""
    core = msgspec.structs.replace(NODES, core_oversubscription=over)
    job = made(expert=8, pipeline=2, batch_size=2, accumulation=2, cluster=core)
    each = TOKENS * ACTIVE * HIDDEN * 2 * 4 / 8 / 25e9  # of a block, there or back
    found = []
    for one in stage_jobs(job):
        assert one.job.stage is not None
        assert one.job.stage.routing is not None
        found.append(seconds(one.job.stage.routing))
    assert found == pytest.approx(2 * [2 * each * (over or 1.0)])


def test_exchanges_by_hand_across_nodes() -> None:
    """4 of 8 parts go to another node, at 25 GB/s; each device has a link of its own."""
    routing = routing_of(made(expert=8))
    copies = TOKENS * ACTIVE * HIDDEN * 2
    assert seconds(routing) == pytest.approx(4 * copies * 4 / 8 / 25e9)
    (sent,) = {one.bytes for one in routing.forward if one.bytes}
    assert sent == pytest.approx(copies / 2)
    hierarchical = routing_of(made(expert=8, expert_exchange="hierarchical"))
    # one copy of a token for the other node if it passes both nodes: not 2 x 1/2 but 11/14
    across = copies / 2 * (11 / 14)
    inside = copies * 3 / 4
    assert seconds(hierarchical) == pytest.approx(4 * (across / 25e9 + inside / 200e9))
    limited = routing_of(made(expert=8, expert_exchange="hierarchical", expert_nodes=1))
    assert seconds(limited) == pytest.approx(4 * (copies / 4 / 25e9 + inside / 200e9))


@pytest.mark.parametrize(("nodes", "limit"), [(1, None), (2, None), (2, 1)])
def test_a_device_gets_one_copy_of_a_token_by_hand(nodes: int, limit: int | None) -> None:
    """Two experts of 8 on 4 devices are on one device with a probability of 1/7, so that 13 of 14
    copies are sent; of 16 on 8 devices with 1/15: 29 of 30. On one of two nodes with 8 of these
    each, 13 of 14, half of which have a copy in the other node."""
    several = {"expert_exchange": "hierarchical", "expert_nodes": limit}
    work = model(routed=8 * nodes)
    routing = routing_of(made(workload=work, expert=4 * nodes, **several))
    copies = TOKENS * ACTIVE * HIDDEN * 2
    sent = {(1, None): 13 / 14, (2, None): 29 / 30, (2, 1): 13 / 14}[nodes, limit]
    inside_s = copies * sent * 3 / 4 / 200e9
    # a token passes both of two nodes unless its two experts are among the 8 of one: 7/15
    across = {(1, None): 0.0, (2, None): (2 - 7 / 15) / 2 / 2, (2, 1): 1 / 4}[nodes, limit]
    assert seconds(routing) == pytest.approx(4 * (inside_s + copies * across / 25e9))
    direct = routing_of(made(workload=work, expert=4))
    assert seconds(direct) == pytest.approx(4 * copies * 3 / 4 / 200e9)


def test_devices_that_divide_each_expert_gather_its_tokens() -> None:
    """Of a worker of 2 devices each has half of the tokens; among 2 that divide an expert half of
    what both have is gathered, and half of the results is summed."""
    given = {"tensor": 2, "sequence_parallel": True, "workers": 2}
    routing = routing_of(made(expert=2, **given))
    copies = TOKENS * ACTIVE * HIDDEN * 2 / 2
    exchanged, gathered = copies / 2 / 200e9, 2 * copies / 2 / 200e9
    assert seconds(routing) == pytest.approx(4 * (exchanged + gathered))
    alone = routing_of(made(expert=4, expert_tensor=1, **given))
    assert seconds(alone) == pytest.approx(4 * copies * 3 / 4 / 200e9)


def test_overlap_hides_a_share_and_capacity_adds_places() -> None:
    whole = seconds(routing_of(made(expert=4)))
    assert seconds(routing_of(made(expert=4, expert_overlap=0.75))) == pytest.approx(whole / 4)
    full = made(expert=4, expert_capacity=1.25)
    assert seconds(routing_of(full)) == pytest.approx(1.25 * whole)
    assert not any(routing_of(full).forward_waits_s)


def test_recomputation_sends_tokens_once_more() -> None:
    once, again = (routing_of(made(expert=4, recompute=how)) for how in ("none", "full"))
    assert again.forward == once.forward
    assert sum(x.seconds for x in again.backward) == pytest.approx(
        2 * sum(x.seconds for x in once.backward)
    )


# -- imbalance -------------------------------------------------------------------------------------


def routed(devices: int, tokens: int, runs: int) -> float:
    """The largest load of devices with one expert of 8, 2 chosen by each token, over the mean: by
    drawing how many tokens choose each pair."""
    generator = np.random.default_rng(11)
    pairs = np.array([(a, b) for a in range(8) for b in range(a)])
    chosen = generator.multinomial(tokens, np.full(len(pairs), 1 / len(pairs)), size=runs)
    loads = np.zeros((runs, 8))
    for column, pair in enumerate(pairs):
        for expert in pair:
            loads[:, expert] += chosen[:, column]
    return float(loads.reshape(runs, devices, -1).sum(-1).max(1).mean() * devices / tokens / 2)


@pytest.mark.slow
@pytest.mark.parametrize("degree", [2, 4, 8])
def test_idleness_from_imbalance_is_that_of_a_monte_carlo(degree: int) -> None:
    job = made(expert=degree, options={"overlap": False})
    late = routed(degree, degree * TOKENS, 200_000) - 1.0
    layers = one_pass(job.workload).layers
    computing = sum(
        layer.forward_s + layer.backward_s for layer in layers if ".experts." in layer.name
    )
    sending = 2 * seconds(routing_of(job))
    expected = late * (computing + sending)
    for prediction in both(job):
        waiting = prediction.idle_fraction.by_cause["expert_imbalance"] * prediction.iteration_s
        assert waiting == pytest.approx(expected, rel=0.01)
        # canary: of a router with one choice
        assert waiting != pytest.approx(expected * 1.2, rel=0.01)


def test_popular_experts_keep_others_waiting() -> None:
    even, skewed = (predict(made(expert=8, expert_skew=skew)) for skew in (0.0, 0.5))
    assert skewed.iteration_s > even.iteration_s
    load = largest_load(Routing(8 * TOKENS, 8, 2, 8, 0.5))
    waits = routing_of(made(expert=8, expert_skew=0.5)).forward_waits_s
    layers = one_pass(made(expert=8).workload).layers
    up = [k for k, layer in enumerate(layers) if layer.name.endswith("experts.up")]
    for k in up:
        assert waits[k] == pytest.approx((load - 1.0) * layers[k].forward_s)


# -- laws ------------------------------------------------------------------------------------------


def test_one_device_with_all_experts_is_the_job_without() -> None:
    for more in ({}, {"tensor": 2, "sequence_parallel": True}, {"pipeline": 2, "batch_size": 4}):
        without, one = made(4, **more), made(4, expert=1, **more)
        assert one == without
        assert predict(one).iteration_s == predict(without).iteration_s


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", ["allreduce", "fsdp", "zero1"])
@pytest.mark.parametrize(
    "more",
    [
        {"expert": 4},
        {"expert": 8},
        {"expert": 4, "tensor": 2, "sequence_parallel": True, "workers": 4},
        {"expert": 4, "pipeline": 2, "micro_batches": 4, "batch_size": 4, "workers": 4},
        {"expert": 8, "expert_exchange": "pairwise", "accumulation": 2, "batch_size": 2},
    ],
)
def test_formulas_agree_with_the_simulation(arch: str, more: dict[str, Any]) -> None:
    fine, coarse = both(made(**{"arch": arch, "options": {"overlap": False}, **more})
                        if arch == "allreduce" else made(**{"arch": arch, **more}))  # fmt: skip
    band = 0.005 if arch == "allreduce" and "pipeline" not in more else 0.08
    assert coarse.iteration_s == pytest.approx(fine.iteration_s, rel=band)
    for prediction in (fine, coarse):
        assert sum(prediction.idle_fraction.by_cause.values()) == pytest.approx(
            prediction.idle_fraction.mean, abs=1e-9
        )


def test_a_group_waits_for_its_slowest_worker() -> None:
    slow = predict(made(4, expert=4, stragglers=[Straggler(1, 2.0)]))
    alone = predict(made(4, expert=4))
    compute = alone.iteration_s - alone.exposed_communication_s
    assert slow.iteration_s > alone.iteration_s + 0.8 * compute
    assert slow.idle_fraction.per_worker[1] < slow.idle_fraction.per_worker[0]


def test_gradients_of_experts_are_reduced_among_those_that_have_them() -> None:
    """With as many devices as experts nothing of them is reduced; on two of four devices each
    reduces its half with one other, over links that carry one ring more."""
    parts = {}
    for degree in (1, 2, 4):
        job = made(4, expert=degree)
        work = job.workload if degree == 1 else stage_jobs(job)[0].job.workload
        parts[degree] = sum(
            sum(layer.tensor_bytes) for layer in work.layers if ".experts." in layer.name
        )
    assert parts[4] == 0.0
    # 2 (n-1)/n: 1 of a half among two, 1.5 of all among four
    assert parts[2] / parts[1] == pytest.approx(0.5 * 1.0 / 1.5)


def test_memory_has_its_part_of_the_experts() -> None:
    whole, part = (predict(made(8, expert=degree)).memory for degree in (1, 8))
    total = sum(
        sum(layer.tensor_bytes) for layer in made(8).workload.layers if ".experts." in layer.name
    )
    missing = whole.worker.parameters_bytes - part.worker.parameters_bytes
    assert missing == pytest.approx(total * 7 / 8)
    # optimizer states are sharded: of the experts among one, of others among all
    shards = [predict(made(8, expert=degree, arch="zero1")).memory.worker for degree in (1, 2, 8)]
    for one in shards[1:]:
        assert one.optimizer_states_bytes == pytest.approx(shards[0].optimizer_states_bytes)


# -- impossible numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"expert": 3}, r"expert: 3 devices cannot share 8 experts evenly \(possible: 1, 2, 4"),
        ({"expert": 8, "workers": 12},
         r"expert: 8 x expert_tensor 1 devices do not divide the 12 .*possible: 1, 2, 3, 4, 6, 12"),
        ({"expert": 8, "arch": "ps"}, r"replicas of ps do not.*the 1 devices .*possible: 1"),
        ({"expert": 8, "arch": "d_psgd"}, r"replicas of d_psgd do not"),
        ({"expert": 2, "tensor": 4, "expert_tensor": 3, "sequence_parallel": True},
         r"expert_tensor: 3 does not divide the 4 devices .*possible: 1, 2, 4"),
        ({"expert": 2, "tensor": 2}, "expert: needs sequence_parallel"),
        ({"expert_skew": 0.3}, r"expert_skew: need expert parallelism"),
        ({"expert": 2, "expert_exchange": "fast"}, "expert_exchange.*fast.*direct"),
        ({"expert": 2, "expert_nodes": 2}, "expert_nodes: needs expert_exchange hierarchical"),
        ({"expert": 2, "expert_overlap": 1.5}, "overlap"),
        ({"expert": 2, "workload": "gpt2-small"}, "expert: .* is not a language model with exp"),
    ],
)  # fmt: skip
def test_impossible_numbers_say_which_are_possible(given: dict[str, Any], says: str) -> None:
    if given.get("workload") == "gpt2-small":
        given = {**given, "workload": catalogue.model("gpt2-small")}
    with pytest.raises(InputError, match=says) as error:
        made(**given)
    assert "\n" not in str(error.value)


def test_inside_a_replica_any_architecture_may_divide_experts() -> None:
    given = {"tensor": 4, "sequence_parallel": True, "expert": 4, "expert_tensor": 1, "workers": 2}
    for arch in ("ps", "d_psgd", "allreduce"):
        job = made(arch=arch, **given)
        assert routing_of(job).workers == 1
        assert predict(job).idle_fraction.by_cause["expert_imbalance"] > 0.0


def test_layouts_keep_the_experts_where_they_are() -> None:
    job = made(4, expert=4, pipeline=2, micro_batches=4, batch_size=4)
    several = layouts(job, pipeline=(1, 2), micro_batches=(4,))
    for k in range(len(several)):
        one = several.job_of(k)
        assert one.replica is not None
        assert one.replica.experts is not None
        assert several.step_s[k] == pytest.approx(predict(one, fidelity="coarse").iteration_s)


@pytest.mark.slow
def test_studies_vary_whole_groups() -> None:
    """Numbers of workers are multiples of those that have all experts; sweeps divide anew."""
    explanation = explain(made(8, expert=4))
    assert explanation.phases_s["expert imbalance"] > 0.0
    rows = sweep(model="mixtral-8x7b", device="h100", workers=8, arch="zero1", expert=[2, 4, 8])
    assert not rows.skipped
    assert len({row.iteration_s for row in rows.predictions}) == 3
