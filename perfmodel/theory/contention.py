"""Contention among workers that iterate independently: mean-value analysis with overlap.

Mean-value analysis goes from n - 1 customers to n: an arrival at
a station sees the mean queue of the network with one customer fewer (Reiser, Lavenberg, JACM 27(2),
1980, doi 10.1145/322186.322195). It needs the cycle time as a function of these queues, which does
not have to be a sum over stations. Here it can be any function, so a worker's computation may
overlap its transfers. If the cycle time is the sum over independent stations, this is exact
mean-value analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from perfmodel.base.quantities import Quantity, is_symbol, maximum, minimum, where
from perfmodel.base.roots import falling_zero, log

EXACT = 64
"""Customers of one class up to which the exact recursion is used; beyond, it would be slow."""

MOST_ROUNDS, CLOSE = 1000, 1e-9
"""Most iterations of the fixed point, and the relative change at which it has converged."""

EXTRAPOLATED, RIDGE = 4, 1e-12
"""Iterations of the fixed point between two extrapolations, as it is slow close to saturation, and
what is added to the diagonal of the normal equations of these."""

CycleTime = Callable[[Sequence[Quantity]], tuple[Quantity, Sequence[Quantity]]]
"""Maps the others present at each station to the cycle time and the time at each station (s)."""

Table = list[list[Quantity]]
"""A row for each class, a column for each station."""

Pace = Callable[[Sequence[Sequence[Quantity]]], Quantity]
"""Maps the others that each class sees at each station to the cycle time of all customers (s)."""

NEARLY_FULL = 1e-15
"""Least share of a station's time that is free, in divisors."""

LEAST_PART = 0.01
"""Lower limit of the time at a station, as a fraction of the time alone, to which a correction may
reduce it."""


def contended(
    customers: Sequence[Quantity],
    demands_s: Sequence[Quantity],
    cycles: Sequence[CycleTime],
    *,
    even: Sequence[Quantity] | None = None,
    stations: Sequence[str] = (),
    pace: Pace | None = None,
) -> list[list[Quantity]]:
    r"""Return the mean number of others that delay a customer at each station, (classes, stations).

    Parameters
    ----------
    customers : number of customers of each class, (classes,): whole numbers or, for one class, an
        array of them or a symbol.
    demands_s : seconds per cycle for which each station is busy, (stations,).
    cycles : for each class, the cycle time, given the others present. The time at a station is
        linear in the others there.
    even : regularity of arrivals at each station: 0 for random arrivals, up to 1 if an arrival
        finds on average only half of a service left. It reduces the others by ``even`` U / 2, with
        U the utilisation: of a constant service, half is left on average (residual life; Kleinrock,
        "Queueing Systems" I, 1975, ch. 5). Near saturation the cycle time may then be slightly
        below what the busiest station allows; callers must correct for that.
    stations : names for the symbols, if ``customers`` is one.
    pace : the cycle time of all customers, if they wait for each other between their cycles, so
        that every class has the rate of the slowest; the cycle times in ``cycles`` are then not
        used. It rises with the others.

    For one class with up to :data:`EXACT` customers this is the exact recursion over their number;
    otherwise it is a fixed point. If all customers have the same cycle time, it is the zero of a
    falling function of that time, which is bracketed, so there is only one, and it is always found.
    If cycle times are sums over stations, the fixed point is within 1 % of the exact throughput for
    one class, and within 3 % for two. For a symbolic number of customers the result consists of
    symbols.

    >>> def cycle(others):
    ...     held = 1.0 + others[0]
    ...     return 1.0 + held, [held]
    >>> [[float(others) for others in found] for found in contended([2], [1.0], [cycle])]
    [[0.5]]
    """
    regular = [0.0] * len(demands_s) if even is None else list(even)
    # how much shorter the time at each station is than after random arrivals (s)
    shorter = [0.5 * part * demand for demand, part in zip(demands_s, regular, strict=True)]
    still: Table = [[0.0] * len(demands_s) for _ in cycles]
    if len(cycles) > 1 and pace is None:
        settled = partial(_settled, shorter=shorter, cycles=cycles)
        return _at_once(customers, partial(_parts, shorter=shorter, cycles=cycles), settled, still)
    if is_symbol(customers[0]):
        import sympy

        return [[sympy.Symbol(f"Q_{name}", positive=True) for name in stations]]
    held = _lines(cycles, shorter)
    pace = pace or (lambda queued: cycles[0](queued[0])[0])
    parts, solved = partial(_parts_at, held, pace), partial(_solved, held=held, pace=pace)
    if len(cycles) > 1:
        return _at_once(customers, parts, solved, still)
    return [_alone(customers[0], len(demands_s), parts, solved)]


