"""Names of jobs and values, as tables and figures show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.units import show, words_and_unit
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Jitter
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.workload import Workload

NAMED = (
    *("model", "workload", "device", "precision", "cluster", "arch", "architecture"),
    *("sync", "start", "algorithm", "fidelity", "island_arch"),
)
"""Axes whose values are shown without the axis name."""

Row = dict[str, Any]
"""A row of a table, or a JSON object: values by name."""


def label(point: Mapping[str, object]) -> str:
    """The label of a point: its values, with names where the value alone is not clear.

    >>> label({"arch": "ring", "bandwidth_bytes_per_s": 1.25e9, "servers": None, "workers": 8})
    'ring, 10 Gbps, 8 workers'
    >>> label({"batch_size": 32, "bucket_cap_bytes": 1e6, "overlap": True})
    'batch 32, bucket cap 1 MB, overlap=True'
    """
    return ", ".join(_label(name, v) for name, v in point.items() if v is not None)


def _label(name: str, value: object) -> str:
    if name in ("workers", "servers"):
        return f"{value} {name if value != 1 else name.removesuffix('s')}"
    if name in ("batch_size", "global_batch_size"):
        return f"{name.removesuffix('_size').replace('_', ' ')} {value}"
    if name == "island_devices":
        return f"islands of {value}"
    if name == "island_steps":
        return f"{value} step{'s' * (value != 1)}"
    words, unit = words_and_unit(name)
    if unit and isinstance(value, (int, float)) and math.isfinite(value):
        return show(value, unit) if words == "bandwidth" else f"{words} {show(value, unit)}"
    if name in ("jitter", "seed", "stragglers"):
        return f"{name} {value}"
    return str(value) if name in NAMED else f"{name}={value}"


def shown(value: object) -> object:
    """A value of an axis as shown in a table: a number or text."""
    if isinstance(value, (Workload, Profile, Cluster)):
        return value.name
    if isinstance(value, Jitter):
        parts = [value.kind] + [f"{value.cv:g}"] * (value.kind != "measured")
        plain = (value.kind, value.scope) == ("lognormal", "iteration")
        return value.cv if plain else ":".join([*parts, *["op"] * (value.scope == "op")])
    if isinstance(value, (list, tuple)):
        return " ".join(f"{s.worker}:{s.factor:g}" for s in value) or "none"
    return str(value) if isinstance(value, Path) else value


def distinct(names: Iterable[str]) -> list[str]:
    """Make names unique by numbering duplicates; an empty name becomes ``job``.

    >>> distinct(["ring", "ps", "ring"])
    ['ring', 'ps', 'ring (2)']
    """
    unique: list[str] = []
    for name in names:
        base = name or "job"
        numbered = (base if k == 1 else f"{base} ({k})" for k in range(1, len(unique) + 2))
        unique.append(next(name for name in numbered if name not in unique))
    return unique
