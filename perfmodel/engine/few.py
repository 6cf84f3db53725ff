"""Measures of all workers from those of the few that were simulated."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.engine.measures import Measures
from perfmodel.graph.mean_field import MeanField

SLOPE_ERROR = 0.3
"""Error of what the measures of a few are corrected by, as a fraction of it: the interval has as
much."""


def faster(few: Measures, times: float) -> Measures:
    """Return the measures if workers make so many ``times`` as many iterations, which compute as
    long; they wait for the same causes."""
    busy = np.minimum(few.busy_fraction * times, 1.0)
    idle = 1.0 - few.busy_fraction
    waits = few.wait_fraction * ((1.0 - busy) / np.where(idle > 0.0, idle, 1.0))[:, None]
    return msgspec.structs.replace(
        few,
        iterations_per_s=few.iterations_per_s * times,
        busy_fraction=busy,
        wait_fraction=waits,
        updates_per_s=few.updates_per_s * times,
    )


def shared_parts(field: MeanField, few: Measures) -> Floats:
    """Return the part of the time for which each shared resource is busy, (shared,)."""
    return np.concatenate([few.slot_utilisation, few.link_utilisation])[field.shared]


def busiest_link(field: MeanField, parts: Floats) -> float:
    """Return the largest of these ``parts`` of shared resources, (shared,), that are links."""
    return float(parts[field.shared >= len(field.graph.slot_place)].max(initial=0.0))


def of_all(field: MeanField, slot: Floats, link: Floats, few: Measures) -> Measures:
    """Return the measures of all workers from those of the few, which have had these parts of each
    slot and link, (slots,) and (links,).

    Of the updates that workers see of each other, each of the few sees those of the other few only.
    """
    rates = few.iterations_per_s
    own = field.mean(rates)
    all_of_them, some = field.workers * own, max(float(rates.sum()) / field.devices, 1e-300)
    more = (all_of_them - own) / max(some - own, 1e-300)
    seen = np.rint(np.arange(len(few.staleness)) * more).astype(np.int64)
    return msgspec.structs.replace(
        few,
        link_utilisation=1.0 - link + link * few.link_utilisation,
        slot_utilisation=1.0 - slot + slot * few.slot_utilisation,
        staleness=np.bincount(seen, few.staleness).astype(np.int64),
        staleness_mean=few.staleness_mean * more,
        updates_per_s=few.updates_per_s * all_of_them / some,
    )
