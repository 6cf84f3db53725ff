"""Transfers under way, and the bytes they have left."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ids
from perfmodel.engine.world import World, column, scalar, starts


def fields(world: World, records: str, *names: str) -> list[NDArray[Any]]:
    """Return several fields of all records of a kind, as arrays."""
    values = getattr(world, records)
    if isinstance(values, list):  # the plain loop's objects
        return [column(world, records, name) for name in names]
    return [values[name] for name in names]


def in_flight(world: World) -> tuple[Ids, Floats]:
    """Return the ops that are moving bytes, in ascending order, and their remaining bytes."""
    counts, lead, levels, flow, *others = fields(
        world, "routes", "count", "lead", "level", "flow", "home", "served", "joined", "weight"
    )
    route = np.flatnonzero(counts)
    if not len(route):
        return np.zeros(0, np.int64), np.zeros(0, np.float64)
    ops, level = lead[route].astype(np.int64), levels[route]
    behind = counts[route].astype(np.int64) - 1
    if behind.any():
        first = flow[route] - starts(behind)[:-1]
        at = np.repeat(first, behind) + np.arange(behind.sum())
        ops = np.concatenate([ops, np.asarray(world.flying, np.int64)[at]])
        level = np.concatenate([level, np.asarray(world.levels, np.float64)[at]])
        route = np.concatenate([route, np.repeat(route, behind)])
    order = np.argsort(ops)
    ops, level, route = ops[order], level[order], route[order]
    home, served, joined, weight = (values[route] for values in others)
    pools = fields(world, "pools", "service", "at", "rate")
    service, at_s, rate = (values[home] for values in pools)
    service = service + (scalar(world, "now") - at_s) * rate
    since = np.where(np.asarray(world.places)[route] >= 0, (service - joined) * weight, 0.0)
    return ops, level - served - since
