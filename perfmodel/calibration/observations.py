"""What fits are made to: measured runs."""

from __future__ import annotations

import msgspec

from perfmodel.base.errors import number
from perfmodel.inputs.job import Job


class Observation(msgspec.Struct, frozen=True):
    """A measured run.

    Attributes
    ----------
    job : what ran; fitted values in it are replaced, or serve as prior means.
    step_s : mean step time of a worker in steady state.
    spread_fraction : standard deviation of this mean as a fraction of it.
    place : name of the run in errors and reports.
    group : runs of a group are held out together; empty for a run that is not alike to others.
    worker_cpu_s, server_cpu_s : processor time of a worker, and of a parameter server, per step
        over its number of cores; None if unknown.
    """

    job: Job
    step_s: float
    spread_fraction: float = 0.0
    place: str = ""
    group: str = ""
    worker_cpu_s: float | None = None
    server_cpu_s: float | None = None

    def __post_init__(self) -> None:
        number("step_s", self.step_s, above=0.0)
        number("spread_fraction", self.spread_fraction)
        for name in ("worker_cpu_s", "server_cpu_s"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), above=0.0)
