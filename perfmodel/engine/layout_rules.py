"""How the rules of a graph are laid out in arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import NONE
from perfmodel.engine import codes
from perfmodel.engine.world import ALTERNATIVE, EXTRA, GATE_EDGE, ITEM, SPECIAL
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Activity, Batch, Choice, Every, Mailbox, Quantum, Quorum

INT32, INT64 = "i4", "i8"


def aligned(n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeroed records that begin where a cache line does."""
    room = np.zeros(n * dtype.itemsize + 64, np.uint8)
    first = -room.ctypes.data % 64
    records: NDArray[Any] = room[first : first + n * dtype.itemsize].view(dtype)
    return records


class Extras:
    """What only some ops have: a record for each of those."""

    def __init__(self, ops: NDArray[Any]) -> None:
        self._ops = ops
        self._set: list[tuple[str, NDArray[Any], NDArray[Any]]] = []

    def set(self, field: str, ops: NDArray[Any], values: NDArray[Any]) -> None:
        """Give a field of some ops these values."""
        self._set.append((field, ops, values))

    def made(self) -> NDArray[Any]:
        """Extras of the ops that have any."""
        every = np.concatenate([ops for _, ops, _ in self._set])
        having = np.flatnonzero(np.bincount(every, minlength=len(self._ops)))
        self._ops["extra"][having] = np.arange(len(having))
        extras = np.zeros(len(having), EXTRA)
        for field in EXTRA.names or ():
            extras[field] = 0 if field == "latency" else NONE
        for field, ops, values in self._set:
            extras[field][self._ops["extra"][ops]] = values
        return extras


def lay_out_rules(
    graph: OpGraph,
    ops: NDArray[Any],
    extras: Extras,
    edges: NDArray[Any],
    by_route: NDArray[Any],
) -> tuple[NDArray[Any], ...]:
    """Specials, alternatives, the slots of alternatives, items of batches, edges of gates."""
    gates: dict[int, list[int]] = {}
    special: list[dict[str, Any]] = []
    index: dict[int, int] = {}
    alternatives: list[tuple[float, int, int, int]] = []
    slots: list[int] = []
    items: list[tuple[float, int, int, int, int]] = []

    def of(op: int) -> dict[str, Any]:
        if op not in index:
            index[op] = len(special)
            special.append(dict(_ORDINARY))
        return special[index[op]]

    def incoming(op: int, kind: int, sources: Sequence[int] | None = None) -> list[int]:
        """Turn the edges into ``op`` (from ``sources``) into edges of a kind."""
        found: list[int] = []
        for k in np.flatnonzero(edges["target"] == op).tolist():
            source = int(np.searchsorted(ops["out"], k, side="right")) - 1
            if sources is None or source in sources:
                gates[k] = [op, kind, NONE]
                ops["need"][op] -= 1
                ops["missing"][op] -= edges["tokens"][k] == 0
                ops["early"][op] -= max(edges["tokens"][k] - 1, 0)
                found.append(k)
        return found

    for rule in graph.rules:
        if isinstance(rule, Activity):
            each = (rule.ops.tolist(), rule.draw.tolist(), rule.chosen.tolist())
            for op, stream, chosen in zip(*each, strict=True):
                of(op).update(
                    every=rule.every,
                    phase=rule.phase,
                    probability=rule.probability,
                    activity=stream,
                    chosen=chosen,
                    among=rule.among,
                )
        elif isinstance(rule, Quantum):
            for op in rule.ops.tolist():
                of(op)["quantum"] = rule.bytes
        elif isinstance(rule, Choice):
            count = rule.latency_s.shape[1]
            for row, op in enumerate(rule.ops.tolist()):
                of(op).update(
                    choice=int(rule.draw[row]), alternative=len(alternatives), alternatives=count
                )
                own_route = int(ops["route"][op])
                for k, latency in enumerate(rule.latency_s[row].tolist()):
                    route = own_route if rule.routes is None else int(by_route[rule.routes[row, k]])
                    hold, held = int(ops["hold"][op]), int(ops["holds"][op])
                    if rule.slots is not None:
                        slot = int(rule.slots[row, k])
                        hold, held = slot, int(slot != NONE)
                        slots += [slot] if slot != NONE else []
                    moves = graph.op_bytes[op] > 0.0
                    alternatives.append((latency, hold, held, route if moves else NONE))
        elif isinstance(rule, (Quorum, Every)):
            gate = codes.QUORUM if isinstance(rule, Quorum) else codes.EVERY
            kind = codes.TO_QUORUM if isinstance(rule, Quorum) else codes.TO_EVERY
            ins = incoming(rule.op, kind)
            tokens = edges["tokens"][ins]
            have = int((tokens > 0).sum()) if gate == codes.QUORUM else int(tokens.sum())
            of(rule.op).update(gate=gate, need=rule.count, count=have, open=have >= rule.count)
            ops["missing"][rule.op] += have < rule.count
            if gate == codes.QUORUM:
                _drain(graph, ops, edges, gates, rule.op, ins)
        elif isinstance(rule, Mailbox):
            ins = incoming(rule.op, codes.TO_MAILBOX, rule.sources.tolist())
            have = int(edges["tokens"][ins].sum())
            of(rule.op).update(gate=codes.MAILBOX, per_token=rule.per_token_s, count=have)
        else:
            ops["route"][rule.op] = by_route[graph.op_route[rule.op]]
            _batch(rule, ops, edges, gates, of(rule.op), items, incoming)
    extras.set("special", np.array(list(index), INT64), np.array(list(index.values()), INT64))
    edges["target"][list(gates)] = -1 - np.arange(len(gates))
    specials = np.zeros(len(special), SPECIAL)
    for row, fields in enumerate(special):
        for name, value in fields.items():
            specials[name][row] = value
    return (
        specials,
        np.array(alternatives, ALTERNATIVE),
        np.array(slots, INT64),
        np.array(items, ITEM),
        np.array([tuple(edge) for edge in gates.values()], GATE_EDGE),
    )


