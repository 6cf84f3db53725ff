"""Staleness of workers with a bound, which settles later than their throughput."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel import build_graph, make_job, predict
from perfmodel.architectures.mean_field import mean_field_of
from perfmodel.engine import staleness
from perfmodel.engine.mean_field import simulate_many
from perfmodel.engine.run import Simulation
from perfmodel.inputs.job import Job


def bound(workers: int, servers: int = 4, model: str = "alexnet", **options: Any) -> Job:
    """Workers that keep servers busy, and come to push together."""
    return make_job(
        model=model,
        device="h100",
        cluster="ethernet-100g",
        workers=workers,
        arch="ssp",
        options={"servers": servers, "staleness_bound": 4, **options},
    )


def seen(given: Job, first: int, last: int) -> float:
    """Mean staleness of all workers between two rounds."""
    with Simulation(build_graph(given), 5, steady=True) as run:
        run.advance(first)
        begin = run.totals()
        run.advance(last)
        return (run.totals() - begin).staleness


def predicted(given: Job) -> float:
    found = predict(given, fidelity="fine").staleness
    assert found is not None
    return found.mean


@pytest.mark.parametrize("workers", [24, 48, 96])
def test_staleness_is_that_of_the_long_run(workers: int) -> None:
    """The first rounds have almost the most that there can be."""
    given = bound(workers)
    in_the_end = seen(given, 256, 384)
    assert seen(given, 4, 16) > 0.8 * (workers - 1) > 1.6 * in_the_end
    assert predicted(given) == pytest.approx(in_the_end, rel=0.1)


def test_a_few_of_many_have_the_staleness_of_the_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given = bound(200)
    in_the_end = seen(given, 192, 224)
    assert predicted(given) == pytest.approx(in_the_end, rel=0.15)
    monkeypatch.setattr(staleness, "MOST_OPS", 0)
    assert predicted(given) > 1.3 * in_the_end


def test_a_slow_change_is_seen() -> None:
    """Of 41 updates in the first rounds 39 are left after twice as many, and 29 in the end."""
    given = bound(48, servers=2, model="resnet50")
    in_the_end = seen(given, 192, 256)
    early = seen(given, 4, 8), seen(given, 8, 16)
    assert early == pytest.approx([1.38 * in_the_end] * 2, rel=0.08)
    assert predicted(given) == pytest.approx(in_the_end, rel=0.1)


def test_each_worker_has_the_staleness_of_the_long_run() -> None:
    """That of all workers is their mean, as all make as many updates."""
    found = predict(bound(48), fidelity="fine").staleness
    assert found is not None
    assert sum(found.per_worker) / 48 == pytest.approx(found.mean, rel=0.02)


def test_workers_in_step_drop_a_quarter_of_the_rounds() -> None:
    """Even of runs that end earlier than planned."""
    field = mean_field_of(bound(200))
    assert field is not None
    found = simulate_many(field)[1]
    each = found.transient_rounds + found.rounds / found.runs
    assert found.transient_rounds == pytest.approx(each / 4.0, rel=0.35)
    assert each < 256


def test_without_later_rounds_it_is_that_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    given = bound(48)
    later = predicted(given)
    monkeypatch.setattr(staleness, "MOST_OPS", 0)
    assert predicted(given) > 1.5 * later


def test_a_server_that_answers_each_part_at_once_has_the_most_staleness() -> None:
    """A worker reads at its own update, between two of which each other one has one."""
    assert predicted(bound(48, duplex=True)) == pytest.approx(47.0, rel=0.001)
