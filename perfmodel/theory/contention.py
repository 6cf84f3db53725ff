"""Customers that go round and slow each other down: mean-value analysis with overlap.

Mean-value analysis (:mod:`perfmodel.theory.queueing`) goes from n - 1 customers to n: one that
arrives at a station finds there as many others as there are, on average, with one customer less
(Reiser, Lavenberg, JACM 27(2), 1980, doi 10.1145/322186.322195). It needs to know how long a lap
takes one that finds so many others; nothing says that a lap must be a sum over stations. Here it is
any function of the others, so that what a worker computes may overlap what it sends. Where the lap
is the sum of independent stations this is exact mean-value analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from perfmodel.base.quantities import Quantity, is_symbol, maximum, minimum, where

EXACT = 64
"""Customers of one class up to which the recursion is exact; it would take long for more."""

MOST_ROUNDS, CLOSE = 1000, 1e-9
"""Repetitions of a fixed point, and the relative change at which it is one."""

Lap = Callable[[Sequence[Quantity]], tuple[Quantity, Sequence[Quantity]]]
"""From the others found at each station to the seconds of a lap, and those at each station."""

Table = list[list[Quantity]]
"""A row for each class, a column for each station."""


def contended(
    customers: Sequence[Quantity],
    demands_s: Sequence[Quantity],
    laps: Sequence[Lap],
    *,
    even: Sequence[Quantity] | None = None,
    stations: Sequence[str] = (),
) -> list[list[Quantity]]:
    r"""The mean number of others that slow a customer down at each station, (classes, stations).

    Parameters
    ----------
    customers : how many of each class, (classes,): whole numbers or, for one class, an array of
        them, or a symbol.
    demands_s : seconds that a lap keeps each station busy, (stations,).
    laps : for each class, what a lap takes one that finds so many others.
    even : 0 for stations where customers come at random times; up to 1 where they come so evenly
        that one finds of another's service no more than half, on average. It takes ``even`` U / 2
        off the others, with U the utilisation: of a service without spread, half is left on
        average (residual life; Kleinrock, "Queueing Systems" I, 1975, ch. 5). Near saturation a
        lap may then be a little shorter than the busiest station allows; who uses it makes up for
        that.
    stations : names that the symbols get, if ``customers`` is one.

    With one class this is the exact recursion over the number of customers, up to :data:`EXACT`;
    with more of them, or several classes, a fixed point. Where laps are sums of stations, that is
    within 1 % of the exact throughput for one class, and 3 % for two. For a symbolic number of
    customers the others are symbols.

    >>> def lap(others):
    ...     held = 1.0 + others[0]
    ...     return 1.0 + held, [held]
    >>> [[float(others) for others in found] for found in contended([2], [1.0], [lap])]
    [[0.5]]
    """
    regular = [0.0] * len(demands_s) if even is None else list(even)
    if len(laps) > 1:
        still = [[0.0] * len(demands_s) for _ in laps]
        return _at_once(customers, demands_s, laps, regular, still)
    if is_symbol(customers[0]):
        import sympy

        return [[sympy.Symbol(f"Q_{name}", positive=True) for name in stations]]
    return [_alone(customers[0], demands_s, laps[0], regular)]


def _alone(
    customers: Quantity, demands_s: Sequence[Quantity], lap: Lap, regular: Sequence[Quantity]
) -> list[Quantity]:
    """One customer after the other; beyond :data:`EXACT` of them all at once."""
    most = int(np.max(customers))
    found: list[Quantity] = [0.0] * len(demands_s)
    for present in range(1, min(most, EXACT)):
        (parts,) = _parts([found], demands_s, [lap], regular)
        found = _where(present < customers, [present * part for part in parts], found)
    if most <= EXACT:
        return found
    (parts,) = _parts([found], demands_s, [lap], regular)
    falls = [before / (EXACT - 1.0) - now for before, now in zip(found, parts, strict=True)]
    crowd = maximum(customers, EXACT + 1.0)
    (ahead,) = _at_once([crowd], demands_s, [lap], regular, [falls])
    return _where(customers > EXACT, ahead, found)


def _where(condition: Quantity, yes: Sequence[Quantity], no: Sequence[Quantity]) -> list[Quantity]:
    return [where(condition, new, old) for new, old in zip(yes, no, strict=True)]


def _parts(
    found: Table, demands_s: Sequence[Quantity], laps: Sequence[Lap], regular: Sequence[Quantity]
) -> Table:
    """The part of its time that a customer who finds so many others is at each station."""
    parts = []
    for lap, others in zip(laps, found, strict=True):
        cycle_s, held_s = lap(others)
        columns = zip(held_s, demands_s, regular, strict=True)
        parts.append([(held - 0.5 * part * demand) / cycle_s for held, demand, part in columns])
    return parts


def _at_once(
    customers: Sequence[Quantity],
    demands_s: Sequence[Quantity],
    laps: Sequence[Lap],
    regular: Sequence[Quantity],
    falls: Table,
) -> Table:
    """The others found by one of each class, by one step of Linearizer.

    One who arrives finds a network of one customer less. The part of its time that a customer is at
    a station falls, from one customer less, as it does between two fixed points: with one less, in
    proportion from all classes, and with all. In these it ``falls`` by so much at :data:`EXACT`
    customers, and elsewhere in proportion to n^-2.

    Chandy, Neuse, CACM 25(2), 1982, doi 10.1145/358396.358403.
    """

    def settled(count: Sequence[Quantity]) -> Table:
        scale = (EXACT / sum(count)) ** 2
        found = _settled(count, demands_s, laps, regular, _each(lambda f: f * scale, falls))
        return _parts(found, demands_s, laps, regular)

    everybody = sum(customers)
    fewer = settled([count * (everybody - 1.0) / everybody for count in customers])
    steps = _each(lambda before, now: before - now, fewer, settled(customers))
    return _settled(customers, demands_s, laps, regular, steps)


def _settled(
    customers: Sequence[Quantity],
    demands_s: Sequence[Quantity],
    laps: Sequence[Lap],
    regular: Sequence[Quantity],
    falls: Table,
) -> Table:
    """The fixed point, by repetition until nothing changes by CLOSE.

    That of Bard and Schweitzer, but for the ``falls``: who arrives finds all customers of other
    classes, and all but one of its own, at each station for a part of their time.
    """
    found: Table = [[0.0] * len(demands_s) for _ in laps]
    for _ in range(MOST_ROUNDS):
        seen = _each(lambda p, f: p + f, _parts(found, demands_s, laps, regular), falls)
        present = [
            sum(count * part for count, part in zip(customers, column, strict=True))
            for column in zip(*seen, strict=True)
        ]
        target = [
            [maximum(0.0, whole - mine) for whole, mine in zip(present, own, strict=True)]
            for own in seen
        ]
        off = _each(lambda n, o: float(np.max(np.abs(n - o) / (1.0 + o))), target, found)
        found = _each(lambda new, old: (new + old) / 2.0, target, found)
        if max(map(max, off)) < CLOSE:
            break
    return found


def _each(function: Callable[..., Quantity], *tables: Table) -> Table:
    """A function of tables, element by element."""
    return [
        [function(*values) for values in zip(*rows, strict=True)]
        for rows in zip(*tables, strict=True)
    ]


def regularity(fifo_s: Quantity, shared_s: Quantity) -> Quantity:
    """How evenly customers come to a link that they share after they have queued for a server.

    The server lets them go one by one, ``fifo_s`` apart. If that is as long as a transfer alone,
    ``shared_s``, transfers never meet: 1. If it is nothing, they come at random: 0. In between

    .. math:: 1 - (1 - s / d)^3

    a fit to simulated rings of one server, two links and 2 to 16 customers with constant service.

    >>> regularity(0.5, 1.0)
    0.875
    """
    apart = minimum(fifo_s / where(shared_s > 0.0, shared_s, 1.0), 1.0)
    return where(shared_s > 0.0, 1.0 - (1.0 - apart) ** 3, 0.0)
