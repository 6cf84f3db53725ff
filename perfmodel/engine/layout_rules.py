"""Lays out the rules of a graph in arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import NONE, Floats, Ids, Refs
from perfmodel.engine import codes
from perfmodel.engine.world import DTYPES, Records
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Activity, Batch, Choice, Every, Mailbox, Quantum, Quorum

COUNTED = ("latency", "log", "arrived", "passed", "again", "repeated")
"""Fields of extras that are 0 unless they are set; the others are numbers of something."""


class Extras:
    """Collects the fields that only some ops have, in a record for columns of these ops."""

    def __init__(self, ops: Records) -> None:
        self._ops = ops
        self._set: list[tuple[str, Ids, Ids | Refs | Floats]] = []

    def set(self, field: str, ops: Ids, values: Ids | Refs | Floats) -> None:
        """Set a field of some ops to these values."""
        self._set.append((field, ops, values))

    def records(self) -> Records:
        """Make the records of ops that have any; their index is stored in the ops."""
        having = np.zeros(len(self._ops), np.bool_)
        for _, ops, _ in self._set:
            having[ops] = True
        number = np.cumsum(having, dtype=np.int32) - 1
        self._ops["extra"][having] = number[having]
        ordinary = np.zeros(1, DTYPES["extras"])
        for field in ordinary.dtype.names or ():
            ordinary[field] = 0 if field in COUNTED else NONE
        extras = np.repeat(ordinary, int(having.sum()))
        for field, ops, values in self._set:
            extras[field][number[ops]] = values
        return extras


class RuleTables(msgspec.Struct, frozen=True):
    """Arrays that describe the rules of a graph; fields as in :mod:`perfmodel.engine.world`."""

    specials: Records
    alternatives: Records
    slots: Ids
    """Slots of alternatives; they need room in the queues."""
    items: Records
    gate_edges: Records


def lay_out_rules(
    graph: OpGraph,
    ops: Records,
    extras: Extras,
    edges: Records,
    by_route: Refs,
    incoming: tuple[Refs, Ids],
) -> RuleTables:
    """Lay out all rules; this modifies ``ops`` and ``edges`` that rules apply to.

    ``incoming``: edges by target, and where those into each op begin.
    """
    layout = _RuleLayout(graph, ops, edges, by_route, incoming)
    for rule in graph.rules:
        if isinstance(rule, Activity):
            layout.activity(rule)
        elif isinstance(rule, Quantum):
            for op in rule.ops.tolist():
                layout.special_of(op)["quantum"] = rule.bytes
        elif isinstance(rule, Choice):
            layout.choice(rule)
        elif isinstance(rule, (Quorum, Every)):
            layout.gate(rule)
        elif isinstance(rule, Mailbox):
            layout.mailbox(rule)
        else:
            layout.batch(rule)
    return layout.tables(extras)


_ORDINARY = {
    "every": 1,
    "probability": 1.0,
    "quantum": np.inf,
    "activity": NONE,
    "choice": NONE,
    "drawn": NONE,
}


class _RuleLayout:
    """Collects the records of rules, one rule at a time."""

    def __init__(
        self,
        graph: OpGraph,
        ops: Records,
        edges: Records,
        by_route: Refs,
        incoming: tuple[Refs, Ids],
    ) -> None:
        self._graph, self._ops, self._edges, self._by_route = graph, ops, edges, by_route
        self._into, self._in_start = incoming
        self._out = np.array(ops["out"])
        self._gates: dict[int, list[int]] = {}
        self._specials: dict[int, dict[str, float]] = {}
        self._alternatives = [np.zeros(0, DTYPES["alternatives"])]
        self._slots = [np.zeros(0, np.int64)]
        self._items: list[tuple[float, float, int, int, int, int, int]] = []

    def special_of(self, op: int) -> dict[str, float]:
        """Return the fields of an op's special record; it is added if the op has none."""
        return self._specials.setdefault(op, dict(_ORDINARY))

    def activity(self, rule: Activity) -> None:
        """Lay out ops that are active only in some iterations."""
        columns = (rule.ops.tolist(), rule.draw.tolist(), rule.chosen.tolist())
        for op, stream, chosen in zip(*columns, strict=True):
            self.special_of(op).update(
                every=rule.every,
                phase=rule.phase,
                probability=rule.probability,
                activity=stream,
                chosen=chosen,
                among=rule.among,
            )

    def choice(self, rule: Choice) -> None:
        """Lay out ops that draw a route, a slot and a latency."""
        count, before = rule.latency_s.shape[1], sum(some.size for some in self._alternatives)
        for row, (op, stream) in enumerate(zip(rule.ops.tolist(), rule.draw.tolist(), strict=True)):
            self.special_of(op).update(
                choice=stream, alternative=before + row * count, alternatives=count
            )
        of = self._ops[rule.ops][:, None]
        some = np.zeros(rule.latency_s.shape, DTYPES["alternatives"])
        some["latency"] = rule.latency_s
        some["hold"] = of["hold"] if rule.slots is None else rule.slots
        some["holds"] = of["holds"] if rule.slots is None else rule.slots != NONE
        route = of["route"] if rule.routes is None else self._by_route[rule.routes]
        some["route"] = np.where(self._graph.op_bytes[rule.ops][:, None] > 0.0, route, NONE)
        self._alternatives.append(some.ravel())
        if rule.slots is not None:
            self._slots.append(rule.slots[rule.slots != NONE])

    def gate(self, rule: Quorum | Every) -> None:
        """Lay out an op that starts with some of its tokens."""
        quorum = isinstance(rule, Quorum)
        ins = self._incoming(rule.op, codes.TO_QUORUM if quorum else codes.TO_EVERY)
        tokens = self._edges["tokens"][ins]
        have = int((tokens > 0).sum()) if quorum else int(tokens.sum())
        self.special_of(rule.op).update(
            gate=codes.QUORUM if quorum else codes.EVERY,
            need=rule.count,
            count=have,
            open=have >= rule.count,
        )
        self._ops["missing"][rule.op] += have < rule.count
        if quorum:
            self._drain(rule.op, ins)

    def mailbox(self, rule: Mailbox) -> None:
        """Lay out an op that takes all messages that have arrived."""
        ins = self._incoming(rule.op, codes.TO_MAILBOX, rule.sources.tolist())
        have = int(self._edges["tokens"][ins].sum())
        self.special_of(rule.op).update(gate=codes.MAILBOX, per_token=rule.per_token_s, count=have)

    def batch(self, rule: Batch) -> None:
        """Lay out an op that sends the items that are ready at a tick."""
        ops, edges = self._ops, self._edges
        ops["route"][rule.op] = self._by_route[self._graph.op_route[rule.op]]
        fields = self.special_of(rule.op)
        edge_from, edge_to = defaultdict(list), defaultdict(list)
        for k in self._incoming(rule.op, codes.TO_BATCH, rule.sources.tolist()):
            edge_from[self._source(k)].append(k)
        for k in range(ops["out"][rule.op], ops["end"][rule.op]):
            edge_to[int(edges["target"][k])].append(k)
        fields.update(
            gate=codes.BATCH,
            cycle=rule.cycle_s,
            cap=rule.cap_bytes,
            alternative=len(self._items),
            alternatives=len(rule.sources),
        )
        ops["missing"][rule.op] += 1
        columns = (rule.sources.tolist(), rule.targets.tolist(), rule.bytes.tolist())
        for source, target, size in zip(*columns, strict=True):
            into, out = edge_from[source].pop(0), edge_to[target].pop(0)
            self._gates[into][2] = len(self._items)
            self._gates[out] = [target, codes.FROM_BATCH, NONE]
            self._items.append((size, 0.0, out, int(edges["tokens"][into]), 0, 0, NONE))

    def tables(self, extras: Extras) -> RuleTables:
        """Return all records; negative targets mark the edges of gates."""
        ops = np.array(list(self._specials), np.int64)
        extras.set("special", ops, np.arange(len(ops)))
        self._edges["target"][list(self._gates)] = -1 - np.arange(len(self._gates))
        specials = np.zeros(len(ops), DTYPES["specials"])
        for row, fields in enumerate(self._specials.values()):
            for name, value in fields.items():
                specials[name][row] = value
        return RuleTables(
            specials=specials,
            alternatives=np.concatenate(self._alternatives),
            slots=np.concatenate(self._slots),
            items=np.array(self._items, DTYPES["items"]),
            gate_edges=np.array(
                [tuple(edge) for edge in self._gates.values()], DTYPES["gate_edges"]
            ),
        )

    def _source(self, edge: int) -> int:
        return int(np.searchsorted(self._out, edge, side="right")) - 1

    def _incoming(self, op: int, kind: int, sources: Sequence[int] | None = None) -> list[int]:
        """Turn the edges into ``op`` (from ``sources``) into gate edges of this kind."""
        ops, edges = self._ops, self._edges
        incoming: list[int] = []
        for k in self._into[self._in_start[op] : self._in_start[op + 1]].tolist():
            if sources is None or self._source(k) in sources:
                self._gates[k] = [op, kind, NONE]
                ops["need"][op] -= 1
                ops["missing"][op] -= edges["tokens"][k] == 0
                ops["early"][op] -= max(edges["tokens"][k] - 1, 0)
                incoming.append(k)
        return incoming

    def _drain(self, op: int, ins: Sequence[int]) -> None:
        """Pair columns edge out of a quorum with the edge into it from the same group."""
        by_group = {int(self._graph.op_group[self._source(k)]): k for k in ins}
        for k in range(self._ops["out"][op], self._ops["end"][op]):
            target = int(self._edges["target"][k])
            group = int(self._graph.op_group[target])
            if group != NONE and group in by_group:
                self._gates[k] = [target, codes.DRAIN, by_group[group]]
