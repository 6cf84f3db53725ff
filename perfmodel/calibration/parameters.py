"""What a fit takes: measured runs, and parameters (a field of the job, its prior, its scope)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import number
from perfmodel.base.quantities import Quantity
from perfmodel.inputs.job import Job

LARGEST_FRACTION = 0.99
"""Largest starting value of a fraction: the logit of 1 is infinite."""


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


class Parameter(msgspec.Struct, frozen=True):
    """A parameter, and its prior.

    What shares a value is its scope. Without ``apart`` all runs do (those of a cluster). With
    ``apart`` each workload has a value: around a common one that is fitted too, or around ``value``
    if ``spread`` is 0.

    Attributes
    ----------
    value : prior mean.
    spread : prior standard deviation of its coordinate.
    unit : SI; empty for a fraction or a factor.
    scale : of its coordinate: the logarithm, the logit of a fraction, or the value itself.
    least : prior mean of a logarithm if ``value`` is 0: too small to matter.
    smallest, most : bounds of its values.
    path : field of the cluster, such as ``nic.latency_s``; empty for others.
    apart : prior standard deviation of the coordinates of workloads around the common one.
    optional : whether it is fitted only if that improves the prediction of held-out runs.
    usual : whether it is fitted without being asked for.
    """

    name: str
    value: float
    spread: float
    unit: str = ""
    scale: Literal["log", "logit", "linear"] = "log"
    least: float = 1.0
    smallest: float = -math.inf
    most: float = math.inf
    path: str = ""
    apart: float = 0.0
    optional: bool = False
    usual: bool = True

    @property
    def centre(self) -> float:
        """Coordinate of the prior mean."""
        return self.coordinate(self.value)

    def coordinate(self, value: float) -> float:
        """Coordinate of a value."""
        if self.scale == "linear":
            return value
        if self.scale == "logit":
            value = min(value, LARGEST_FRACTION)
            return math.log(value / (1.0 - value))
        return math.log(value if value > 0.0 else self.least)

    def at(self, coordinate: Quantity) -> Quantity:
        """Value of a coordinate."""
        value = coordinate
        if self.scale == "logit":
            value = 1.0 / (1.0 + np.exp(-coordinate))
        elif self.scale == "log":
            value = np.exp(coordinate)
        return np.clip(value, self.smallest, self.most)


def expanded(parameters: Sequence[Parameter], workloads: Sequence[str]) -> list[Parameter]:
    """Parameters of a regression over runs of these workloads: the common ones, then those of each
    workload, called ``parameter workload``.

    The latter are factors on the common value (on the odds, for a logit) with a prior mean of 1, if
    there is one.
    """
    common = [p for p in parameters if p.spread > 0.0]
    apart = [
        Parameter(f"{p.name} {name}", 1.0, p.apart)
        if p.spread > 0.0
        else msgspec.structs.replace(p, name=f"{p.name} {name}", spread=p.apart)
        for name in workloads
        for p in parameters
        if p.apart > 0.0
    ]
    return [*common, *apart]


def of_workload(
    parameters: Sequence[Parameter], values: Mapping[str, Floats], workload: str
) -> dict[str, Floats]:
    """Values of a workload's parameters, by name, from those of :func:`expanded`."""
    fields = {}
    for p in parameters:
        factor = values.get(f"{p.name} {workload}") if p.apart > 0.0 else None
        if p.spread > 0.0:
            fields[p.name] = _multiplied(p, values[p.name], factor)
        elif factor is not None:
            fields[p.name] = factor
    return fields


def _multiplied(p: Parameter, value: Floats, factor: Floats | None) -> Floats:
    """A common value times a workload's factor; for a logit, the factor is on the odds."""
    if factor is None:
        return value
    if p.scale != "logit":
        return value * factor
    odds = value / (1.0 - value) * factor
    return odds / (1.0 + odds)
