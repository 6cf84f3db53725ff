"""What fixed times of ops are spent on, by hand: adding, copies, the host, queues, latency.

Two workers; links carry 1 byte/s.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Job, build_graph, predict
from perfmodel.engine.simulation import simulate
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.joining import JoiningBuilder
from perfmodel.graph.op_graph import ADDING, HOST, OpGraph
from perfmodel.predicting.bottleneck import bottleneck
from perfmodel.results.prediction import Bottleneck
from tests.jobs import cluster, job, workload
from tests.predicting.test_expert_parallel import made, routing_of, seconds as exchange_s

WORK = workload([1.0], [2.0], [10.0])
UNITS = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], optimizer_s=0.5)
SUMMED = {"device of": 3.0, "link out of": 10.0, "latency": 1.0, "adding in reductions": 1.0}
"""Compute for 3 s; each sends 5 bytes, twice, with 0.5 s of latency, and adds 5 bytes in 1 s."""

SHARDED = {"unit_bytes": 0, "prefetch": 0, "copy_per_byte_s": 0.25, "collective_host_s": 0.25}


def found(one: Job) -> tuple[Bottleneck, dict[str, float]]:
    """The bottleneck by simulation, and the seconds of each part of the critical path."""
    prediction = predict(one, fidelity="fine")
    shares = prediction.bottleneck.shares
    seconds = {name: share * prediction.iteration_s for name, share in shares.items()}
    return prediction.bottleneck, seconds


def reduced(options: dict[str, Any], **where: Any) -> Job:
    """An all-reduce in which adding takes 0.2 s per byte."""
    options = {"reduce_per_byte_s": 0.2, **options}
    return job(WORK, cluster(1.0, 0.5, **where), 2, "allreduce", options)


@pytest.mark.parametrize("each_send", [False, True])
@pytest.mark.parametrize("algorithm", ["auto", "ring", "halving_doubling"])
def test_adding_in_an_all_reduce_is_not_latency(algorithm: str, each_send: bool) -> None:
    _, seconds = found(reduced({"algorithm": algorithm, "each_send": each_send}))
    assert seconds == pytest.approx(SUMMED)


def without_parts(graph: OpGraph) -> OpGraph:
    """The graph of a builder that does not know what times are spent on."""
    none = np.zeros(0, np.int32)
    return msgspec.structs.replace(graph, spent_op=none, spent_on=none, spent_s=np.zeros(0))


def test_a_graph_without_parts_is_noticed() -> None:
    """The canary: adding would be called latency, 2 s in all."""
    graph = without_parts(build_graph(reduced({"algorithm": "ring"})))
    shares = bottleneck(graph, simulate(graph, seed=1)).shares
    seconds = {name: share * 15.0 for name, share in shares.items()}
    assert seconds != pytest.approx(SUMMED)
    assert seconds == pytest.approx({"device of": 3.0, "link out of": 10.0, "latency": 2.0})


def test_adding_without_links_is_not_the_communicator() -> None:
    """Inside a node without links nothing is sent, and adding 5 bytes takes 10 s."""
    limit, seconds = found(reduced({"reduce_per_byte_s": 2.0}, devices_per_node=2))
    assert seconds == pytest.approx({"adding in reductions": 10.0, "device of": 3.0})
    assert limit.resource == "adding in reductions"
    assert limit.text == (
        "adding in reductions takes 77% of the critical path; next: computation (23%)"
    )


def test_messages_that_are_fused_add_while_they_move() -> None:
    """Sizes are not known in advance: all that is in proportion to bytes counts for the link. The
    only tensor is ready at a tick, every 1.5 s."""
    _, seconds = found(reduced({"bucketing": "horovod", "fusion_cycle_s": 1.5}))
    assert seconds == pytest.approx({"device of": 3.0, "link out of": 11.0, "latency": 1.0})


def test_copies_and_the_host_of_shards_are_not_latency() -> None:
    """Units of 2 and 1 bytes, one after the other. Around each of six collectives the host takes
    0.25 s. Copies take 0.25 s per byte: of the unit and half of it for each of two gathers, 2.25 s
    in all, and of its gradients, 0.75 s. Half of each unit is added, in 0.5 s per byte, and sent in
    each of three collectives, with 0.1 s of latency."""
    where, options = cluster(1.0, 0.1), {**SHARDED, "reduce_per_byte_s": 0.5}
    limit, seconds = found(job(UNITS, where, 2, "fsdp", options))
    assert seconds == pytest.approx({
        "device of": 4.25,
        "link out of": 4.5,
        "copying around collectives": 3.0,
        "work of the host around collectives": 1.5,
        "adding in reductions": 0.75,
        "latency": 0.6,
    })  # fmt: skip
    steps = [(step.first, step.resource) for step in limit.cycle if "copies" in step.operation]
    assert ("copies of parameters worker 0, 0", "copying around collectives") in steps


def test_the_host_can_be_the_bottleneck() -> None:
    options = {**SHARDED, "copy_per_byte_s": 0.0, "collective_host_s": 2.0}
    limit, seconds = found(job(UNITS, cluster(1.0), 2, "fsdp", options))
    host = "work of the host around collectives"
    assert seconds == pytest.approx({host: 12.0, "link out of": 4.5, "device of": 4.25})
    assert limit.text.startswith(f"{host} takes 58% of the critical path; next: sending (22%)")
    assert {step.resource for step in limit.cycle if "copies" in step.operation} == {host}


def test_queueing_of_requests_is_not_latency() -> None:
    """A request waits for half of a queue of 4 bytes. Pushes share the server's link for 20 s, and
    so do pulls; an acknowledgement, a request, a pull and a push have 0.5 s of latency each."""
    where, options = cluster(1.0, 0.5, queue_bytes=4.0), {"pull": "request", "duplex": True}
    _, seconds = found(job(WORK, where, 2, "ps", options))
    assert seconds == pytest.approx({
        "device of": 3.0,
        "link into": 20.0,
        "link out of": 20.0,
        "latency": 2.0,
        "queueing of requests": 2.0,
    })  # fmt: skip


def test_exchanges_with_experts_and_waits_for_them_are_not_latency() -> None:
    """Experts on the four devices of a node: nothing that is sent to them leaves it."""
    one = made(expert=4, options={"overlap": False})
    prediction = predict(one, fidelity="fine")
    seconds = {
        name: share * prediction.iteration_s for name, share in prediction.bottleneck.shares.items()
    }
    waited = prediction.idle_fraction.by_cause["expert_imbalance"] * prediction.iteration_s
    assert seconds["exchanges with experts"] == pytest.approx(2 * exchange_s(routing_of(one)))
    assert seconds["waiting for the busiest experts"] == pytest.approx(waited)
    assert "latency" not in seconds


def test_parts_of_an_ops_time_in_a_graph() -> None:
    """Of 4 s and a latency of 1 s the host takes 3 s and adding 0.5 s; on a slot, the rest of the
    seconds is the slot's."""
    b = GraphBuilder()
    slot, link = b.slots("thread", (1,)), b.links("wire", [1.0])
    given: dict[str, Any] = {"seconds": 4.0, "latency_s": 1.0, "spent": {ADDING: 0.5, HOST: 3.0}}
    held = b.ops("held", (1,), slot=slot, **given)
    sent = b.ops("sent", (1,), bytes=1.0, path=link[None], **given)
    plain = b.ops("plain", (1,), **{**given, "spent": {HOST: 0.0}})
    b.chain(np.stack([held, sent, plain], axis=1))
    b.edge(plain, held, lag=1)
    graph = b.build(device=slot, mark=plain)
    uses = graph.uses([*held, *sent, *plain], np.ones(1))
    on_slot, on_link, nowhere = (uses[int(op[0])] for op in (held, sent, plain))
    assert (on_slot.fixed_s, on_link.fixed_s, nowhere.fixed_s) == (4.5, 5.0, 1.0)
    assert dict(on_slot.fixed_for) == pytest.approx({HOST: 3 / 4.5, "": 1 / 4.5, ADDING: 0.5 / 4.5})
    assert on_link.fixed_for == (("work of the host around collectives", 0.6), ("", 0.3),
                                 ("adding in reductions", 0.1))  # fmt: skip
    assert nowhere.fixed_for == (("", 1.0),)


def test_joined_graphs_keep_what_times_are_spent_on() -> None:
    """Of two graphs with an op each that takes 2 s, of which the host takes 1 s and 0.5 s."""
    joining = JoiningBuilder()
    for number, host_s in enumerate((1.0, 0.5)):
        b = GraphBuilder()
        slot = b.slots("device", (1,))
        ops = b.ops("step", (1,), seconds=2.0, slot=slot, spent={HOST: host_s})
        b.edge(ops, ops, lag=1)
        one = b.build(device=slot, mark=ops)
        joining.add(one, f"part {number}", lambda block, index: None, np.array([number]))
    uses = joining.joined().uses([0, 1], np.zeros(0))
    assert [uses[op].fixed_s for op in (0, 1)] == [1.0, 0.5]
    assert [uses[op].fixed_for for op in (0, 1)] == [((HOST, 1.0),)] * 2
