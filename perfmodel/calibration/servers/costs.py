"""Costs of a parameter server, from measured runs, for a cluster file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Source
from perfmodel.calibration.statistics import Estimate, Fitted, Written, median_interval
from perfmodel.inputs.cluster import Cluster
from perfmodel.measuring.training.run import MeasuredRun
from perfmodel.reporting.contents import Figure

COSTS = ("update_per_tensor_s", "update_per_byte_s")
"""Costs of an update: per tensor and per byte."""

COVERAGE = 0.9
"""Coverage of an interval."""


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
        found = {e.name: e.value for e in self.estimates if e.status != "not identified"}
        text = f"{', '.join(found)} of the server {self.seen}; else: {base.source.text}"
        return msgspec.structs.replace(
            base,
            name=f"{base.name}-calibrated",
            server=msgspec.structs.replace(base.server, **found),
            source=Source("measured", text),
        )

    def figure(self) -> Figure:
        """The costs with their intervals."""
        from perfmodel.calibration.figures import fit, rows_of

        return fit(rows_of(self.estimates), [], f"server costs {self.seen}")


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
        if not values:
            estimates.append(_as_before(name, was, "no run measured it"))
            continue
        found, sure = median_interval(values, COVERAGE)
        if len(values) == 1:
            notes.append(f"{name}: a single run: the difference between runs is unknown")
        elif sure < COVERAGE:
            notes.append(
                f"{name}: {len(values)} runs: their smallest and largest value contain the median "
                f"in {sure:.0%} of cases"
            )
        estimates.append(_fitted(name, was, found))
    if all(e.status == "not identified" for e in estimates):
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


def _fitted(name: str, was: float, found: Estimate) -> Fitted:
    return Fitted(name=name, unit="s", was=was, value=found.value, low=found.low, high=found.high)


def _as_before(name: str, was: float, note: str) -> Fitted:
    return Fitted(
        name=name,
        unit="s",
        was=was,
        value=was,
        low=was,
        high=was,
        status="not identified",
        note=note,
    )
