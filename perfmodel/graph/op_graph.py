"""A training job as a small cyclic graph of operations that contend for resources.

An **op** runs once per iteration. It may hold **slots** (units of serial resources: a device, a
connection, a server's threads), it takes seconds, and it moves bytes along a **path** of **links**
that it shares with other transfers. An **edge** with lag k makes iteration i of its target wait for
iteration i-k of its source. Two instances of one op never overlap. Rules add further behaviour:
activity, choice, quantum, and the gates quorum, every, mailbox and batch.

The graph knows nothing about neural networks or simulated time. It is stored in arrays: a
:class:`GraphBuilder` takes whole blocks of ops (say workers x layers) as NumPy arrays and returns
their ids in the same shape, so that slicing and broadcasting define the edges.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import NONE, Floats, Ids, Refs
from perfmodel.graph.rules import Activity, Batch, Choice, Every, Mailbox, Quantum, Quorum, Rule

Axis = tuple[str, Sequence[str] | None]

MOST = 50_000_000
"""Maximum number of ops, slots, links or probes in a graph; more would not fit in memory."""

LONGEST = 1e15
"""Largest time (s) of an op, and a thousandth of its largest size (bytes); beyond it, rounding
would swallow small times, and the clock would stand still."""

MOST_PRIORITY, MOST_HELD, MOST_UNITS = 32767, 127, 2**31 - 1
"""Largest priority, number of slots held by an op, and units of a slot that the engine can
store."""

MANY_GROUPS = 32
"""Groups with staggered starts from which a simulation starts as its steady state goes on, and ends
after a few rounds: a round has as many iterations as there are groups."""

LONGEST_SPAN = 4096
"""Maximum number of rounds in a span; the timing of rarer events is treated as random."""

AS_BUSY = 1.1
"""Ratio of utilisations up to which links count as about as busy."""

NO_LINKS = np.zeros(0, np.int32)

CAUSES = (
    *("network", "server", "straggler", "staleness_bound", "data", "cpu", "pipeline"),
    "expert_imbalance",
)
"""Causes of waits. Every op and slot has a cause; waits for it are charged to this cause."""

SPENT = ADDING, COPYING, HOST, QUEUED = (
    "adding in reductions",
    "copying around collectives",
    "work of the host around collectives",
    "queueing of requests",
)
"""What fixed times of ops are spent on that are not latency."""

Fractions = tuple[tuple[str, float], ...]

LATENCY: Fractions = (("", 1.0),)
"""What the fixed time of most ops is spent on; see :class:`OpUse`."""

Distribution = Literal["lognormal", "gamma"]

KINDS: tuple[Distribution, ...] = ("lognormal", "gamma")

TYPES: dict[str, type[np.generic]] = {
    "Floats": np.float64,
    "Ids": np.int64,
    "Refs": np.int32,
    "NDArray[np.int8]": np.int8,
    "NDArray[np.bool_]": np.bool_,
}
"""Types of a graph's columns, by their annotations."""


class Block(msgspec.Struct, frozen=True):
    """Ids assigned together: ``label``, first id, shape, and the names along each axis; ``part``
    names the part of a joined graph."""

    label: str
    first: int
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    part: str = ""

    @property
    def size(self) -> int:
        """Number of ids in the block."""
        return math.prod(self.shape)

    def name(self, identity: int) -> str:
        """Return the readable name of one of the block's ids, such as ``push worker 3, fc``."""
        if self.axes or self.part:
            return f"{self.label} {self.member(identity)}"
        return f"{self.label}{self.member(identity)}" if self.size > 1 else self.label

    def names(self, ids: Iterable[int]) -> list[list[str]]:
        """Return the names of what each id represents: one, or all along a folded axis."""
        along = self.axes[0][1] if len(self.axes) == 1 else None
        if self.shape == (1,) and along is not None and len(along) > 1:
            return [[f"{self.label} {name}" for name in along] for _ in ids]
        return [[self.name(identity)] for identity in ids]

    def member(self, identity: int) -> str:
        """Return what distinguishes an id from others of the block, such as ``worker 3, fc``."""
        if self.part:
            inner = msgspec.structs.replace(self, part="")
            return f"{self.part}, {inner.member(identity)}" if self.axes else self.part
        index = np.unravel_index(identity - self.first, self.shape) if self.shape else ()
        if not self.axes:
            return f"[{', '.join(str(int(position)) for position in index)}]"
        return ", ".join(
            names[int(position)] if names is not None else f"{axis} {position}"
            for position, (axis, names) in zip(index, self.axes, strict=True)
        )


def _name(blocks: Sequence[Block], identity: int) -> str:
    return block_of(blocks, identity).name(identity)


def block_of(blocks: Sequence[Block], identity: int) -> Block:
    """Return the block that contains an id; blocks are sorted by id."""
    return blocks[bisect.bisect_right(blocks, identity, key=lambda block: block.first) - 1]


