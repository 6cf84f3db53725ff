"""Workers that run into a staleness bound: the overshoot of a random walk over a barrier."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy

from perfmodel import Jitter, Straggler
from perfmodel.architectures.ps.formulas import OVERSHOOT, _tied
from perfmodel.phases.quantities import quantities_of
from tests.jobs import cluster, job, workload


def test_the_overshoot_is_the_constant_of_gaussian_walks() -> None:
    """-zeta(1/2) / sqrt(2 pi) = 0.5826 standard deviations, without drift (Siegmund, "Sequential
    Analysis", 1985, section 10.4; Chang, Peres, Annals of Probability 25, 1997)."""
    zeta = float(sympy.zeta(sympy.Rational(1, 2)).evalf())
    assert zeta == pytest.approx(-1.4603545)
    assert pytest.approx(-zeta / math.sqrt(2.0 * math.pi), abs=5e-4) == OVERSHOOT


def test_walks_overshoot_a_barrier_by_that_much() -> None:
    """With a drift of 0.05, a quarter of it comes on top."""
    rng = np.random.default_rng(1)
    barrier, drift = 6.0, 0.05
    at, beyond = np.zeros(20_000), []
    while len(at):
        at = at + drift + rng.normal(size=len(at))
        beyond.append(at[at > barrier] - barrier)
        at = at[at <= barrier]
    found = np.concatenate(beyond)
    error = found.std() / math.sqrt(len(found))
    assert abs(found.mean() - (OVERSHOOT + drift / 4.0)) < 3.0 * error < 0.012


def waiting(faster: float, cv: float, bound: int, iterations: int = 40_000) -> float:
    """Fraction of its iterations before which the faster of two workers waits at the bound: it
    starts number k once the slower has done number k - bound - 1."""
    rng = np.random.default_rng(2)
    mine, its = (rng.gamma(cv**-2, cv**2, iterations) for _ in range(2))
    done = np.concatenate([np.zeros(bound + 1), np.cumsum(its)]).tolist()
    now, waits = 0.0, 0
    for gate, seconds in zip(done, (mine / faster).tolist(), strict=False):
        waits += gate > now
        now = max(now, gate) + seconds
    return waits / iterations


@pytest.mark.parametrize(
    ("faster", "cv", "bound"), [(1.05, 0.1, 3), (1.05, 0.3, 3), (1.1, 0.3, 3), (1.1, 0.3, 10)]
)
def test_a_slightly_faster_worker_waits_in_steps_of_the_overshoot(
    faster: float, cv: float, bound: int
) -> None:
    """For drifts below the spread of a step, where the overshoot is mostly chance."""
    work = workload([1.0], [2.0], [1.0])
    asked = job(
        work, cluster(), 2, "ps", {"sync": "ssp", "staleness_bound": bound},
        jitter=Jitter(cv, "gamma"), stragglers=[Straggler(1, faster)],
    )  # fmt: skip
    found = _tied(quantities_of(asked), bound, [faster, 1.0])
    assert float(found) == pytest.approx(waiting(faster, cv, bound), abs=0.03)


def test_workers_of_equal_pace_are_never_tied_for_long() -> None:
    asked = job(
        workload([1.0], [2.0], [1.0]), cluster(), 3, "ps", {"sync": "ssp"},
        jitter=Jitter(0.1), stragglers=[Straggler(1, 1.5)],
    )  # fmt: skip
    q = quantities_of(asked)
    assert float(_tied(q, 3.0, [1.0, 1.0])) == 0.0
    # of the other two workers both are far ahead: by 50 %, three and a half times the spread
    assert 0.8 < float(_tied(q, 3.0, [1.5, 1.0])) < 1.0
