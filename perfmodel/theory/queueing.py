r"""Closed queueing networks: workers compute, then queue for links and servers, again and again.

A *customer* is a worker, a *cycle* its iteration. In each cycle it thinks for ``think_s`` without
using any station, and visits every station once. Station *i* provides :math:`D_i` seconds of
service per cycle (its *demand*) and serves :math:`k_i` customers at once. For N customers and Z
seconds of thinking,

.. math:: X = N / (Z + \sum_i R_i), \quad Q_i = X R_i, \quad U_i = X D_i / k_i

with the throughput X (cycles per second), residence times R, queue lengths Q (including customers
in service) and utilisations U. The functions below differ in how they compute R, and in the
networks they are valid for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np

from perfmodel.base.errors import InputError, number, unknown_name, whole_number
from perfmodel.base.quantities import (
    Quantity,
    is_symbol,
    maximum,
    minimum,
    quantity,
    together,
    whole_quantity,
)

Kind = Literal["delay", "shared", "fifo"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Station(msgspec.Struct, frozen=True, eq=False):
    """A place where customers are served.

    Attributes
    ----------
    name : used in error messages.
    demand_s : seconds of service that a customer needs per cycle: a number; an array or a symbol
        for :func:`asymptotic_bounds` and :func:`blended`.
    kind : *delay* (no queueing), *shared* (processor sharing: a link) or *fifo* (first come, first
        served: threads of a server).
    servers : number of customers served at once at full speed; ignored for a delay.
    cv : coefficient of variation of the service time; used by :func:`near_deterministic` only, for
        *fifo*.

    Raises
    ------
    InputError : an unknown kind, a negative time, fewer than one server.
    """

    name: str
    demand_s: Quantity
    kind: Kind = "shared"
    servers: int = 1
    cv: Quantity = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name(f"kind of station {self.name!r}", self.kind, KINDS)
        whole_number(f"servers of station {self.name!r}", self.servers)
        quantity(f"demand_s of station {self.name!r}", self.demand_s)
        quantity(f"cv of station {self.name!r}", self.cv)


class NetworkMeans(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Steady-state means of a closed network.

    Attributes
    ----------
    throughput_per_s : cycles per second of all customers together.
    cycle_s : seconds per cycle, including thinking.
    residence_s : by station, seconds per cycle spent there, including waiting.
    queue_length : by station, customers there, including those in service.
    utilisation : by station, busy fraction of its servers; for a delay, the customers there.
    """

    throughput_per_s: float
    cycle_s: float
    residence_s: tuple[float, ...]
    queue_length: tuple[float, ...]
    utilisation: tuple[float, ...]


# -- bounds ----------------------------------------------------------------------------------------


def asymptotic_bounds(
    customers: Quantity, stations: Sequence[Station], think_s: Quantity = 0.0
) -> tuple[Quantity, Quantity]:
    r"""Return a lower and an upper bound on the throughput (1/s) of any network with these demands.

    .. math:: \frac{N}{Z + N D} \le X \le \min\left(\frac{N}{Z + D}, \min_i \frac{k_i}{D_i}\right)

    where D is the sum of the demands, except those of delays, which are added to Z. The bounds hold
    for any distribution of times and any work-conserving order of service. A single customer
    attains the upper bound. Arguments may be numbers, arrays that broadcast, or symbols.

    Raises
    ------
    InputError : a number out of range; symbols together with arrays; a cycle that takes no time.

    References
    ----------
    Lazowska, Zahorjan, Graham, Sevcik, "Quantitative System Performance", 1984, section 5.2.

    >>> asymptotic_bounds(4, [Station("link", 1.0)], think_s=3.0)
    (0.5714285714285714, 1.0)
    """
    customers, think_s = _checked(customers, stations, think_s)
    away_s, served_s = _split(stations, think_s)
    lower = customers / (away_s + customers * served_s)
    return lower, 1 / maximum((away_s + served_s) / customers, *_busy_s(stations))


