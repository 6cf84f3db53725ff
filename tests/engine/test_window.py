"""A window of the steady state: its iterations, the ops that overlap it, and link use."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from perfmodel.architectures.base import architecture_of
from perfmodel.engine.simulation import simulate
from perfmodel.engine.window import settled_rounds, steady_window
from perfmodel.graph.op_graph import OpGraph
from tests.jobs import cluster, job, workload


def graph_of(arch: str, workers: int, options: dict[str, object] | None = None) -> OpGraph:
    work = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
    made = job(work, cluster(), workers, arch, options or {})
    return architecture_of(made).build(made)


def test_a_window_begins_when_the_state_recurs() -> None:
    graph = graph_of("ps", 2)
    window = steady_window(graph)
    assert window.settled == settled_rounds(graph)
    assert window.steady
    assert window.last == window.first + 1
    per_iteration_s = 1.0 / simulate(graph).iterations_per_s[0]
    assert window.end_s - window.begin_s == pytest.approx(2 * per_iteration_s)
    assert {0, 1} <= {span.iteration - window.first for span in window.spans}


def test_link_utilisation_equals_that_of_the_simulation() -> None:
    graph = graph_of("ring", 3)
    window = steady_window(graph)
    took_s = np.diff(window.sample_s)
    mean = took_s @ window.link_use / took_s.sum()
    assert mean == pytest.approx(simulate(graph).link_utilisation)
    # canary: a slower link is used more
    slower = msgspec.structs.replace(
        graph, link_capacity_bytes_per_s=graph.link_capacity_bytes_per_s / 2.0
    )
    other = steady_window(slower)
    took_s = np.diff(other.sample_s)
    assert took_s @ other.link_use / took_s.sum() != pytest.approx(mean)


def test_samples_of_several_instants_have_the_same_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of("ps", 3)
    fine = steady_window(graph)
    monkeypatch.setattr("perfmodel.engine.window.MOST_SAMPLES", 10)
    coarse = steady_window(graph)
    assert len(coarse.sample_s) < len(fine.sample_s)
    means = [np.diff(w.sample_s) @ w.link_use for w in (fine, coarse)]
    assert means[0] == pytest.approx(means[1])


def test_too_long_a_record_begins_before_the_steady_state(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of("local_sgd", 2, {"period": 8})
    assert steady_window(graph).steady
    monkeypatch.setattr("perfmodel.engine.window.MOST_RECORDED", 3 * graph.n_ops)
    early = steady_window(graph)
    assert early.first == 1
    assert not early.steady


def test_the_plain_loop_gives_the_same_window() -> None:
    graph = graph_of("ps", 2)
    plain, compiled = (steady_window(graph, compiled=which) for which in (False, True))
    assert plain.spans == compiled.spans
    assert plain.link_use.tolist() == compiled.link_use.tolist()