def _fractions(parts: dict[str, float], fixed_s: float) -> Fractions:
    """Return ``parts`` (s) as fractions of ``fixed_s``, and the rest as latency, largest first."""
    rest_s = max(fixed_s - sum(parts.values()), 0.0)
    ranked = sorted({**parts, "": rest_s}.items(), key=lambda item: -item[1])
    return tuple((name, part_s / fixed_s) for name, part_s in ranked if part_s > 0.0)


class Logged(msgspec.Struct, frozen=True, eq=False):
    """Ops (any shape) whose instances a simulation logs on request: either when they are ready, or
    when their tokens arrive."""

    label: str
    ops: Ids
    at_ready: bool


class OpUse(msgspec.Struct, frozen=True):
    """The resource that an op takes time on.

    ``operation`` is the label of the op's block, ``family`` the label of the resource's block, and
    ``resource`` the resource's name. The latter two are "" if the op only waits for its latency;
    ``resource`` is "" also if the op draws one of the family for each iteration.
    ``fixed_s`` is the part of its time that does not depend on the resource, and ``fixed_for`` what
    it is spent on, of SPENT or "" for latency, in fractions, largest first. ``part`` is the part of
    a joined graph that the resource is in.
    """

    operation: str
    family: str
    resource: str
    fixed_s: float
    fixed_for: Fractions
    part: str = ""