def blended(
    customers: Quantity,
    stations: Sequence[Station],
    think_s: Quantity = 0.0,
    *,
    sharpness: Quantity,
) -> Quantity:
    r"""Return the throughput (1/s) as a smooth blend of the two upper asymptotic bounds.

    .. math:: \frac{1}{X} = \left(\left(\frac{Z + D}{N}\right)^p + D_{max}^p\right)^{1/p}

    This is an empirical form with one parameter, the ``sharpness`` p of the knee, which is fitted
    to measured throughputs; infinity gives the upper bound. The result never exceeds that bound. At
    the knee it is furthest below, at :math:`2^{-1/p}` of the bound, and it approaches the bound on
    both sides. It is not exact for one customer, and depends only on the busiest station. Use it
    if the sharpness was fitted to measurements, otherwise :func:`near_deterministic`. Arguments may
    be numbers, arrays that broadcast, or symbols.

    Raises
    ------
    InputError : as for :func:`asymptotic_bounds`; ``sharpness`` below 1.

    >>> blended(4, [Station("link", 1.0)], 3.0, sharpness=2.0)
    0.7071067811865475
    >>> blended(4, [Station("link", 1.0)], 3.0, sharpness=math.inf)
    1.0
    """
    customers, think_s = _checked(customers, stations, think_s)
    if not is_symbol(sharpness) and not np.all(np.asarray(sharpness) >= 1.0):
        raise InputError(f"sharpness: must be at least 1, got {sharpness!r}")
    cycle_s, busy_s = sum(_split(stations, think_s)) / customers, _busy_s(stations)
    most_s = maximum(*busy_s) if busy_s else 0.0
    if any(is_symbol(value) for value in (cycle_s, most_s, sharpness)):
        return (cycle_s**sharpness + most_s**sharpness) ** (-1 / sharpness)
    larger, smaller = maximum(cycle_s, most_s), minimum(cycle_s, most_s)
    return 1 / (larger * (1 + (smaller / larger) ** sharpness) ** (1 / sharpness))


# -- mean-value analysis ---------------------------------------------------------------------------


def mva(customers: int, stations: Sequence[Station], think_s: float = 0.0) -> NetworkMeans:
    r"""Exact mean-value analysis: an arrival sees the network with one customer fewer.

    .. math:: R_i(n) = \frac{D_i}{k_i} \left(1 + Q_i(n-1)
       + \sum_{j=0}^{k_i-2} (k_i - 1 - j) P_i(j|n-1)\right)

    for n = 1 to N, where :math:`P_i(j|n)` is the probability that j of n customers are at station
    i. It is exact for product-form networks: thinking, delays and *shared* stations with times of
    any distribution, *fifo* stations with exponential times (their ``cv`` is ignored).

    The probability of an empty station is computed from the throughput of the network without that
    station, :math:`P_i(0|n) = P_i(0|n-1) X(n) / X_{-i}(n)`. This follows from the product form and
    is numerically stable, unlike one minus the sum of the other probabilities. Each station with
    several servers therefore doubles the work.

    Parameters
    ----------
    customers : at least 1.
    stations, think_s : with numbers, not arrays or symbols.

    Raises
    ------
    InputError : a number out of range; an array or a symbol; a cycle that takes no time.

    References
    ----------
    Reiser, Lavenberg, "Mean-value analysis of closed multichain queuing networks", JACM 27(2),
    1980, doi 10.1145/322186.322195. Empty stations: Reiser, "Mean-value analysis and convolution
    method for queue-dependent servers in closed queueing networks", Performance Evaluation 1(1),
    1981, doi 10.1016/0166-5316(81)90040-7.

    >>> means = mva(2, [Station("processor", 10.0), Station("disk", 15.0)])
    >>> means.throughput_per_s, means.queue_length[0]
    (0.05263157894736842, 0.7368421052631579)
    """
    customers, think_s = _checked_numbers(customers, stations, think_s)
    centres = [
        _Centre(float(s.demand_s), math.inf if s.kind == "delay" else s.servers) for s in stations
    ]
    residence_s = _residence_s(customers, centres, think_s)
    throughput = customers / sum(residence_s, think_s)
    return _means(stations, customers, throughput, residence_s)


