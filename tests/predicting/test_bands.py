"""Formulas against simulations of random jobs, and the error bands measured in this way."""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.coarse import page
from benchmarks.coarse.classes import FEWEST, Known, band, grown
from benchmarks.coarse.draw import WAYS, Cell, cell, cells
from benchmarks.coarse.measure import (
    MANY_FROM,
    REPLICAS_FROM,
    Store,
    by_group,
    cell as replica_cell,
    known,
    row,
    rows,
    simulate,
)
from perfmodel import make_job, predict
from perfmodel.api import TOLERANCE
from perfmodel.architectures.ps import MANY as OF_MANY
from perfmodel.architectures.registry import names
from perfmodel.phases.phases import Phase, Phases
from perfmodel.predicting import bands, coarse
from perfmodel.predicting.bands import BandTable, narrowest
from tests.jobs import ETHERNET

FRESH = 5
"""A seed used neither to measure bands nor to check them."""

FIRST, FEW, MANY = 120, 360, 1000
"""Numbers of jobs drawn in every test run, and in the slow ones."""

NODES_OF_TWO = msgspec.structs.replace(ETHERNET, devices_per_node=2)

SMALL = 6
"""Largest number of workers of a job simulated in every test run."""


@functools.cache
def first_cells(count: int = FEW) -> list[Cell]:
    """The first jobs of the draw, which do not depend on how many are drawn."""
    return list(cells(FRESH, count))


SIMULATED: dict[str, float] = {}


def simulated_s(one: Cell) -> float:
    """Iteration time of a job as simulated, once for all tests."""
    if one.name not in SIMULATED:
        SIMULATED[one.name] = predict(one.job).iteration_s
    return SIMULATED[one.name]


# -- the draw ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_draw_varies_everything_that_users_vary() -> None:
    jobs = [one.job for one in first_cells()]
    assert {job.architecture.name for job in jobs} == set(names())
    assert {job.cluster.devices_per_node for job in jobs} == {1, 2, 4, 8}
    assert {job.cluster.server.placement for job in jobs} == {"dedicated", "colocated"}
    assert min(job.workers for job in jobs) == 1
    assert max(job.workers for job in jobs) > 32
    for of in (
        lambda job: job.jitter is not None,
        lambda job: bool(job.stragglers),
        lambda job: any(each.nic is not None for each in job.cluster.overrides),
        lambda job: any(each.speed != 1.0 for each in job.cluster.overrides),
        lambda job: job.cluster.core_oversubscription is not None,
        lambda job: bool(job.cluster.collectives),
        lambda job: getattr(job.options, "servers", 1) > 1,
        lambda job: len(job.workload.layers) <= 5,
        lambda job: len(job.workload.layers) > 20,
    ):
        assert 0.05 < np.mean([of(job) for job in jobs]) < 0.95
    for way in WAYS:
        drawn = {repr(WAYS[way](np.random.default_rng(k))[1]) for k in range(40)}
        assert len(drawn) > 1


def test_a_drawn_job_does_not_depend_on_the_process() -> None:
    assert cell(FRESH, 17).job == list(cells(FRESH, 18))[17].job
    assert cell(FRESH, 17).job != cell(FRESH + 1, 17).job


# -- bands -------------------------------------------------------------------------------------


def test_a_band_covers_90_percent_of_further_jobs() -> None:
    """Whatever the distribution of errors, and however few were measured."""
    generator = np.random.default_rng(1)
    for few in (9, 24, 100):
        errors = generator.lognormal(-4.0, 1.5, (4000, few + 1))
        held = np.mean([one[-1] <= band(one[:-1].tolist()) for one in errors])
        assert 0.885 <= held <= 0.95


def test_canary_a_plain_quantile_of_few_jobs_covers_too_few() -> None:
    errors = np.random.default_rng(1).lognormal(-4.0, 1.5, (4000, 10))
    assert np.mean(errors[:, -1] <= np.quantile(errors[:, :-1], 0.9, axis=1)) < 0.885


def planted(number: int) -> list[Known]:
    """Jobs whose errors are large with jitter; the other trait has no effect."""
    generator = np.random.default_rng(2)
    found = []
    for jitter, other, error in zip(
        generator.random(number) < 0.4,
        generator.random(number) < 0.5,
        np.abs(generator.normal(0.0, 1.0, number)),
        strict=True,
    ):
        there = {"jitter"} if jitter else set()
        there |= {"other"} if other else set()
        found.append(Known(frozenset(there), float(error) * (0.1 if jitter else 0.001)))
    return found


