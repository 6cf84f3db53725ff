"""Transfers under way, and the bytes they have left."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.engine.world import World, column, scalar, starts


def in_flight(world: World) -> tuple[Ids, Floats]:
    """Return the ops that are moving bytes, in ascending order, and their remaining bytes."""
    counts = column(world, "routes", "count")
    route = np.flatnonzero(counts)
    if not len(route):
        return np.zeros(0, np.int64), np.zeros(0, np.float64)
    ops = column(world, "routes", "lead")[route].astype(np.int64)
    level = column(world, "routes", "level")[route]
    behind = counts[route].astype(np.int64) - 1
    if behind.any():
        first = column(world, "routes", "flow")[route] - starts(behind)[:-1]
        at = np.repeat(first, behind) + np.arange(behind.sum())
        ops = np.concatenate([ops, np.asarray(world.flying, np.int64)[at]])
        level = np.concatenate([level, np.asarray(world.levels, np.float64)[at]])
        route = np.concatenate([route, np.repeat(route, behind)])
    order = np.argsort(ops)
    ops, level, route = ops[order], level[order], route[order]
    home, served, joined, weight = (
        column(world, "routes", name)[route] for name in ("home", "served", "joined", "weight")
    )
    service, at_s, rate = (column(world, "pools", n)[home] for n in ("service", "at", "rate"))
    service = service + (scalar(world, "now") - at_s) * rate
    since = np.where(np.asarray(world.places)[route] >= 0, (service - joined) * weight, 0.0)
    return ops, level - served - since
