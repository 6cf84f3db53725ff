"""Predictions and plans of runs that go on with fewer nodes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel import Failures, InputError, PlanLimits, make_job, plan, predict
from perfmodel.catalogue.instances import read_instances
from perfmodel.cli import cli
from perfmodel.inputs.cluster import Cluster
from perfmodel.predicting import elastic
from perfmodel.results.training import LongRun
from perfmodel.theory.elastic import elastic_run
from tests.theory.test_elastic import simulated

JOB = make_job(model="resnet50", device="v100", cluster="ethernet-10g", arch="asp", workers=8,
               batch_size=32, options={"servers": 2})  # fmt: skip
LARGE: dict[str, Any] = {"dataset_size": 1281167, "epochs": 90, "fidelity": "coarse"}
SPOT = Failures(interruptions_per_node_day=6.0, replacement_s=3600.0, elastic=True)
ONE: dict[str, Any] = {"model": "resnet50", "instance": ["p3.2xlarge"], "arch": ["ring"]}
ONE |= {"workers": [16], "batch_size": [64], "objective": "cost"}


def own_cluster(name: str = "p3.2xlarge") -> Cluster:
    """Of an instance type: servers are on the nodes of workers."""
    return next(row for row in read_instances() if row.name == name).cluster()


def run_of(job: Any, failures: Failures) -> LongRun:
    training = predict(job, failures=failures, **LARGE).training
    assert training is not None
    assert training.with_failures is not None
    return training.with_failures


def test_speeds_are_those_of_jobs_with_fewer_workers() -> None:
    relative = elastic.speeds(JOB, 1, 8)
    whole = predict(JOB, fidelity="coarse").throughput_samples_per_s
    for workers in (2, 5):
        fewer = predict(JOB.with_(workers=workers), fidelity="coarse").throughput_samples_per_s
        assert relative[workers - 1] == pytest.approx(fewer / whole, rel=0.02)
    assert relative[-1] == 1.0


def test_speed_on_one_node_has_the_defaults_of_one_node() -> None:
    """Copies through the memory of a single node hold up the backward pass."""
    job = make_job(model="resnet50", device="t4", cluster=own_cluster("g4dn.12xlarge"), arch="ring",
                   workers=16, batch_size=32)  # fmt: skip
    rates = [
        predict(job.with_(workers=4 * nodes), fidelity="coarse").throughput_samples_per_s
        for nodes in (1, 2, 3, 4)
    ]
    assert elastic.speeds(job, 1, 4).tolist() == pytest.approx([r / rates[-1] for r in rates])


@pytest.mark.slow
def test_expected_time_and_nodes_are_those_of_simulated_runs() -> None:
    """Workers on their own go on while others are taken away, as CM-DARE's."""
    run, training = run_of(JOB, SPOT), predict(JOB, **LARGE).training
    assert training is not None
    speeds = elastic.speeds(JOB, 1, 8)
    work_s = run.goodput_fraction * run.expected_s
    assert work_s == pytest.approx(training.training_s)
    times, bills = simulated(work_s, speeds, 6.0 / 86400.0, 3600.0, 0.0, 400)
    error = times.std() / np.sqrt(len(times))
    assert run.expected_s == pytest.approx(times.mean(), abs=4.0 * error + 0.001 * work_s)
    assert run.present_fraction == pytest.approx(bills.mean() / times.mean() / 8.0, rel=0.01)
    assert run.interruptions == pytest.approx(6.0 / 86400.0 * bills.mean(), rel=0.02)
    assert run.failures == 0.0
    assert run.lost_s["missing nodes"] == pytest.approx(
        run.expected_s - work_s - run.lost_s["checkpoints"]
    )
    # canary: if each interruption stopped the run for its replacement, it would be far slower
    rigid = Failures(interruptions_per_node_day=6.0, replacement_s=3600.0)
    assert run_of(JOB, rigid).expected_s > 1.2 * run.expected_s


@pytest.mark.slow
def test_resizing_takes_the_restart_unless_workers_are_on_their_own() -> None:
    ring = make_job(model="resnet50", device="v100", arch="ring", workers=8, batch_size=32)
    assert elastic.change_s(ring, SPOT) == 600.0
    assert elastic.change_s(JOB, SPOT) == 0.0
    quick = Failures(
        interruptions_per_node_day=6.0, replacement_s=3600.0, elastic=True, resize_s=30.0
    )
    assert run_of(ring, quick).expected_s < run_of(ring, SPOT).expected_s


@pytest.mark.slow
def test_an_elastic_plan_pays_for_the_nodes_that_are_there() -> None:
    rigid = Failures(interruptions_per_node_day=4.0, replacement_s=7200.0)
    quick = Failures(
        interruptions_per_node_day=4.0, replacement_s=7200.0, elastic=True, resize_s=20.0
    )
    slow, fast = (plan(**ONE, **LARGE, failures=each).first for each in (rigid, quick))
    assert fast.time_s < slow.time_s
    run = fast.with_failures
    assert run is not None
    assert 0.75 < run.present_fraction < 0.85  # 3/4 in the long run, all at first
    hours = fast.time_s / 3600.0
    assert fast.cost_usd == pytest.approx(hours * 16 * 3.06 * run.present_fraction)
    job = make_job(model="resnet50", device="v100", cluster=own_cluster(), arch="ring",
                   workers=16, batch_size=64)  # fmt: skip
    speeds = elastic.speeds(job, 1, 16)
    work_s = run.goodput_fraction * fast.time_s
    exact = elastic_run(work_s, 16, speeds, 4.0 / 86400.0, 7200.0, 20.0)
    assert run.expected_s == pytest.approx(
        float(exact.time.mean_s) * (1.0 + run.lost_s["checkpoints"] / work_s), rel=1e-3
    )
    late = plan(**ONE, **LARGE, failures=quick,
                limits=PlanLimits(deadline_s=run.interval_s[1], confidence=0.9))  # fmt: skip
    assert late.first.probability_within == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"arch": "fsdp"}, "fsdp divides the model"),
        ({"arch": "ps", "cluster": own_cluster()}, "servers are on the workers' nodes"),
    ],
)
def test_jobs_that_cannot_shrink_say_why(arguments: dict[str, Any], why: str) -> None:
    job = make_job(model="resnet50", device="v100", workers=8, **arguments)
    with pytest.raises(InputError, match=why):
        predict(job, failures=SPOT, **LARGE)
    with pytest.raises(InputError, match="no candidate is possible: elastic"):
        plan(**{**ONE, "arch": ["zero3"]}, **LARGE, failures=SPOT)


@pytest.mark.slow
def test_the_command_line_has_the_same() -> None:
    words = "predict --model resnet50 --device v100 --cluster ethernet-10g --arch asp --workers 8"
    words += " --batch-size 32 --option servers=2 --dataset-size 1281167 --epochs 90"
    words += " --fidelity coarse --interruptions-per-node-day 6 --replacement-time 1h --elastic"
    read = json.loads(CliRunner().invoke(cli, [*words.split(), "--json"]).stdout)
    run = read["training"]["with_failures"]
    assert run["expected_s"] == run_of(JOB, SPOT).expected_s
    text = CliRunner().invoke(cli, [*words.split(), "--verbose"]).stdout
    assert "of the nodes there" in text
    for wrong, why in (
        (words.replace(" --replacement-time 1h", ""), "elastic: needs replacement_s"),
        (words.replace("--interruptions-per-node-day 6", "--failures-per-device-day 1"),
         "--replacement-time: needs --interruptions"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=why):
            CliRunner().invoke(cli, wrong.split(), catch_exceptions=False, standalone_mode=False)
