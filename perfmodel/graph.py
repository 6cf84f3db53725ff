"""The one idea: a training job as a small cyclic graph of operations over contended resources.

An **op** runs once per iteration. It may hold **slots** (units of serial resources: a device, a
connection, a server's threads), it takes seconds, and it moves bytes along a **path** of **links**
that it shares with other transfers. An **edge** with lag k makes iteration i of its target wait for
iteration i-k of its source. Two instances of one op never overlap. What does not fit this has a
name of its own: activity, choice, quantum, and the gates quorum, every, mailbox and batch.

The graph knows nothing about neural networks and nothing about simulated time. It is stored in
arrays: a :class:`GraphBuilder` takes whole blocks of ops (workers x layers, say) as NumPy arrays
and hands back their ids in the same shape, so that edges are written by slicing and broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import InputError, TooLargeError

Ids = NDArray[np.int64]
Refs = NDArray[np.int32]
"""Ids as a graph stores them."""
Floats = NDArray[np.float64]
Axis = tuple[str, Sequence[str] | None]

NONE = -1
"""No slot, no link, no group, no counter, no stream."""

MOST = 50_000_000
"""Ops, slots, links or probes of one graph; more would not fit into memory."""

LONGEST = 1e15
"""Largest time (s), and a thousandth of the largest size (bytes), that an op may have: beyond it
small times would vanish in rounding, and the clock would stand still."""

MOST_PRIORITY, MOST_HELD, MOST_UNITS = 32767, 127, 2**31 - 1
"""Largest priority, slots of one op, and units of one slot: as the engine stores them."""

CAUSES = ("network", "server", "straggler", "staleness_bound", "data", "cpu")
"""What one may wait for. Every op and slot names the cause it is to those who wait for it."""

Distribution = Literal["lognormal", "gamma"]


_most_ops: ContextVar[int] = ContextVar("most ops of a graph", default=MOST)


@contextmanager
def bounded(most: int) -> Iterator[None]:
    """Let builders refuse graphs of more than ``most`` ops as soon as they see them coming."""
    token = _most_ops.set(most)
    try:
        yield
    finally:
        _most_ops.reset(token)


class Block(msgspec.Struct, frozen=True):
    """Ids handed out together: ``label``, first id, shape, and the names along each axis."""

    label: str
    first: int
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """How many ids the block holds."""
        return math.prod(self.shape)

    def name(self, identity: int) -> str:
        """Readable name of one of the block's ids, such as ``push worker 3, fc``."""
        index = np.unravel_index(identity - self.first, self.shape) if self.shape else ()
        if not self.axes:
            where = ", ".join(str(int(position)) for position in index)
            return f"{self.label}[{where}]" if self.size > 1 else self.label
        parts = []
        for position, (axis, names) in zip(index, self.axes, strict=True):
            parts.append(names[int(position)] if names is not None else f"{axis} {position}")
        return f"{self.label} {', '.join(parts)}"


def _name(blocks: Sequence[Block], identity: int) -> str:
    return block_of(blocks, identity).name(identity)


def block_of(blocks: Sequence[Block], identity: int) -> Block:
    """The block that holds an id."""
    return next(b for b in blocks if b.first <= identity < b.first + b.size)


class Activity(msgspec.Struct, frozen=True, eq=False):
    """Iterations in which ops (ids, any shape) are active; in the others they pass on their tokens.

    Active is iteration i with i % every == phase, if the draw u of (seed, ``draw``, i) has
    u < probability and, where ``among`` is above 0, a choice among so many by that draw would be
    number ``chosen`` (ops,). ``draw`` is a stream for each op, NONE where nothing is drawn.
    """

    ops: Ids
    every: int
    phase: int
    probability: float
    draw: Ids
    chosen: Ids
    among: int

    @property
    def drawn(self) -> bool:
        """Whether chance decides."""
        return self.probability < 1.0 or self.among > 1


class Choice(msgspec.Struct, frozen=True, eq=False):
    """Ops (ops,) that take one of several routes and slots, by the draw of (seed, draw, i).

    ``routes``, ``slots`` (ops, alternatives); a slot may be NONE. Ops that share a stream choose
    the alternative of the same number. An op keeps its own route or slots where it is not given a
    choice of them.
    """

    ops: Ids
    draw: Ids
    routes: Ids | None
    slots: Ids | None
    latency_s: Floats


