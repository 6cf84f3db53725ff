"""The one idea: a training job as a small cyclic graph of operations over contended resources.

An **op** runs once per iteration. It may occupy one **slot** (a unit of a serial resource: a
device, a connection, an update thread), and it either takes seconds or moves bytes along a
**path** of **links** that it shares with other transfers. An **edge** with lag k makes iteration i
of its target wait for iteration i-k of its source. Two instances of one op never overlap.

The graph knows nothing about neural networks and nothing about simulated time. It is stored in
arrays: a :class:`GraphBuilder` takes whole blocks of ops (workers x layers, say) as NumPy arrays
and hands back their ids in the same shape, so that edges are written by slicing and broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import InputError

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Axis = tuple[str, Sequence[str] | None]

NONE = -1
"""No slot, no link, no group, no counter."""

MOST = 50_000_000
"""Ops, slots, links or probes of one graph; more would not fit into memory."""

LONGEST = 1e15
"""Largest time (s), and a thousandth of the largest size (bytes), that an op may have: beyond it
small times would vanish in rounding, and the clock would stand still."""

CAUSES = ("network", "server", "straggler", "staleness_bound", "data", "cpu")
"""What one may wait for. Every op and slot names the cause it is to those who wait for it."""

DelayDistribution = Literal["lognormal", "gamma"]


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


class OpGraph(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A job's ops, edges and resources, in arrays (all read-only).

    Shapes: ``op_*`` (ops,); ``edge_*`` (edges,) sorted by source; ``path_start`` (ops+1,) into
    ``path_links``; ``slot_*`` (slots,); ``link_*`` (links,); ``probe_*`` (probes,);
    ``group_*`` (groups,). A *group* is whoever iterates: one worker.

    Attributes
    ----------
    op_seconds : time an op takes besides moving bytes (s); it holds the slot.
    op_bytes : bytes an op moves along its path after that; 0 for none.
    op_latency_s : delay between an op's end, which frees its slot, and its successors' start.
    op_noise : whether the group's random factor of the iteration applies to ``op_seconds``.
    op_cause : index into CAUSES.
    op_stagger_s : the first instance is held back by a random part of this (s); the parts of the
        groups are spread evenly over [0, 1).
    probe_open, probe_close : ops; the probe runs from iteration i-lag of the open op (its end, or
        when it became ready, as ``probe_at_ready`` says) to the end of iteration i of the close op.
    probe_counter : index of the counter that the close op raises, or NONE; the rise of the
        counter while the probe runs is a staleness.
    group_device : slot whose idle time is the group's idleness.
    group_mark : op that ends the group's iteration.
    """

    op_seconds: Floats
    op_bytes: Floats
    op_latency_s: Floats
    op_rate_cap_bytes_per_s: Floats
    op_slot: Ids
    op_group: Ids
    op_cause: Ids
    op_noise: NDArray[np.bool_]
    op_stagger_s: Floats
    path_start: Ids
    path_links: Ids
    edge_source: Ids
    edge_target: Ids
    edge_lag: Ids
    slot_capacity: Ids
    slot_place: Ids
    link_capacity_bytes_per_s: Floats
    link_place: Ids
    probe_open: Ids
    probe_close: Ids
    probe_at_ready: NDArray[np.bool_]
    probe_lag: Ids
    probe_counter: Ids
    probe_group: Ids
    counter_ops: Ids
    counter_ids: Ids
    group_device: Ids
    group_mark: Ids
    noise_cv: float
    noise_kind: DelayDistribution
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
        return self.noise_cv > 0.0 or bool(np.any(self.op_stagger_s > 0.0))

    def op_name(self, op: int) -> str:
        """Readable name of an op."""
        return _name(self.ops, op)

    def slot_name(self, slot: int) -> str:
        """Readable name of a slot."""
        return _name(self.slots, slot)

    def link_name(self, link: int) -> str:
        """Readable name of a link."""
        return _name(self.links, link)

    def path(self, op: int) -> Ids:
        """The links an op's bytes take."""
        return self.path_links[self.path_start[op] : self.path_start[op + 1]]

    def bytes_by_link(self) -> Floats:
        """Bytes over each link in one iteration of every op, shape (links,)."""
        total = np.zeros(len(self.link_capacity_bytes_per_s))
        np.add.at(total, self.path_links, np.repeat(self.op_bytes, np.diff(self.path_start)))
        return total