def near_deterministic(
    customers: int,
    stations: Sequence[Station],
    think_s: float = 0.0,
    *,
    cv: float | None = None,
) -> NetworkMeans:
    r"""Mean-value analysis for *fifo* stations whose service varies less than exponentially.

    .. math:: R_i(n) = D_i \left(1 + Q_i(n-1) - \frac{1 - c_i^2}{2} U_i(n-1)\right)

    A customer that arrives at a busy server waits for the mean residual life of the service in
    progress, :math:`(1 + c^2)/2` of a service, instead of a whole one. A *fifo* station of k
    servers is replaced by one with demand D/k and a delay of D (k-1)/k. The throughput is limited
    to the upper bound of :func:`asymptotic_bounds`; the extra waiting that this implies is assigned
    to the busiest station.

    The range of validity is c from 0 to 1. With c = 1 and single servers it equals :func:`mva`;
    with many customers and long think times it converges to the Pollaczek-Khinchine formula for
    M/G/1. Elsewhere it still assumes random arrivals, so it is pessimistic if think times hardly
    vary either: customers then fall into a stagger and get close to the upper bound.
    Compared with simulations of one to three *fifo* stations at the knee, it was between 4 % too
    low and 5 % too high with exponential think times, and up to 11 % too low with think times of
    c = 0.2 (:func:`mva`: up to 22 %).

    Parameters
    ----------
    customers, stations, think_s : see :func:`mva`.
    cv : coefficient of variation of service at every *fifo* station, overriding their own.

    Raises
    ------
    InputError : as for :func:`mva`; a ``cv`` above 1.

    References
    ----------
    Eager, Sorin, Vernon, "AMVA techniques for high service time variability", SIGMETRICS 2000,
    where this is the standard approximation. Several servers: Seidmann, Schweitzer, Shalev-Oren,
    "Computerized closed queueing network models of flexible manufacturing systems", Large Scale
    Systems 12, 1987.

    >>> stations = [Station("update", 1.0, "fifo")]
    >>> [round(near_deterministic(4, stations, 3.0, cv=c).throughput_per_s, 3) for c in (0, 1)]
    [0.877, 0.794]
    """
    if cv is not None:
        stations = [msgspec.structs.replace(station, cv=cv) for station in stations]
    customers, think_s = _checked_numbers(customers, stations, think_s)
    centres, delay_s = [], []
    for station in stations:
        whole_s, servers, saved = float(station.demand_s), float(station.servers), 0.0
        demand_s = whole_s
        if station.kind == "delay":
            servers = math.inf
        elif station.kind == "fifo":
            number(f"cv of station {station.name!r}", station.cv, at_least=0.0, at_most=1.0)
            demand_s, servers = whole_s / station.servers, 1.0
            saved = (1 - float(station.cv) ** 2) / 2
        centres.append(_Centre(demand_s, servers, saved))
        delay_s.append(whole_s - demand_s)
    queued_s = _residence_s(customers, centres, sum(delay_s, think_s))
    unlimited = customers / sum(queued_s, sum(delay_s, think_s))
    throughput = min(unlimited, float(asymptotic_bounds(customers, stations, think_s)[1]))
    busy_s = [0.0 if s.kind == "delay" else float(s.demand_s) / s.servers for s in stations]
    busiest = [busy >= max(0.0, *busy_s) for busy in busy_s]
    extra_s = (customers / throughput - customers / unlimited) / max(1, sum(busiest))
    residence_s = [
        queued + delay + here * extra_s
        for queued, delay, here in zip(queued_s, delay_s, busiest, strict=True)
    ]
    return _means(stations, customers, throughput, residence_s)


def _means(
    stations: Sequence[Station], customers: int, throughput: float, residence_s: Sequence[float]
) -> NetworkMeans:
    """Return the means that follow from the throughput (1/s) and the residence times."""
    work_s = [float(s.demand_s) / (1 if s.kind == "delay" else s.servers) for s in stations]
    return NetworkMeans(
        throughput_per_s=throughput,
        cycle_s=customers / throughput,
        residence_s=tuple(residence_s),
        queue_length=tuple(throughput * residence for residence in residence_s),
        utilisation=tuple(throughput * work for work in work_s),
    )


class _Centre(NamedTuple):
    """A station of the recursion.

    ``saved`` is the fraction of a service by which the residual life of the service in progress is
    shorter than a whole service.
    """

    demand_s: float
    servers: float
    saved: float = 0.0

    @property
    def several(self) -> bool:
        """Whether it has more than one server, but not infinitely many."""
        return 1 < self.servers < math.inf


