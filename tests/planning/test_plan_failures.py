"""Plans with failures: by hand, against simulated runs, and from the command line."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel import Failures, InputError, PlanLimits, plan
from perfmodel.base.arrays import Floats
from perfmodel.base.uncertainty import WIDTH
from perfmodel.cli import cli
from perfmodel.planning.plans import Candidate, Plan

AMOUNT: dict[str, Any] = {"dataset_size": 1281167, "epochs": 90}
ONE: dict[str, Any] = {"model": "resnet50", "instance": ["p3.16xlarge"], "arch": ["ring"]}
ONE |= {"workers": [16], "batch_size": [64], "fidelity": "coarse", "objective": "time"}
OWN: dict[str, Any] = {"model": "llama-7b", "device": "h100", "cluster": "dgx-h100"}
OWN |= {"devices": [8], "objective": "time", "sequence_length": 2048, "tokens": 1e10}
OWN |= {"tensor": [2], "pipeline": [1, 2], "micro_batch_size": [1], "recompute": ["full"]}
OWN |= {"fidelity": "coarse"}
OFTEN = Failures(per_device_day=0.5, restart_s=600.0)


def simulated_s(
    first: Candidate, work_s: float, rate: float, restarts: tuple[tuple[float, float], ...]
) -> Floats:
    """Times of 1,000 runs, failure by failure: each with a step of its own.

    ``restarts`` has the probability of each kind of failure, and the time until work goes on.
    """
    run, p = first.with_failures, first.prediction
    assert run is not None
    assert p.interval is not None
    draw, times = np.random.default_rng(7), []
    low, high = (math.log(end / p.iteration_s) / WIDTH for end in p.interval.iteration_s)
    for _ in range(1000):
        z = draw.standard_normal()
        left_s = work_s * math.exp(z * (high if z > 0.0 else -low))
        now, failure = 0.0, draw.exponential(1.0 / rate)
        while left_s > 1e-6:
            part_s = min(run.checkpoint_interval_s, left_s)
            end_s = now + part_s + run.pause_s
            if end_s <= failure:
                now, left_s = end_s, left_s - part_s
                continue
            while failure < math.inf:
                kind = int(draw.random() > restarts[0][0])
                again_s = failure + draw.exponential(1.0 / rate)
                now = failure + restarts[kind][1]
                failure = again_s
                if again_s >= now:
                    break
        times.append(now)
    return np.array(times)


def planned(deadline_s: float | None, failures: Failures, given: dict[str, Any]) -> Plan:
    limits = PlanLimits(deadline_s=deadline_s, confidence=None if deadline_s is None else 0.9)
    return plan(**given, failures=failures, limits=limits)


def shortest_promised_s(failures: Failures, given: dict[str, Any]) -> float:
    """The shortest deadline that a plan promises with 90 %, to 0.2 %."""
    soon = planned(None, failures, given).first.time_interval_s[0]
    late = 4.0 * soon
    while late > 1.002 * soon:
        middle = math.sqrt(soon * late)
        try:
            planned(middle, failures, given)
            late = middle
        except InputError:
            soon = middle
    return late


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failures", "given"),
    [
        (Failures(per_device_day=0.02), ONE | AMOUNT),
        pytest.param(OFTEN, ONE | AMOUNT, marks=pytest.mark.slow),
        pytest.param(Failures(per_device_day=5.0, checkpoint_interval_s=1200.0), ONE | AMOUNT,
                     marks=pytest.mark.slow),
        pytest.param(Failures(per_device_day=0.3), OWN, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_promised_deadline_is_kept_in_nine_of_ten_simulated_runs(
    failures: Failures, given: dict[str, Any]
) -> None:
    deadline_s = shortest_promised_s(failures, given)
    first = planned(deadline_s, failures, given).first
    assert first.probability_within == pytest.approx(0.9, abs=0.01)
    assert first.with_failures is not None
    work_s = first.with_failures.goodput_fraction * first.time_s
    devices = first.workers * 2 if given is OWN else first.workers
    if given is OWN:
        assert first.layout is not None
        devices = first.workers * int(str(first.layout["pipeline"])) * 2
    rate = failures.per_device_day * devices / 86400.0
    size = first.with_failures.checkpoint_bytes
    recovery_s = failures.restart_s + size / (2e12 / 16384 * devices)
    times_s = simulated_s(first, work_s, rate, ((1.0, recovery_s), (0.0, 0.0)))
    assert 0.85 <= np.mean(times_s <= deadline_s) <= 0.95
    if first.with_failures.goodput_fraction < 0.9:  # canary: without them it is kept less often
        without_s = deadline_s * first.with_failures.goodput_fraction
        assert np.mean(times_s <= without_s) < 0.85


@pytest.mark.slow
def test_a_promised_budget_on_spot_instances_is_kept_in_nine_of_ten_simulated_runs() -> None:
    """One interruption a day and node, and half an hour until there is another node."""
    failures = Failures(
        per_device_day=0.1, interruptions_per_node_day=8.0, restart_s=300.0, replacement_s=1800.0
    )
    first = planned(None, failures, ONE | AMOUNT).first
    assert first.nodes == 2
    run = first.with_failures
    assert run is not None
    rates = (0.1 * 16 / 86400.0, 8.0 * 2 / 86400.0)
    moving_s = run.checkpoint_bytes / (2e12 / 16384 * 16)
    restarts = ((rates[0] / sum(rates), 300.0 + moving_s), (0.0, 2100.0 + moving_s))
    work_s = run.goodput_fraction * first.time_s
    times_s = simulated_s(first, work_s, sum(rates), restarts)
    budget = first.price_usd_per_h / 3600.0 * float(np.quantile(times_s, 0.9))
    made = plan(**ONE, **AMOUNT, failures=failures, limits=PlanLimits(budget_usd=budget))
    assert made.first.probability_within == pytest.approx(0.9, abs=0.05)
    assert run.failures == pytest.approx(sum(rates) * first.time_s, rel=1e-6)


def test_time_and_cost_of_a_candidate_by_hand() -> None:
    """16 devices that fail twice a day each, every 45 min; a checkpoint every 20 min, 30 s long."""
    free = plan(**ONE, **AMOUNT).first
    assert free.with_failures is None
    run = plan(**ONE, **AMOUNT, failures=Failures(per_device_day=0.0)).first.with_failures
    assert run is not None
    failures = Failures(
        per_device_day=2.0, restart_s=300.0, checkpoint_interval_s=1200.0,
        storage_bytes_per_s=run.checkpoint_bytes / 30.0,
    )  # fmt: skip
    first = plan(**ONE, **AMOUNT, failures=failures).first
    rate = 2.0 * 16 / 86400
    total, rest_s = divmod(free.time_s, 1200.0)  # the last segment is shorter
    segments = total * math.expm1(rate * 1230.0) + math.expm1(rate * (rest_s + 30.0))
    assert first.time_s == pytest.approx(segments * math.exp(rate * 330.0) / rate, rel=1e-6)
    assert first.cost_usd == pytest.approx(first.time_s / 3600.0 * free.price_usd_per_h)
    assert first.throughput_samples_per_s == free.throughput_samples_per_s
    assert first.with_failures is not None
    assert first.with_failures.expected_s == first.time_s
    assert first.time_interval_s == first.with_failures.interval_s


@pytest.mark.slow
def test_few_devices_win_when_failures_are_frequent() -> None:
    """Expected times decide: without failures 32 workers are faster than 8, with many slower."""
    given = {**ONE, "workers": [8, 32]}
    assert plan(**given, **AMOUNT).first.workers == 32
    often = Failures(per_device_day=30.0, restart_s=1800.0, checkpoint_interval_s=600.0)
    assert plan(**given, **AMOUNT, failures=often).first.workers == 8


@pytest.mark.slow
def test_the_formulas_of_all_candidates_are_those_of_the_predicted_ones() -> None:
    """The front has expected times of candidates that were never predicted."""
    made = plan(**{**ONE, "workers": [8, 16, 24, 32, 40, 48]}, **AMOUNT, failures=OFTEN, top=1)
    for trade in made.front:
        one = plan(**{**ONE, "workers": [trade.workers]}, **AMOUNT, failures=OFTEN).first
        assert trade.time_s == pytest.approx(one.time_s, rel=0.01)


def test_the_command_shows_goodput_and_the_best_interval() -> None:
    words = "plan --model resnet50 --instance p3.16xlarge --arch ring --workers 16 --batch-size 64"
    words += " --dataset-size 1281167 --epochs 90 --objective time --fidelity coarse"
    words += " --failures-per-device-day llama-3 --interruptions-per-node-day 1"
    words += " --replacement-time 20min"
    text = CliRunner().invoke(cli, words.split()).stdout
    assert "goodput" in text
    assert "checkpoint" in text
    assert "with failures" in text
    read = json.loads(CliRunner().invoke(cli, [*words.split(), "--json"]).stdout)
    run = read["ranked"][0]["with_failures"]
    assert run["expected_s"] == read["ranked"][0]["time_s"]
    assert run["checkpoint_interval_s"] > 0.0
    failures = Failures(
        per_device_day=419 / (54 * 16384), interruptions_per_node_day=1.0, replacement_s=1200.0
    )
    made = plan(**ONE, **AMOUNT, failures=failures)
    assert made.first.time_s == read["ranked"][0]["time_s"]
    row = made.rows()[0]
    assert row["goodput_fraction"] == run["goodput_fraction"]
    assert "Goodput" in dict(entry[:2] for entry in made.page().answer)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"failures": OFTEN}, "failures: need dataset_size"),
        ({"failures": Failures(per_device_day=1e9), **AMOUNT}, "no run ends"),
    ],
)
def test_impossible_failures_say_why(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why) as raised:
        plan(**ONE, **given)
    assert "\n" not in str(raised.value)


def test_a_replacement_needs_interruptions() -> None:
    words = "plan --model resnet50 --dataset-size 10000 --replacement-time 5min"
    for more, why in (
        ("", "--replacement-time: needs --failures-per-device-day"),
        (" --failures-per-device-day 1", "--replacement-time: needs --interruptions-per-node-day"),
    ):
        with pytest.raises(InputError, match=why):
            CliRunner().invoke(
                cli, (words + more).split(), catch_exceptions=False, standalone_mode=False
            )
