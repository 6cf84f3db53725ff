"""How far workers run ahead of the workers they will have to wait for: tells when a transient ends.

An edge with lag k lets its target run at most k iterations ahead of its source. Ops in one strongly
connected component of the graph therefore have the same long-run rate, whatever their speeds:
Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", Wiley 1992, section 2.5. Faster
ops do not wait until they are ahead by their lags, so initial rates only last until then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ids, Refs, ranked
from perfmodel.engine.world import World, column, scalar
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Every, Mailbox, Quorum

LONG_LAG = 8
"""Longer lags are tracked op by op; shorter lags show in the iterations of the groups."""

BY_SCIPY = 200_000
"""Number of ops above which SciPy finds the strongly connected components."""

LINEAR, DIFFUSIVE = 5.0 / 3.0, math.sqrt(5.0 / 3.0)
"""Ratio of the mean lead in the last third of a run to that in the middle third, if it has grown
since the start in proportion to time (unequal speeds) or to its root (equal speeds, random
times)."""


class Ties(msgspec.Struct, frozen=True, eq=False):
    """The groups of a graph that can only drift apart by a bounded number of iterations.

    ``component`` (groups,): a number for each set of groups with the same long-run rate.
    ``behind`` (m,): ops that may lag behind a group by more than LONG_LAG iterations;
    ``behind_component`` (m,): the component of each. ``weight`` (groups,): fraction of all workers
    in each group. ``longest``: the longest lag inside a component.
    """

    component: Ids
    behind: Ids
    behind_component: Ids
    weight: Floats
    longest: int

    @property
    def any(self) -> bool:
        """Whether any group is tied to another."""
        return len(self.behind) > 0 or len(ranked(self.component)[1]) < len(self.component)

    def lead(self, world: World) -> float:
        """Return the iterations that a worker is ahead of the last op it is tied to, as a mean.

        The completed fraction of a running iteration is estimated from the mean iteration time.
        """
        now = scalar(world, "now")
        done = column(world, "groups", "iterations").astype(np.float64)
        ended = np.array(world.marked_at)
        done *= np.where(ended > 0.0, now / np.where(ended > 0.0, ended, 1.0), 1.0)
        last = np.full(int(self.component.max()) + 1, math.inf)
        np.minimum.at(last, self.component, done)
        if len(self.behind):
            taken = column(world, "ops", "taken", self.behind)
            np.minimum.at(last, self.behind_component, taken)
        return float((self.weight * (done - last[self.component])).sum())


_known: WeakKeyDictionary[OpGraph, Ties] = WeakKeyDictionary()


def ties_of(graph: OpGraph) -> Ties:
    """Return the ties between a graph's groups; they are cached."""
    if graph not in _known:
        _known[graph] = _find_ties(graph)
    return _known[graph]


def _find_ties(graph: OpGraph) -> Ties:
    waits = ~graph.edges_into(Quorum, Every, Mailbox)  # edges that can block their target
    source, target, lag = (
        ends[waits] for ends in (graph.edge_source, graph.edge_target, graph.edge_lag)
    )
    weight = graph.group_count / graph.group_count.sum()
    longest = int(lag.max(initial=0))
    if longest <= LONG_LAG and _apart(graph, source, target):
        none = np.zeros(0, np.int64)
        return Ties(np.arange(graph.n_groups), none, none, weight, longest)
    strong = strong_components(graph.n_ops, source, target)
    inside = strong[source] == strong[target]
    component, firsts = ranked(strong[graph.group_mark])
    names = strong[graph.group_mark][firsts]
    long = inside & (lag > LONG_LAG) & np.isin(strong[source], names)
    behind = np.flatnonzero(np.bincount(source[long], minlength=graph.n_ops))
    return Ties(
        component=component,
        behind=behind,
        behind_component=np.searchsorted(names, strong[behind]),
        weight=weight,
        longest=int(lag[inside].max(initial=0)),
    )