class OpGraph(msgspec.Struct, frozen=True, eq=False, kw_only=True, weakref=True):
    """A job's ops, edges and resources, in arrays (all read-only).

    Shapes: ``op_*`` (ops,); ``edge_*`` (edges,) in the order they were added; ``hold_start``
    (ops+1,) into ``hold_slots`` and ``hold_units``; ``route_*`` (routes,), ``route_start``
    (routes+1,) into ``route_links`` and ``route_units``; ``slot_*`` (slots,); ``link_*`` (links,);
    ``stream_*`` (streams,); ``probe_*`` (probes,); ``group_*`` (groups,); ``spent_*`` (parts of
    times,). A *group* is one worker, or ``group_count`` identical workers.

    Attributes
    ----------
    op_seconds : time an op takes apart from moving bytes (s); it holds its slots meanwhile.
    op_bytes : bytes an op then moves along its route; 0 for none.
    op_latency_s : delay between an op's end, which frees its slots, and its successors' start.
    op_stream : stream of the random factor on ``op_seconds`` and ``op_bytes``.
    op_priority : order of service at a slot: lowest first, then first come first served.
    op_cause : index into CAUSES.
    op_stagger_s : the first instance is delayed by a random fraction of this (s); the fractions of
    the groups are spread evenly over [0, 1).
    hold_units : units of the slot's capacity that the op takes.
    route_units : units of the link's capacity that one unit of rate takes.
    route_cap_bytes_per_s, route_weight : rate limit of a transfer; its weight in fair sharing.
    route_burst_bytes : bytes that links which were idle let pass at once.
    route_queued_bytes : bytes of other transfers that a message without bytes waits for.
    stream_cv, stream_kind : coefficient of variation and distribution (index into KINDS and, behind
        these, ``tables``).
    stream_key : streams of joined graphs that have the same are one; NONE: of its own.
    probe_open, probe_close : ops; the probe runs from iteration i-lag of the open op (from its end,
        or from when it became ready if ``probe_at_ready``) to the end of iteration i of the close
        op.
    probe_counter : index of the counter that the close op raises, or NONE; the rise of the
        counter while the probe runs is a staleness.
    counter_ops, counter_ids : ops, and the counters that rise when they end; a counter rises once
        per ``counter_every`` of its ops.
    group_device : slot whose idle time is the group's idleness.
    group_mark : op that ends the group's iteration.
    spent_op, spent_on, spent_s : an op, and what (index into SPENT) takes how much of its seconds
        or, if it has none, of its latency (s).
    worker_group : the group of each worker, (workers,).
    tables : equally probable values of mean 1 of distributions without a name, (values,) each,
        ascending.
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
    route_burst_bytes: Floats
    route_queued_bytes: Floats
    edge_source: Refs
    edge_target: Refs
    edge_lag: Refs
    slot_capacity: Ids
    slot_place: Ids
    link_capacity_bytes_per_s: Floats
    link_place: Ids
    stream_cv: Floats
    stream_kind: Refs
    stream_key: Ids
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
    spent_op: Refs
    spent_on: Refs
    spent_s: Floats
    worker_group: Ids
    tables: tuple[Floats, ...]
    rules: tuple[Rule, ...]
    logged: tuple[Logged, ...]
    ops: tuple[Block, ...]
    slots: tuple[Block, ...]
    links: tuple[Block, ...]
    probes: tuple[Block, ...]

    @property
    def n_ops(self) -> int:
        """Number of ops in an iteration."""
        return len(self.op_seconds)

    @property
    def turns(self) -> Floats:
        """Turns that each op takes: one, unless it is a message that moves in pieces, (ops,)."""
        turns = np.ones(self.n_ops)
        for rule in self.rules:
            if isinstance(rule, Quantum):
                turns[rule.ops] = np.maximum(np.ceil(self.op_bytes[rule.ops] / rule.bytes), 1.0)
        return turns

    @property
    def n_turns(self) -> int:
        """Turns of all ops in an iteration: what it takes to simulate one."""
        return int(self.turns.sum())

    @property
    def n_groups(self) -> int:
        """Number of groups (workers)."""
        return len(self.group_mark)

    @property
    def random(self) -> bool:
        """Whether results depend on the seed."""
        return self.staggered or self.noisy

    @property
    def noisy(self) -> bool:
        """Whether anything is random after the start."""
        return (
            bool(np.any(self.stream_cv > 0.0))
            or any(isinstance(rule, Choice) for rule in self.rules)
            or any(isinstance(r, Activity) and r.drawn for r in self.rules)
        )

    @property
    def staggered(self) -> bool:
        """Whether groups start at random times."""
        return bool(np.any(self.op_stagger_s > 0.0))

    @property
    def span(self) -> int:
        """Least common multiple of the periods of ops that are not active in every iteration."""
        every = {r.every for r in self.rules if isinstance(r, Activity)}
        gates = [r for r in self.rules if isinstance(r, Every)]
        if gates:
            sources = np.bincount(self.edge_target, minlength=self.n_ops)
            every |= {r.count // math.gcd(r.count, int(sources[r.op])) for r in gates}
        return min(math.lcm(*every), LONGEST_SPAN)

    @property
    def activity(self) -> Floats:
        """Part of the iterations in which each op is active, (ops,)."""
        often = np.ones(self.n_ops)
        for rule in self.rules:
            if isinstance(rule, Activity):
                often[rule.ops.ravel()] *= rule.probability / rule.every / max(rule.among, 1)
        return often

    def edges_into(self, *gates: type[Quorum | Every | Mailbox | Batch]) -> NDArray[np.bool_]:
        """Return the edges into gates of these kinds, (edges,)."""
        rules = [rule for rule in self.rules if isinstance(rule, gates)]
        gated = np.zeros(self.n_ops, np.bool_)
        gated[[rule.op for rule in rules if not isinstance(rule, Mailbox)]] = True
        edges: NDArray[np.bool_] = gated[self.edge_target]
        mailboxes = [rule for rule in rules if isinstance(rule, Mailbox)]
        if mailboxes:
            into = np.argsort(self.edge_target, kind="stable")
            ends = np.searchsorted(self.edge_target[into], np.arange(self.n_ops + 1))
            for rule in mailboxes:
                some = into[ends[rule.op] : ends[rule.op + 1]]
                edges[some] |= np.isin(self.edge_source[some], rule.sources)
        return edges

    def op_name(self, op: int) -> str:
        """Return the readable name of an op."""
        return _name(self.ops, op)

    def slot_name(self, slot: int) -> str:
        """Return the readable name of a slot."""
        return _name(self.slots, slot)

    def link_name(self, link: int) -> str:
        """Return the readable name of a link."""
        return _name(self.links, link)

    def path(self, op: int) -> Refs:
        """Return the links that an op's bytes take."""
        route = self.op_route[op]
        if route == NONE:
            return self.route_links[:0]
        return self.route_links[self.route_start[route] : self.route_start[route + 1]]

    def held(self, op: int) -> Refs:
        """Return the slots that an op holds."""
        return self.hold_slots[self.hold_start[op] : self.hold_start[op + 1]]

    def uses(self, ops: Iterable[int], link_utilisation: Floats) -> dict[int, OpUse]:
        """Return the resource use of each op: the busiest link of its path, the first of those that
        are about as busy, else its first slot.

        Of an op that draws its path, it is the family whose links are busiest on average. Of the
        seconds of an op over no link, those are fixed that are spent on something of SPENT.
        """
        drawn = {
            int(op): (rule.routes[row], float(rule.latency_s[row].mean()))
            for rule in self.rules
            if isinstance(rule, Choice) and rule.routes is not None
            for row, op in enumerate(rule.ops)
        }
        blocks = np.array([block.first for block in self.ops])
        labels = [block.label for block in self.ops]
        busiest: dict[int, int] = {}  # by route
        named: dict[tuple[bool, int], tuple[str, str, str]] = {}
        ids = np.fromiter(ops, np.int64)
        rows = zip(
            ids.tolist(),
            (np.searchsorted(blocks, ids, "right") - 1).tolist(),
            self.op_route[ids].tolist(),
            (self.op_bytes[ids] > 0.0).tolist(),
            self.op_seconds[ids].tolist(),
            self.op_latency_s[ids].tolist(),
            self.hold_start[ids].tolist(),
            self.hold_start[ids + 1].tolist(),
            strict=True,
        )
        uses, spent = {}, self._spent(ids)
        for op, block, route, moves, seconds, latency_s, first, end in rows:
            if moves and op in drawn:
                routes, drawn_s = drawn[op]
                met = self._busiest_block(routes, link_utilisation)
                if met is not None:
                    fixed_s = seconds + drawn_s
                    uses[op] = OpUse(labels[block], met.label, "", fixed_s, LATENCY, met.part)
                    continue
            if moves and route != NONE and route not in busiest:
                busiest[route] = self._busiest_link(route, link_utilisation)
            link = busiest[route] if moves and route != NONE else NONE
            over_link, parts = link != NONE, spent.get(op, {})
            fixed_s = latency_s + (seconds if over_link else min(sum(parts.values()), seconds))
            fixed_for = _fractions(parts, fixed_s) if parts and fixed_s else LATENCY
            if over_link:
                resource = True, link
            elif first < end:
                resource = False, int(self.hold_slots[first])
            else:
                uses[op] = OpUse(labels[block], "", "", fixed_s, fixed_for)
                continue
            if resource not in named:
                its = self.links if over_link else self.slots
                owner = block_of(its, resource[1])
                named[resource] = owner.label, owner.name(resource[1]), owner.part
            family, name, part = named[resource]
            uses[op] = OpUse(labels[block], family, name, fixed_s, fixed_for, part)
        return uses

    def _spent(self, ops: Ids) -> dict[int, dict[str, float]]:
        """Return the seconds that some ops spend on something of SPENT, by op and by that."""
        spent: dict[int, dict[str, float]] = {}
        for k in np.flatnonzero(np.isin(self.spent_op, ops)).tolist():
            parts = spent.setdefault(int(self.spent_op[k]), {})
            parts[SPENT[self.spent_on[k]]] = float(self.spent_s[k])
        return spent

    def _busiest_link(self, route: int, link_utilisation: Floats) -> int:
        """Return the busiest link of a route, the first of those that are about as busy; else NONE.

        Links that take the same bytes differ in a simulation by what is under way at its end."""
        path = self.route_links[self.route_start[route] : self.route_start[route + 1]]
        used = link_utilisation[path]
        return int(path[np.argmax(AS_BUSY * used >= used.max())]) if len(path) else NONE

    def _busiest_block(self, routes: Refs, link_utilisation: Floats) -> Block | None:
        """Return the block of links that are busiest on average over these routes, None without
        any; of blocks that are about as busy, one of which routes take different links, where
        transfers of others may be."""
        first = np.array([block.first for block in self.links])
        ends = [self.route_start[route : route + 2] for route in routes[routes != NONE]]
        links = np.concatenate([NO_LINKS, *(self.route_links[slice(*end)] for end in ends)])
        if not len(links):
            return None
        block = np.searchsorted(first, links, "right") - 1
        used = np.bincount(block, link_utilisation[links], len(first)) / len(routes)
        distinct = np.bincount(block[np.unique(links, return_index=True)[1]], minlength=len(first))
        return self.links[int(np.argmax(used * np.where(distinct > 1, AS_BUSY, 1.0)))]

    def bytes_by_link(self) -> Floats:
        """Return the bytes over each link in one iteration of every op, shape (links,).

        For ops that are not always active or that draw a route, it is the mean.
        """
        ops, taken, shares = self.routes()
        moved = np.bincount(
            taken, (self.op_bytes * self.activity)[ops] * shares, len(self.route_weight)
        )
        by_link = np.repeat(moved, np.diff(self.route_start)) * self.route_units
        count = len(self.link_capacity_bytes_per_s)
        return np.bincount(self.route_links, by_link, count).astype(np.float64)

    def routes(self) -> tuple[Ids, Refs, Floats]:
        """Return each route that an op may take: the op, the route, and the probability that an
        active instance takes it, all of shape (routes that ops may take,)."""
        fixed = self.op_route.copy()
        parts: list[tuple[Ids, Ids | Refs, Floats]] = []
        for rule in self.rules:
            if isinstance(rule, Choice) and rule.routes is not None:
                fixed[rule.ops] = NONE
                count = rule.routes.shape[1]
                shares = np.full(rule.routes.size, 1.0 / count)
                parts.append((np.repeat(rule.ops, count), rule.routes.ravel(), shares))
        ops = np.flatnonzero(fixed != NONE)
        parts.append((ops, fixed[ops], np.ones(len(ops))))
        op, route, share = (np.concatenate(column) for column in zip(*parts, strict=True))
        taken = route != NONE
        return op[taken], route[taken], share[taken]