_ORDINARY = {
    "every": 1,
    "probability": 1.0,
    "quantum": np.inf,
    "activity": NONE,
    "choice": NONE,
}


def _drain(
    graph: OpGraph,
    ops: NDArray[Any],
    edges: NDArray[Any],
    gates: dict[int, list[int]],
    op: int,
    ins: Sequence[int],
) -> None:
    """Pair each edge out of a quorum with the edge into it from the same group."""
    by_group = {}
    for k in ins:
        source = int(np.searchsorted(ops["out"], k, side="right")) - 1
        by_group[int(graph.op_group[source])] = k
    for k in range(ops["out"][op], ops["end"][op]):
        target = int(edges["target"][k])
        group = int(graph.op_group[target])
        if group != NONE and group in by_group:
            gates[k] = [target, codes.DRAIN, by_group[group]]


def _batch(
    rule: Batch,
    ops: NDArray[Any],
    edges: NDArray[Any],
    gates: dict[int, list[int]],
    fields: dict[str, Any],
    items: list[tuple[float, int, int, int, int]],
    incoming: Any,
) -> None:
    ins = incoming(rule.op, codes.TO_BATCH, rule.sources.tolist())
    outs = list(range(ops["out"][rule.op], ops["end"][rule.op]))
    edge_from, edge_to = defaultdict(list), defaultdict(list)
    for k in ins:
        edge_from[int(np.searchsorted(ops["out"], k, side="right")) - 1].append(k)
    for k in outs:
        edge_to[int(edges["target"][k])].append(k)
    fields.update(
        gate=codes.BATCH,
        cycle=rule.cycle_s,
        cap=rule.cap_bytes,
        alternative=len(items),
        alternatives=len(rule.sources),
    )
    ops["missing"][rule.op] += 1
    triples = zip(rule.sources.tolist(), rule.targets.tolist(), rule.bytes.tolist(), strict=True)
    for source, target, size in triples:
        into, out = edge_from[source].pop(0), edge_to[target].pop(0)
        gates[into][2] = len(items)
        gates[out] = [target, codes.FROM_BATCH, NONE]
        items.append((size, out, int(edges["tokens"][into]), 0, 0))
