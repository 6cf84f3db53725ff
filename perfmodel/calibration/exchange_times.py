"""How long exchanges take on other links: closed forms, and links as fast as traced ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.calibration.meetings import P2P, Meeting
from perfmodel.inputs.cluster import Link
from perfmodel.theory.collective_times import RingOperation, all_to_all_s, ring_s

REPLICATED = frozenset({"all_reduce", "reduce_scatter", "all_gather", "broadcast"})
"""Operations of groups that may have more ranks."""

Overlap = Literal["traced", "none", "full"]


class TraceChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is other than in the traces.

    Attributes
    ----------
    compute_speed : of the devices, over the traced one; launches and copies stay.
    communication_speed : of exchanges, over the traced one.
    bandwidth_bytes_per_s, latency_s : of a rank's link; one that is not given is as traced.
    groups : exchanges that have other links: kinds, names of groups, operations, or ``p2p``; empty
        for all.
    group_ranks : number of ranks in each of ``groups``, which hold replicas.
    overlap : *traced*; *none*: computing waits for each collective launched before it; *full*:
        for none until the end of a step, which is a bound.
    as_others : ranks that compute and launch like the middle one of those that do the same.

    Raises
    ------
    InputError : a value is not positive, or ``group_ranks`` is given without ``groups``.
    """

    compute_speed: float = 1.0
    communication_speed: float = 1.0
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None
    groups: tuple[str, ...] = ()
    group_ranks: int | None = None
    overlap: Overlap = "traced"
    as_others: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("compute_speed", "communication_speed", "bandwidth_bytes_per_s"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < 1e18:
                raise InputError(f"{name}: must be positive, got {value:g}")
        if self.latency_s is not None and not 0.0 <= self.latency_s < 1e9:
            raise InputError(f"latency_s: must not be negative, got {self.latency_s:g}")
        if self.group_ranks is not None and (self.group_ranks < 1 or not self.groups):
            raise InputError("group_ranks: needs at least 1 rank, and groups that have so many")
        if self.overlap not in ("traced", "none", "full"):
            raise InputError(f"overlap: traced, none or full, got {self.overlap!r}")

    @property
    def formulas(self) -> bool:
        """Whether times come from closed forms."""
        return self.bandwidth_bytes_per_s is not None or self.latency_s is not None


def exchange_s(operation: str, ranks: int, size_bytes: float, link: Link) -> float:
    """Return the seconds of an exchange: a ring, an all-to-all, or a message.

    >>> exchange_s("send", 2, 1e6, Link(1e9, 1e-6))
    0.001001
    """
    rate, latency_s = link.bandwidth_bytes_per_s, link.latency_s
    if operation == "send":
        return latency_s + size_bytes / rate
    if operation == "all_to_all":
        return float(
            all_to_all_s(ranks, size_bytes, bandwidth_bytes_per_s=rate, latency_s=latency_s)
        )
    name = cast("RingOperation", operation if operation in REPLICATED else "all_reduce")
    return float(ring_s(name, ranks, size_bytes, bandwidth_bytes_per_s=rate, latency_s=latency_s))


def traced_links(found: Sequence[Meeting]) -> dict[str, Link]:
    """Links as fast as traced exchanges, by kind: fitted to relative errors of their times.

    Kinds without sizes, or in which nothing takes time, have none.
    """
    from scipy.optimize import nnls

    links = {}
    for kind in dict.fromkeys(m.kind for m in found):
        matched = [m for m in found if m.kind == kind and m.seconds > 0.0 and m.bytes > 0.0]
        if not matched or max(m.ranks for m in matched) < 2:
            continue
        took = np.array([m.seconds for m in matched])
        free, slow = Link(1e18, 1.0), Link(1.0, 0.0)
        steps = np.array([exchange_s(m.operation, m.ranks, 0.0, free) for m in matched])
        sent = np.array([exchange_s(m.operation, m.ranks, m.bytes, slow) for m in matched])
        scale = float(sent.max())
        rows = np.stack([sent / scale, steps], axis=1) / took[:, None]
        (per_scale_s, latency_s), _ = nnls(rows, np.ones(len(matched)))
        if per_scale_s <= 0.0:  # sizes tell nothing: all as large, or times of latencies
            per_scale_s, latency_s = float(np.min(took / sent)) * scale, 0.0
        links[kind] = Link(scale / float(per_scale_s), float(latency_s))
    return links


def chosen(found: Sequence[Meeting], groups: Sequence[str]) -> list[bool]:
    """Whether each meeting is one of ``groups``, (meetings,).

    Raises
    ------
    InputError : one of them is nothing that the traces have.
    """
    names = [{m.kind, m.group, m.operation} - ({"send"} if m.kind != P2P else set()) for m in found]
    known = sorted({m.kind for m in found})
    for group in groups:
        if not any(group in names_of for names_of in names):
            raise InputError(
                f"groups: the traces have no exchanges in {group!r} (known: {', '.join(known)}, "
                "names of groups, operations)"
            )
    return [not groups or any(group in names_of for group in groups) for names_of in names]


def changed_s(found: Sequence[Meeting], change: TraceChange) -> Floats:
    """Return the seconds of each meeting after a change, (meetings,).

    Raises
    ------
    InputError : sizes that a formula needs are unknown, or groups that get other ranks divide work.
    """
    selected = chosen(found, change.groups)
    links = traced_links(found) if change.formulas or change.group_ranks else {}
    times = np.array([m.seconds for m in found])
    for n, meeting in enumerate(found):
        if not selected[n]:
            continue
        if change.formulas or change.group_ranks is not None:
            times[n] = _by_formula(meeting, links.get(meeting.kind), change)
        times[n] /= change.communication_speed
    return times


def _by_formula(m: Meeting, traced: Link | None, change: TraceChange) -> float:
    if traced is None:
        if m.bytes == 0.0 or m.ranks < 2:
            return m.seconds
        raise InputError(f"exchanges of {m.kind}: nothing tells the links they have had")
    ranks = m.ranks
    if change.group_ranks is not None:
        if m.operation not in REPLICATED:
            raise InputError(
                f"group_ranks: exchanges of {m.kind} are {m.operation}, which divide a model: only "
                "groups of replicas can have more ranks; predict its layout from the model instead"
            )
        ranks = change.group_ranks
    if not change.formulas:
        before = exchange_s(m.operation, m.ranks, m.bytes, traced)
        return m.seconds * exchange_s(m.operation, ranks, m.bytes, traced) / before
    bandwidth, latency_s = change.bandwidth_bytes_per_s, change.latency_s
    link = Link(
        traced.bandwidth_bytes_per_s if bandwidth is None else bandwidth,
        traced.latency_s if latency_s is None else latency_s,
    )
    return exchange_s(m.operation, ranks, m.bytes, link)
