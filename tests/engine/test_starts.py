"""Runs from several starts, which are continued for as long as the interval needs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from perfmodel import build_graph, make_job
from perfmodel.engine import staleness, starts, warmup
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import simulate
from perfmodel.graph.op_graph import OpGraph
from tests.effort import counted
from tests.jobs import cluster, workload


@pytest.fixture(autouse=True)
def no_later_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end with those that the interval needs: staleness has rounds of its own."""
    monkeypatch.setattr(staleness, "MOST_OPS", 0)


def alternating(workers: int = 6, **options: Any) -> OpGraph:
    """Workers with a bound, jitter, and a link that is nearly full: runs have to become longer."""
    job = make_job(
        workload=workload([0.5, 0.5], [1.0, 1.0], [30.0, 20.0], batch_size=4),
        cluster=cluster(200.0),
        workers=workers,
        arch="ssp",
        options={"staleness_bound": 1} | options,
        jitter=0.3,
    )
    return build_graph(job)


@pytest.mark.parametrize(("workers", "rel_ci"), [(6, 0.005), (40, 0.02)])
def test_runs_that_were_closed_go_on_as_if_they_had_not(
    workers: int, rel_ci: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = alternating(workers)
    kept, rounds = counted(graph, monkeypatch, rel_ci=rel_ci)
    monkeypatch.setattr(starts, "KEPT_OPS", 0)
    repeated, more = counted(graph, monkeypatch, rel_ci=rel_ci)
    assert more > rounds
    for name in (
        "iterations_per_s",
        "wait_fraction",
        "staleness",
        "critical_s",
        "link_utilisation",
    ):
        np.testing.assert_array_equal(getattr(repeated, name), getattr(kept, name))


def test_longer_runs_make_the_interval_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = alternating()
    wide, few = counted(graph, monkeypatch, rel_ci=0.05)
    narrow, many = counted(graph, monkeypatch, rel_ci=0.01)
    assert many > 4 * few
    assert narrow.ci_fraction <= 0.01 < wide.ci_fraction
    rate = float(narrow.iterations_per_s.sum())
    assert float(wide.iterations_per_s.sum()) == pytest.approx(rate, rel=wide.ci_fraction)


@pytest.mark.parametrize(
    ("workers", "limit"), [(40, "PRECISION_OPS_OF_MANY"), (6, "PRECISION_OPS")]
)
def test_runs_take_as_many_operations_as_may_be(
    workers: int, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit holds for all runs together, their pilots included, but for the end of the last,
    which is a pilot of 48 rounds of six workers; four begin at least."""
    graph = alternating(workers)
    monkeypatch.setattr(starts, limit, 300 * graph.n_ops)
    monkeypatch.setattr(warmup, "WAVE_OPS", 80 * graph.n_ops)
    wide, rounds = counted(graph, monkeypatch, rel_ci=0.01)
    assert wide.ci_fraction > 0.01
    assert 150 <= rounds <= (330 if workers == 40 else 348)
    assert wide.runs >= 4


@pytest.mark.parametrize(
    ("workers", "limit"), [(40, "PRECISION_OPS_OF_MANY"), (6, "PRECISION_OPS")]
)
def test_each_turn_of_a_message_is_an_operation(
    workers: int, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 and 20 bytes in turns of half a byte are 100 in each direction, instead of two."""
    graph = alternating(workers, transmission="quantum", quantum_bytes=0.5)
    assert graph.n_turns == graph.n_ops + workers * 2 * 98
    monkeypatch.setattr(starts, limit, 300 * graph.n_turns)
    monkeypatch.setattr(warmup, "WAVE_OPS", 80 * graph.n_ops)
    wide, rounds = counted(graph, monkeypatch, rel_ci=0.01)
    assert wide.ci_fraction > 0.01
    assert 150 <= rounds <= 348


def test_turns_count_in_a_pilot_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = alternating(40, transmission="quantum", quantum_bytes=0.5)
    monkeypatch.setattr(warmup, "may_come_in_waves", lambda graph: False)
    monkeypatch.setattr(warmup, "MOST_PILOT_OPS", 20 * graph.n_turns)
    with Simulation(graph, 1, steady=True) as run:
        assert 16 <= warmup.warm_up(run, 1e-9, 0, None).spans <= 24


def test_runs_end_after_four_pilots_that_take_all_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = alternating()
    monkeypatch.setattr(starts, "PRECISION_OPS", 30 * graph.n_ops)
    wide, _ = counted(graph, monkeypatch, rel_ci=0.01)
    assert wide.runs == 4
    assert 0.01 < wide.ci_fraction < math.inf


@pytest.mark.parametrize("workers", [6, 40])
def test_runs_at_the_same_time_are_as_one_after_the_other(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = alternating(workers)
    together = simulate(graph, rel_ci=0.02)
    monkeypatch.setattr(starts, "AT_ONCE", 1)
    alone = simulate(graph, rel_ci=0.02)
    assert together.runs == alone.runs
    for name in ("iterations_per_s", "wait_fraction", "staleness", "critical_s", "ci_fraction"):
        np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))


def test_no_more_runs_are_in_memory_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """If two may be, two are kept and one more runs; if none, one runs at a time."""
    graph, open_now, most = alternating(), set[int](), 0
    opened, close = starts._Start.opened, starts._Start.close

    def watched(run: starts._Start) -> Simulation:
        nonlocal most
        open_now.add(id(run))
        most = max(most, len(open_now))
        return opened(run)

    def closed(run: starts._Start) -> None:
        open_now.discard(id(run))
        close(run)

    monkeypatch.setattr(starts._Start, "opened", watched)
    monkeypatch.setattr(starts._Start, "close", closed)
    for kept, fit in ((100, 6), (2, 3), (0, 1)):
        monkeypatch.setattr(starts, "KEPT_OPS", kept * graph.n_ops)
        most = 0
        starts.from_many_starts(graph, 1, 0.02, None, None)
        assert most >= fit
        assert most == fit or kept == 100
        assert not open_now


def test_a_warm_up_grows_with_the_run() -> None:
    """Of a run that is twice as long each time, at most an eighth is dropped, and at least a
    sixteenth once it is as long as eight pilots."""
    run = starts._Start(alternating(), 1, None)
    run.begin(0.01, 0, 0, settle=True)
    first = run.pilot.begin.rounds
    length = run.totals.rounds
    for times in (2, 4, 8, 16, 32, 64):
        run.extend(times * length)
        dropped = run.rounds - run.totals.rounds - first
        assert dropped <= times * length / starts.LATER
        if times >= 2 * starts.LATER:
            assert dropped >= times * length / (2 * starts.LATER)
    run.close()
