"""The time of a whole training with failures, and what it depends on."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.base.quantities import Quantity
from perfmodel.base.uncertainty import COVERAGE, WIDTH
from perfmodel.base.units import show
from perfmodel.inputs.failures import Failures
from perfmodel.inputs.job import Job
from perfmodel.predicting import elastic
from perfmodel.predicting.job_facts import nodes_of
from perfmodel.results.prediction import Interval
from perfmodel.results.training import LongRun
from perfmodel.theory import failures as theory

STEPS, RUNS = 41, 101
"""Quantiles of the time of a step, and of the run's time given that of a step, that are mixed."""

FINE = 1001
"""Quantiles of the time of a step over which a probability is summed."""


def checkpoint_bytes(job: Job) -> float:
    """Bytes of a checkpoint: what is trained of the model, master copies and optimizer states."""
    stored = job.workload.stored
    return stored.parameters - stored.frozen + stored.states + stored.masters


class Machines(NamedTuple):
    """What failures of a run depend on; numbers, or arrays of one shape.

    ``size_bytes`` is that of a checkpoint. ``job`` is that of a single run, whose speed on fewer
    nodes an elastic run needs; without, speed is taken as proportional to the nodes.
    """

    devices: Quantity
    nodes: Quantity
    size_bytes: Quantity
    job: Job | None = None

    @classmethod
    def of(cls, job: Job) -> Machines:
        """Return those of a job."""
        return cls(job.devices, nodes_of(job)[0], checkpoint_bytes(job), job)

    def rates_per_s(self, failures: Failures) -> tuple[Quantity, Quantity]:
        """Rates of failures and of nodes taken away that go back to a checkpoint."""
        failing, taken = failures.rates_per_s(self.devices, self.nodes)
        return failing, 0.0 * taken if failures.elastic else taken

    def run_time(self, work_s: Quantity, failures: Failures) -> tuple[Quantity, theory.RunTime]:
        """Return the work between checkpoints, and the distribution of the run's time."""
        rates = self.rates_per_s(failures)
        rate, pause_s = rates[0] + rates[1], failures.pause_s(self.size_bytes, self.devices)
        every_s: Quantity
        if failures.checkpoint_interval_s is not None:
            every_s = failures.checkpoint_interval_s
        else:
            # one write at a time
            least_s = failures.moving_s(self.size_bytes, self.devices) - pause_s
            every_s = np.maximum(theory.best_interval_s(pause_s, rate), least_s)
            every_s = np.maximum(every_s, work_s / theory.MOST_SEGMENTS)
        recovery_s = self.recovery_s(failures)
        time = theory.run_time(work_s, every_s, pause_s, recovery_s, rate)
        if failures.elastic:
            time = elastic.run_time(self.job, self.nodes, time, failures)
        return every_s, time

    def recovery_s(self, failures: Failures) -> Quantity:
        """Seconds from a failure of any kind to the work after the last checkpoint."""
        rates = self.rates_per_s(failures)
        restart_s = failures.recovery_s(self.size_bytes, self.devices)
        return theory.joint_restart_s([restart_s, restart_s + failures.replacement_s], rates)


