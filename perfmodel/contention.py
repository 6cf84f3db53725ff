"""Customers that go round and slow each other down: mean-value analysis with overlap.

Mean-value analysis (:mod:`perfmodel.queueing`) goes from n - 1 customers to n: one that arrives at
a station finds there as many others as there are, on average, with one customer less (Reiser,
Lavenberg, JACM 27(2), 1980, doi 10.1145/322186.322195). It needs to know how long a lap takes one
that finds so many others; nothing says that a lap must be a sum over stations. Here it is any
function of the others, so that what a worker computes may overlap what it sends. Where the lap is
the sum of independent stations this is exact mean-value analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from perfmodel.algebra import Quantity, is_symbol, maximum, minimum, where

EXACT = 64
"""Customers of one class up to which the recursion is exact; it would take long for more."""

MOST_ROUNDS, CLOSE = 1000, 1e-9
"""Repetitions of a fixed point, and the relative change at which it is one."""

Lap = Callable[[Sequence[Quantity]], tuple[Quantity, Sequence[Quantity]]]
"""From the others found at each station to the seconds of a lap, and those at each station."""


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
        off the others, with U the utilisation: the residual life of a service without spread
        (Reiser, 1979).
    stations : names that the symbols get, if ``customers`` is one.

    With one class this is the exact recursion over the number of customers, up to :data:`EXACT`;
    with more of them, or several classes, it is the fixed point of Bard and Schweitzer, where one
    that arrives finds all customers of other classes, and all but an n-th of its own. For a
    symbolic number of customers the others are symbols.

    >>> def lap(others):
    ...     held = 1.0 + others[0]
    ...     return 1.0 + held, [held]
    >>> [[float(others) for others in found] for found in contended([2], [1.0], [lap])]
    [[0.5]]
    """
    regular = [0.0] * len(demands_s) if even is None else list(even)
    if len(laps) > 1:
        return _mixed(customers, demands_s, laps, regular)
    if is_symbol(customers[0]):
        import sympy

        return [[sympy.Symbol(f"Q_{name}", positive=True) for name in stations]]
    return [_alone(customers[0], demands_s, laps[0], regular)]


def _alone(
    customers: Quantity, demands_s: Sequence[Quantity], lap: Lap, regular: Sequence[Quantity]
) -> list[Quantity]:
    """One customer after the other; beyond :data:`EXACT` of them all at once.

    There the part of all customers who are at a station is taken to fall, from one customer less,
    as it does in the fixed points for both numbers; and in these in proportion to n^-2 from
    :data:`EXACT` on. This is one step of Linearizer (Chandy, Neuse, CACM 25(2), 1982, doi
    10.1145/358396.358403), which begins with what the recursion found.
    """
    most = int(np.max(customers))

    def met(found: Sequence[Quantity], present: Quantity) -> list[Quantity]:
        """How many are at each station of so many who each find others there."""
        cycle_s, held_s = lap(found)
        per_s = present / cycle_s
        return [
            per_s * (held - 0.5 * part * demand)
            for held, demand, part in zip(held_s, demands_s, regular, strict=True)
        ]

    found: list[Quantity] = [0.0] * len(demands_s)
    for present in range(1, min(most, EXACT)):
        here = met(found, present)
        found = _where(present < customers, here, found)
    if most <= EXACT:
        return found
    crowd = maximum(customers, 1.0 * EXACT)
    last = met(found, 1.0 * EXACT)
    falls = [
        (before / (EXACT - 1.0) - now / EXACT) * EXACT**2
        for before, now in zip(found, last, strict=True)
    ]

    def settled(present: Quantity, falls: Sequence[Quantity]) -> list[Quantity]:
        """The others that each of so many finds, if the part of all customers who are at a station
        falls that much from one customer less."""
        ahead = [others * (present - 1.0) / (EXACT - 1.0) for others in found]
        for _ in range(MOST_ROUNDS):
            here = [
                maximum((present - 1.0) * (others / present + fall), 0.0)
                for others, fall in zip(met(ahead, present), falls, strict=True)
            ]
            change = max(
                float(np.max(np.abs(new - old) / (1.0 + np.abs(old))))
                for new, old in zip(here, ahead, strict=True)
            )
            ahead = [(new + old) / 2.0 for new, old in zip(here, ahead, strict=True)]
            if change < CLOSE:
                break
        return ahead

    guess = settled(crowd, [fall / crowd**2 for fall in falls])
    fewer = settled(crowd - 1.0, [fall / (crowd - 1.0) ** 2 for fall in falls])
    better = [
        before / (crowd - 1.0) - now / crowd
        for before, now in zip(met(fewer, crowd - 1.0), met(guess, crowd), strict=True)
    ]
    return _where(customers > EXACT, settled(crowd, better), found)


def _where(condition: Quantity, yes: Sequence[Quantity], no: Sequence[Quantity]) -> list[Quantity]:
    return [where(condition, new, old) for new, old in zip(yes, no, strict=True)]


def _mixed(
    customers: Sequence[Quantity],
    demands_s: Sequence[Quantity],
    laps: Sequence[Lap],
    regular: Sequence[Quantity],
) -> list[list[Quantity]]:
    """The fixed point for several classes, by repetition until nothing changes by CLOSE."""
    found = [[0.0] * len(demands_s) for _ in laps]
    for _ in range(MOST_ROUNDS):
        here = []
        for count, lap, others in zip(customers, laps, found, strict=True):
            cycle_s, held_s = lap(others)
            here.append(
                [
                    count / cycle_s * (held - 0.5 * part * demand)
                    for held, demand, part in zip(held_s, demands_s, regular, strict=True)
                ]
            )
        present = [sum(column) for column in zip(*here, strict=True)]
        target = [
            [whole - mine / count for whole, mine in zip(present, own, strict=True)]
            for own, count in zip(here, customers, strict=True)
        ]
        change = max(
            float(np.max(np.abs(new - old) / (1.0 + np.abs(old))))
            for row, before in zip(target, found, strict=True)
            for new, old in zip(row, before, strict=True)
        )
        found = [
            [(new + old) / 2.0 for new, old in zip(row, before, strict=True)]
            for row, before in zip(target, found, strict=True)
        ]
        if change < CLOSE:
            break
    return found


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
