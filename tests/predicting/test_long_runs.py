"""Whole trainings with failures: by hand, as intervals, and from the command line."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

import perfmodel
from perfmodel import Failures, InputError, predict
from perfmodel.cli import cli
from perfmodel.inputs.failures import PUBLISHED
from perfmodel.predicting.long_runs import Machines, checkpoint_bytes, mixed_s
from perfmodel.results.training import LongRun
from perfmodel.theory.failures import run_time

JOB = perfmodel.make_job(
    model="llama-8b", device="h100", cluster="dgx-h100", arch="fsdp", workers=64, batch_size=1
)
SAMPLES = 100_000_000


def run_of(failures: Failures, **changes: int) -> LongRun:
    job = JOB.with_(**changes) if changes else JOB
    training = predict(job, fidelity="coarse", dataset_size=SAMPLES, failures=failures).training
    assert training is not None
    assert training.with_failures is not None
    return training.with_failures


def test_a_run_by_hand() -> None:
    """A failure a week and device, 30 s to write, an hour between writes, 10 min to restart."""
    training = predict(JOB, fidelity="coarse", dataset_size=SAMPLES).training
    assert training is not None
    size = checkpoint_bytes(JOB)
    assert size == pytest.approx(8.03e9 * 12, rel=0.001)  # float32 parameters and Adam's two values
    failures = Failures(
        per_device_day=1 / 7, restart_s=600.0, checkpoint_interval_s=3600.0,
        storage_bytes_per_s=size / 30.0,
    )  # fmt: skip
    run, work_s = run_of(failures), training.training_s
    rate = 64 / 7 / 86400
    segment_s = math.expm1(rate * 3630.0) * math.exp(rate * 630.0) / rate
    assert run.pause_s == pytest.approx(30.0)
    assert run.expected_s == pytest.approx(work_s / 3600.0 * segment_s, rel=1e-3)
    assert run.failures == pytest.approx(rate * run.expected_s)
    assert run.goodput_fraction == pytest.approx(work_s / run.expected_s)
    assert sum(run.lost_s.values()) == pytest.approx(run.expected_s - work_s)
    assert run.lost_s["checkpoints"] == pytest.approx(math.ceil(work_s / 3600.0) * 30.0)
    # half a segment is repeated, and 630 s pass until then, to first order in the rate
    assert run.lost_s["repeated work"] == pytest.approx(run.failures * 1815.0, rel=0.3)
    assert run.lost_s["recovery"] == pytest.approx(run.failures * 630.0, rel=0.05)


def test_the_best_interval_is_chosen() -> None:
    chosen = run_of(Failures(per_device_day=0.01))
    for factor in (0.7, 1.4):
        other = Failures(
            per_device_day=0.01, checkpoint_interval_s=factor * chosen.checkpoint_interval_s
        )
        assert run_of(other).expected_s > chosen.expected_s


def test_asynchronous_checkpoints_pause_for_a_copy_to_the_host() -> None:
    blocking = run_of(Failures(per_device_day=0.01))
    copied = run_of(Failures(per_device_day=0.01, checkpointing="asynchronous"))
    assert copied.pause_s == pytest.approx(checkpoint_bytes(JOB) / 64 / 25e9)
    assert copied.goodput_fraction > blocking.goodput_fraction
    # a write must end before the next begins
    written_s = checkpoint_bytes(JOB) / (64 * 2e12 / 16384)
    assert copied.checkpoint_interval_s >= written_s - copied.pause_s


def test_asynchronous_recovery_equals_a_simulation() -> None:
    """A checkpoint counts once it is written; a failure before that goes back to the one before."""
    interval_s, write_s, restart_s, rate = 100.0, 40.0, 10.0, 1 / 500
    generator, times = np.random.default_rng(2), []
    for _ in range(300):
        now = done = 0.0
        while done < 5000.0:
            up_s = min(generator.exponential(1 / rate), 5000.0 - done)
            if done + up_s >= 5000.0:
                now, done = now + up_s, 5000.0
                continue
            done += max(math.floor((up_s - write_s) / interval_s), 0) * interval_s
            now += up_s + restart_s + write_s
        times.append(now)
    failures = Failures(
        per_device_day=rate * 86400, restart_s=restart_s, checkpoint_interval_s=interval_s,
        checkpointing="asynchronous", storage_bytes_per_s=1e9,
    )  # fmt: skip
    recovery_s = failures.recovery_s(write_s * 1e9, 1)
    run = run_time(5000.0, interval_s, 0.0, recovery_s, rate)
    assert run.mean_s == pytest.approx(np.mean(times), rel=0.04)
    # canary: without the write that is lost
    early = run_time(5000.0, interval_s, 0.0, recovery_s - write_s, rate)
    assert early.mean_s < 0.95 * np.mean(times)


def test_the_interval_covers_failures_and_the_steps_time() -> None:
    """Runs drawn from both fall into the interval in nine cases of ten."""
    failures = Failures(per_device_day=0.05)
    prediction = predict(JOB, fidelity="coarse", dataset_size=SAMPLES, failures=failures)
    assert prediction.training is not None
    run = prediction.training.with_failures
    assert run is not None
    assert prediction.interval is not None
    work_s = prediction.training.training_s
    times = mixed_s(work_s, prediction.iteration_s, prediction.interval, Machines.of(JOB), failures)
    low, high = run.interval_s
    assert np.mean((times >= low) & (times <= high)) == pytest.approx(0.9, abs=0.01)
    assert low < run.median_s < high
    # canary: failures alone would be a far narrower interval
    alone = mixed_s(work_s, prediction.iteration_s, None, Machines.of(JOB), failures)
    assert np.quantile(alone, 0.95) < high


def test_published_rates() -> None:
    """Llama 3: a failure every 3.1 hours of 16,384 devices."""
    every_h = 24.0 / (PUBLISHED["llama-3"] * 16384)
    assert every_h == pytest.approx(3.1, abs=0.05)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--failures-per-device-day", "lama-3"], "did you mean 'llama-3'?"),
        (["--failures-per-device-day", "-1"], "per_device_day: must be at least 0"),
        (["--failures-per-device-day", "nan"], "per_device_day"),
        (["--restart-time", "5min"], "--restart-time: needs --failures-per-device-day"),
        (["--failures-per-device-day", "0.1", "--checkpointing", "lazy"], "asynchronous"),
        (["--failures-per-device-day", "1e9"], "the run never ends"),
        (["--failures-per-device-day", "0.1", "--restart-time", "5"], "unit"),
    ],
)
def test_wrong_values_are_one_line(flags: list[str], text: str) -> None:
    job = ["--model", "resnet50", "--device", "v100", "--arch", "ring", "--workers", "8"]
    training = ["--dataset-size", "1281167", "--epochs", "90"]
    with pytest.raises(InputError) as raised:
        CliRunner().invoke(
            cli, ["predict", *job, *training, *flags], catch_exceptions=False, standalone_mode=False
        )
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_failures_need_a_training() -> None:
    with pytest.raises(InputError, match="failures: need dataset_size too"):
        predict(JOB, fidelity="coarse", failures=Failures(per_device_day=0.1))


def test_the_command_line_prints_the_median_and_the_goodput() -> None:
    job = ["--model", "llama-8b", "--device", "h100", "--cluster", "dgx-h100", "--arch", "fsdp"]
    flags = ["--workers", "64", "--batch-size", "1", "--dataset-size", str(SAMPLES)]
    failures = ["--failures-per-device-day", "llama-3", "--fidelity", "coarse"]
    answer = CliRunner().invoke(cli, ["predict", *job, *flags, *failures])
    assert "goodput 99." in answer.output
    read = CliRunner().invoke(cli, ["predict", *job, *flags, *failures, "--json"])
    told = json.loads(read.stdout)["training"]["with_failures"]
    expected = run_of(Failures(per_device_day=PUBLISHED["llama-3"]))
    assert told["interval_s"] == list(expected.interval_s)
    assert told["expected_s"] == expected.expected_s
