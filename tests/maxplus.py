"""Times of an op graph without contention: no op waits for a slot or shares a link.

Then instance i of an op starts when its tokens have come and its instance i-1 has ended: maxima of
sums, a linear system in the max-plus algebra (Baccelli, Cohen, Olsder, Quadrat, Synchronization
and Linearity, Wiley, 1992). An op needs, per iteration, the largest ratio of a cycle that it
depends on: seconds of the cycle's ops, latencies included, by lags of its edges. The cycle from an
instance of an op to the next is one of them: the op's own seconds without its latency, lag 1.

Contention only delays, so these times are lower bounds for any graph. All numbers
are fractions: floats are taken at their exact value and nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import networkx as nx

from perfmodel.base.arrays import NONE
from perfmodel.graph.op_graph import OpGraph


def seconds_alone(graph: OpGraph) -> list[Fraction]:
    """Seconds that each op takes with its links to itself, without latency and noise.

    Raises
    ------
    ValueError : some ops do not do the same in every iteration.
    """
    if graph.rules:
        raise ValueError("no system of the max-plus algebra: the graph has rules")
    seconds = []
    for op in range(graph.n_ops):
        took = Fraction(float(graph.op_seconds[op]))
        route = int(graph.op_route[op])
        if route != NONE:
            crossed = slice(graph.route_start[route], graph.route_start[route + 1])
            capacity = graph.link_capacity_bytes_per_s[graph.route_links[crossed]]
            taken = zip(capacity.tolist(), graph.route_units[crossed].tolist(), strict=True)
            rates = [Fraction(most) / Fraction(units) for most, units in taken]
            cap = float(graph.route_cap_bytes_per_s[route])
            rates += [Fraction(cap)] if cap < math.inf else []
            took += Fraction(float(graph.op_bytes[op])) / min(rates) if rates else 0
        seconds.append(took)
    return seconds


def ratio_of(graph: OpGraph, ops: Sequence[int]) -> Fraction:
    """Seconds per iteration of the cycle through ``ops``, in this order and back to the first.

    Raises
    ------
    ValueError : the ops are no cycle, or one without a token, which never runs.
    """
    return _ratio(_lags(graph), seconds_alone(graph), _latencies(graph), ops)


def largest_ratio_listed(graph: OpGraph) -> Fraction:
    """The largest ratio of all cycles, by enumeration; for small graphs."""
    lags, seconds, latencies = _lags(graph), seconds_alone(graph), _latencies(graph)
    cycles = [*nx.simple_cycles(nx.DiGraph(lags.keys())), *([op] for op in range(graph.n_ops))]
    return max(_ratio(lags, seconds, latencies, cycle) for cycle in cycles)


def largest_ratio(graph: OpGraph, ops: Sequence[int] | None = None) -> Fraction:
    """The largest ratio of the cycles that any of ``ops`` (all, if not given) depend on.

    Newton's method: as long as a cycle has a larger ratio than the best known, take that one. The
    ratios rise strictly, so it ends, and where it ends no cycle has a larger one.
    """
    lags, seconds, latencies = _lags(graph), seconds_alone(graph), _latencies(graph)
    before = nx.DiGraph(lags.keys())
    before.add_nodes_from(range(graph.n_ops))
    wanted = range(graph.n_ops) if ops is None else ops
    concerned = set(wanted).union(*(nx.ancestors(before, op) for op in wanted))
    inside = {(u, v): lag for (u, v), lag in lags.items() if u in concerned and v in concerned}
    best = max(seconds[op] for op in concerned)
    while True:
        gain = {(u, v): seconds[u] + latencies[u] - best * lag for (u, v), lag in inside.items()}
        cycle = _cycle_of_gain(gain)
        if cycle is None:
            return best
        ratio = _ratio(lags, seconds, latencies, cycle)
        assert ratio > best
        best = ratio


def earliest_starts(graph: OpGraph, iterations: int) -> list[list[Fraction]]:
    """Start of each instance, indexed by op and iteration, from the recursion."""
    parts, scale = _whole([*seconds_alone(graph), *_latencies(graph)])
    seconds, latencies = parts[: graph.n_ops], parts[graph.n_ops :]
    edges = zip(
        graph.edge_source.tolist(), graph.edge_target.tolist(), graph.edge_lag.tolist(), strict=True
    )
    into: list[list[tuple[int, int]]] = [[] for _ in range(graph.n_ops)]
    at_once = nx.DiGraph()
    at_once.add_nodes_from(range(graph.n_ops))
    for source, target, lag in edges:
        into[target].append((source, lag))
        if lag == 0:
            at_once.add_edge(source, target)
    order = list(nx.topological_sort(at_once))
    starts: list[list[int]] = [[] for _ in range(graph.n_ops)]
    for i in range(iterations):
        for op in order:
            times = [0]
            if i:
                times.append(starts[op][i - 1] + seconds[op])
            for source, lag in into[op]:
                if i >= lag:
                    times.append(starts[source][i - lag] + seconds[source] + latencies[source])
            starts[op].append(max(times))
    return [[Fraction(start, scale) for start in of_op] for of_op in starts]


def _whole(values: Iterable[Fraction]) -> tuple[list[int], int]:
    """The values in a common unit of which each is a multiple, and how many units make one."""
    exact = list(values)
    scale = math.lcm(*(value.denominator for value in exact))
    return [value.numerator * (scale // value.denominator) for value in exact], scale


def _latencies(graph: OpGraph) -> list[Fraction]:
    return [Fraction(latency) for latency in graph.op_latency_s.tolist()]


def _lags(graph: OpGraph) -> dict[tuple[int, int], int]:
    """The smallest lag between two ops; parallel edges with more tokens never matter."""
    fewest: dict[tuple[int, int], int] = {}
    for source, target, lag in zip(
        graph.edge_source.tolist(), graph.edge_target.tolist(), graph.edge_lag.tolist(), strict=True
    ):
        fewest[source, target] = min(lag, fewest.get((source, target), lag))
    return fewest


def _ratio(
    lags: Mapping[tuple[int, int], int],
    seconds: Sequence[Fraction],
    latencies: Sequence[Fraction],
    ops: Sequence[int],
) -> Fraction:
    hops = [(int(u), int(v)) for u, v in zip(ops, [*ops[1:], *ops[:1]], strict=True)]
    itself = [seconds[hops[0][0]]] if len(hops) == 1 else []
    if hops and all(hop in lags for hop in hops):
        tokens = sum(lags[hop] for hop in hops)
        if tokens == 0:
            raise ValueError(f"no token on the cycle {list(ops)}")
        itself.append(sum((seconds[u] + latencies[u] for u, _ in hops), Fraction(0)) / tokens)
    if not itself:
        raise ValueError(f"not a cycle: {list(ops)}")
    return max(itself)


def _cycle_of_gain(gain: Mapping[tuple[int, int], Fraction]) -> list[int] | None:
    """A cycle whose gains add up to more than zero, or None (Bellman-Ford)."""
    gains, _ = _whole(gain.values())
    height = dict.fromkeys((op for edge in gain for op in edge), 0)
    via: dict[int, int] = {}
    raised = NONE
    for _ in range(len(height) + 1):
        raised = NONE
        for (source, target), more in zip(gain, gains, strict=True):
            if height[source] + more > height[target]:
                height[target] = height[source] + more
                via[target] = raised = source
        if raised == NONE:
            return None
    # still rising after as many rounds as there are ops: its predecessors contain a cycle
    op = raised
    for _ in height:
        op = via[op]
    cycle = [op]
    while via[cycle[-1]] != op:
        cycle.append(via[cycle[-1]])
    return cycle[::-1]
