"""Costs of a parameter server, from measured runs, for a cluster file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.uncertainty import COVERAGE
from perfmodel.calibration import figures
from perfmodel.calibration.files import with_fields
from perfmodel.calibration.statistics import Fitted, Written, median_interval
from perfmodel.inputs.cluster import Cluster
from perfmodel.measuring.training.run import MeasuredRun
from perfmodel.reporting.contents import Figure

COSTS = ("update_per_tensor_s", "update_per_byte_s")
"""Costs of an update: per tensor and per byte."""


class ServerCosts(Written, frozen=True, kw_only=True):
    """Update costs of a server (schema ``perfmodel.calibration/1``).

    Attributes
    ----------
    estimates : per tensor, then per byte.
    seen : the runs they are based on, as text.
    """

    schema: Literal["perfmodel.calibration/1"] = "perfmodel.calibration/1"
    kind: Literal["server"] = "server"
    estimates: tuple[Fitted, ...]
    seen: str
    notes: tuple[str, ...] = ()

    def cluster(self, base: Cluster) -> Cluster:
        """Return the cluster with these server costs."""
        values = {f"server.{e.name}": e.value for e in self.estimates if e.determined}
        names = ", ".join(path.removeprefix("server.") for path in values)
        return with_fields(base, values, "measured", f"{names} of the server {self.seen}")

    def figure(self) -> Figure:
        """The costs with their intervals."""
        return figures.fit(self.estimates, [], f"server costs {self.seen}")


def measured_costs(runs: Sequence[MeasuredRun], cluster: Cluster) -> ServerCosts:
    """Return the median update costs over several runs.

    The interval lies between two of the runs' values and contains the median in 90 % of cases. With
    few runs it is from the smallest to the largest value, and a note gives its probability.

    Raises
    ------
    InputError : no run measured them.
    """
    estimates, notes = [], []
    for name in COSTS:
        values = [v for r in runs if (v := getattr(r.measured, name)) is not None]
        was = getattr(cluster.server, name)
        unit = "s/byte" if name.endswith("_per_byte_s") else "s"
        if not values:
            estimates.append(Fitted.kept(name, unit, was, "no run measured it"))
            continue
        median, sure = median_interval(values, COVERAGE)
        if len(values) == 1:
            notes.append(f"{name}: a single run: the difference between runs is unknown")
        elif sure < COVERAGE:
            notes.append(
                f"{name}: {len(values)} runs: their smallest and largest value contain the median "
                f"in {sure:.0%} of cases"
            )
        known = msgspec.to_builtins(median)
        estimates.append(Fitted(name=name, unit=unit, was=was, **known))
    if not any(e.determined for e in estimates):
        raise InputError("runs: none of them measured the server's update costs")
    seen = f"measured in {len(runs)} run{'s' * (len(runs) > 1)}"
    return ServerCosts(estimates=tuple(estimates), seen=seen, notes=tuple(notes))


def with_server(cluster: Cluster, *runs: MeasuredRun) -> Cluster:
    """Return the cluster with the update costs from these runs.

    Raises
    ------
    InputError : no run measured them.
    """
    return measured_costs(runs, cluster).cluster(cluster)
