"""Runs on nodes that come and go: by hand, and against a simulation of runs, event by event."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel import InputError
from perfmodel.base.arrays import Floats
from perfmodel.theory.elastic import elastic_run, fewest_nodes


def simulated(
    work_s: float, speeds: Floats, taken: float, wait_s: float, change_s: float, runs: int
) -> tuple[Floats, Floats]:
    """Times of runs (infinite if they do not end), and their node-seconds.

    Each node is taken away and replaced at times of its own, while work stands still too.
    """
    draw, nodes = np.random.default_rng(5), len(speeds)
    times, bills = [], []
    for _ in range(runs):
        now, left, billed, still_s = 0.0, work_s, 0.0, 0.0
        there = nodes
        while left > 0.0:
            rates = (there * taken, (nodes - there) / wait_s)
            if not sum(rates):
                now = math.inf
                break
            next_s = draw.exponential(1.0 / sum(rates))
            if there:
                works_s = max(next_s - still_s, 0.0)
                if works_s * speeds[there - 1] >= left:
                    spent_s = still_s + left / speeds[there - 1]
                    now, billed, left = now + spent_s, billed + there * spent_s, 0.0
                    break
                left -= works_s * speeds[there - 1]
            now, billed = now + next_s, billed + there * next_s
            there += -1 if draw.random() * sum(rates) < rates[0] else 1
            still_s = change_s
        times.append(now)
        bills.append(billed)
    return np.array(times), np.array(bills)


CASES = [
    (1000.0, np.array([0.3, 0.6, 0.8, 1.0]), 1 / 2000, 100.0, 2.0),
    (1000.0, np.array([0.55, 1.0]), 1 / 300, 60.0, 0.0),  # often none is left
    (3000.0, np.arange(1, 17) / 16.0, 1 / 5000, 400.0, 1.0),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_time_and_cost_are_those_of_a_simulation(
    case: tuple[float, Floats, float, float, float],
) -> None:
    work_s, speeds, taken, wait_s, change_s = case
    times, bills = simulated(*case, 3000)
    run = elastic_run(work_s, len(speeds), speeds, taken, wait_s, change_s)
    error = times.std() / math.sqrt(len(times))
    assert float(run.time.mean_s) == pytest.approx(times.mean(), abs=4.0 * error)
    assert math.sqrt(run.time.variance_s2) == pytest.approx(times.std(), rel=0.07)
    bill_error = bills.std() / math.sqrt(len(bills))
    assert run.node_s == pytest.approx(bills.mean(), abs=4.0 * bill_error)
    assert run.ends == pytest.approx(1.0)
    levels = np.array([0.1, 0.5, 0.9])
    expected = np.quantile(times, levels)
    assert run.time.quantiles_s(levels) == pytest.approx(expected, rel=0.02)
    # canary: the speed at the mean number of nodes, or no missing nodes, is outside
    there = 1.0 / (1.0 + taken * wait_s)
    assert abs(work_s - times.mean()) > 4.0 * error
    if speeds[0] > 0.5:
        assert abs(work_s / there - times.mean()) > 4.0 * error


def test_runs_whose_nodes_are_not_replaced_may_not_end() -> None:
    speeds = np.array([0.5, 0.8, 1.0])
    times, bills = simulated(1000.0, speeds, 1 / 1500, math.inf, 1.0, 4000)
    ended = np.isfinite(times)
    run = elastic_run(1000.0, 3, speeds, 1 / 1500, math.inf, 1.0)
    assert run.ends == pytest.approx(ended.mean(), abs=0.03)
    assert 0.5 < run.ends < 0.99
    error = times[ended].std() / math.sqrt(ended.sum())
    assert float(run.time.mean_s) == pytest.approx(times[ended].mean(), abs=4.0 * error)
    assert run.node_s == pytest.approx(bills[ended].mean(), rel=0.02)


def test_one_node_by_hand() -> None:
    """Work of 100 s, a node taken every 1000 s, 50 s until there is another, a change of 5 s.

    Interruptions come only while it works: 0.1 of them, 55 s each. Their number is Poisson; the
    waits are exponential, and the changes are not.
    """
    run = elastic_run(100.0, 1, np.ones(1), 1e-3, 50.0, 5.0)
    assert run.time.mean_s == pytest.approx(100.0 + 0.1 * 55.0)
    assert run.time.variance_s2 == pytest.approx(0.1 * (50.0**2 + 55.0**2))
    assert run.node_s == pytest.approx(100.0 + 0.1 * 5.0)
    assert run.time.no_failure == pytest.approx(math.exp(-0.1))
    alone = elastic_run(100.0, 1, np.ones(1), 1e-3, math.inf, 5.0)
    assert alone.ends == pytest.approx(math.exp(-0.1))
    assert alone.time.mean_s == pytest.approx(100.0)


def test_two_nodes_to_first_order_by_hand() -> None:
    """Rarely, one of two is taken away: 0.02 times, and half the speed for 10 s costs 5 s."""
    run = elastic_run(1000.0, 2, np.array([0.5, 1.0]), 1e-5, 10.0, 1.0)
    assert run.time.mean_s == pytest.approx(1000.0 + 0.02 * (5.0 + 2.0), abs=0.003)
    assert run.node_s == pytest.approx(2000.0 + 0.02 * (2.0 * 5.0 - 10.0 + 1.0 + 2.0), abs=0.01)


def test_many_nodes_are_looked_at_where_they_may_be() -> None:
    """Of 4,000 nodes, replaced in 20 minutes: the speed at the mean number of nodes."""
    taken, wait_s = 1 / 864000.0, 1200.0
    fewest = fewest_nodes(4000, taken, wait_s)
    assert 3960 < fewest < 3994
    speeds = np.arange(fewest, 4001) / 4000.0
    run = elastic_run(86400.0, 4000, speeds, taken, wait_s, 0.0)
    assert run.time.mean_s == pytest.approx(86400.0 * (1.0 + taken * wait_s), rel=1e-4)
    assert run.nodes() == pytest.approx(4000.0 / (1.0 + taken * wait_s), rel=1e-4)
    with pytest.raises(InputError, match="numbers of nodes"):
        elastic_run(1.0, 4000, np.arange(1, 4001) / 4000.0, taken, math.inf, 0.0)