def test_classes_are_split_by_the_trait_that_separates_errors() -> None:
    whole = grown(planted(400))
    assert whole.trait == "jitter"
    having, others = whole.with_trait, whole.without_trait
    assert having is not None
    assert others is not None
    assert narrowest(whole, "g", frozenset({"jitter"})) == (having, "g, jitter")
    assert narrowest(whole, "g", frozenset()) == (others, "g, not jitter")
    assert having.p90 > 0.1 > 0.005 > others.p90
    assert having.jobs + others.jobs == whole.jobs == 200


def test_too_few_jobs_are_not_split() -> None:
    assert grown(planted(3 * FEWEST)).with_trait is None


@pytest.mark.slow
def test_the_table_has_every_group_and_classes_that_are_large_enough() -> None:
    def sizes(one: bands.BandClass) -> Iterable[int]:
        yield one.jobs
        for part in (one.with_trait, one.without_trait):
            if part is not None:
                yield from sizes(part)

    table = bands.table()
    drawn = {cell.group for cell in first_cells()[:300]}
    assert set(table.groups) == {bands.REPLICAS, *OF_MANY.values(), *drawn}
    for whole in table.groups.values():
        assert min(sizes(whole)) >= FEWEST
        assert 0.0 <= whole.median <= whole.p90


@pytest.mark.family("many draws")
@pytest.mark.slow
def test_declared_bands_hold_for_replicas() -> None:
    """Of jobs that neither measured the bands nor checked them; exact is exact."""
    inside, drawn = [], 300
    for number in range(drawn):
        job = replica_cell(REPLICAS_FROM + FRESH, number).job
        if coarse.leaves_out(job) is not None:
            continue
        expected = coarse.error_band(job).p90
        assert expected is not None
        error = abs(float(coarse.phases(job).iteration_s) / predict(job).iteration_s - 1.0)
        if expected == 0.0:
            assert error < 1e-9, number
        else:
            inside.append(error <= expected)
    assert len(inside) >= drawn / 6
    assert np.mean(inside) >= 0.8


@functools.cache
def of_many_workers() -> list[tuple[float, float]]:
    """Error and declared band of jobs of many asynchronous workers, of a draw used neither to
    measure bands nor to check them; the first eight with few ops."""
    drawn = (replica_cell(MANY_FROM + FRESH, number).job for number in itertools.count())
    few = (j for j in drawn if len(j.workload.layers) <= 5 and j.options.server_count <= 4)
    found = []
    for job in itertools.islice(few, 8):
        expected = coarse.error_band(job)
        assert bands.group_of(job) in expected.text
        assert expected.p90 is not None
        error = float(coarse.phases(job).iteration_s) / predict(job).iteration_s - 1.0
        found.append((error, expected.p90))
    return found


@pytest.mark.slow
def test_declared_bands_hold_for_many_workers() -> None:
    assert np.mean([abs(error) <= p90 for error, p90 in of_many_workers()]) >= 0.8


@pytest.mark.slow
def test_canary_formulas_of_many_workers_that_are_slower_are_noticed() -> None:
    held = [abs(1.05 * (1.0 + error) - 1.0) <= p90 for error, p90 in of_many_workers()]
    assert np.mean(held) < 0.5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"transfers": "gloo"}, "gloo"),
        ({"arch": "ps"}, "servers that stages share"),
        ({"rank_order": "tp-pp-dp", "cluster": NODES_OF_TWO}, "links that stages share"),
    ],
)
def test_what_formulas_of_replicas_leave_out_is_simulated(
    arguments: dict[str, Any], text: str
) -> None:
    given = {"model": "resnet50", "device": "v100", "arch": "ring", "workers": 16, "pipeline": 2}
    job = make_job(**given | arguments)
    assert text in coarse.error_band(job).text
    assert predict(job, fidelity="auto", tolerance=1.0).fidelity == "fine"


def test_unmeasured_classes_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(model="resnet18", arch="asp", workers=4)
    empty = BandTable(seed=0, drawn=0, groups={})
    monkeypatch.setattr(bands, "table", lambda: empty)
    found = coarse.error_band(job)
    assert found.p90 is None
    assert "has not been measured" in found.text
    assert predict(job, fidelity="auto", tolerance=1.0).fidelity == "fine"