class Quantum(msgspec.Struct, frozen=True, eq=False):
    """Ops that go to the back of their slots' queues whenever they have moved ``bytes``."""

    ops: Ids
    bytes: float


class Quorum(msgspec.Struct, frozen=True, eq=False):
    """``op`` fires with the ``count``-th token for an iteration; later ones are absorbed.

    Who waits for the op takes all the tokens it finds, and is thereby in the iteration of the last.
    """

    op: int
    count: int


class Every(msgspec.Struct, frozen=True, eq=False):
    """``op`` fires once for every ``count`` tokens, whoever they come from."""

    op: int
    count: int


class Mailbox(msgspec.Struct, frozen=True, eq=False):
    """``op`` takes all tokens from ``sources`` that are there when it starts, and waits for none.

    Each lengthens it by ``per_token_s``.
    """

    op: int
    sources: Ids
    per_token_s: float


class Batch(msgspec.Struct, frozen=True, eq=False):
    """``op`` moves together what is ready at a tick, up to ``cap_bytes`` at a time.

    Ticks are the multiples of ``cycle_s``. ``sources``, ``targets``, ``bytes`` (items,): an item
    is ready with a token from its source, and its target gets a token once it has been moved.
    """

    op: int
    sources: Ids
    targets: Ids
    bytes: Floats
    cycle_s: float
    cap_bytes: float


Rule = Activity | Choice | Quantum | Quorum | Every | Mailbox | Batch


