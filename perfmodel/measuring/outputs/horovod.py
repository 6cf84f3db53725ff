"""Reads Horovod's timeline: how long a step took, and how long collectives were under way in it.

A timeline (``HOROVOD_TIMELINE``) is a list of events for Chrome's trace viewer, with a process for
each tensor: negotiation, and then the collective with its parts, whose innermost one is that of the
library (``NCCL_ALLREDUCE``, ``MPI_ALLREDUCE``, ``GLOO_ALLREDUCE``). The list has no end while the
program runs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import msgspec

from perfmodel.base.errors import InputError

MOST_US = 1e18
"""Largest time of an event in microseconds."""

_COLLECTIVE = re.compile(r"(?:NCCL|MPI|GLOO|CCL|MLSL|DDL|HIERARCHICAL)\w*_(?:ALL|REDUCE|BROADCAST)")


class HorovodTimes(NamedTuple):
    """Seconds of a step, None where no tensor comes twice, and of its collectives, all together."""

    step_s: float | None
    communication_s: float
    steps: int


def parse(text: str, name: str) -> HorovodTimes:
    """Read a timeline; ``name`` is the file's.

    Raises
    ------
    InputError : it has no collective with a beginning and an end.
    """
    starts: dict[str, list[float]] = defaultdict(list)
    open_: dict[str, list[tuple[str, float]]] = defaultdict(list)
    spans: list[tuple[float, float]] = []
    for event in _events(text):
        kind, tensor, at = event.get("ph"), str(event.get("pid")), event.get("ts")
        if isinstance(at, bool) or not isinstance(at, (int, float)) or not abs(at) < MOST_US:
            continue
        if kind == "B":
            word = str(event.get("name"))
            if word.startswith("NEGOTIATE_") and not open_[tensor]:
                starts[tensor].append(1e-6 * at)
            open_[tensor].append((word, 1e-6 * at))
        elif kind == "E" and open_[tensor]:
            word, begin = open_[tensor].pop()
            if _COLLECTIVE.match(word) and 1e-6 * at > begin:
                spans.append((begin, 1e-6 * at))
    if not spans:
        raise InputError(
            f"{name}: a Horovod timeline without collectives; expected pairs of events such as "
            "NCCL_ALLREDUCE"
        )
    steps = max(map(len, starts.values()), default=1)
    between = [then - now for times in starts.values() for now, then in pairwise(times)]
    return HorovodTimes(
        median(between) if between else None, _together(spans) / max(steps, 1), steps
    )


def _together(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def _events(text: str) -> list[dict[str, Any]]:
    """The events of a list that may lack its end."""
    try:
        return [event for event in msgspec.json.decode(text.encode()) if isinstance(event, dict)]
    except (msgspec.DecodeError, RecursionError, TypeError):
        events = []
        for line in text.splitlines():
            try:
                event = msgspec.json.decode(line.strip().strip(",").encode())
            except (msgspec.DecodeError, RecursionError):
                continue
            if isinstance(event, dict):
                events.append(event)
        return events
