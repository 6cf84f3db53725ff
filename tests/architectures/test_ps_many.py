"""Formulas of servers with many workers that do not wait for each other, or wait at a bound."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from perfmodel import Straggler, make_job
from perfmodel.predicting import coarse
from tests.oracles import equal
from tests.settings import thinned


def by_formula(workers: int, sync: str = "ssp", **given: Any) -> float:
    job = make_job(model="resnet18", arch=sync, workers=workers, **{"device": "p100"} | given)
    return coarse.phases(job).iteration_s


@pytest.mark.parametrize("workers", [4, 16, 64, 65, 500, 100_000])
def test_ssp_of_equal_workers_is_asp(workers: int) -> None:
    equal(by_formula(workers), by_formula(workers, "asp"))


def test_canary_ssp_with_jitter_is_not_asp() -> None:
    slow: dict[str, Any] = {"jitter": 0.2, "device": "cpu-epyc-2core"}
    with pytest.raises(AssertionError):
        equal(by_formula(16, **slow), by_formula(16, "asp", **slow))


@pytest.mark.slow
@pytest.mark.parametrize("late", thinned([[], [Straggler(0, 1.5), Straggler(1, 1.2)]], 2))
def test_ssp_slows_down_steadily_with_more_workers(late: list[Straggler]) -> None:
    """Iterations never become shorter, and where the recursion over workers ends (64), they do not
    jump."""
    counts = [*range(56, 76), 100, 101, 1000, 10_000, 100_000]
    known = [by_formula(n, jitter=0.1, stragglers=late) for n in counts]
    for (few, before), (many, after) in itertools.pairwise(zip(counts, known, strict=True)):
        assert (
            before * (1.0 - 2e-2 * bool(late))
            <= after * (1.0 + 1e-3)
            <= before * (many / few) * (1.0 + 1e-2)
        )
    link_s = known[-1] / 100_000  # saturated
    equal(known[-2], 10_000 * link_s, 1e-6)