class OpGraph(msgspec.Struct, frozen=True, eq=False, kw_only=True, weakref=True):
    """A job's ops, edges and resources, in arrays (all read-only).

    Shapes: ``op_*`` (ops,); ``edge_*`` (edges,) in the order they were added; ``hold_start``
    (ops+1,) into ``hold_slots`` and ``hold_units``; ``route_*`` (routes,), ``route_start``
    (routes+1,) into ``route_links`` and ``route_units``; ``slot_*`` (slots,); ``link_*`` (links,);
    ``stream_*`` (streams,); ``probe_*`` (probes,); ``group_*`` (groups,). A *group* is whoever
    iterates: one worker, or ``group_count`` workers that are alike in everything.

    Attributes
    ----------
    op_seconds : time an op takes besides moving bytes (s); it holds its slots.
    op_bytes : bytes an op moves along its route after that; 0 for none.
    op_latency_s : delay between an op's end, which frees its slots, and its successors' start.
    op_stream : stream of the random factor of ``op_seconds`` and ``op_bytes``.
    op_priority : who of those waiting for a slot goes first: the lowest, then the first to come.
    op_cause : index into CAUSES.
    op_stagger_s : the first instance is held back by a random part of this (s); the parts of the
        groups are spread evenly over [0, 1).
    hold_units : how much of the slot's capacity the op takes.
    route_units : how much of the link's capacity one unit of rate takes.
    route_cap_bytes_per_s, route_weight : limit of one transfer's rate; its part in sharing.
    stream_cv, stream_kind : coefficient of variation and distribution (index into KINDS).
    probe_open, probe_close : ops; the probe runs from iteration i-lag of the open op (its end, or
        when it became ready, as ``probe_at_ready`` says) to the end of iteration i of the close op.
    probe_counter : index of the counter that the close op raises, or NONE; the rise of the
        counter while the probe runs is a staleness.
    counter_ops, counter_ids : ops and the counters that rise as they end; a counter rises once for
        ``counter_every`` of its ops.
    group_device : slot whose idle time is the group's idleness.
    group_mark : op that ends the group's iteration.
    """

    op_seconds: Floats
    op_bytes: Floats
    op_latency_s: Floats
    op_route: Refs
    op_stream: Refs
    op_priority: Refs
    op_group: Refs
    op_cause: NDArray[np.int8]
    op_stagger_s: Floats
    hold_start: Refs
    hold_slots: Refs
    hold_units: Ids
    route_start: Refs
    route_links: Refs
    route_units: Floats
    route_cap_bytes_per_s: Floats
    route_weight: Floats
    edge_source: Refs
    edge_target: Refs
    edge_lag: Refs
    slot_capacity: Ids
    slot_place: Ids
    link_capacity_bytes_per_s: Floats
    link_place: Ids
    stream_cv: Floats
    stream_kind: Refs
    probe_open: Refs
    probe_close: Refs
    probe_at_ready: NDArray[np.bool_]
    probe_lag: Refs
    probe_counter: Refs
    probe_group: Refs
    counter_ops: Refs
    counter_ids: Refs
    counter_every: Ids
    group_device: Ids
    group_mark: Ids
    group_count: Ids
    rules: tuple[Rule, ...]
    ops: tuple[Block, ...]
    slots: tuple[Block, ...]
    links: tuple[Block, ...]
    probes: tuple[Block, ...]

    @property
    def n_ops(self) -> int:
        """How many ops one iteration has."""
        return len(self.op_seconds)

    @property
    def n_groups(self) -> int:
        """How many groups (workers) iterate."""
        return len(self.group_mark)

    @property
    def random(self) -> bool:
        """Whether the seed matters."""
        return self.staggered or self.noisy

    @property
    def noisy(self) -> bool:
        """Whether chance decides anything after the start."""
        return (
            bool(np.any(self.stream_cv > 0.0))
            or any(isinstance(rule, Choice) for rule in self.rules)
            or any(isinstance(r, Activity) and r.drawn for r in self.rules)
        )

    @property
    def staggered(self) -> bool:
        """Whether groups start at random times."""
        return bool(np.any(self.op_stagger_s > 0.0))

    def op_name(self, op: int) -> str:
        """Readable name of an op."""
        return _name(self.ops, op)

    def slot_name(self, slot: int) -> str:
        """Readable name of a slot."""
        return _name(self.slots, slot)

    def link_name(self, link: int) -> str:
        """Readable name of a link."""
        return _name(self.links, link)

    def path(self, op: int) -> Refs:
        """The links an op's bytes take."""
        route = self.op_route[op]
        if route == NONE:
            return self.route_links[:0]
        return self.route_links[self.route_start[route] : self.route_start[route + 1]]

    def path_units(self, op: int) -> Floats:
        """How much of each of these links' capacity a unit of the op's rate takes."""
        route = self.op_route[op]
        if route == NONE:
            return self.route_units[:0]
        return self.route_units[self.route_start[route] : self.route_start[route + 1]]

    def held(self, op: int) -> Refs:
        """The slots an op holds."""
        return self.hold_slots[self.hold_start[op] : self.hold_start[op + 1]]

    def rate_cap_bytes_per_s(self, op: int) -> float:
        """The most an op's transfer may get, however empty its links are."""
        route = self.op_route[op]
        return math.inf if route == NONE else float(self.route_cap_bytes_per_s[route])

    def bytes_by_link(self) -> Floats:
        """Bytes over each link in one iteration of every op, shape (links,).

        Of ops that are active in some iterations, or choose a route, the mean.
        """
        moved = self.op_bytes.copy()
        routes = np.zeros(len(self.route_weight))
        for rule in self.rules:
            if isinstance(rule, Activity):
                moved[rule.ops] *= rule.probability / (rule.every * max(rule.among, 1))
        for rule in self.rules:
            if isinstance(rule, Choice) and rule.routes is not None:
                taken = rule.routes != NONE
                each = (moved[rule.ops] / rule.routes.shape[1])[:, None] * taken
                np.add.at(routes, rule.routes[taken], each[taken])
                moved[rule.ops] = 0.0
        used = self.op_route != NONE
        np.add.at(routes, self.op_route[used], moved[used])
        total = np.zeros(len(self.link_capacity_bytes_per_s))
        np.add.at(
            total, self.route_links, np.repeat(routes, np.diff(self.route_start)) * self.route_units
        )
        return total


KINDS: tuple[Distribution, ...] = ("lognormal", "gamma")


