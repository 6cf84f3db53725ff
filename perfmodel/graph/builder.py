"""Builds an op graph block by block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.arrays import NONE, Floats, Ids
from perfmodel.base.errors import InputError
from perfmodel.graph.checks import check
from perfmodel.graph.columns import distinct_rows, offsets
from perfmodel.graph.limits import most_ops, too_large
from perfmodel.graph.op_graph import (
    CAUSES,
    KINDS,
    MOST,
    SPENT,
    TYPES,
    Axis,
    Block,
    Distribution,
    Logged,
    OpGraph,
)
from perfmodel.graph.rules import Activity, Batch, Choice, Every, Mailbox, Quantum, Quorum, Rule


class GraphBuilder:
    """Collects blocks of ops, edges and resources; :meth:`build` checks and freezes them."""

    def __init__(self) -> None:
        self._columns: dict[str, list[NDArray[np.generic]]] = {}
        self._blocks: dict[str, list[Block]] = {"op": [], "slot": [], "link": [], "probe": []}
        self._count = dict.fromkeys(("op", "slot", "link", "probe", "counter", "stream"), 0)
        self._routes = 0
        self._latency = np.zeros(0)
        self._tables: list[Floats] = []
        self._rules: list[Rule] = []
        self._logged: list[Logged] = []
        self._names: dict[str, Sequence[str]] = {}

    def name(self, axis: str, names: Sequence[str]) -> None:
        """Give the names along an axis of all blocks that follow and have none of their own, if
        they are as long."""
        self._names[axis] = names

    def slots(
        self,
        label: str,
        shape: tuple[int, ...],
        *,
        capacity: ArrayLike = 1,
        place: ArrayLike = NONE,
        axes: tuple[Axis, ...] = (),
    ) -> Ids:
        """Add serial resources of ``capacity`` units, such as threads or bytes of credit.

        Waiting ops are served by priority, first come first served within a priority, and by id if
        they arrive at the same time. There is no overtaking: an op that needs more units than are
        free blocks the ops behind it.
        """
        ids = self._new("slot", label, shape, axes)
        self._add("slot_capacity", np.broadcast_to(np.asarray(capacity, np.int64), shape).ravel())
        self._add("slot_place", np.broadcast_to(np.asarray(place, np.int64), shape).ravel())
        return ids

    def links(
        self,
        label: str,
        capacity_bytes_per_s: ArrayLike,
        *,
        latency_s: ArrayLike = 0.0,
        place: ArrayLike = NONE,
        axes: tuple[Axis, ...] = (),
    ) -> Ids:
        """Add links (bytes/s, one direction), which their transfers share max-min fairly.

        A node's processor is also a link: its capacity is in cores, the work of its ops in
        core-seconds, and the rate cap of an op is its number of threads.
        """
        capacity = np.atleast_1d(np.asarray(capacity_bytes_per_s, np.float64))
        ids = self._new("link", label, capacity.shape, axes)
        self._add("link_capacity_bytes_per_s", capacity.ravel())
        self._add("link_place", np.broadcast_to(np.asarray(place, np.int64), ids.shape).ravel())
        latency = np.broadcast_to(np.asarray(latency_s, np.float64), ids.shape).ravel()
        self._latency = np.concatenate([self._latency, latency])
        return ids

    def streams(
        self,
        shape: tuple[int, ...],
        *,
        cv: float = 0.0,
        kind: Distribution = "lognormal",
        values: Floats | None = None,
        keys: ArrayLike = NONE,
    ) -> Ids:
        """Add independent streams of random numbers, with one number per iteration.

        As the ``noise`` of an op, a stream gives factors of mean 1 and coefficient of variation
        ``cv``, or equally probable, ascending ``values``, for its seconds and bytes; ops that share
        a stream share the factor of an iteration. As a ``draw``, it decides on activity and choice.
        Where graphs are joined, streams of equal ``keys``, which broadcast, are one.
        """
        kind_of = KINDS.index(kind)
        if values is not None:
            cv, kind_of = float(values.std()), len(KINDS) + len(self._tables)
            self._tables.append(values)
        first = self._count["stream"]
        size = math.prod(shape)
        self._count["stream"] = first + size
        self._add("stream_cv", np.full(size, cv))
        self._add("stream_kind", np.full(size, kind_of, np.int32))
        self._add("stream_key", np.broadcast_to(np.asarray(keys, np.int64), shape).ravel())
        return np.arange(first, first + size, dtype=np.int64).reshape(shape)

    def ops(
        self,
        label: str,
        shape: tuple[int, ...],
        *,
        seconds: ArrayLike = 0.0,
        bytes: ArrayLike = 0.0,
        path: ArrayLike | None = None,
        path_units: ArrayLike = 1.0,
        latency_s: ArrayLike = 0.0,
        spent: Mapping[str, ArrayLike] | None = None,
        rate_cap_bytes_per_s: ArrayLike = math.inf,
        weight: ArrayLike = 1.0,
        burst_bytes: ArrayLike = 0.0,
        queued_bytes: ArrayLike = 0.0,
        slot: ArrayLike = NONE,
        slots: ArrayLike | None = None,
        units: ArrayLike = 1,
        priority: ArrayLike = 0,
        noise: ArrayLike = NONE,
        group: ArrayLike = NONE,
        cause: str = "network",
        axes: tuple[Axis, ...] = (),
    ) -> Ids:
        """Add a block of ops and return their ids, in ``shape``.

        Every argument broadcasts against ``shape``. ``path`` has one more axis, over the links of
        the path, padded with NONE; ``path_units`` broadcasts against it and gives how much of each
        link a unit of rate takes. ``slots`` also has one more axis, for ops that hold several
        slots; ``units`` broadcasts against it. An op with bytes but neither link nor rate cap moves
        them in no time. ``burst_bytes`` pass at once if the links were idle for long enough, as the
        bucket of a shaper allows. An op without bytes waits for ``queued_bytes`` of the transfers
        under way on its links. The latencies of the links on the path add to ``latency_s``. What
        takes ``spent`` (s) of the seconds, or else of the latency, is of SPENT. There are many
        parameters because most are columns of the op table.
        """
        ids = self._new("op", label, shape, axes)

        def column(name: str, value: ArrayLike, kind: type[np.generic]) -> None:
            values = np.asarray(value, kind)
            if not values.ndim:  # the most frequent case
                self._add(name, np.full(ids.size, values))
            else:
                self._add(name, np.broadcast_to(values, shape).ravel())

        limits = rate_cap_bytes_per_s, weight, burst_bytes, queued_bytes
        route, path_latency_s = self._route(label, path, path_units, limits)
        column("op_route", route, np.int32)
        column("op_seconds", seconds, np.float64)
        column("op_bytes", bytes, np.float64)
        column("op_latency_s", np.asarray(latency_s, np.float64) + path_latency_s, np.float64)
        column("op_stream", noise, np.int32)
        column("op_priority", priority, np.int32)
        column("op_group", group, np.int32)
        column("op_cause", CAUSES.index(cause), np.int8)
        held = np.asarray(slot)[..., None] if slots is None else np.asarray(slots)
        width = held.shape[-1]
        held = np.broadcast_to(held, (*shape, width)).reshape(ids.size, width)
        used = held != NONE
        self._add("hold_count", used.sum(axis=1, dtype=np.int32) if width > 1 else used[:, 0])
        self._add("hold_slots", held[used])
        amounts = np.asarray(units)[..., None] if slots is None else np.asarray(units)
        amounts = np.broadcast_to(amounts, (*shape, width)).reshape(ids.size, width)
        self._add("hold_units", amounts[used])
        for what, part_s in (spent or {}).items():
            if np.any(part_s):
                column("spent_s", part_s, np.float64)
                column("spent_on", SPENT.index(what), np.int32)
                self._add("spent_op", ids.ravel())
        return ids

    def _route(
        self,
        label: str,
        path: ArrayLike | None,
        units: ArrayLike,
        limits: tuple[ArrayLike, ...],
    ) -> tuple[Ids, Floats]:
        """Return route ids, one for each distinct path and ``limits``, and path latencies (s).

        Both broadcast against the op's shape. ``limits`` are cap, weight, burst and queue.
        """
        caps, weights, bursts, queues = (np.asarray(limit, np.float64) for limit in limits)
        if path is None and not np.isfinite(caps).any():
            return np.asarray(NONE), np.zeros(())
        links = np.asarray(NONE if path is None else path, np.int64)
        links = links.reshape(1) if links.ndim == 0 else links
        width = links.shape[-1]
        parts = np.broadcast_shapes(links.shape[:-1], caps.shape, weights.shape)
        parts = np.broadcast_shapes(parts, bursts.shape, queues.shape, np.shape(units)[:-1])
        links = np.broadcast_to(links, (*parts, width)).reshape(-1, width)
        amounts = np.broadcast_to(np.asarray(units, np.float64), (*parts, width)).reshape(-1, width)
        caps, weights, bursts, queues = (
            np.broadcast_to(limit, parts).ravel() for limit in (caps, weights, bursts, queues)
        )
        ordered = np.sort(links, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NONE)).any():
            raise InputError(f"{label!r}: a path uses the same link twice")
        for name, values in (("rate cap", caps), ("weight", weights), ("path units", amounts)):
            if not (values > 0.0).all():
                raise InputError(f"{label!r}: {name} must be positive")
        for name, values in (("burst", bursts), ("queue", queues)):
            if not (values >= 0.0).all():
                raise InputError(f"{label!r}: {name} must not be negative")
        kinds, first = distinct_rows([*links.T, *amounts.T, caps, weights, bursts, queues])
        links, amounts = links[first], amounts[first]
        used = links != NONE
        self._add("route_length", used.sum(axis=1))
        self._add("route_links", links[used])
        self._add("route_units", amounts[used])
        names = "cap_bytes_per_s", "weight", "burst_bytes", "queued_bytes"
        for name, limit in zip(names, (caps, weights, bursts, queues), strict=True):
            self._add(f"route_{name}", limit[first])
        latency = np.where(used, self._latency[links] if len(self._latency) else 0.0, 0.0)
        ids = (kinds + self._routes).reshape(parts)
        self._routes += len(first)
        return ids, latency.sum(axis=1)[kinds].reshape(parts)

    def edge(self, source: ArrayLike, target: ArrayLike, lag: int = 0) -> None:
        """Make iteration i of ``target`` wait for iteration i-lag of ``source`` (broadcast)."""
        sources, targets = np.broadcast_arrays(source, target)
        self._add("edge_source", sources.ravel())
        self._add("edge_target", targets.ravel())
        self._add("edge_lag", np.full(sources.size, lag, np.int32))

    def chain(self, ops: Ids) -> None:
        """Run the ops along the last axis one after another."""
        self.edge(ops[..., :-1], ops[..., 1:])

    def stagger(self, ops: Ids, within_s: ArrayLike) -> None:
        """Delay the first instance of each op by a random fraction of ``within_s`` seconds."""
        self._add("stagger_ops", ops.ravel())
        self._add("stagger_s", np.broadcast_to(np.asarray(within_s, np.float64), ops.shape).ravel())

    def active(
        self,
        ops: Ids,
        *,
        every: int = 1,
        phase: int = 0,
        probability: float = 1.0,
        draw: ArrayLike = NONE,
        chosen: ArrayLike = 0,
        among: int = 0,
    ) -> None:
        """Make ``ops`` active only in every ``every``-th iteration, or at random.

        In other iterations they take no time and no slot, raise no counter, send nothing to a
        mailbox, and pass on their other tokens. Random activity has a ``probability``. With
        ``among`` it is further limited to iterations in which an op that chooses among this many
        alternatives by the same stream takes number ``chosen``. Ops that are active together share
        a stream; ``draw`` and ``chosen`` broadcast against ``ops``.

        Raises
        ------
        InputError : the probability is not between 0 and 1, or there is no stream to draw from.
        """
        streams = np.broadcast_to(np.asarray(draw, np.int64), ops.shape).ravel()
        which = np.broadcast_to(np.asarray(chosen, np.int64), ops.shape).ravel()
        if not 0.0 <= probability <= 1.0:
            raise InputError(f"probability must be between 0 and 1, got {probability:g}")
        if (probability < 1.0 or among > 0) and (streams == NONE).any():
            raise InputError("a probability needs a stream to draw from")
        if among > 0 and not ((which >= 0) & (which < among)).all():
            raise InputError(f"chosen must be from 0 to {among - 1}")
        if every < 1 or not 0 <= phase < every:
            raise InputError(f"phase must be from 0 to every - 1, got {phase} of {every}")
        self._rules.append(Activity(ops.ravel(), every, phase, probability, streams, which, among))

    def choose(
        self,
        ops: Ids,
        *,
        draw: ArrayLike,
        paths: ArrayLike | None = None,
        slots: ArrayLike | None = None,
        latency_s: ArrayLike = 0.0,
        rate_cap_bytes_per_s: ArrayLike = math.inf,
        burst_bytes: ArrayLike = 0.0,
    ) -> None:
        """Let each of ``ops`` (ops,) draw a path and a slot at random in each iteration.

        ``paths`` (ops, alternatives, links), ``slots`` (ops, alternatives), ``latency_s``,
        ``rate_cap_bytes_per_s`` and ``burst_bytes`` broadcast. Values given here replace the op's
        own. Ops that share a stream take the alternative with the same number.
        """
        flat = ops.ravel()
        several = np.asarray(NONE if paths is None else paths, np.int64)
        held = np.asarray(NONE if slots is None else slots, np.int64)
        count = max(
            several.shape[-2] if several.ndim > 1 else 1, held.shape[-1] if held.ndim else 1
        )
        shape = (flat.size, count)
        route, path_latency_s = self._route(
            "choice", several, 1.0, (rate_cap_bytes_per_s, 1.0, burst_bytes, 0.0)
        )
        self._rules.append(
            Choice(
                flat,
                np.broadcast_to(np.asarray(draw, np.int64), ops.shape).ravel(),
                np.broadcast_to(route, shape) if paths is not None else None,
                np.broadcast_to(held, shape) if slots is not None else None,
                np.broadcast_to(np.asarray(latency_s, np.float64) + path_latency_s, shape),
            )
        )

    def quantum(self, ops: Ids, bytes: float) -> None:
        """Send ``ops`` in pieces; after each piece, the op goes to the back of its slots' queues.

        Several messages on one connection then take turns. The smaller the quantum, the more
        equally they share the connection. Without a slot each would be a transfer of its own.
        """
        if not bytes > 0.0:
            raise InputError(f"a quantum must be positive, got {bytes:g}")
        self._rules.append(Quantum(ops.ravel(), bytes))

    def quorum(self, op: int, count: int) -> None:
        """Let ``op`` fire at the ``count``-th token of an iteration, as with backup workers."""
        self._rules.append(Quorum(int(op), _at_least_one("quorum", count)))

    def every(self, op: int, count: int) -> None:
        """Let ``op`` fire once per ``count`` tokens from any source."""
        self._rules.append(Every(int(op), _at_least_one("every", count)))

    def mailbox(self, op: int, sources: ArrayLike, per_token_s: float = 0.0) -> None:
        """Let ``op`` take all messages from ``sources`` that have arrived when it starts
        (gossip)."""
        flat = np.asarray(sources, np.int64).ravel()
        self.edge(flat, int(op))
        self._rules.append(Mailbox(int(op), flat, per_token_s))

    def batch(
        self,
        op: int,
        sources: Ids,
        targets: Ids,
        bytes: ArrayLike,
        *,
        cycle_s: float,
        cap_bytes: float = math.inf,
    ) -> None:
        """Let ``op`` send items together, as tensor fusion does; see :class:`Batch`."""
        sizes = np.broadcast_to(np.asarray(bytes, np.float64), sources.shape).ravel()
        if not cycle_s > 0.0:
            raise InputError(f"a cycle must be positive, got {cycle_s:g}")
        self.edge(sources, int(op))
        self.edge(int(op), targets)
        self._rules.append(
            Batch(int(op), sources.ravel(), targets.ravel(), sizes, cycle_s, cap_bytes)
        )

    def counters(self, ops: Ids, *, every: int = 1) -> Ids:
        """Add a counter for each index along the last axis, raised when any of its ops ends.

        ``ops`` has shape (..., counters); returns the counter ids, shape (counters,). With
        ``every`` a counter rises by one after this many ends, for example if the gradients of
        several workers make one update (n-softsync).
        """
        ids = self._count["counter"] + np.arange(ops.shape[-1])
        self._count["counter"] += ops.shape[-1]
        self._add("counter_ops", ops.ravel())
        self._add("counter_ids", np.broadcast_to(ids, ops.shape).ravel())
        self._add("counter_every", np.full(ids.size, _at_least_one("counters", every)))
        return ids

    def probe(
        self,
        label: str,
        opens: ArrayLike,
        closes: ArrayLike,
        *,
        at_ready: bool = False,
        lag: int = 0,
        counter: ArrayLike = NONE,
        group: ArrayLike = NONE,
    ) -> None:
        """Measure from iteration i-lag of ``opens`` to the end of iteration i of ``closes``.

        If one op does several of these, the order is: close, raise the counter, open.
        """
        arrays = np.broadcast_arrays(opens, closes, counter, group)
        self._new("probe", label, arrays[0].shape, ())
        for name, array in zip(
            ("probe_open", "probe_close", "probe_counter", "probe_group"), arrays, strict=True
        ):
            self._add(name, array.ravel())
        self._add("probe_lag", np.full(arrays[0].size, lag, np.int32))
        self._add("probe_at_ready", np.full(arrays[0].size, at_ready, np.bool_))

    def log(self, label: str, ops: Ids, *, at_ready: bool = False) -> None:
        """Mark ``ops`` (any shape) for a simulation to log their instances on request.

        The log has the time at which each is ready or, by default, at which its tokens arrive: that
        is after the probes that it closes, and before probes that open as a result.
        """
        self._logged.append(Logged(label, np.asarray(ops), at_ready))

    def build(self, *, device: Ids, mark: Ids, count: ArrayLike = 1) -> OpGraph:
        """Check and freeze the graph.

        Parameters
        ----------
        device : (groups,) the slot whose idle time is each group's idleness.
        mark : (groups,) the op that ends each group's iteration, the last on its device.
        count : (groups,) number of workers that each group stands for.

        Raises
        ------
        InputError : work is negative or not finite, a lag is negative, or a resource has no
            capacity.
        """
        stagger = np.zeros(self._count["op"])
        stagger[self._take("stagger_ops", np.int64)] = self._take("stagger_s", np.float64)
        marks, counts = np.broadcast_arrays(np.ravel(mark), np.asarray(count, np.int64))
        computed: dict[str, Any] = {
            "op_stagger_s": stagger,
            "hold_start": offsets(self._take("hold_count", np.int32)),
            "route_start": offsets(self._take("route_length", np.int32)),
            "group_device": np.asarray(device, np.int64).ravel(),
            "group_mark": marks,
            "group_count": counts,
            "worker_group": np.repeat(np.arange(len(marks)), counts),
            "tables": tuple(self._tables),
            "rules": tuple(self._rules),
            "logged": tuple(self._logged),
            **{f"{kind}s": tuple(blocks) for kind, blocks in self._blocks.items()},
        }
        columns: dict[str, Any] = {
            name: self._take(name, TYPES[kind])
            for name, kind in OpGraph.__annotations__.items()
            if name not in computed
        }
        graph = OpGraph(**columns, **computed)
        self._columns.clear()
        check(graph)
        for value in msgspec.structs.astuple(graph):
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
        return graph

    def _new(
        self,
        kind: str,
        label: str,
        shape: tuple[int, ...],
        axes: tuple[Axis, ...],
        part: str = "",
    ) -> Ids:
        first = self._count[kind]
        size = math.prod(shape)
        most = most_ops.get() if kind == "op" else MOST
        if first + size > most:
            raise too_large(kind, label, first + size, most)
        self._count[kind] = first + size
        if self._names and axes:
            known = (self._names.get(axis, ()) for axis, _ in axes)
            axes = tuple(
                (axis, given if own is None and len(given) == length else own)
                for (axis, own), given, length in zip(axes, known, shape, strict=True)
            )
        self._blocks[kind].append(Block(label, first, shape, axes, part))
        return np.arange(first, first + size, dtype=np.int64).reshape(shape)

    def _add(self, column: str, values: NDArray[np.generic]) -> None:
        self._columns.setdefault(column, []).append(values)

    def _take(self, column: str, kind: type[np.generic]) -> NDArray[np.generic]:
        parts = self._columns.pop(column, None)
        return np.concatenate(parts, dtype=kind, casting="unsafe") if parts else np.zeros(0, kind)


def _at_least_one(what: str, count: int) -> int:
    if count < 1:
        raise InputError(f"{what}: count must be at least 1, got {count}")
    return count