class GraphBuilder:
    """Collects blocks of ops, edges and resources; :meth:`build` checks and freezes them."""

    def __init__(self) -> None:
        self._columns: dict[str, list[NDArray[Any]]] = {}
        self._blocks: dict[str, list[Block]] = {"op": [], "slot": [], "link": [], "probe": []}
        self._count = {"op": 0, "slot": 0, "link": 0, "probe": 0, "counter": 0}
        self._noise: tuple[float, DelayDistribution] = (0.0, "lognormal")

    def slots(
        self,
        label: str,
        shape: tuple[int, ...],
        *,
        capacity: int = 1,
        place: ArrayLike = NONE,
        axes: tuple[Axis, ...] = (),
    ) -> Ids:
        """Add serial resources that ``capacity`` ops hold at a time, first come first served."""
        ids = self._new("slot", label, shape, axes)
        self._add("slot_capacity", np.full(ids.size, capacity, np.int64))
        self._add("slot_place", np.broadcast_to(np.asarray(place, np.int64), shape).ravel())
        return ids

    def links(
        self,
        label: str,
        capacity_bytes_per_s: ArrayLike,
        *,
        place: ArrayLike = NONE,
        axes: tuple[Axis, ...] = (),
    ) -> Ids:
        """Add links, shared max-min fairly by the transfers on them (bytes/s, one direction)."""
        capacity = np.atleast_1d(np.asarray(capacity_bytes_per_s, np.float64))
        ids = self._new("link", label, capacity.shape, axes)
        self._add("link_capacity_bytes_per_s", capacity.ravel())
        self._add("link_place", np.broadcast_to(np.asarray(place, np.int64), ids.shape).ravel())
        return ids

    def ops(
        self,
        label: str,
        shape: tuple[int, ...],
        *,
        seconds: ArrayLike = 0.0,
        bytes: ArrayLike = 0.0,
        path: ArrayLike | None = None,
        latency_s: ArrayLike = 0.0,
        rate_cap_bytes_per_s: ArrayLike = math.inf,
        slot: ArrayLike = NONE,
        group: ArrayLike = NONE,
        cause: str = "network",
        noise: bool = False,
        axes: tuple[Axis, ...] = (),
    ) -> Ids:
        """Add a block of ops and return their ids, in ``shape``.

        Every argument broadcasts against ``shape``; ``path`` has one more axis, over the links of
        the path, filled up with NONE. An op with bytes but no link moves them in no time.
        """
        ids = self._new("op", label, shape, axes)

        def column(name: str, value: ArrayLike, kind: Any) -> NDArray[Any]:
            flat = np.broadcast_to(np.asarray(value, kind), shape).ravel()
            self._add(name, flat)
            return flat

        column("op_seconds", seconds, np.float64)
        column("op_latency_s", latency_s, np.float64)
        column("op_rate_cap_bytes_per_s", rate_cap_bytes_per_s, np.float64)
        column("op_slot", slot, np.int64)
        column("op_group", group, np.int64)
        column("op_cause", CAUSES.index(cause), np.int64)
        column("op_noise", noise, np.bool_)
        column("op_stagger_s", 0.0, np.float64)
        column("op_bytes", bytes, np.float64)
        links = np.asarray(NONE if path is None else path, np.int64)
        links = np.broadcast_to(links, (*shape, links.shape[-1] if links.ndim else 1))
        links = np.sort(links.reshape(ids.size, links.shape[-1]), axis=1)
        twice = (links[:, 1:] == links[:, :-1]) & (links[:, 1:] != NONE)
        if twice.any():
            raise InputError(f"{label!r}: a path takes the same link twice")
        used = links != NONE
        self._add("path_length", used.sum(axis=1))
        self._add("path_links", links[used])
        return ids

    def edge(self, source: ArrayLike, target: ArrayLike, lag: int = 0) -> None:
        """Make iteration i of ``target`` wait for iteration i-lag of ``source`` (broadcast)."""
        sources, targets = np.broadcast_arrays(source, target)
        self._add("edge_source", sources.ravel())
        self._add("edge_target", targets.ravel())
        self._add("edge_lag", np.full(sources.size, lag, np.int64))

    def chain(self, ops: Ids) -> None:
        """Let the ops along the last axis follow each other."""
        self.edge(ops[..., :-1], ops[..., 1:])

    def stagger(self, ops: Ids, within_s: ArrayLike) -> None:
        """Hold back the first instance of each op by a random part of ``within_s`` seconds."""
        self._add("stagger_ops", ops.ravel())
        self._add("stagger_s", np.broadcast_to(np.asarray(within_s, np.float64), ops.shape).ravel())

    def noise(self, cv: float, kind: DelayDistribution) -> None:
        """Draw a factor of mean 1 and this coefficient of variation per group and iteration."""
        self._noise = (cv, kind)

    def counters(self, ops: Ids) -> Ids:
        """Add a counter for each index along the last axis, raised as any of its ops ends.

        ``ops`` has shape (..., counters); returns the counter ids, shape (counters,).
        """
        ids = self._count["counter"] + np.arange(ops.shape[-1])
        self._count["counter"] += ops.shape[-1]
        self._add("counter_ops", ops.ravel())
        self._add("counter_ids", np.broadcast_to(ids, ops.shape).ravel())
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
        self._add("probe_lag", np.full(arrays[0].size, lag, np.int64))
        self._add("probe_at_ready", np.full(arrays[0].size, at_ready, np.bool_))

    def build(self, *, device: Ids, mark: Ids) -> OpGraph:
        """Check and freeze the graph.

        Parameters
        ----------
        device : (groups,) the slot whose idle time is each group's idleness.
        mark : (groups,) the op that ends each group's iteration, the last on its device.

        Raises
        ------
        InputError : an op with negative or non-finite work, a negative lag, no capacity.
        """
        lengths = self._take("path_length", np.int64)
        sources = self._take("edge_source", np.int64)
        order = np.argsort(sources, kind="stable")
        stagger = self._take("op_stagger_s", np.float64)
        stagger = stagger.copy()
        stagger[self._take("stagger_ops", np.int64)] = self._take("stagger_s", np.float64)
        integers = (
            "op_slot",
            "op_group",
            "op_cause",
            "path_links",
            "slot_capacity",
            "slot_place",
            "link_place",
            "probe_open",
            "probe_close",
            "probe_lag",
            "probe_counter",
            "probe_group",
            "counter_ops",
            "counter_ids",
        )
        floats = (
            "op_seconds",
            "op_bytes",
            "op_latency_s",
            "op_rate_cap_bytes_per_s",
            "link_capacity_bytes_per_s",
        )
        columns: dict[str, Any] = {name: self._take(name, np.int64) for name in integers}
        columns |= {name: self._take(name, np.float64) for name in floats}
        columns |= {name: self._take(name, np.bool_) for name in ("op_noise", "probe_at_ready")}
        graph = OpGraph(
            **columns,
            op_stagger_s=stagger,
            path_start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            edge_source=sources[order],
            edge_target=self._take("edge_target", np.int64)[order],
            edge_lag=self._take("edge_lag", np.int64)[order],
            group_device=np.asarray(device, np.int64).ravel(),
            group_mark=np.asarray(mark, np.int64).ravel(),
            noise_cv=self._noise[0],
            noise_kind=self._noise[1],
            ops=tuple(self._blocks["op"]),
            slots=tuple(self._blocks["slot"]),
            links=tuple(self._blocks["link"]),
            probes=tuple(self._blocks["probe"]),
        )
        _check(graph)
        for value in msgspec.structs.astuple(graph):
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
        return graph

    def _new(self, kind: str, label: str, shape: tuple[int, ...], axes: tuple[Axis, ...]) -> Ids:
        first = self._count[kind]
        size = math.prod(shape)
        if first + size > MOST:
            raise InputError(
                f"the job is too large to simulate: {first + size} {kind}s with {label!r}, "
                f"at most {MOST}"
            )
        self._count[kind] = first + size
        self._blocks[kind].append(Block(label, first, shape, axes))
        return np.arange(first, first + size, dtype=np.int64).reshape(shape)

    def _add(self, column: str, values: NDArray[Any]) -> None:
        self._columns.setdefault(column, []).append(values)

    def _take(self, column: str, kind: Any) -> NDArray[Any]:
        parts = self._columns.get(column)
        return np.concatenate(parts).astype(kind) if parts else np.zeros(0, kind)


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
    bad = ~(graph.op_rate_cap_bytes_per_s > 0.0)
    if bad.any():
        raise InputError(f"op {graph.op_name(int(np.argmax(bad)))!r}: rate cap must be positive")
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
    if (graph.edge_lag < 0).any():
        edge = int(np.argmin(graph.edge_lag))
        raise InputError(f"edge from {graph.op_name(int(graph.edge_source[edge]))!r}: negative lag")