class GraphBuilder:
    """Collects blocks of ops, edges and resources; :meth:`build` checks and freezes them."""

    def __init__(self) -> None:
        self._columns: dict[str, list[NDArray[Any]]] = {}
        self._blocks: dict[str, list[Block]] = {"op": [], "slot": [], "link": [], "probe": []}
        self._count = dict.fromkeys(("op", "slot", "link", "probe", "counter", "stream"), 0)
        self._routes = 0
        self._latency = np.zeros(0)
        self._rules: list[Rule] = []

    def slots(
        self,
        label: str,
        shape: tuple[int, ...],
        *,
        capacity: ArrayLike = 1,
        place: ArrayLike = NONE,
        axes: tuple[Axis, ...] = (),
    ) -> Ids:
        """Add serial resources of ``capacity`` units, such as threads, or bytes of credit.

        Waiting ops are served by priority, first come first served within one priority, and lower
        id first among those that come together. Nobody overtakes: an op that needs more units
        than are free holds up those behind it.
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
        """Add links, shared max-min fairly by the transfers on them (bytes/s, one direction).

        A node's processor is a link as well: its capacity is in cores, the work of its ops in
        core-seconds, and the rate cap of an op is the threads it has.
        """
        capacity = np.atleast_1d(np.asarray(capacity_bytes_per_s, np.float64))
        ids = self._new("link", label, capacity.shape, axes)
        self._add("link_capacity_bytes_per_s", capacity.ravel())
        self._add("link_place", np.broadcast_to(np.asarray(place, np.int64), ids.shape).ravel())
        latency = np.broadcast_to(np.asarray(latency_s, np.float64), ids.shape).ravel()
        self._latency = np.concatenate([self._latency, latency])
        return ids

    def streams(
        self, shape: tuple[int, ...], *, cv: float = 0.0, kind: Distribution = "lognormal"
    ) -> Ids:
        """Add streams of random numbers, one for each iteration, independent of each other.

        As ``noise`` of an op a stream gives factors of mean 1 and coefficient of variation ``cv``
        for its seconds and bytes; ops that share a stream share the factor of an iteration. As
        ``draw`` it decides on activity and choice.
        """
        first = self._count["stream"]
        size = math.prod(shape)
        self._count["stream"] = first + size
        self._add("stream_cv", np.full(size, cv))
        self._add("stream_kind", np.full(size, KINDS.index(kind), np.int32))
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
        rate_cap_bytes_per_s: ArrayLike = math.inf,
        weight: ArrayLike = 1.0,
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
        the path, filled up with NONE; ``path_units`` broadcasts against it and says how much of
        each link a unit of rate takes. ``slots`` has one more axis as well, for ops that hold
        several slots; ``units`` broadcasts against it. An op with bytes but neither link nor rate
        cap moves them in no time. The latencies of the links on the path add to ``latency_s``.
        """
        ids = self._new("op", label, shape, axes)

        def column(name: str, value: ArrayLike, kind: Any) -> None:
            self._add(name, np.broadcast_to(np.asarray(value, kind), shape).ravel())

        route, path_latency_s = self._route(
            label, shape, path, path_units, rate_cap_bytes_per_s, weight
        )
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
        several = np.asarray(units) if slots is not None else np.asarray(units)[..., None]
        self._add("hold_count", used.sum(axis=1, dtype=np.int32) if width > 1 else used[:, 0])
        self._add("hold_slots", held[used])
        self._add(
            "hold_units",
            np.broadcast_to(several, (*shape, width)).reshape(ids.size, width)[used],
        )
        return ids

    def _route(
        self,
        label: str,
        shape: tuple[int, ...],
        path: ArrayLike | None,
        units: ArrayLike,
        cap: ArrayLike,
        weight: ArrayLike,
    ) -> tuple[Ids, Floats]:
        """Ids of the routes, one for each different path, cap and weight, and their latency (s).

        Both broadcast against ``shape``.
        """
        caps, weights = np.asarray(cap, np.float64), np.asarray(weight, np.float64)
        if path is None and not np.isfinite(caps).any():
            return np.asarray(NONE), np.zeros(())
        links = np.asarray(NONE if path is None else path, np.int64)
        links = links.reshape(1) if links.ndim == 0 else links
        width = links.shape[-1]
        parts = np.broadcast_shapes(links.shape[:-1], caps.shape, weights.shape)
        parts = np.broadcast_shapes(parts, np.shape(units)[:-1])
        links = np.broadcast_to(links, (*parts, width)).reshape(-1, width)
        amounts = np.broadcast_to(np.asarray(units, np.float64), (*parts, width)).reshape(-1, width)
        caps = np.broadcast_to(caps, parts).ravel()
        weights = np.broadcast_to(weights, parts).ravel()
        ordered = np.sort(links, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NONE)).any():
            raise InputError(f"{label!r}: a path takes the same link twice")
        for name, values in (("rate cap", caps), ("weight", weights), ("path units", amounts)):
            if not (values > 0.0).all():
                raise InputError(f"{label!r}: {name} must be positive")
        kinds, first = _alike([*links.T, *amounts.T, caps, weights])
        links, amounts = links[first], amounts[first]
        used = links != NONE
        self._add("route_length", used.sum(axis=1))
        self._add("route_links", links[used])
        self._add("route_units", amounts[used])
        self._add("route_cap_bytes_per_s", caps[first])
        self._add("route_weight", weights[first])
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
        """Let the ops along the last axis follow each other."""
        self.edge(ops[..., :-1], ops[..., 1:])

    def stagger(self, ops: Ids, within_s: ArrayLike) -> None:
        """Hold back the first instance of each op by a random part of ``within_s`` seconds."""
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
        """Let ``ops`` work every ``every``-th iteration only, or by chance.

        In other iterations they take no time and no slot, raise no counter, put nothing into a
        mailbox, and pass on their other tokens. By chance means with a probability and, with
        ``among``, where an op that chooses among so many by the same stream takes alternative
        ``chosen``. Ops that are active together share a stream; ``draw`` and ``chosen`` broadcast
        against ``ops``.

        Raises
        ------
        InputError : a probability outside 0 to 1, or nothing to draw from where chance decides.
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
    ) -> None:
        """Let each of ``ops`` (ops,) take a path and a slot by chance, afresh in each iteration.

        ``paths`` (ops, alternatives, links), ``slots`` (ops, alternatives) and ``latency_s``
        broadcast. What is given replaces what the op had. Ops that share a stream take the
        alternative of the same number.
        """
        flat = ops.ravel()
        several = np.asarray(NONE if paths is None else paths, np.int64)
        held = np.asarray(NONE if slots is None else slots, np.int64)
        count = max(
            several.shape[-2] if several.ndim > 1 else 1, held.shape[-1] if held.ndim else 1
        )
        shape = (flat.size, count)
        route, path_latency_s = self._route("choice", shape, several, 1.0, math.inf, 1.0)
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
        """Send ``ops`` in pieces: after each, the op goes to the back of its slots' queues.

        Several messages on one connection then take turns. As the quantum shrinks they share it
        equally; without any slot each of them would be a transfer of its own.
        """
        if not bytes > 0.0:
            raise InputError(f"a quantum must be positive, got {bytes:g}")
        self._rules.append(Quantum(ops.ravel(), bytes))

    def quorum(self, op: int, count: int) -> None:
        """Let ``op`` fire with the ``count``-th token of an iteration, for backup workers."""
        self._rules.append(Quorum(int(op), _at_least_one("quorum", count)))

    def every(self, op: int, count: int) -> None:
        """Let ``op`` fire once per ``count`` tokens from any source."""
        self._rules.append(Every(int(op), _at_least_one("every", count)))

    def mailbox(self, op: int, sources: ArrayLike, per_token_s: float = 0.0) -> None:
        """Let ``op`` take whatever ``sources`` have sent by the time it starts (gossip)."""
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
        """Let ``op`` carry items together, as tensor fusion does; see :class:`Batch`."""
        sizes = np.broadcast_to(np.asarray(bytes, np.float64), sources.shape).ravel()
        if not cycle_s > 0.0:
            raise InputError(f"a cycle must be positive, got {cycle_s:g}")
        self.edge(sources, int(op))
        self.edge(int(op), targets)
        self._rules.append(
            Batch(int(op), sources.ravel(), targets.ravel(), sizes, cycle_s, cap_bytes)
        )

    def counters(self, ops: Ids, *, every: int = 1) -> Ids:
        """Add a counter for each index along the last axis, raised as any of its ops ends.

        ``ops`` has shape (..., counters); returns the counter ids, shape (counters,). With
        ``every`` it takes so many ends for a counter to rise by one, as where gradients of several
        workers make one update (n-softsync).
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

        When one op both closes and opens, or raises the counter, the order is: close, raise, open.
        """
        arrays = np.broadcast_arrays(opens, closes, counter, group)
        self._new("probe", label, arrays[0].shape, ())
        for name, array in zip(
            ("probe_open", "probe_close", "probe_counter", "probe_group"), arrays, strict=True
        ):
            self._add(name, array.ravel())
        self._add("probe_lag", np.full(arrays[0].size, lag, np.int32))
        self._add("probe_at_ready", np.full(arrays[0].size, at_ready, np.bool_))

    def build(self, *, device: Ids, mark: Ids, count: ArrayLike = 1) -> OpGraph:
        """Check and freeze the graph.

        Parameters
        ----------
        device : (groups,) the slot whose idle time is each group's idleness.
        mark : (groups,) the op that ends each group's iteration, the last on its device.
        count : (groups,) how many workers each group stands for.

        Raises
        ------
        InputError : an op with negative or non-finite work, a negative lag, no capacity.
        """
        stagger = np.zeros(self._count["op"])
        stagger[self._take("stagger_ops", np.int64)] = self._take("stagger_s", np.float64)
        columns: dict[str, Any] = {
            name: self._take(name, kind) for kind, names in _COLUMNS.items() for name in names
        }
        marks = np.asarray(mark, np.int64).ravel()
        graph = OpGraph(
            **columns,
            op_stagger_s=stagger,
            hold_start=_starts(self._take("hold_count", np.int32)),
            route_start=_starts(self._take("route_length", np.int32)),
            group_device=np.asarray(device, np.int64).ravel(),
            group_mark=marks,
            group_count=np.broadcast_to(np.asarray(count, np.int64), marks.shape),
            rules=tuple(self._rules),
            ops=tuple(self._blocks["op"]),
            slots=tuple(self._blocks["slot"]),
            links=tuple(self._blocks["link"]),
            probes=tuple(self._blocks["probe"]),
        )
        self._columns.clear()
        _check(graph)
        for value in msgspec.structs.astuple(graph):
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
        return graph

    def _new(self, kind: str, label: str, shape: tuple[int, ...], axes: tuple[Axis, ...]) -> Ids:
        first = self._count[kind]
        size = math.prod(shape)
        most = min(MOST, _most_ops.get()) if kind == "op" else MOST
        if first + size > most:
            raise TooLargeError(
                f"the job is too large to simulate: {first + size} {kind}s with {label!r}, "
                f"at most {most}"
            )
        self._count[kind] = first + size
        self._blocks[kind].append(Block(label, first, shape, axes))
        return np.arange(first, first + size, dtype=np.int64).reshape(shape)

    def _add(self, column: str, values: NDArray[Any]) -> None:
        self._columns.setdefault(column, []).append(values)

    def _take(self, column: str, kind: Any) -> NDArray[Any]:
        parts = self._columns.pop(column, None)
        return np.concatenate(parts, dtype=kind, casting="unsafe") if parts else np.zeros(0, kind)


_COLUMNS: dict[Any, tuple[str, ...]] = {
    np.float64: (
        "op_seconds",
        "op_bytes",
        "op_latency_s",
        "route_units",
        "route_cap_bytes_per_s",
        "route_weight",
        "link_capacity_bytes_per_s",
        "stream_cv",
    ),
    np.int64: ("hold_units", "slot_capacity", "slot_place", "link_place", "counter_every"),
    np.int32: (
        "op_route",
        "op_stream",
        "op_priority",
        "op_group",
        "hold_slots",
        "route_links",
        "edge_source",
        "edge_target",
        "edge_lag",
        "stream_kind",
        "probe_open",
        "probe_close",
        "probe_lag",
        "probe_counter",
        "probe_group",
        "counter_ops",
        "counter_ids",
    ),
    np.int8: ("op_cause",),
    np.bool_: ("probe_at_ready",),
}


def _starts(counts: NDArray[Any]) -> Refs:
    starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts


def _alike(columns: Sequence[NDArray[Any]]) -> tuple[Ids, Ids]:
    """Number of the kind of each row, (rows,), and the first row of each kind, (kinds,)."""
    kind = np.zeros(len(columns[0]), np.int64)
    for values in columns:
        if len(values) and (values != values[0]).any():
            codes, _ = _numbered(values)
            kind, _ = _numbered(kind * (codes.max() + 1) + codes)
    return _numbered(kind)


def _numbered(values: NDArray[Any]) -> tuple[Ids, Ids]:
    """Rank of each value among the different ones, and where each of those comes first.

    As np.unique has it, which imports much that is not needed here.
    """
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    new = np.ones(len(values), np.bool_)
    new[1:] = ranked[1:] != ranked[:-1]
    rank = np.empty(len(values), np.int64)
    rank[order] = np.cumsum(new) - 1
    return rank, order[new]


def _at_least_one(what: str, count: int) -> int:
    if count < 1:
        raise InputError(f"{what}: count must be at least 1, got {count}")
    return count


def _check(graph: OpGraph) -> None:
    """Refuse what cannot be simulated; say which op or resource, and the value."""
    for column, label, most in (
        ("op_seconds", "seconds", LONGEST),
        ("op_bytes", "bytes", 1000 * LONGEST),
        ("op_latency_s", "latency", LONGEST),
        ("op_stagger_s", "stagger", LONGEST),
    ):
        values = getattr(graph, column)
        bad = ~((values >= 0.0) & (values <= most))
        if bad.any():
            op = int(np.argmax(bad))
            raise InputError(
                f"op {graph.op_name(op)!r}: {label} must be between 0 and {most:g}, "
                f"got {values[op]:g}"
            )
    bad = ~(np.isfinite(graph.link_capacity_bytes_per_s) & (graph.link_capacity_bytes_per_s > 0.0))
    if bad.any():
        link = int(np.argmax(bad))
        raise InputError(
            f"link {graph.link_name(link)!r}: capacity must be finite and positive, "
            f"got {graph.link_capacity_bytes_per_s[link]:g}"
        )
    if (graph.slot_capacity < 1).any():
        slot = int(np.argmin(graph.slot_capacity))
        raise InputError(f"slot {graph.slot_name(slot)!r}: capacity must be at least 1")
    held = graph.slot_capacity[graph.hold_slots]
    wrong = (graph.hold_units < 1) | (graph.hold_units > held)
    if wrong.any():
        hold = int(np.argmax(wrong))
        op = int(np.searchsorted(graph.hold_start, hold, side="right")) - 1
        raise InputError(
            f"op {graph.op_name(op)!r}: needs {graph.hold_units[hold]} units of slot "
            f"{graph.slot_name(int(graph.hold_slots[hold]))!r}, which has {held[hold]}"
        )
    for what, values, most in (
        ("priority", np.abs(graph.op_priority.astype(np.int64)), MOST_PRIORITY),
        ("number of slots", np.diff(graph.hold_start), MOST_HELD),
    ):
        if len(values) and values.max() > most:
            op = int(np.argmax(values))
            raise InputError(f"op {graph.op_name(op)!r}: {what} must be within {most}")
    if (graph.slot_capacity > MOST_UNITS).any():
        slot = int(np.argmax(graph.slot_capacity))
        raise InputError(f"slot {graph.slot_name(slot)!r}: capacity must be at most {MOST_UNITS}")
    if ((graph.op_stagger_s > 0.0) & (graph.op_group == NONE)).any():
        op = int(np.argmax((graph.op_stagger_s > 0.0) & (graph.op_group == NONE)))
        raise InputError(f"op {graph.op_name(op)!r}: starts staggered, so it needs a group")
    ruled = [rule.ops for rule in graph.rules if isinstance(rule, Activity)]
    if ruled:
        ops, count = np.unique(np.concatenate(ruled), return_counts=True)
        if count.max() > 1:
            op = int(ops[np.argmax(count)])
            raise InputError(f"op {graph.op_name(op)!r}: its activity is given twice")
    if (graph.edge_lag < 0).any():
        edge = int(np.argmin(graph.edge_lag))
        raise InputError(f"edge from {graph.op_name(int(graph.edge_source[edge]))!r}: negative lag")
    if not (np.isfinite(graph.stream_cv) & (graph.stream_cv >= 0.0)).all():
        raise InputError("a coefficient of variation must be finite and not negative")