def _apart(graph: OpGraph, source: Refs, target: Refs) -> bool:
    """Return whether no strongly connected component has ops of two groups, by a quick test.

    It takes all ops of a group for one node. This can only join components.
    """
    group = np.asarray(graph.op_group, np.int64)
    alone = np.flatnonzero(group < 0)
    node = group.copy()
    node[alone] = graph.n_groups + np.arange(len(alone))
    n = graph.n_groups + len(alone)
    a, b = node[source], node[target]
    ends = np.unique((a * n + b)[a != b])
    strong = strong_components(n, ends // n, ends % n)
    return len(ranked(strong[node[graph.group_mark]])[1]) == graph.n_groups


def strong_components(n: int, source: Refs, target: Refs) -> Ids:
    """Number the nodes of a directed graph; nodes of one strongly connected component are equal.

    This is Tarjan's algorithm (SIAM Journal on Computing 1(2), 1972) without recursion.
    scipy.sparse.csgraph is faster on large graphs, but importing it takes longer than this takes
    for 100,000 nodes.
    """
    if n > BY_SCIPY:
        from scipy.sparse import csgraph, csr_array

        links = csr_array((np.ones(len(source), np.int8), (source, target)), shape=(n, n))
        found = csgraph.connected_components(links, directed=True, connection="strong")[1]
        return np.asarray(found, np.int64)
    order = np.argsort(source, kind="stable")
    following = target[order].tolist()
    ends = np.cumsum(np.bincount(source, minlength=n)).tolist()
    at = [0, *ends[:-1]] if n else []  # the next edge of each node
    unseen, left = n, -1
    low = [unseen] * n  # lowest number that is reachable
    component = [left] * n  # ``left`` until the component is known
    path: list[int] = []  # from the root down to the current node
    waiting: list[int] = []  # nodes seen whose component is not known yet
    seen = components = 0
    number = [unseen] * n
    for root in range(n):
        if number[root] != unseen:
            continue
        path.append(root)
        while path:
            node = path[-1]
            if number[node] == unseen:
                number[node] = low[node] = seen
                seen += 1
                waiting.append(node)
            least = low[node]
            k, end = at[node], ends[node]
            while k < end:
                other = following[k]
                if number[other] == unseen:
                    path.append(other)
                    break
                if component[other] == left and low[other] < least:
                    least = low[other]
                k += 1
            at[node], low[node] = k, least
            if k < end:
                continue
            path.pop()
            if least == number[node]:
                while component[node] == left:
                    component[waiting.pop()] = components
                components += 1
    return np.array(component, np.int64)


def growth(leads: Sequence[float]) -> float:
    """Return how much the rate of a run may still fall, in iterations per iteration.

    ``leads`` are the leads after each round from the start. A worker that is not blocked yet is
    faster than the slowest by the rate at which its lead grows. At most this much is lost once it
    is blocked.
    """
    third = len(leads) // 3
    if third == 0:
        return 0.0
    middle = float(np.mean(leads[-2 * third : -third]))
    late = float(np.mean(leads[-third:]))
    return max((late - middle) / third, 0.0)


def possible_loss(leads: Sequence[float], longest: int) -> float:
    """Return :func:`growth`, reduced for long lags, of which random drift only uses a fraction.

    If equal workers drift apart randomly, their lead grows with the square root of time. So its
    growth rate falls until the lag is reached: from g at a lead of x to g x / lag.
    """
    grown = growth(leads)
    if grown == 0.0 or longest <= LONG_LAG:
        return grown
    third = len(leads) // 3
    middle, late = float(np.mean(leads[-2 * third : -third])), float(np.mean(leads[-third:]))
    by_chance = (LINEAR - late / max(middle, 1e-300)) / (LINEAR - DIFFUSIVE)
    return grown * float(min(late / longest, 1.0) ** min(max(by_chance, 0.0), 1.0))


def settled_after(leads: Sequence[float]) -> int:
    """Return the round after which the lead first reaches its average of the last third."""
    third = len(leads) // 3
    if third == 0:
        return 0
    return int(np.argmax(np.asarray(leads) >= np.mean(leads[-third:])))