def long_run(
    job: Job, work_s: float, iteration_s: float, interval: Interval | None, failures: Failures
) -> LongRun:
    """Return how long ``work_s`` of training take with failures.

    Raises
    ------
    InputError : failures come faster than the run recovers from them.
    """
    elastic.check(job, failures)
    machines = Machines.of(job)
    every_s, time = machines.run_time(work_s, failures)
    rate = float(sum(machines.rates_per_s(failures)))
    if not math.isfinite(time.mean_s):
        raise InputError(
            f"failures-per-device-day: {failures.per_device_day:g} on {machines.devices} devices, "
            f"and interruptions, are a failure every {show(1.0 / rate, 's')}: the run never ends"
        )
    middle, *ends = np.quantile(mixed_s(work_s, iteration_s, interval, machines, failures),
                                (0.5, 0.5 - COVERAGE / 2, 0.5 + COVERAGE / 2)).tolist()  # fmt: skip
    mean_s, writing_s = float(time.mean_s), float(time.least_s) - work_s
    recovering_s = -math.expm1(-rate * float(machines.recovery_s(failures))) * mean_s
    lost_s = {
        "checkpoints": writing_s,
        "recovery": recovering_s,
        "repeated work": max(mean_s - work_s - writing_s - recovering_s, 0.0),
    }
    there = 1.0
    if failures.elastic:
        rigid = msgspec.structs.replace(failures, interruptions_per_node_day=0.0, elastic=False)
        all_s = float(machines.run_time(work_s, rigid)[1].mean_s)
        lost_s["repeated work"] = max(all_s - work_s - writing_s - recovering_s, 0.0)
        lost_s["missing nodes"] = mean_s - all_s
        there = elastic.of_job(job, all_s, failures).nodes() / float(machines.nodes)
    return LongRun(
        failures=rate * mean_s,
        interruptions=float(failures.rates_per_s(0.0, machines.nodes)[1]) * mean_s * there,
        present_fraction=there,
        expected_s=mean_s,
        median_s=middle,
        interval_s=(ends[0], ends[1]),
        goodput_fraction=work_s / mean_s,
        checkpoint_bytes=float(machines.size_bytes),
        checkpoint_interval_s=min(float(every_s), work_s),
        pause_s=float(failures.pause_s(machines.size_bytes, machines.devices)),
        lost_s=lost_s,
        sensitivity=_sensitivity(work_s, machines, failures, mean_s),
    )


def mixed_s(
    work_s: float, iteration_s: float, interval: Interval | None, machines: Machines,
    failures: Failures,
) -> Floats:  # fmt: skip
    """Return equally likely times of the run: over those of a step, and over failures, (n,).

    The logarithm of a step's time is normal on either side of the prediction, with the width of its
    interval.
    """
    level = (np.arange(RUNS) + 0.5) / RUNS
    factors = step_factors(iteration_s, interval)
    time = machines.run_time(work_s * factors[:, None], failures)[1]
    return time.quantiles_s(level).ravel()


def probability_within(
    limit_s: float, work_s: float, iteration_s: float, interval: Interval | None,
    machines: Machines, failures: Failures,
) -> float:  # fmt: skip
    """Return the probability that the run takes at most ``limit_s``, over steps and failures."""
    factors = step_factors(iteration_s, interval, FINE)
    return float(machines.run_time(work_s * factors, failures)[1].within(limit_s).mean())


def step_factors(
    iteration_s: float, interval: Interval | None, steps: int = STEPS
) -> Floats:  # fmt: skip
    """Equally likely times of a step, as multiples of the predicted one, (steps,)."""
    from scipy.special import ndtri

    if interval is None:
        return np.ones(1)
    z = ndtri((np.arange(steps) + 0.5) / steps)
    low, high = (abs(math.log(end / iteration_s)) / WIDTH for end in interval.iteration_s)
    factors: Floats = np.exp(np.where(z < 0.0, low, high) * z)
    return factors


def _sensitivity(
    work_s: float, machines: Machines, failures: Failures, now_s: float
) -> dict[str, float]:
    """Relative change of the expected time if a figure doubles."""
    storage = float(1.0 / failures.moving_s(1.0, machines.devices))
    names = ["per_device_day", "restart_s"]
    if failures.checkpoint_interval_s is not None:
        names.append("checkpoint_interval_s")
    if failures.interruptions_per_node_day:
        names += ["interruptions_per_node_day", "replacement_s"]
    doubled = {name: {name: 2.0 * getattr(failures, name)} for name in names}
    doubled["storage_bytes_per_s"] = {"storage_bytes_per_s": 2.0 * storage}
    times = {
        name: machines.run_time(work_s, msgspec.structs.replace(failures, **change))[1].mean_s
        for name, change in doubled.items()
    }
    return {name: float(mean_s) / now_s - 1.0 for name, mean_s in times.items()}
