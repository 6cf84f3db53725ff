"""Measured times of gloo's collectives, as those of a cluster."""

from __future__ import annotations

from typing import Any

from perfmodel.calibration.network.collectives import Operation, Point, fit_collective
from perfmodel.inputs.cluster import Collective

OPERATIONS: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter")


def gloo_collectives(rate: float, gloo: list[dict[str, Any]]) -> tuple[Collective, ...]:
    """Return gloo's collectives on links of a ``rate``, fitted to those on the links nearest to it.

    gloo's reduce-scatter sends as much as its all-reduce.
    """
    if not gloo:
        return ()
    near = min(gloo, key=lambda times: abs(times["rate"] - rate))["rate"]
    return tuple(
        fit_collective(
            name,
            [
                Point(times["n_workers"], float(size), seconds * near / rate)
                for times in gloo
                if times["rate"] == near
                for size, seconds in times[name].items()
            ],
        ).collective
        for name in OPERATIONS
    )
