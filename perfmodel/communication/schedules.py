"""Schedules of collective operations: which member sends what to which other, by round.

Members are numbered from 0. In a round each member sends to at most one other member and receives
from at most one other. A send waits until both its ends have completed their earlier rounds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.arrays import Floats

Ids = NDArray[np.int64]
Parents = NDArray[np.int64]
"""Parent of each member in a tree (members,); -1 for the root."""

NONE = -1


class SendSchedule(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The sends of a collective, by round.

    Attributes
    ----------
    members : number of members.
    repeat : number of times in a row each round is made, (rounds,).
    round, source, target : round and ends of each send, (sends,); rounds do not decrease.
    part : bytes of each send, as a fraction of the bytes that each member has, (sends,).
    adds : whether the target adds what it receives to what it has, (sends,).
    """

    members: int
    repeat: Ids
    round: Ids
    source: Ids
    target: Ids
    part: Floats
    adds: NDArray[np.bool_]

    @property
    def rounds(self) -> int:
        """Number of rounds, counting each repetition."""
        return int(self.repeat.sum())

    def among(self, order: Ids) -> SendSchedule:
        """Return the schedule with renamed members: ``order[k]`` (members,) takes k's place."""
        return msgspec.structs.replace(self, source=order[self.source], target=order[self.target])

    def sent(self) -> Floats:
        """Return the bytes each member sends, as a fraction of the bytes to reduce, (members,)."""
        return self._moved(self.source)

    def received(self) -> Floats:
        """Return the bytes each member receives, as a fraction of those to reduce, (members,)."""
        return self._moved(self.target)

    def _moved(self, end: Ids) -> Floats:
        total = np.zeros(self.members)
        np.add.at(total, end, self.part * self.repeat[self.round])
        return total

    def unrolled(self) -> SendSchedule:
        """Return the schedule with every repetition of a round written out."""
        if (self.repeat == 1).all():
            return self
        kept = [np.flatnonzero(self.round == r) for r in range(len(self.repeat))]
        sends = [kept[r] for r, times in enumerate(self.repeat.tolist()) for _ in range(times)]
        which = np.concatenate(sends)
        return SendSchedule(
            members=self.members,
            repeat=np.ones(len(sends), np.int64),
            round=np.repeat(np.arange(len(sends)), [len(s) for s in sends]),
            source=self.source[which],
            target=self.target[which],
            part=self.part[which],
            adds=self.adds[which],
        )


