"""The time of a whole training with failures, and what it depends on."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.base.uncertainty import COVERAGE, WIDTH
from perfmodel.base.units import show
from perfmodel.inputs.failures import Failures
from perfmodel.inputs.job import Job
from perfmodel.results.prediction import Interval
from perfmodel.results.training import LongRun
from perfmodel.theory import failures as theory

STEPS, RUNS = 41, 101
"""Quantiles of the time of a step, and of the run's time given that of a step, that are mixed."""


def checkpoint_bytes(job: Job) -> float:
    """Bytes of a checkpoint: what is trained of the model, master copies and optimizer states."""
    stored = job.workload.stored
    return stored.parameters - stored.frozen + stored.states + stored.masters


def long_run(
    job: Job, work_s: float, iteration_s: float, interval: Interval | None, failures: Failures
) -> LongRun:
    """Return how long ``work_s`` of training take with failures.

    Raises
    ------
    InputError : failures come faster than the run recovers from them.
    """
    devices, size = job.devices, checkpoint_bytes(job)
    every_s, time = run_time(work_s, devices, size, failures)
    rate = failures.per_s(devices)
    if not math.isfinite(time.mean_s):
        raise InputError(
            f"failures-per-device-day: {failures.per_device_day:g} on {devices} devices is a "
            f"failure every {show(1.0 / rate, 's')}: the run never ends"
        )
    middle, *ends = np.quantile(mixed_s(work_s, iteration_s, interval, job, failures),
                                (0.5, 0.5 - COVERAGE / 2, 0.5 + COVERAGE / 2)).tolist()  # fmt: skip
    pause_s = failures.pause_s(size, devices)
    recovery_s = failures.recovery_s(size, devices)
    count = rate * time.mean_s
    recovering_s = -math.expm1(-rate * recovery_s) * time.mean_s
    writing_s = time.least_s - work_s
    return LongRun(
        failures=count,
        expected_s=time.mean_s,
        median_s=middle,
        interval_s=(ends[0], ends[1]),
        goodput_fraction=work_s / time.mean_s,
        checkpoint_bytes=size,
        checkpoint_interval_s=min(every_s, work_s),
        pause_s=pause_s,
        lost_s={
            "checkpoints": writing_s,
            "recovery": recovering_s,
            "repeated work": max(time.mean_s - work_s - writing_s - recovering_s, 0.0),
        },
        sensitivity=_sensitivity(work_s, devices, size, failures, time.mean_s),
    )


def run_time(
    work_s: float, devices: int, size_bytes: float, failures: Failures
) -> tuple[float, theory.RunTime]:
    """Return the work between checkpoints, and the distribution of the run's time."""
    rate, pause_s = failures.per_s(devices), failures.pause_s(size_bytes, devices)
    every_s = failures.checkpoint_interval_s
    if every_s is None:
        every_s = float(theory.best_interval_s(pause_s, rate))
        least_s = failures.moving_s(size_bytes, devices) - pause_s  # one write at a time
        every_s = max(every_s, least_s, work_s / theory.MOST_SEGMENTS)
    recovery_s = failures.recovery_s(size_bytes, devices)
    return every_s, theory.run_time(work_s, every_s, pause_s, recovery_s, rate)


def mixed_s(
    work_s: float, iteration_s: float, interval: Interval | None, job: Job, failures: Failures
) -> Floats:
    """Return equally likely times of the run: over those of a step, and over failures, (n,).

    The logarithm of a step's time is normal on either side of the prediction, with the width of its
    interval.
    """
    devices, size = job.devices, checkpoint_bytes(job)
    level = (np.arange(RUNS) + 0.5) / RUNS
    factors = step_factors(iteration_s, interval)
    return np.concatenate([
        run_time(work_s * float(factor), devices, size, failures)[1].quantiles_s(level)
        for factor in factors
    ])  # fmt: skip


def step_factors(iteration_s: float, interval: Interval | None) -> Floats:
    """Equally likely times of a step, as multiples of the predicted one, (STEPS,)."""
    from scipy.special import ndtri

    if interval is None:
        return np.ones(1)
    z = ndtri((np.arange(STEPS) + 0.5) / STEPS)
    low, high = (abs(math.log(end / iteration_s)) / WIDTH for end in interval.iteration_s)
    factors: Floats = np.exp(np.where(z < 0.0, low, high) * z)
    return factors


def _sensitivity(
    work_s: float, devices: int, size: float, failures: Failures, now_s: float
) -> dict[str, float]:
    """Relative change of the expected time if a figure doubles."""
    storage = failures.storage_bytes_per_s or failures.moving_s(1.0, devices) ** -1
    doubled: dict[str, dict[str, float | str | None]] = {
        "per_device_day": {"per_device_day": 2.0 * failures.per_device_day},
        "restart_s": {"restart_s": 2.0 * failures.restart_s},
        "storage_bytes_per_s": {"storage_bytes_per_s": 2.0 * storage},
    }
    if failures.checkpoint_interval_s is not None:
        doubled["checkpoint_interval_s"] = {
            "checkpoint_interval_s": 2.0 * failures.checkpoint_interval_s
        }
    return {
        name: run_time(work_s, devices, size, msgspec.structs.replace(failures, **change))[1].mean_s
        / now_s
        - 1.0
        for name, change in doubled.items()
    }