Solve = Callable[..., Table]
"""Maps the customers of each class, the changes of their fractions if one is removed, and the
table to start from to the fixed point."""


def _alone(
    customers: Quantity, stations: int, parts: Callable[[Table], Table], solved: Solve
) -> list[Quantity]:
    """Recurse over the number of customers; beyond :data:`EXACT`, use the fixed point."""
    most, least = int(np.max(customers)), int(np.min(customers))
    queued: list[Quantity] = [0.0] * stations
    for present in range(1, min(most, EXACT)):
        others = [present * part for part in parts([queued])[0]]
        queued = others if present < least else _where(present < customers, others, queued)
    if most <= EXACT:
        return queued
    (last,) = parts([queued])
    falls = [before / (EXACT - 1.0) - now for before, now in zip(queued, last, strict=True)]
    many = maximum(customers, EXACT + 1.0)
    start = [(many - 1.0) / (EXACT - 1.0) * others for others in queued]
    (beyond,) = _at_once([many], parts, solved, [falls], [start])
    return _where(customers > EXACT, beyond, queued)


def _where(condition: Quantity, yes: Sequence[Quantity], no: Sequence[Quantity]) -> list[Quantity]:
    return [where(condition, new, old) for new, old in zip(yes, no, strict=True)]


def _parts(queued: Table, shorter: Sequence[Quantity], cycles: Sequence[CycleTime]) -> Table:
    """Return the fraction of its time a customer spends at each station, given the others."""
    parts = []
    for cycle, others in zip(cycles, queued, strict=True):
        cycle_s, held_s = cycle(others)
        columns = zip(held_s, shorter, strict=True)
        parts.append([(held - less) / cycle_s for held, less in columns])
    return parts


Line = tuple[Quantity, Quantity]
"""Time at a station (s): without others, and what each of these adds."""


def _lines(cycles: Sequence[CycleTime], shorter: Sequence[Quantity]) -> list[list[Line]]:
    """Return the time at each station, shortened by even arrivals, (classes, stations)."""
    lines = []
    for cycle in cycles:
        (_, empty), (_, one) = cycle([0.0] * len(shorter)), cycle([1.0] * len(shorter))
        columns = zip(empty, one, shorter, strict=True)
        lines.append([(first - less, then - first) for first, then, less in columns])
    return lines


def _parts_at(held: Sequence[Sequence[Line]], pace: Pace, queued: Table) -> Table:
    """Return the fraction of the common cycle that a customer spends at each station."""
    cycle_s = pace(queued)
    return [
        [(first + more * others) / cycle_s for (first, more), others in zip(*rows, strict=True)]
        for rows in zip(held, queued, strict=True)
    ]


def _solved(
    customers: Sequence[Quantity],
    falls: Table,
    start: Table,
    *,
    held: Sequence[Sequence[Line]],
    pace: Pace,
) -> Table:
    """Return the fixed point of :func:`_settled` if all customers have the same cycle time.

    The longer the cycle, the fewer others are found, and the shorter the cycle that follows from
    them. So there is one cycle time that follows from itself.
    """
    total = sum(customers)
    weights = [
        [count * more for _, more in row] for count, row in zip(customers, held, strict=True)
    ]
    full_s: Quantity = 0.0  # a shorter cycle would be too short for all to be served
    for number in range(len(held[0])):
        whole = sum(row[number] for row in weights)
        full_s = maximum(full_s, whole - maximum(0.0, *(row[number][1] for row in held)))

    def least(fall: Quantity, line: Line) -> Quantity:
        first, more = line
        limit = (LEAST_PART - 1.0) * first / maximum(more * (total - 1.0), 1e-300)
        return maximum(fall, limit)

    falls = _each(least, falls, [list(row) for row in held])

    def off(extra_s: Quantity) -> Quantity:
        cycle_s = full_s + extra_s
        return log(pace(_seen(customers, held, falls, cycle_s)) / cycle_s)

    extra_s = falling_zero(off, maximum(pace(start) - full_s, 1e-3 * pace(start)))
    return _seen(customers, held, falls, full_s + extra_s)