class _Network:
    """A closed network, filled customer by customer, without the centres in ``removed``.

    Holds what an arrival sees, by centre: ``queue`` customers, ``busy`` servers, and the
    probability (``chance``) of 0, 1, ... customers, for as many as the recursion needs.
    ``cycle_s`` is the cycle time divided by the number of customers.
    """

    def __init__(
        self,
        centres: Sequence[_Centre],
        think_s: float,
        removed: frozenset[int],
        smaller: Mapping[frozenset[int], _Network],
    ) -> None:
        kept = [i for i in range(len(centres)) if i not in removed]
        self.centres, self.think_s = [centres[i] for i in kept], think_s
        self.without = [smaller[removed | {i}] if centres[i].several else None for i in kept]
        self.queue = [0.0 for _ in kept]
        self.busy = [0.0 for _ in kept]
        self.chance = [
            [1.0] + [0.0] * (int(centre.servers) - 2) if centre.several else []
            for centre in self.centres
        ]
        self.cycle_s = 0.0
        self.residence_s: list[float] = []

    def add_customer(self, customers: int) -> None:
        """Add one customer, for a total of ``customers``; the smaller networks come first."""
        self.residence_s = [self._residence_s(i) for i in range(len(self.centres))]
        self.cycle_s = sum(self.residence_s, self.think_s) / customers
        # zero only in a smaller network: with a centre removed, a cycle may take no time
        rate = 1 / self.cycle_s if self.cycle_s else 1.0
        self.queue = [residence * rate for residence in self.residence_s]
        for i, (centre, rest) in enumerate(zip(self.centres, self.without, strict=True)):
            self.busy[i] = centre.demand_s * rate
            if rest is not None:
                chance = self.chance[i]
                empty = chance[0] * rest.cycle_s * rate
                more = [
                    centre.demand_s / (j + 1) * chance[j] * rate for j in range(len(chance) - 1)
                ]
                self.chance[i] = [empty, *more]

    def _residence_s(self, i: int) -> float:
        """Return the residence time of the next arrival at a centre."""
        centre = self.centres[i]
        if centre.servers == math.inf:
            return centre.demand_s
        seen = 1 + self.queue[i] - centre.saved * self.busy[i]
        for j, chance in enumerate(self.chance[i]):
            seen += (len(self.chance[i]) - j) * chance
        return centre.demand_s / centre.servers * seen


def _residence_s(customers: int, centres: Sequence[_Centre], think_s: float) -> list[float]:
    """Return the residence times by centre in a network of ``customers`` customers."""
    several = [i for i, centre in enumerate(centres) if centre.several]
    networks: dict[frozenset[int], _Network] = {}
    for size in range(len(several), -1, -1):
        for removed in map(frozenset, combinations(several, size)):
            networks[removed] = _Network(centres, think_s, removed, networks)
    for present in range(1, customers + 1):
        for network in networks.values():
            network.add_customer(present)
    return networks[frozenset()].residence_s


# -- arguments -------------------------------------------------------------------------------------


def _checked(
    customers: Quantity, stations: Sequence[Station], think_s: Quantity
) -> tuple[Quantity, Quantity]:
    """Check customers and think time, alone and together with the stations."""
    customers, think_s = whole_quantity("customers", customers), quantity("think_s", think_s)
    times = [think_s, *(station.demand_s for station in stations)]
    together("stations", customers, *times, *(station.cv for station in stations))
    if not any(is_symbol(value) for value in times) and np.any(sum(times) <= 0.0):
        raise InputError("stations: a cycle takes no time")
    return customers, think_s


def _checked_numbers(
    customers: int, stations: Sequence[Station], think_s: float
) -> tuple[int, float]:
    """Check them, allowing numbers only."""
    count, thinking_s = _checked(customers, stations, think_s)
    times = {f"demand_s of station {station.name!r}": station.demand_s for station in stations}
    for name, value in {"customers": count, "think_s": thinking_s, **times}.items():
        number(name, value)
    return int(count), float(thinking_s)


def _split(stations: Sequence[Station], think_s: Quantity) -> tuple[Quantity, Quantity]:
    """Return the seconds per cycle without queueing (thinking, delays), and queueing demands."""
    delays = [station.demand_s for station in stations if station.kind == "delay"]
    queues = [station.demand_s for station in stations if station.kind != "delay"]
    return sum(delays, think_s), sum(queues)


def _busy_s(stations: Sequence[Station]) -> list[Quantity]:
    """Return the seconds per cycle for which each station is busy, except delays."""
    return [s.demand_s / s.servers for s in stations if s.kind != "delay"]
