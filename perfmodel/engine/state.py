"""The comparable state of a running simulation, and its counters and sums so far."""

from __future__ import annotations

import msgspec
import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids, Refs
from perfmodel.engine import codes
from perfmodel.engine.flows import fields, in_flight
from perfmodel.engine.measures import Totals
from perfmodel.engine.progress import progress, short_runs
from perfmodel.engine.world import World, assign, column, scalars, starts
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Choice

_F, _L = "f8", "i8"


class State(msgspec.Struct, frozen=True):
    """Everything that determines the future, relative to the current time: counts, times, bytes."""

    counts: Ids
    times: Floats
    bytes: Floats


def state(world: World) -> State:
    """Return the state of a world. Equal states of a deterministic graph have equal futures."""
    now, timers = scalars(world, "now", "timers")
    phase, taken, missing, since = fields(world, "ops", "phase", "taken", "missing", "since")
    what, when = np.array(world.timer_what[:timers], _L), np.array(world.timer_time[:timers], _F)
    order = np.lexsort((when, what))
    moving, left = in_flight(world)
    gates, kinds = fields(world, "gate_edges", "target", "kind")
    target, tokens = fields(world, "edges", "target", "tokens")
    surplus = tokens.copy()
    plain = target >= 0
    surplus[plain] -= taken[target[plain]]
    if len(gates):
        special = np.flatnonzero(~plain)
        gate = -1 - target[special]
        counted = np.logical_or.reduce([kinds[gate] == one for one in _COUNTING])
        surplus[special[counted]] -= taken[gates[gate[counted]]]
    cycles, left_special, *special_counts = fields(
        world, "specials", "cycle", "left", "count", "open"
    )
    counts = [
        phase,
        missing,
        surplus,
        column(world, "slots", "free"),
        column(world, "probes", "open"),
        *special_counts,
        _phases(world, taken),
        *fields(world, "items", "tokens", "admitted", "loaded"),
        np.array(world.counter_part),
        _risen(world),
        what[order],
        moving,
    ]
    cycles = cycles[cycles > 0.0]
    times = [
        when[order] - now,
        now - since[phase == codes.QUEUED],
        np.ceil(now / cycles) * cycles - now,
    ]
    return State(
        np.concatenate([np.asarray(values, _L) for values in counts]),
        np.concatenate(times),
        np.concatenate([left, left_special]),
    )


def _risen(world: World) -> Ids:
    """Return how much the counter of each open probe has risen since the probe was opened.

    This determines the staleness when the probe closes. Probes that are open at the start of the
    simulation see fewer updates than probes of later rounds in an otherwise equal state.
    """
    names = ("counter", "stamp", "room", "next", "open")
    probe = dict(zip(names, fields(world, "probes", *names), strict=True))
    counting = np.flatnonzero((probe["counter"] >= 0) & (probe["open"] > 0))
    if not len(counting):
        return np.zeros(0, _L)
    every = {name: values[counting].astype(_L) for name, values in probe.items()}
    behind = np.arange(every["open"].sum()) - np.repeat(starts(every["open"])[:-1], every["open"])
    every = {name: np.repeat(values, every["open"]) for name, values in every.items()}
    at = every["stamp"] + (every["next"] + behind) % every["room"]
    risen: Ids = np.array(world.counters, _L)[every["counter"]]
    risen -= column(world, "stamps", "count", at)
    return risen


def _phases(world: World, taken: Refs) -> Ids:
    """Return the phase of each op with periodic activity within its period."""
    if len(world.specials) == 0:
        return np.zeros(0, _L)
    extra = column(world, "ops", "extra")
    having = np.flatnonzero(extra != NONE)
    special = column(world, "extras", "special")[extra[having]]
    having, special = having[special != NONE], special[special != NONE]
    phases: Ids = taken[having] % column(world, "specials", "every")[special]
    return phases


_COUNTING = (codes.DRAIN, codes.TO_QUORUM, codes.FROM_BATCH)
"""Gate edges whose tokens are counted from the start, as on plain edges."""


def moved_bytes(world: World) -> Floats:
    """Return the bytes moved along each route so far, shape (routes,)."""
    moving, left = in_flight(world)
    moved = np.array(world.moved, _F)
    if not len(moving):
        return moved
    np.subtract.at(moved, column(world, "ops", "route")[moving], left)
    return moved


def totals(graph: OpGraph, world: World) -> Totals:
    """Return the counters and sums so far, including the completed part of running ops."""
    one = dict(zip(_COUNTED, scalars(world, *_COUNTED), strict=True))
    phase, since = fields(world, "ops", "phase", "since")
    running = np.flatnonzero((phase == codes.WORKING) | (phase == codes.MOVING))
    slot_busy = column(world, "slots", "busy").copy()
    seconds, count = fields(world, "probes", "seconds", "count")
    since = one["now"] - since[running]
    holding = np.repeat(running, np.diff(graph.hold_start)[running])
    if not any(isinstance(rule, Choice) for rule in graph.rules):
        first = graph.hold_start[running]
        counts = np.diff(graph.hold_start)[running]
        at = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(len(holding))
        held = np.repeat(since, counts) * graph.hold_units[at]
        np.add.at(slot_busy, graph.hold_slots[at], held)
    return Totals(
        time=one["now"],
        rounds=one["slowest"],
        iterations=column(world, "groups", "iterations").astype(_L),
        progress=progress(graph, world) if short_runs(graph) else np.zeros(0),
        probe_seconds=seconds.copy(),
        probe_count=count.copy(),
        slot_busy=slot_busy,
        moved=moved_bytes(world),
        walks=one["walks"],
        raised=one["raised"],
        gap_seconds=one["gap_seconds"],
        gap_max=one["gap_max"],
        **{name: np.array(getattr(world, name)) for name in _TOTALLED},
    )


_COUNTED = ("now", "slowest", "walks", "raised", "gap_seconds", "gap_max")
_TOTALLED = tuple(
    (
        "marked_at marked_busy marked_waits histogram stale_sum stale_count critical critical_count"
    ).split()
)


def forget_gap(world: World) -> None:
    """Restart the maximum of the gap between groups from the current gap."""
    fastest, slowest = scalars(world, "fastest", "slowest")
    assign(world, gap_max=fastest - slowest)
