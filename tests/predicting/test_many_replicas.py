"""Many asynchronous workers of several devices, simulated by a few of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfmodel import Job, Prediction, Straggler, build_graph, make_job, predict
from perfmodel.architectures.mean_field import mean_field_of
from perfmodel.engine.mean_field import simulate_mean_field
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import simulate
from perfmodel.graph.mean_field import MeanField
from perfmodel.predicting import replicas
from tests.predicting.test_replicas import job as replicas_of, work

EXPERTS: dict[str, Any] = {"model": "deepseek-v2-lite", "tensor": 2, "sequence_parallel": True}
EXPERTS |= {"expert": 2, "expert_tensor": 1}
"""Two devices that divide the experts of each layer."""

MB = 0.1
"""MB of a stage's gradient; links carry 1 MB/s."""


def staged(sizes: tuple[float, float], workers: int, **more: Any) -> Job:
    """Two stages on nodes of their own that compute for 9 s in all, and a server."""
    layers = [(1.0, 2.0, size, 1e-3) for size in sizes]
    given = {"arch": "asp", "jitter": 0.1} | more
    return replicas_of(work(layers, 2), 2, workers=workers, **given)  # type: ignore[no-any-return]


def field_of(one: Job) -> MeanField:
    field = mean_field_of(one, replicas.build, replicas.devices_of)
    assert field is not None
    return field


def rate(found: Prediction) -> float:
    """Iterations per second of all workers."""
    return found.workers / found.iteration_s


def long_run(one: Job, first: int = 32, last: int = 96) -> float:
    """Iterations per second of all workers, all simulated, after many rounds."""
    graph = build_graph(one)
    with Simulation(graph, 5, steady=True) as run:
        run.advance(first)
        begin = run.totals()
        run.advance(last)
        return (run.totals() - begin).iterations_per_s(graph) / 2.0


def test_a_full_server_of_a_stage_by_hand() -> None:
    """Gradients of 0.1 MB at 1 MB/s: ten iterations per second. Between two of its own, each of the
    300 replicas sees one of each other."""
    found = predict(staged((MB, 1e-9), 300))
    assert rate(found) == pytest.approx(10.0, rel=0.03)
    assert found.staleness is not None
    assert found.staleness.mean == pytest.approx(299.0, rel=0.05)
    assert len(found.idle_fraction.per_worker) == 300
    assert "64 workers are simulated; they represent all, which are equal" in found.notes
    link = "link out of node 600 (server 0)"
    assert found.utilisation.links[link] == pytest.approx(1.0, abs=0.05)


def test_stages_use_the_server_in_turn() -> None:
    """Replicas come to push and to pull together, first those of one stage, then of the other. The
    server's links are not always busy then, as those of a few replicas with an even load of the
    others are."""
    one = staged((MB / 2.0, MB), 300)
    found, whole = predict(one), long_run(one)
    assert rate(found) == pytest.approx(whole, rel=found.throughput_ci_fraction + 0.05)
    even = msgspec.structs.replace(field_of(one), in_step=False)
    apart = simulate_mean_field(even)
    assert float(apart.iterations_per_s @ even.graph.group_count) / 2.0 > 1.15 * whole


def test_fewer_replicas_are_all_simulated_for_as_long() -> None:
    one = staged((MB / 2.0, MB), 40)
    assert (field_of(one).graph.group_count == 1).all()
    found = predict(one)
    assert found.notes == ()
    assert rate(found) == pytest.approx(long_run(one), rel=found.throughput_ci_fraction + 0.02)


def test_what_replicas_take_of_servers_by_hand() -> None:
    """Replica 200 is slow: its pair represents itself. Both stages of a replica are groups, each
    with its own bytes."""
    field = field_of(staged((MB, MB / 2.0), 300, stragglers=[Straggler(200, 2.0)]))
    graph, n = field.graph, field.graph.n_groups // 2
    count = graph.group_count
    assert (field.devices, field.workers) == (2, 300)
    assert count[:n].tolist() == count[n:].tolist()
    assert (count[[n - 2, n - 1, 2 * n - 1]] == 1).all()
    assert graph.worker_group[[200, 500]].tolist() == [n - 2, 2 * n - 2]
    slots = len(graph.slot_capacity)
    taken = {
        graph.link_name(int(resource) - slots): field.own_s[:, i]
        for i, resource in enumerate(field.shared)
        if resource >= slots
    }
    for direction in ("out of", "into"):
        seconds = taken.pop(f"link {direction} node 600 (server 0)")
        assert seconds[:n] == pytest.approx(MB)
        assert seconds[n:] == pytest.approx(MB / 2.0)
    assert not taken


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"arch": "gosgd", "pipeline": 2, "micro_batches": 2}, marks=pytest.mark.slow),
        pytest.param(
            {"arch": "adpsgd", "pipeline": 2, "micro_batches": 2, "rank_order": "tp-pp-dp"},
            marks=pytest.mark.slow,
        ),
        {"arch": "asp", "tensor": 2, "options": {"servers": 2}, "workers": 256},
        {"arch": "easgd", "workers": 260, **EXPERTS},
        pytest.param({"arch": "asp", "workers": 260, **EXPERTS}, marks=pytest.mark.slow),
        pytest.param({"arch": "gosgd", "workers": 520, **EXPERTS}, marks=pytest.mark.slow),
    ],
)
def test_a_few_replicas_tell_what_all_do(given: dict[str, Any]) -> None:
    common = {"model": "gpt2-small", "device": "a100", "bandwidth": "25Gbps", "jitter": 0.1}
    one = make_job(**(common | {"workers": 512, "devices_per_node": 4} | given))
    found, graph = predict(one, fidelity="fine"), build_graph(one)
    whole = simulate(graph, seed=2)
    assert any("represent all" in note for note in found.notes)
    width = found.throughput_ci_fraction + whole.ci_fraction
    devices = len(graph.worker_group) / one.workers
    assert rate(found) == pytest.approx(float(whole.iterations_per_s.sum()) / devices, rel=width)
    assert found.idle_fraction.mean == pytest.approx(1.0 - whole.busy_fraction.mean(), abs=0.02)


def sixths(arch: str, each: int) -> Job:
    """Stages of six layers, or of ``each`` joined to one, that exchange the
    whole model after two micro-batches."""
    layers = [(float(each), 2.0 * each, each * MB, 1e-3)] * (6 // each)
    return replicas_of(work(layers, 2), 2, workers=512, arch=arch, jitter=0.1)  # type: ignore[no-any-return]


def test_a_few_that_send_the_whole_model_have_no_layers() -> None:
    """All of them have three ops for each pass of a micro-batch, not one."""
    one = sixths("gosgd", 1)
    graph, whole = field_of(one).graph, build_graph(one)
    assert graph.n_ops == field_of(sixths("gosgd", 3)).graph.n_ops
    assert whole.n_ops / whole.n_groups > graph.n_ops / graph.n_groups + 3.0


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gosgd", "adpsgd"])
def test_stages_that_send_the_whole_model_take_as_long_without_their_layers(arch: str) -> None:
    one = sixths(arch, 1)
    found, whole = predict(one, fidelity="fine"), simulate(build_graph(one), seed=2)
    width = found.throughput_ci_fraction + whole.ci_fraction
    assert rate(found) == pytest.approx(float(whole.iterations_per_s.sum()) / 2.0, rel=width)
    assert width < 0.03