def _seen(
    customers: Sequence[Quantity],
    held: Sequence[Sequence[Line]],
    falls: Table,
    cycle_s: Quantity,
) -> Table:
    """Return the others that a customer of each class sees if all have this cycle time.

    With P customers at a station, of which a customer of class k itself is p_k,

    .. math:: p_k = (a_k + b_k (P - p_k)) / C + f_k, \\qquad P = \\sum_k n_k p_k

    which is linear in P.
    """
    table: Table = [[] for _ in held]
    for column, changes in zip(zip(*held, strict=True), zip(*falls, strict=True), strict=True):
        alone = [
            (first + fall * cycle_s) / (cycle_s + more)
            for (first, more), fall in zip(column, changes, strict=True)
        ]
        each = [more / (cycle_s + more) for _, more in column]
        free = 1.0 - sum(count * part for count, part in zip(customers, each, strict=True))
        present = sum(count * part for count, part in zip(customers, alone, strict=True))
        present = present / maximum(free, NEARLY_FULL)
        for row, own, part in zip(table, alone, each, strict=True):
            row.append(maximum(0.0, present - own - part * present))
    return table


def _at_once(
    customers: Sequence[Quantity],
    parts: Callable[[Table], Table],
    solved: Solve,
    falls: Table,
    start: Table | None = None,
) -> Table:
    """Return the others seen by a customer of each class, by one step of Linearizer.

    An arrival sees a network with one customer fewer. Removing one customer changes the fraction of
    time spent at a station by the difference of two fixed points: one with a customer removed,
    taken from all classes in proportion, and one with all. These two use the change ``falls`` at
    :data:`EXACT` customers, scaled by n^-2. Each fixed point is sought from the one before, the
    first from ``start``.

    Chandy, Neuse, CACM 25(2), 1982, doi 10.1145/358396.358403.
    """

    def scaled(count: Sequence[Quantity]) -> Table:
        scale = (EXACT / sum(count)) ** 2
        return _each(lambda fall: fall * scale, falls)

    total = sum(customers)
    fewer = [count * (total - 1.0) / total for count in customers]
    without_one = solved(fewer, scaled(fewer), falls if start is None else start)
    complete = solved(customers, scaled(customers), without_one)
    before, now = parts(without_one), parts(complete)
    steps = _each(partial(_change, total), before, now)
    return solved(customers, steps, complete)


def _change(customers: Quantity, before: Quantity, now: Quantity) -> Quantity:
    """Return the change of the fraction of time at a station, if one of ``customers`` is removed.

    The number of customers there falls by at most one and never rises (Suri, "A concept of
    monotonicity and its characterization for closed queueing networks", Operations Research 33(3),
    1985). Close to saturation, two approximate solutions may differ by more.
    """
    least, most = (now - 1.0) / (customers - 1.0), now / (customers - 1.0)
    return maximum(least, minimum(before - now, most))