class Waits(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The waits between the sends of an unrolled schedule.

    Attributes
    ----------
    before, after : indices of sends; ``after`` waits for ``before``, (waits,).
    entry, entry_member : sends that wait for a member to enter the collective, (entries,).
    last : the last send and the last receipt of each member, (members, 2); NONE if it has none.
    first : the first send that a member takes part in, (members,).
    """

    before: Ids
    after: Ids
    entry: Ids
    entry_member: Ids
    last: Ids
    first: Ids


def waits_of(schedule: SendSchedule) -> Waits:
    """Return the waits of each send: for everything its two ends did in earlier rounds."""
    last = np.full((schedule.members, 2), NONE)
    first = np.full(schedule.members, NONE)
    pairs, entries = [], []
    bounds = np.searchsorted(schedule.round, np.arange(len(schedule.repeat) + 1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        sends = np.arange(low, high)
        source, target = schedule.source[low:high], schedule.target[low:high]
        for member in (source, target):
            new = first[member] == NONE
            entries.append(np.stack([sends[new], member[new]]))
            for direction in (0, 1):
                earlier = last[member, direction]
                known = earlier != NONE
                pairs.append(np.stack([earlier[known], sends[known]]))
        for member in (source, target):
            first[member] = np.where(first[member] == NONE, sends, first[member])
        last[source, 0], last[target, 1] = sends, sends
    waits = np.unique(np.concatenate(pairs, axis=1), axis=1)
    entry = np.concatenate(entries, axis=1)
    return Waits(
        before=waits[0],
        after=waits[1],
        entry=entry[0],
        entry_member=entry[1],
        last=last,
        first=first,
    )


Round = tuple[ArrayLike, ArrayLike, float, bool, int]
"""Sources, targets, part, whether the target adds, and number of repetitions."""


def _schedule(members: int, rounds: Sequence[Round]) -> SendSchedule:
    sources = [np.asarray(source, np.int64).ravel() for source, *_ in rounds]
    sends = [len(source) for source in sources]
    return SendSchedule(
        members=members,
        repeat=np.array([times for *_, times in rounds], np.int64),
        round=np.repeat(np.arange(len(rounds)), sends),
        source=np.concatenate(sources),
        target=np.concatenate([np.asarray(target, np.int64).ravel() for _, target, *_ in rounds]),
        part=np.repeat([part for _, _, part, *_ in rounds], sends),
        adds=np.repeat([adds for *_, adds, _ in rounds], sends),
    )


def ring_all_gather(members: int) -> SendSchedule:
    """All-gather on a ring: each member passes the piece it last received to the next member.

    Parts are fractions of one member's piece.

    >>> ring_all_gather(3).received()
    array([2., 2., 2.])
    """
    index = np.arange(members)
    return _schedule(members, [(index, np.roll(index, -1), 1.0, False, members - 1)])


def ring_all_reduce(members: int) -> SendSchedule:
    """All-reduce on a ring: reduce-scatter, then all-gather, in pieces of 1/members.

    Patarasuk, Yuan, JPDC 69, 2009, doi 10.1016/j.jpdc.2008.09.002.

    >>> ring_all_reduce(4).sent()
    array([1.5, 1.5, 1.5, 1.5])
    """
    index, part = np.arange(members), 1.0 / members
    following = np.roll(index, -1)
    return _schedule(
        members,
        [(index, following, part, adds, members - 1) for adds in (True, False)],
    )


def halving_doubling_all_reduce(members: int) -> SendSchedule:
    """Reduce-scatter by recursive halving, all-gather by recursive doubling (Rabenseifner).

    If the number of members is not a power of two, each excess member first sends all its data to a
    neighbour, and receives the sum from it at the end.

    Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, doi 10.1177/1094342005051521.

    >>> halving_doubling_all_reduce(4).sent()
    array([1.5, 1.5, 1.5, 1.5])
    >>> halving_doubling_all_reduce(3).sent()
    array([1., 2., 1.])
    """
    levels = members.bit_length() - 1
    power = 1 << levels
    over = members - power
    index = np.arange(power)
    taking_part = np.where(index < over, 2 * index + 1, index + over)
    excess = np.arange(0, 2 * over, 2)
    halving: list[Round] = [
        (taking_part, taking_part[index ^ (1 << level)], 0.5 ** (level + 1), True, 1)
        for level in range(levels)
    ]
    doubling = [(source, target, part, False, 1) for source, target, part, *_ in reversed(halving)]
    rounds = [*halving, *doubling]
    if over:
        rounds = [(excess, excess + 1, 1.0, True, 1), *rounds, (excess + 1, excess, 1.0, False, 1)]
    return _schedule(members, rounds)


def tree_all_reduce(members: int) -> SendSchedule:
    """Reduce to member 0 and broadcast from it along a binomial tree, all bytes at once.

    >>> tree_all_reduce(4).sent()
    array([2., 1., 2., 1.])
    """
    up = [(source, target, 1.0, True, 1) for source, target in _binomial(members)]
    down = [(target, source, 1.0, False, 1) for source, target, *_ in reversed(up)]
    return _schedule(members, [*up, *down])


def _binomial(members: int) -> list[tuple[Ids, Ids]]:
    """Return the sends of each round of a reduction to member 0 along a binomial tree."""
    steps = [1 << level for level in range((members - 1).bit_length())]
    sources = [np.arange(step, members, 2 * step) for step in steps]
    return [(source, source - step) for source, step in zip(sources, steps, strict=True)]


def hierarchical_all_reduce(node: Sequence[int]) -> SendSchedule:
    """Reduce-scatter inside each node, all-reduce of each part among nodes, all-gather inside.

    ``node`` (members,) is the number of each member's node, 0 to nodes - 1, not decreasing. With s
    members on every node, each member ends the reduce-scatter (on a ring) with 1/s of the bytes,
    and the members with the same index on each node form a ring. If nodes have unequal numbers of
    members, s is the smallest. The other members first send all their data to one of the s, along
    binomial trees, and receive the sum from it at the end.

    Mikami et al., 2018, arXiv 1811.05233 (2D-torus all-reduce).

    >>> hierarchical_all_reduce([0, 0, 1, 1]).sent()
    array([1.5, 1.5, 1.5, 1.5])
    >>> hierarchical_all_reduce([0, 0, 1]).sent()
    array([2., 1., 1.])
    """
    sizes = np.bincount(node)
    rails = int(sizes.min())
    leaders = np.cumsum(sizes) - sizes
    rail = np.arange(rails)
    first = leaders[:, None] + rail  # (nodes, rails)
    up: list[Round] = []
    for source, target in _binomial(-(-int(sizes.max()) // rails)):
        sources, targets = (first[:, :, None] + rails * positions for positions in (source, target))
        present = sources < (leaders + sizes)[:, None, None]
        up.append((sources[present], targets[present], 1.0, True, 1))
    down: list[Round] = [(b, a, part, False, 1) for a, b, part, *_ in reversed(up)]

    def around(axis: int, part: float, adds: bool) -> list[Round]:
        others = first.shape[axis] - 1
        following = np.roll(first, -1, axis)
        return [(first, following, part / (others + 1), adds, others)] if others else []

    share = 1.0 / rails
    rounds = [
        *up,
        *around(1, 1.0, True),
        *around(0, share, True),
        *around(0, share, False),
        *around(1, 1.0, False),
        *down,
    ]
    return _schedule(len(node), rounds)


def pairwise_all_to_all(members: int) -> SendSchedule:
    """Send a part to every other member: in round k each sends to the k-th after it.

    Thakur, Rabenseifner, Gropp, 2005, doi 10.1177/1094342005051521 (pairwise exchange).

    >>> pairwise_all_to_all(4).sent()
    array([0.75, 0.75, 0.75, 0.75])
    """
    index = np.arange(members)
    return _schedule(
        members,
        [(index, (index + k) % members, 1.0 / members, False, 1) for k in range(1, members)],
    )


def hierarchical_all_to_all(nodes: int, each: int, across: float = 1.0) -> SendSchedule:
    """Send what is for another of ``nodes`` to the member with the same number there, of ``each``,
    which passes it on inside its node.

    ``across`` is the share of the bytes between nodes that has to be sent there: less than 1 if
    some of the bytes passed on are copies.

    >>> hierarchical_all_to_all(2, 2).sent()
    array([1., 1., 1., 1.])
    """
    table = np.arange(nodes * each).reshape(nodes, each)
    rounds: list[Round] = [
        (table, np.roll(table, -k, axis), part / table.shape[axis], False, 1)
        for axis, part in ((0, across), (1, 1.0))
        for k in range(1, table.shape[axis])
    ]
    return _schedule(nodes * each, rounds)


def double_tree_all_reduce(members: int, chunks: int) -> SendSchedule:
    """All-reduce on two binary trees, each for one half of the bytes in ``chunks`` chunks.

    A member with children in one tree has at most one child in the other. Each half is first
    reduced to the root of its tree, chunk by chunk, and then broadcast in the reverse order. A
    member serves one of its links in odd rounds and the other in even rounds, so it never waits for
    both at once.

    Sanders, Speck, Träff, Parallel Computing 35(12), 2009, doi 10.1016/j.parco.2009.09.001.

    >>> double_tree_all_reduce(4, 1).sent()
    array([1., 2., 2., 1.])
    """
    child, parent, begin = _double_tree(members)
    when = (begin[:, None] + 2 * np.arange(chunks)).ravel()
    source, target = np.repeat(child, chunks), np.repeat(parent, chunks)
    rounds = int(when.max()) + 1
    return _in_turn(
        members,
        when=np.concatenate([when, 2 * rounds - 1 - when]),
        source=np.concatenate([source, target]),
        target=np.concatenate([target, source]),
        adds=np.repeat([True, False], len(when)),
        part=0.5 / chunks,
    )


@functools.lru_cache(maxsize=64)
def _double_tree(members: int) -> tuple[Ids, Ids, Ids]:
    """Return the ends of each edge of a double tree, and the round of the first chunk on it, which
    do not depend on the number of chunks."""
    trees = _two_trees(members)
    child = np.concatenate([np.flatnonzero(tree != NONE) for tree in trees])
    parent = np.concatenate([tree[tree != NONE] for tree in trees])
    tree = np.repeat([0, 1], members - 1)
    return child, parent, _begin(child, parent, tree, _two_colours(child, parent))


def _two_trees(members: int) -> tuple[Parents, Parents]:
    """Build two binary trees over the same members; the leaves of one are inside the other.

    In the first, members other than 0 are in order: their depth follows from the lowest set bit.
    The second is its mirror image or, for an odd number of members, shifted by one.
    """
    index = np.arange(1, members)
    bit = index & -index
    over = (index ^ bit) | (bit << 1)
    first = np.full(members, NONE)
    first[1:] = np.where(over < members, over, index ^ bit)
    old = np.arange(members)
    new = members - 1 - old if members % 2 == 0 else (old + 1) % members
    second = np.full(members, NONE)
    second[new] = np.where(first == NONE, NONE, new[first])
    return first, second


def _two_colours(child: Ids, parent: Ids) -> Ids:
    """Colour the edges 0 or 1 such that no member sends or receives on two edges of one colour.

    No member sends on more than two edges, or receives on more than two. Edges that share an end
    therefore form paths and cycles of even length, along which the colours alternate.
    """
    at: dict[tuple[int, int], list[int]] = {}
    ends = list(enumerate(zip(child.tolist(), parent.tolist(), strict=True)))
    for edge, pair in ends:
        for direction, member in enumerate(pair):
            at.setdefault((direction, member), []).append(edge)
    colour = np.full(len(child), NONE)
    for start, _ in ends:
        if colour[start] != NONE:
            continue
        colour[start] = 0
        todo = [start]
        while todo:
            edge = todo.pop()
            for direction, member in enumerate((int(child[edge]), int(parent[edge]))):
                for other in at[direction, member]:
                    if colour[other] == NONE:
                        colour[other] = 1 - colour[edge]
                        todo.append(other)
    return colour


def _begin(child: Ids, parent: Ids, tree: Ids, colour: Ids) -> Ids:
    """Return the round of the first chunk on each edge: after the edges below, in its colour."""
    edges = list(zip(tree.tolist(), child.tolist(), parent.tolist(), strict=True))
    out = {(t, c): edge for edge, (t, c, _) in enumerate(edges)}
    waiting = {(t, p): 0 for t, _, p in edges}
    for t, _, p in edges:
        waiting[t, p] += 1
    begin = np.zeros(len(child), np.int64)
    ready = [edge for edge, (t, c, _) in enumerate(edges) if (t, c) not in waiting]
    while ready:
        edge = ready.pop()
        begin[edge] += (begin[edge] + colour[edge]) % 2
        t, _, p = edges[edge]
        above = out.get((t, p))
        waiting[t, p] -= 1
        if above is not None:
            begin[above] = max(begin[above], begin[edge] + 1)
            if waiting[t, p] == 0:
                ready.append(above)
    return begin


def _in_turn(
    members: int, *, when: Ids, source: Ids, target: Ids, adds: NDArray[np.bool_], part: float
) -> SendSchedule:
    """Order the sends by ``when``, each in the earliest round after everything it waits for."""
    order = np.argsort(when, kind="stable")
    when, source, target, adds = when[order], source[order], target[order], adds[order]
    free = np.zeros(members, np.int64)
    rounds = np.zeros(len(when), np.int64)
    bounds = np.flatnonzero(np.diff(when, prepend=-1, append=when[-1] + 1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        s, t = source[low:high], target[low:high]
        rounds[low:high] = np.maximum(free[s], free[t])
        np.maximum.at(free, s, rounds[low:high] + 1)
        np.maximum.at(free, t, rounds[low:high] + 1)
    order = np.argsort(rounds, kind="stable")
    return SendSchedule(
        members=members,
        repeat=np.ones(int(rounds.max()) + 1, np.int64),
        round=rounds[order],
        source=source[order],
        target=target[order],
        part=np.full(len(order), part),
        adds=adds[order],
    )