@pytest.mark.slow
def test_simulations_are_kept_until_the_graph_changes(tmp_path) -> None:  # type: ignore[no-untyped-def]
    jobs = [one for one in first_cells(FIRST)[:60] if known(one) and one.job.workers <= 3][:3]
    kept = tmp_path / "kept.jsonl"
    asked: list[int] = []
    simulate(jobs, Store(kept), progress=lambda done, of: asked.append(of))
    simulate(jobs, Store(kept), progress=lambda done, of: asked.append(of))
    assert asked == [3, 3, 3]
    found = rows(jobs, Store(kept))
    assert [each.name for each in found] == [one.name for one in jobs]
    first = jobs[0].job
    slower = msgspec.structs.replace(first.workload.layers[0], forward_s=9.0)
    layers = (slower, *first.workload.layers[1:])
    other = msgspec.structs.replace(
        first, workload=msgspec.structs.replace(first.workload, layers=layers)
    )
    assert Store(kept).of(msgspec.structs.replace(jobs[0], job=other)) is None


def test_the_page_shows_coverage() -> None:
    jobs = [one for one in first_cells(FIRST)[:24] if known(one) and one.job.workers <= 3]
    found = [row(one, 1.05 * float(coarse.phases(one.job).iteration_s)) for one in jobs]
    text = page.page(bands.table(), found, jobs)
    assert "| all |" in text
    assert by_group(found)


# -- auto --------------------------------------------------------------------------------------


def near_enough(jobs: Sequence[Cell]) -> dict[str, list[bool]]:
    """By architecture: whether ``auto`` is within its tolerance of the simulation for each job.
    Jobs that it simulates count as within."""
    found: dict[str, list[bool]] = defaultdict(list)
    for one in jobs:
        answer = predict(one.job, fidelity="auto")
        near = answer.fidelity == "fine"
        if not near:
            near = abs(answer.iteration_s / simulated_s(one) - 1.0) <= TOLERANCE
        found[one.job.architecture.name].append(near)
    return found


def by_formula(one: Cell) -> bool:
    expected = coarse.error_band(one.job).p90
    return expected is not None and expected <= TOLERANCE


@pytest.mark.family("many draws")
@pytest.mark.slow
def test_auto_is_within_its_tolerance_for_nine_in_ten_jobs() -> None:
    drawn = list(cells(FRESH, MANY))
    found = near_enough([one for one in drawn if by_formula(one)])
    asked = defaultdict(int)
    for one in drawn:
        asked[one.job.architecture.name] += 1
    for name in names():
        wrong = sum(not near for near in found[name])
        assert 1.0 - wrong / asked[name] >= 0.9, name
        if len(found[name]) >= 40:  # also among the jobs answered by formulas alone
            assert np.mean(found[name]) >= 0.85, name


def slow_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant an error: all formulas are 20 % too slow."""
    right = coarse.phases

    def wrong(*args: object, **more: object) -> Phases:
        found = right(*args, **more)  # type: ignore[arg-type]
        parts = {n: Phase(1.2 * p.seconds, p.cause) for n, p in found.parts.items()}
        return msgspec.structs.replace(found, parts=parts)

    monkeypatch.setattr(coarse, "phases", wrong)


@pytest.mark.family("many draws")
@pytest.mark.slow
def test_canary_a_wrong_formula_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_formulas(monkeypatch)
    jobs = [one for one in first_cells(FIRST) if one.job.workers <= SMALL and by_formula(one)]
    found = [near for each in near_enough(jobs[::2]).values() for near in each]
    assert np.mean(found) < 0.5


@pytest.mark.family("many draws")
@pytest.mark.slow
def test_declared_bands_hold_on_small_jobs() -> None:
    """90 % of the jobs that are not exact are within their declared error."""
    jobs = [one for one in first_cells() if one.job.workers <= SMALL and known(one)]
    inside = []
    for one in jobs[::3]:
        expected = coarse.error_band(one.job).p90
        error = abs(float(coarse.phases(one.job).iteration_s) / simulated_s(one) - 1.0)
        if expected == 0.0:
            assert error < 1e-9, one.name
        else:
            inside.append(error <= (math.inf if expected is None else expected))
    assert len(inside) >= 30
    assert np.mean(inside) >= 0.8  # a small sample; the page has the share of many jobs
