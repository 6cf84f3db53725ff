"""Variables of a job that studies search, and the search: arguments and numeric options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import show, words_and_unit
from perfmodel.inputs.job import MOST_WORKERS, Job

RANGES: Mapping[str, tuple[float, float]] = {
    "workers": (1.0, 65536.0),
    "bandwidth_bytes_per_s": (1e5, 1e13),
    "latency_s": (1e-8, 10.0),
    "batch_size": (1.0, 65536.0),
}
"""Ranges of the arguments of a job that can be varied."""

OF_REPLICAS = ("context", "micro_batches", "pipeline", "tensor")
"""Arguments of a job that can be varied among a few whole numbers."""

MOST_STAGES = 128
"""Most stages that are tried."""

FARTHEST = 64.0
"""For replicas, workers and batches up to this many times the job's are tried."""

BEYOND_NODE = 8
"""Most nodes whose devices divide layers, of those that are tried."""

HALVINGS = 60
"""Most halvings of an interval."""

S = TypeVar("S")

WHOLE = ("workers", "batch_size")
"""Integer arguments."""


class Variable(NamedTuple):
    """A variable: the argument or option, its range, and the step between values; 0 if it is not an
    integer. ``values`` are all that it can have; empty if it can have any of the range."""

    name: str
    least: float
    most: float
    step: int = 0
    values: tuple[int, ...] = ()

    @property
    def unit(self) -> str:
        """The SI unit; empty if it has none."""
        return words_and_unit(self.name)[1]

    @property
    def words(self) -> str:
        """The name without its unit."""
        return words_and_unit(self.name)[0]

    def shown(self, value: float) -> str:
        """A value as text with its unit."""
        if self.step:
            return f"{value:.0f}"
        return show(value, self.unit) if self.unit else f"{value:.4g}"

    def value_in(self, job: Job, devices: Job) -> float:
        """The value in a job, or in the job of its ``devices`` for what holds inside islands."""
        nic = devices.cluster.nic
        known = {
            "workers": job.workers,
            "bandwidth_bytes_per_s": nic.bandwidth_bytes_per_s,
            "latency_s": nic.latency_s,
            "batch_size": devices.workload.batch_size,
            "micro_batches": devices.workload.accumulation,
            "pipeline": 1 if job.replica is None else job.replica.pipeline,
            "tensor": 1 if job.replica is None else job.replica.tensor,
            "context": 1 if job.replica is None else job.replica.context,
        }
        return float(known[self.name] if self.name in known else getattr(job.options, self.name))

    def spaced(self, count: int) -> Floats:
        """Values at equal ratios; multiples of the step if there is one, each once. All of a
        variable that can have only a few."""
        if self.values:
            return np.array(self.values, float)
        values = np.geomspace(self.least, self.most, count)
        step = self.step
        return np.unique(np.maximum(np.rint(values / step), 1.0) * step) if step else values


def argument(name: str, *jobs: Job) -> Variable:
    """The variable of an argument, in the range that is possible for all jobs.

    Workers come in whole groups, and no more than the cluster has devices. Micro-batches divide the
    batch evenly.
    """
    if name in OF_REPLICAS:
        values = sorted(set.union(*({*_values(name, job)} for job in jobs)))
        return Variable(name, values[0], values[-1], 1, tuple(values))
    least, most = RANGES[name]
    if name in WHOLE and any(job.replica is not None for job in jobs):
        now = max(job.workers if name == "workers" else job.workload.batch_size for job in jobs)
        most = min(most, FARTHEST * now)
    if name != "workers":
        return Variable(name, least, most, int(name in WHOLE))
    step = math.lcm(*(math.lcm(job.options.group_size, job.workers_together) for job in jobs))
    clusters = [job.cluster for job in jobs]
    per_worker = max(1 if job.replica is None else job.replica.devices for job in jobs)
    devices = [
        c.workers_nodes * c.devices_per_node // per_worker
        for c in clusters
        if c.workers_nodes is not None
    ]
    least = max(step, *(1.0 + job.options.spare_workers for job in jobs))
    most = min(most, MOST_WORKERS, *devices) // step * step
    return Variable(name, least, max(least, most), step)


def divisors(number: int, most: int | None = None) -> list[int]:
    """Return the numbers, up to ``most``, that divide another one.

    >>> divisors(12), divisors(12, 4)
    ([1, 2, 3, 4, 6, 12], [1, 2, 3, 4])
    """
    last = number if most is None else min(number, most)
    return [k for k in range(1, last + 1) if number % k == 0]


def _values(name: str, job: Job) -> list[int]:
    """Return the values of an argument of replicas that may be possible."""
    work, node = job.of_devices.workload, job.of_devices.cluster.devices_per_node
    if name == "micro_batches":
        return divisors(work.batch_size)
    if name == "pipeline":
        return [*range(1, min(len(work.layers), MOST_STAGES) + 1)]
    further = (node * 2**k for k in range(1, BEYOND_NODE.bit_length()))
    return [*range(1, node + 1), *further]


def boundary(
    low: float,
    high: float,
    state_at: Callable[[float], S],
    first: S,
    step: int,
    halvings: int = HALVINGS,
) -> tuple[float, float]:
    """Bisect, on a logarithmic scale, where the state changes from ``first``, which it is at
    ``low``, to another one; on multiples of ``step`` if that is not 0.

    Return both ends of the last interval: the last value with the first state, and the next one.
    :func:`scipy.optimize.brentq` does not apply: states are not continuous, and workers and batch
    sizes are integers.

    >>> boundary(1.0, 64.0, lambda value: value > 10.0, False, 1)
    (10.0, 11.0)
    """
    for _ in range(halvings):
        if step and high - low <= step:
            break
        middle = math.sqrt(low * high)
        middle = float(round(middle / step) * step) if step else middle
        if state_at(middle) == first:
            low = middle
        else:
            high = middle
    return low, high
