"""The shares of the critical path: by hand for tensor fusion, by laws for every architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel import Jitter, Straggler, build_graph, predict
from perfmodel.architectures.registry import find, read_options
from perfmodel.engine.simulation import first_iterations, simulate
from perfmodel.graph.op_graph import OpGraph, block_of
from perfmodel.graph.rules import Batch, Choice, Mailbox
from perfmodel.predicting.bottleneck import bottleneck
from tests.jobs import cluster, job, jobs, replica_jobs, third_of_variants, workload
from tests.settings import examples

LATENCY_S = 4.3
COMPUTING = ("device of", "cores of")
DANGLING = re.compile(r"\b(of|into|out|inside|between|to|from|over|on|the)(?= takes|;|, | \(|$)")
"""A preposition, or an article, with nothing after it."""


def fused(tensor_bytes: float, **options: Any) -> tuple[float, dict[str, float]]:
    """Seconds of an iteration and of each part of its critical path: ten tensors are ready at 110,
    120, ... 200 s; a batch of n takes 2 * LATENCY_S + n * tensor_bytes seconds, at ticks of 1 s."""
    work = workload([10.0] * 10, [10.0] * 10, [tensor_bytes] * 10)
    given_options = {"bucketing": "horovod", "fusion_cycle_s": 1.0, **options}
    found = predict(job(work, cluster(1.0, LATENCY_S), 2, "ring", given_options))
    seconds = {name: share * found.iteration_s for name, share in found.bottleneck.shares.items()}
    return found.iteration_s, seconds


def test_batches_without_a_pause_that_wait_for_tensors_are_not_the_bottleneck() -> None:
    """Batches begin at 110.2 (a tick), 122.8, 135.4, 148, 160.6 (two tensors), 177.2, 189.8 and
    202.4 (two).

    The network never pauses, but a faster one would only send smaller batches: the last tensor is
    ready at 200, waits for 2.4 s and is sent in 16.6 s.
    """
    iteration_s, seconds = fused(4.0)
    assert iteration_s == pytest.approx(219.0)
    assert seconds == pytest.approx({"device of": 200.0, "link out of": 10.4, "latency": 8.6})


def test_batches_that_fall_behind_are_the_bottleneck() -> None:
    """Batches begin at 110.2 (a tick), 158.8 (four tensors) and 327.4 (five): the last tensor waits
    for 127.4 s."""
    iteration_s, seconds = fused(40.0)
    assert iteration_s == pytest.approx(536.0)
    assert seconds == pytest.approx({"device of": 110.0, "link out of": 400.2, "latency": 25.8})


def test_full_batches_that_fall_behind_are_the_bottleneck() -> None:
    """Ten batches of one tensor from 110.7 (a tick): all their start-up times are needed."""
    iteration_s, seconds = fused(20.03, fusion_threshold_bytes=21)
    assert iteration_s == pytest.approx(397.0)
    assert seconds == pytest.approx({"device of": 110.0, "link out of": 201.0, "latency": 86.0})


def test_waiting_for_a_tick_is_not_computation() -> None:
    """The last tensor is ready at 200 s of 300: batches take no time at the ticks, every 150 s."""
    work = workload([10.0] * 10, [10.0] * 10, [1.0] * 10)
    options = {"bucketing": "horovod", "fusion_cycle_s": 150.0}
    found = predict(job(work, cluster(1e12), 2, "ring", options))
    assert found.iteration_s == pytest.approx(300.0)
    assert found.bottleneck.shares["device of"] == pytest.approx(200.0 / 300.0)


def test_waits_for_rare_exchanges_are_traced_past_the_iterations_without_one() -> None:
    """Two workers compute for 3 s, and exchange 10 bytes with a server in every 64th iteration: on
    its link of 0.05 bytes/s both take 800 s each way, in turns. The server's update takes no time.
    """
    work = workload([1.0], [2.0], [10.0])
    found = predict(job(work, cluster(0.05), 2, "easgd", {"period": 64}))
    assert found.iteration_s == pytest.approx(800.0 / 64)
    assert found.idle_fraction.by_cause == pytest.approx({"network": 1.0 - 3.0 / 12.5})


@pytest.mark.parametrize("jitter", [None, 1e-6])
@pytest.mark.parametrize("period", [2, 16, 100])
def test_waits_for_an_average_are_traced_past_the_steps_that_it_permits(
    period: int, jitter: float | None
) -> None:
    """A worker needs 3 s for a step and the other 6 s; after each period they add up 10 bytes in
    10 s. The faster one waits for the other first, then both for the network."""
    work = workload([1.0], [2.0], [10.0])
    options = {"period": period, "algorithm": "ring"}
    late = (Straggler(1, 2.0),)
    found = predict(
        job(work, cluster(1.0), 2, "local_sgd", options, stragglers=late, jitter=jitter),
        fidelity="fine",
    )
    whole_s = 6.0 * period + 10.0
    assert found.iteration_s == pytest.approx(whole_s / period, rel=1e-4)
    waits = {"straggler": 3.0 * period / 2.0 / whole_s, "network": 10.0 / whole_s}
    assert found.idle_fraction.by_cause == pytest.approx(waits, rel=1e-4)
    shares = {"device of": 6.0 * period / whole_s, "link out of": 10.0 / whole_s}
    assert found.bottleneck.shares == pytest.approx(shares, rel=1e-4)


@pytest.mark.parametrize(("workers", "met"), [(2, "link out of"), (3, "link into")])
def test_models_sent_to_random_workers_count_towards_their_links(workers: int, met: str) -> None:
    """Sending takes nearly all of the time of an iteration, 10 bytes in every tenth, and computing
    3 s. Of three workers, two may send to one at once; of two, only one can. Some of the
    computation takes place while models are sent, and is not on the critical path."""
    work = workload([1.0], [2.0], [10.0])
    options = {"probability": 0.1, "queue": 1}
    found = predict(job(work, cluster(0.05), workers, "gosgd", options), fidelity="fine")
    shares = found.bottleneck.shares
    assert set(shares) == {"device of", met}
    assert 0.0 < shares["device of"] < 0.7 * 3.0 / found.iteration_s
    assert found.bottleneck.text.startswith(
        f"{'sending' if workers == 2 else 'receiving'} over the {met} "
    )


@pytest.mark.parametrize("jitter", [None, 1e-6])
@pytest.mark.parametrize("arch", ["local_sgd", "easgd", "d_psgd", "ps"])
def test_a_loader_that_is_always_busy_is_the_bottleneck(arch: str, jitter: float | None) -> None:
    """Loading takes 5 s and computing 3 s, in parallel: loading takes all of the critical path, not
    only the 2 s in which the device waits."""
    work = workload([1.0], [2.0], [1.0], data_loading_s=5.0)
    found = predict(job(work, cluster(1e6), 2, arch, jitter=jitter), fidelity="fine")
    assert found.iteration_s == pytest.approx(5.0, rel=1e-3)
    assert found.idle_fraction.by_cause["data"] == pytest.approx(0.4, rel=1e-3)
    assert found.bottleneck.shares["data loader of"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("jitter", [None, 1e-6])
def test_a_server_that_is_always_busy_is_the_bottleneck(jitter: float | None) -> None:
    """Eight workers need 6 s for an iteration, and the server 2 s for an update of each: it is
    always busy, and the time in which it could do nothing for a worker does not matter."""
    work = workload([2.0], [4.0], [1.0])
    where = cluster(1e6, update_per_tensor_s=2.0)
    found = predict(job(work, where, 8, "ps", {"sync": "asp"}, jitter=jitter), fidelity="fine")
    assert found.iteration_s == pytest.approx(16.0, rel=1e-3)
    assert found.idle_fraction.by_cause["server"] == pytest.approx(10.0 / 16.0, rel=1e-3)
    assert found.bottleneck.shares["update threads of"] == pytest.approx(1.0, abs=1e-3)


def test_a_path_of_few_iterations_is_whole() -> None:
    """Two workers compute for 3 s, push 10 bytes each over the server's link of 1 byte/s and pull
    them again: the first iteration takes 3 + 20 s, or 3 + 40 s with the pulls, before the next."""
    graph = build_graph(job(workload([1.0], [2.0], [10.0]), cluster(1.0), 2, "ps", {}))
    for iterations, whole_s in ((1, 23.0), (2, 66.0), (3, 109.0)):
        found = first_iterations(graph, iterations)
        shares = bottleneck(graph, found).shares
        assert found.elapsed_s == pytest.approx(whole_s)
        assert shares["device of"] == pytest.approx(3.0 * iterations / whole_s)


def without_communication(graph: OpGraph) -> OpGraph:
    """The graph with everything but computation in no time."""
    computing = np.array([_label(graph, op) in COMPUTING for op in range(graph.n_ops)])
    links = range(len(graph.link_capacity_bytes_per_s))
    cores = np.array([block_of(graph.links, link).label in COMPUTING for link in links], bool)
    replaced = {
        Batch: {"cycle_s": 1e-9},
        Mailbox: {"per_token_s": 1e-9},
        Choice: {"latency_s": 0.0},
    }
    return msgspec.structs.replace(
        graph,
        op_seconds=np.where(computing, graph.op_seconds, 0.0),
        op_latency_s=np.zeros(graph.n_ops),
        link_capacity_bytes_per_s=graph.link_capacity_bytes_per_s * np.where(cores, 1.0, 1e9),
        route_cap_bytes_per_s=np.full(len(graph.route_cap_bytes_per_s), np.inf),
        rules=tuple(
            msgspec.structs.replace(
                rule, **{name: 0.0 * getattr(rule, name) + value for name, value in new.items()}
            )
            for rule in graph.rules
            for new in [replaced.get(type(rule), {})]
        ),
    )


def _label(graph: OpGraph, op: int) -> str:
    return graph.uses([op], np.zeros(len(graph.link_capacity_bytes_per_s)))[op].family


every_architecture = third_of_variants()


@pytest.mark.sampled(3)
@every_architecture
@examples(3)
@given(data=st.data())
def test_laws_of_shares(arch: str, options: dict[str, Any], data: st.DataObject) -> None:
    graph = build_graph(data.draw(jobs(arch, options, jitter=True)))
    whole = bottleneck(graph, simulate(graph, seed=1, rel_ci=0.5))
    assert sum(whole.shares.values()) == pytest.approx(1.0)
    alone = without_communication(graph)
    shares = bottleneck(alone, simulate(alone, seed=1, rel_ci=0.5)).shares
    assert sum(shares.get(name, 0.0) for name in COMPUTING) == pytest.approx(1.0, abs=1e-3)


def texts(graph: OpGraph) -> Iterator[str]:
    """What is said of the bottleneck if all ops of a kind are on the critical path, of each."""
    run = msgspec.structs.replace(first_iterations(graph, 1), critical_cycle=())
    for block in graph.ops:
        ops = np.arange(graph.n_ops)
        taken = ((ops >= block.first) & (ops < block.first + block.size)).astype(float)
        seconds = taken * (graph.op_seconds + graph.op_latency_s + 1e-3)
        run = msgspec.structs.replace(run, critical_s=seconds, critical_count=taken)
        found = bottleneck(graph, run)
        yield from (found.text, found.resource)


def test_updates_on_hosts_are_no_computation_of_devices() -> None:
    """Compute for 3 s, copy 100 GB to the host and back at 25 GB/s, where three values for each
    parameter move at 115 GB/s."""
    work = workload([1.0], [2.0], [100e9])
    stored = msgspec.structs.replace(work.storage, offload=True)
    made = job(msgspec.structs.replace(work, storage=stored), cluster(1e12), 1, "ring")
    found = predict(made, fidelity="fine")
    seconds = {"device of": 3.0, "link to the host of": 4.0, "link from the host of": 4.0}
    seconds["updates on the workers' hosts"] = 300.0 / 115.0
    assert found.iteration_s == pytest.approx(sum(seconds.values()))
    shares = {name: part / found.iteration_s for name, part in seconds.items()}
    assert found.bottleneck.shares == pytest.approx(shares)
    text = "copying over the link to the host of worker 0 takes 29% of the critical path"
    assert found.bottleneck.text == f"{text}; next: copying from the host (29%)"


def test_all_servers_are_named_if_none_takes_most() -> None:
    work = workload([1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    where = cluster(1e6, update_per_tensor_s=2.0)
    found = list(texts(build_graph(job(work, where, 2, "asp", {"servers": 2}))))
    assert "work on the update threads of the servers takes 100% of the critical path" in found


def test_canary_owners_that_are_left_out_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    where = cluster(1e6, update_per_tensor_s=2.0)
    work = workload([1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    graph = build_graph(job(work, where, 2, "asp", {"servers": 2}))
    assert not any(map(DANGLING.search, texts(graph)))
    monkeypatch.setattr("perfmodel.predicting.bottleneck._owners", lambda family: "")
    assert any(map(DANGLING.search, texts(graph)))


@every_architecture
@examples(3)
@given(data=st.data())
def test_what_takes_time_is_named(arch: str, options: dict[str, Any], data: st.DataObject) -> None:
    """Of single devices, and of replicas, whose resources have other names."""
    one = data.draw(st.booleans())
    made = data.draw(jobs(arch, options) if one else replica_jobs(arch))
    found = [text for text in texts(build_graph(made)) if DANGLING.search(text)]
    assert not found


def _in_turns(arch: str, options: dict[str, Any]) -> bool:
    """Whether workers wait for each other: other workers' order, and so their path, may change."""
    architecture, aliased = find(arch)
    return not read_options(architecture, {**aliased, **options}).asynchronous


@pytest.mark.sampled(3)
@third_of_variants(_in_turns)
@examples(3)
@given(data=st.data())
def test_hardly_any_jitter_hardly_moves_shares(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    """Without jitter, the critical path is one that repeats; with it, a mean over many."""
    exact = data.draw(jobs(arch, options))
    times = exact.workload.compute_s
    loading_s = data.draw(st.sampled_from([3.0 * times, 0.0]))
    factor = data.draw(st.sampled_from([2.0, 1.0]))
    exact = msgspec.structs.replace(
        exact,
        workload=msgspec.structs.replace(exact.workload, data_loading_s=loading_s),
        stragglers=(Straggler(exact.workers - 1, factor),),
    )
    jittered = msgspec.structs.replace(exact, jitter=Jitter(1e-6))
    one, other = (predict(each, fidelity="fine") for each in (exact, jittered))
    assert other.iteration_s == pytest.approx(one.iteration_s, rel=0.01)
    for name in {*one.bottleneck.shares, *other.bottleneck.shares}:
        expected = pytest.approx(one.bottleneck.shares.get(name, 0.0), abs=0.1)
        assert other.bottleneck.shares.get(name, 0.0) == expected
