"""Times of runs with failures against an independent simulation, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.integrate import trapezoid

from perfmodel.base.arrays import Floats
from perfmodel.theory.failures import best_interval_s, joint_restart_s, run_time, segment
from tests.settings import examples


def simulated(
    work_s: float, interval_s: float, checkpoint_s: float, restart_s: float, rate: float, runs: int
) -> Floats:
    """Times of runs, failure by failure."""
    generator = np.random.default_rng(1)
    times = []
    for _ in range(runs):
        now, done, failure = 0.0, 0.0, generator.exponential(1.0 / rate)
        while work_s - done > 1e-9:
            part = min(interval_s, work_s - done)
            if now + part + checkpoint_s <= failure:
                now, done = now + part + checkpoint_s, done + part
                continue
            now = failure
            failure = now + generator.exponential(1.0 / rate)
            while now + restart_s > failure:  # fails while it restarts
                now = failure
                failure = now + generator.exponential(1.0 / rate)
            now += restart_s
        times.append(now)
    return np.array(times)


@pytest.mark.parametrize(
    "case",
    [
        (1000.0, 100.0, 5.0, 20.0, 1 / 300),  # several failures
        (1000.0, 150.0, 5.0, 50.0, 1 / 2000),  # the last segment is shorter; most have none
        (4000.0, 400.0, 20.0, 300.0, 1 / 900),  # restarts fail too
    ],
)
def test_mean_variance_and_quantiles_are_those_of_a_simulation(
    case: tuple[float, float, float, float, float],
) -> None:
    times, run = simulated(*case, 4000), run_time(*case)
    error = times.std() / math.sqrt(len(times))
    assert run.mean_s == pytest.approx(times.mean(), abs=4.0 * error)
    assert math.sqrt(run.variance_s2) == pytest.approx(times.std(), rel=0.06)
    levels = np.array([0.1, 0.5, 0.9, 0.99])
    expected = np.quantile(times, levels) - run.least_s
    assert run.quantiles_s(levels) - run.least_s == pytest.approx(
        expected, rel=0.1, abs=0.02 * run.least_s
    )
    assert run.no_failure == pytest.approx((times < run.least_s + 1e-6).mean(), abs=0.03)
    # canary: restarts that cannot fail, or work that is not repeated, are outside
    without = case[0] + (case[0] // case[1] + 1) * case[2] + times.mean() * case[4] * case[3]
    assert abs(without - times.mean()) > 4.0 * error


def test_a_segment_by_hand() -> None:
    """Segment 100 s, restart 20 s, a failure every 1000 s: (e^0.1 - 1) e^0.02 x 1000 s."""
    assert segment(100.0, 20.0, 1e-3).mean_s == pytest.approx(1000.0 * 0.1051709 * 1.0202013)
    # no failure: 100 s in 90.48 % of segments; variance from the two moments, by numbers
    a, b, rate = 100.0, 120.0, 1e-3
    after = (math.exp(rate * b) - 1.0) / rate
    after2 = (math.exp(2 * rate * b) - 2 * rate * b * math.exp(rate * b) - 1) / rate**2 + after**2
    u = np.linspace(0.0, a, 200_001)
    density = rate * np.exp(-rate * u)
    second = trapezoid((u**2 + 2 * u * after + after2) * density, u) + a**2 * math.exp(-rate * a)
    mean = trapezoid((u + after) * density, u) + a * math.exp(-rate * a)
    assert segment(a, 20.0, rate).mean_s == pytest.approx(mean, rel=1e-6)
    assert segment(a, 20.0, rate).variance_s2 == pytest.approx(second - mean**2, rel=1e-5)


def test_rare_failures_join_the_exact_formula() -> None:
    """On either side of the change to a series, values grow evenly."""
    rates = np.array([0.985e-4, 0.995e-4, 1.005e-4, 1.015e-4])
    times = segment(0.9, 0.1, rates)
    assert np.diff(times.mean_s, 2) == pytest.approx(0.0, abs=1e-7)
    assert np.diff(times.variance_s2 / rates) == pytest.approx(0.0, abs=2e-4)


def test_no_failures_leave_work_and_checkpoints() -> None:
    run = run_time(1000.0, 300.0, 5.0, 60.0, 0.0)
    assert (run.least_s, run.mean_s, run.no_failure) == (1020.0, 1020.0, 1.0)
    assert run.quantiles_s(np.array([0.01, 0.99])).tolist() == [1020.0, 1020.0]


def test_runs_that_never_end_take_infinitely_long() -> None:
    run = run_time(1e9, 1e9, 0.0, 0.0, 1e-3)
    assert math.isinf(run.mean_s)
    assert np.isinf(run.quantiles_s(np.array([0.5]))).all()


@given(
    checkpoint=st.floats(0.1, 600.0), between=st.floats(1e3, 1e7), restart=st.floats(0.0, 3600.0)
)
@examples(30)
def test_the_best_interval_is_a_minimum(checkpoint: float, between: float, restart: float) -> None:
    best = float(best_interval_s(checkpoint, 1.0 / between))

    def per_work(interval: float) -> float:
        return float(segment(interval + checkpoint, restart, 1.0 / between).mean_s) / interval

    assert per_work(best) <= min(per_work(0.9 * best), per_work(1.1 * best)) * (1.0 + 1e-9)


def test_the_best_interval_tends_to_youngs() -> None:
    """sqrt(2 x 10 s x 10^7 s) = 14,142 s, less two thirds of a checkpoint."""
    assert best_interval_s(10.0, 1e-7) == pytest.approx(math.sqrt(2e8) - 20.0 / 3.0, rel=1e-6)
    assert best_interval_s(60.0, 0.0) == math.inf
    assert best_interval_s(0.0, 1e-3) == 0.0


def test_two_kinds_of_restart_have_the_mean_of_a_simulation() -> None:
    """A failure restarts in 20 s, three interruptions of four only in 300 s."""
    generator, times = np.random.default_rng(3), []
    rates, restarts = (1 / 800, 3 / 800), (20.0, 300.0)
    total = sum(rates)
    for _ in range(3000):
        now, failure = 0.0, generator.exponential(1.0 / total)
        while failure < now + 100.0:
            now = failure
            restart_s = restarts[int(generator.random() < rates[1] / total)]
            failure = now + generator.exponential(1.0 / total)
            now += min(restart_s, failure - now)
            while failure <= now:  # fails while it restarts: anew, of either kind
                restart_s = restarts[int(generator.random() < rates[1] / total)]
                failure = now + generator.exponential(1.0 / total)
                now += min(restart_s, failure - now)
        times.append(now + 100.0)
    joint = joint_restart_s(restarts, rates)
    mean = np.mean(times)
    error = np.std(times) / math.sqrt(len(times))
    assert segment(100.0, joint, total).mean_s == pytest.approx(mean, abs=4.0 * error)
    # canary: the mean of both restarts is less, as long ones fail more often
    assert joint < 0.25 * 20.0 + 0.75 * 300.0
    assert segment(100.0, 0.25 * 20.0 + 0.75 * 300.0, total).mean_s > mean + 4.0 * error


def test_a_joint_restart_by_hand() -> None:
    """S = (e^-0.1 + e^-0.3) / 2 = 0.822828, R = -ln S x 1000 s = 195.0 s."""
    joint = joint_restart_s([100.0, 300.0], [5e-4, 5e-4])
    assert joint == pytest.approx(195.008, abs=0.01)
    assert joint_restart_s([100.0, 300.0], [1e-3, 0.0]) == pytest.approx(100.0)
    assert joint_restart_s([100.0, 300.0], [0.0, 0.0]) == 100.0


def test_probabilities_and_quantiles_agree_and_take_arrays() -> None:
    work = np.array([1000.0, 2000.0])
    runs = run_time(work, 100.0, 5.0, 20.0, 1 / 300)
    for k, work_s in enumerate(work):
        one = run_time(work_s, 100.0, 5.0, 20.0, 1 / 300)
        assert one.mean_s == pytest.approx(np.asarray(runs.mean_s)[k])
        for level in (0.1, 0.5, 0.99):
            limit_s = one.quantiles_s(np.array([level]))
            assert one.within(limit_s) == pytest.approx(level)
        assert one.within(one.least_s - 1.0) == 0.0
        assert one.within(one.least_s) == pytest.approx(one.no_failure)