def _settled(
    customers: Sequence[Quantity],
    falls: Table,
    start: Table,
    *,
    shorter: Sequence[Quantity],
    cycles: Sequence[CycleTime],
) -> Table:
    """Iterate from ``start`` to the fixed point, until the relative change is below CLOSE.

    It is that of Bard and Schweitzer, corrected by ``falls``: an arrival sees all customers of
    other classes, and all but one of its own, each at a station for a fraction of its time. An
    extrapolation that leads further away from the fixed point is taken back, and the next one goes
    half as far: where a bound on the cycle time sets in, the values beyond it follow another line.
    """
    queued = plain = start
    passed = [queued]
    allowed: Quantity = np.inf
    reach: Quantity = 1.0
    for rounds in range(1, MOST_ROUNDS + 1):
        parts = _each(lambda part, fall: part + fall, _parts(queued, shorter, cycles), falls)
        target = _target(customers, parts)
        off = _off(target, queued)
        queued = _each(lambda new, old: (new + old) / 2.0, target, queued)
        if rounds > 1 and rounds % EXTRAPOLATED == 1:
            closer = off <= allowed
            queued = _each(partial(where, closer), queued, plain)
            reach = where(closer, 1.0, 0.5 * reach)
        if np.max(off) < CLOSE:
            break
        passed.append(queued)
        if rounds % EXTRAPOLATED == 0:
            plain, allowed = queued, off
            queued = _towards_limit(reach, passed)
            passed = [queued]
    return queued


def _target(customers: Sequence[Quantity], parts: Table) -> Table:
    """Return the others seen by a customer of each class that sees one customer less of its own."""
    present = [
        sum(count * part for count, part in zip(customers, column, strict=True))
        for column in zip(*parts, strict=True)
    ]
    return [
        [maximum(0.0, whole - seen) for whole, seen in zip(present, row, strict=True)]
        for row in parts
    ]


def _off(target: Table, queued: Table) -> Quantity:
    """Return the largest relative change at any station."""
    changes = _each(lambda new, old: abs(new - old) / (1.0 + old), target, queued)
    return maximum(0.0, *(change for row in changes for change in row))


def _towards_limit(reach: Quantity, passed: Sequence[Table]) -> Table:
    """Go the fraction ``reach`` of the way from the last of successive tables to their limit.

    The limit is estimated by a secant in all values at once, which for a single value is Aitken's
    delta-squared process: the combination of the last steps that comes closest to no step at all,
    in least squares (Anderson, "Iterative procedures for nonlinear integral equations", JACM 12(4),
    1965, doi 10.1145/321296.321305). No value falls by more than half: while steps still grow, the
    limit that they seem to come from is below zero.
    """
    values = [[value for row in table for value in row] for table in passed]
    shape = np.broadcast_shapes(*(np.shape(value) for row in values for value in row))
    x = np.array([[np.broadcast_to(value, shape) for value in row] for row in values])
    x = np.moveaxis(x.reshape(*x.shape[:2], -1), 2, 0)  # (variants, tables, values)
    steps = np.diff(x, axis=1)
    turns = np.diff(steps, axis=1)
    size = np.linalg.norm(turns, axis=2, keepdims=True)
    unit = turns / np.where(size > 0.0, size, 1.0)
    normal = unit @ unit.transpose(0, 2, 1) + RIDGE * np.eye(turns.shape[1])
    weights = np.linalg.solve(normal, unit @ steps[:, -1, :, None])
    weights = weights / np.where(size > 0.0, size, 1.0)
    change = -(weights * steps[:, 1:]).sum(axis=1)  # (variants, values)
    columns = iter(change.T.reshape(-1, *shape) if shape else change[0].tolist())
    return [
        [maximum(0.5 * value, value + reach * next(columns)) for value in row] for row in passed[-1]
    ]


def _each(function: Callable[..., Quantity], *tables: Table) -> Table:
    """Apply a function to tables, element by element."""
    return [
        [function(*values) for values in zip(*rows, strict=True)]
        for rows in zip(*tables, strict=True)
    ]


def regularity(fifo_s: Quantity, shared_s: Quantity) -> Quantity:
    """Return the regularity of arrivals at a shared link after customers queued for a server.

    The server releases them one by one, ``fifo_s`` apart. If that is as long as a transfer alone,
    ``shared_s``, transfers never overlap: 1. If it is zero, arrivals are random: 0. In between it
    is

    .. math:: 1 - (1 - s / d)^3

    a fit to simulated rings of one server, two links and 2 to 16 customers with constant service.

    >>> regularity(0.5, 1.0)
    0.875
    """
    apart = minimum(fifo_s / where(shared_s > 0.0, shared_s, 1.0), 1.0)
    return where(shared_s > 0.0, 1.0 - (1.0 - apart) ** 3, 0.0)
