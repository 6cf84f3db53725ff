r"""Closed queueing networks: workers that compute, then queue for links and servers, for ever.

A *customer* is a worker, a *lap* its iteration. On each lap it thinks for ``think_s``, where nobody
waits, and visits every station. Station *i* takes :math:`D_i` seconds of service per lap (its
*demand*) and serves :math:`k_i` customers at once. Then, for N customers and Z seconds of thinking,

.. math:: X = N / (Z + \sum_i R_i), \quad Q_i = X R_i, \quad U_i = X D_i / k_i

with the throughput X (laps per second), residence times R, queue lengths Q (those in service
included) and utilisations U. Demands and think times may be numbers, arrays that broadcast, or
SymPy symbols. What differs is how R is found, and for which networks that holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import InputError, PerfmodelError, unknown_name, whole_number
from perfmodel.base.quantities import (
    Quantity,
    is_symbol,
    maximum,
    minimum,
    quantity,
    together,
    where,
    whole_quantity,
)

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

Kind = Literal["delay", "shared", "fifo"]
KINDS: tuple[Kind, ...] = get_args(Kind)

BLOCK = 8192
"""Configurations that are solved together: their state fits into the processor's cache."""
MOST_POPULATIONS = 1_000_000
"""Populations, from none to all customers of each class, that exact multi-class analysis visits."""
MOST_ITERATIONS = 100_000
TOLERANCE = 1e-10
"""Change of a queue length, as a fraction of all customers, at which a fixed point is reached."""


class Station(msgspec.Struct, frozen=True, eq=False):
    """Where customers are served.

    Attributes
    ----------
    name : what messages call it.
    demand_s : seconds of service that a customer needs per lap; a number, an array or a symbol.
    kind : *delay* (nobody waits), *shared* (those present share the servers equally: a link) or
        *fifo* (first come, first served: threads of a server).
    servers : how many customers are served at once at full speed, unless it is a delay.
    cv : coefficient of variation of a service; only :func:`near_deterministic` uses it, for *fifo*.

    Raises
    ------
    InputError : an unknown kind, a negative time, less than one server.
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


class Laps(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Means of a closed network in its steady state.

    Each is a number, an array of the shape to which the inputs broadcast, or an expression.

    Attributes
    ----------
    throughput_per_s : laps per second of all customers together.
    cycle_s : seconds of a lap, thinking included.
    residence_s : by station, seconds per lap there, waiting included.
    queue_length : by station, customers there, those in service included.
    utilisation : by station, busy part of its servers; at a delay the customers there.
    """

    throughput_per_s: Quantity
    cycle_s: Quantity
    residence_s: tuple[Quantity, ...]
    queue_length: tuple[Quantity, ...]
    utilisation: tuple[Quantity, ...]


# -- bounds ----------------------------------------------------------------------------------------


def asymptotic_bounds(
    customers: Quantity, stations: Sequence[Station], think_s: Quantity = 0.0
) -> tuple[Quantity, Quantity]:
    r"""Least and largest throughput (1/s) of any network with these demands.

    .. math:: \frac{N}{Z + N D} \le X \le \min\left(\frac{N}{Z + D}, \min_i \frac{k_i}{D_i}\right)

    with D the sum of demands, those of delays counted with Z. They hold for any distribution of
    times and any order of service that leaves no server idle while somebody waits. One customer
    attains the upper one. ``customers`` may be a symbol, too.

    References
    ----------
    Lazowska, Zahorjan, Graham, Sevcik, "Quantitative System Performance", 1984, section 5.2.

    >>> asymptotic_bounds(4, [Station("link", 1.0)], think_s=3.0)
    (0.5714285714285714, 1.0)
    """
    customers, think_s = _checked(customers, stations, think_s, symbol=True)
    away_s, served_s = _split(stations, think_s)
    lower = customers / (away_s + customers * served_s)
    return lower, 1 / maximum((away_s + served_s) / customers, *_busy_s(stations))


def balanced_job_bounds(
    customers: Quantity, stations: Sequence[Station], think_s: Quantity = 0.0
) -> tuple[Quantity, Quantity]:
    r"""Least and largest throughput (1/s) of a product-form network with these demands.

    .. math:: \frac{N}{Z + D + \frac{(N-1) D_{max}}{1 + Z/(N D)}} \le X \le
       \min\left(\frac{1}{D_{max}}, \frac{N}{Z + D + \frac{(N-1) \bar{D}}{1 + Z/D}}\right)

    with the sum D, the mean and the largest of the demands, those of delays counted with Z. A
    network of the same D whose stations are all alike is the fastest, one with as many stations of
    the largest demand as D holds the slowest. Within the asymptotic bounds, for the networks for
    which :func:`mva` is exact. ``customers`` may be a symbol, too.

    Raises
    ------
    InputError : a station of several servers, for which these bounds do not hold.

    References
    ----------
    Zahorjan, Sevcik, Eager, Galler, "Balanced job bound analysis of queueing networks", CACM 25(2),
    1982, doi 10.1145/358396.358447. With think time: Lazowska et al., 1984, section 5.4.

    >>> lower, upper = balanced_job_bounds(4, [Station("in", 1.0), Station("out", 0.5)], 3.0)
    >>> round(lower, 4), round(upper, 4)
    (0.6154, 0.7619)
    """
    customers, think_s = _checked(customers, stations, think_s, symbol=True)
    for station in stations:
        if station.kind != "delay" and station.servers > 1:
            raise InputError(
                f"servers of station {station.name!r}: balanced job bounds need 1, "
                f"got {station.servers}"
            )
    away_s, served_s = _split(stations, think_s)
    busy_s = _busy_s(stations)
    if not busy_s:
        return customers / away_s, customers / away_s
    lap_s, others = away_s + served_s, customers - 1
    most_s, mean_s = maximum(*busy_s), served_s / len(busy_s)
    crowd = customers * served_s
    slowest_s = lap_s + others * most_s * crowd / (crowd + away_s)
    fastest_s = lap_s + others * mean_s * served_s / lap_s
    return customers / slowest_s, 1 / maximum(fastest_s / customers, most_s)


def saturation(stations: Sequence[Station], think_s: Quantity = 0.0) -> Quantity:
    r"""Customers from which on the busiest station, not the lap, bounds the throughput.

    .. math:: N^* = (Z + D) / \max_i (D_i / k_i)

    Infinite where no station has any demand. Below it, customers who never met would not wait.

    References
    ----------
    Lazowska, Zahorjan, Graham, Sevcik, "Quantitative System Performance", 1984, section 5.2.

    >>> saturation([Station("link", 1.0), Station("update", 0.5, "fifo")], think_s=3.0)
    4.5
    """
    _, think_s = _checked(1, stations, think_s, symbol=True)
    lap_s, busy_s = sum(_split(stations, think_s)), _busy_s(stations)
    most_s = maximum(*busy_s) if busy_s else 0.0
    if is_symbol(most_s) or is_symbol(lap_s):
        return lap_s / most_s
    with np.errstate(divide="ignore"):
        found = np.divide(lap_s, most_s)
    return found if isinstance(found, np.ndarray) else float(found)


def blended(
    customers: Quantity,
    stations: Sequence[Station],
    think_s: Quantity = 0.0,
    *,
    sharpness: Quantity,
) -> Quantity:
    r"""Throughput (1/s) as a smooth blend of the two upper asymptotic bounds.

    .. math:: \frac{1}{X} = \left(\left(\frac{Z + D}{N}\right)^p + D_{max}^p\right)^{1/p}

    An empirical form with one parameter, the ``sharpness`` p of the knee, to be fitted to measured
    throughputs; infinity gives the upper bound. It is never above that bound, and lowest at the
    saturation point, where it is :math:`2^{-1/p}` of it. Far from there, either way, it approaches
    it. It is not exact for one customer, and knows nothing of the stations but the busiest: use it
    where the sharpness has been measured, :func:`near_deterministic` where it has not.

    Raises
    ------
    InputError : ``sharpness`` below 1.

    >>> blended(4, [Station("link", 1.0)], 3.0, sharpness=2.0)
    0.7071067811865475
    >>> blended(4, [Station("link", 1.0)], 3.0, sharpness=math.inf)
    1.0
    """
    customers, think_s = _checked(customers, stations, think_s, symbol=True)
    if not is_symbol(sharpness) and not np.all(np.asarray(sharpness) >= 1.0):
        raise InputError(f"sharpness: must be at least 1, got {sharpness!r}")
    lap_s, busy_s = sum(_split(stations, think_s)) / customers, _busy_s(stations)
    most_s = maximum(*busy_s) if busy_s else 0.0
    if any(is_symbol(value) for value in (lap_s, most_s, sharpness)):
        return (lap_s**sharpness + most_s**sharpness) ** (-1 / sharpness)
    larger, smaller = maximum(lap_s, most_s), minimum(lap_s, most_s)
    return 1 / (larger * (1 + (smaller / larger) ** sharpness) ** (1 / sharpness))


# -- one class of customers ------------------------------------------------------------------------


def mva(customers: int | Ids, stations: Sequence[Station], think_s: Quantity = 0.0) -> Laps:
    r"""Exact mean-value analysis: who arrives finds the network as it is with one customer less.

    .. math:: R_i(n) = \frac{D_i}{k_i} \left(1 + Q_i(n-1)
       + \sum_{j=0}^{k_i-2} (k_i - 1 - j) P_i(j|n-1)\right)

    for n = 1 to N, where :math:`P_i(j|n)` is the chance that j of n customers are at station i.
    Exact for networks of product form: thinking, delays and *shared* stations with times of any
    distribution, *fifo* stations with exponential times (their ``cv`` is not looked at).

    Chances of no customer are taken from the throughput of the network without the station,
    :math:`P_i(0|n) = P_i(0|n-1) X(n) / X_{-i}(n)`, which follows from the product form and, unlike
    one less the sum of the others, does not lose digits. So each station of several servers
    doubles the work.

    Parameters
    ----------
    customers : whole numbers, at least 1; an array broadcasts with demands and think times, and
        each configuration is solved for its own number.
    stations, think_s : numbers, arrays or, for a single number of customers, symbols. Then
        results are quotients of polynomials: the throughput is G(N-1)/G(N) with the normalisation
        constant G.

    Raises
    ------
    InputError : a number out of range; symbols together with arrays; a lap that takes no time.

    References
    ----------
    Reiser, Lavenberg, "Mean-value analysis of closed multichain queuing networks", JACM 27(2),
    1980, doi 10.1145/322186.322195. Chances of no customer: Reiser, "Mean-value analysis and
    convolution method for queue-dependent servers in closed queueing networks", Performance
    Evaluation 1(1), 1981, doi 10.1016/0166-5316(81)90040-7.

    >>> laps = mva(2, [Station("processor", 10.0), Station("disk", 15.0)])
    >>> laps.throughput_per_s, laps.queue_length[0]
    (0.05263157894736842, 0.7368421052631579)
    >>> mva(np.array([1, 2, 64]), [Station("link", 1.0)], 3.0).throughput_per_s.round(4).tolist()
    [0.25, 0.4706, 1.0]
    """
    customers, think_s = _checked(customers, stations, think_s)
    centres = [_Centre(s.demand_s, math.inf if s.kind == "delay" else s.servers) for s in stations]
    return _laps(customers, stations, *_solved(customers, centres, think_s))


def near_deterministic(
    customers: int | Ids,
    stations: Sequence[Station],
    think_s: Quantity = 0.0,
    *,
    cv: Quantity | None = None,
) -> Laps:
    r"""Mean-value analysis for *fifo* stations whose service varies less than exponentially.

    .. math:: R_i(n) = D_i \left(1 + Q_i(n-1) - \frac{1 - c_i^2}{2} U_i(n-1)\right)

    Who arrives at a busy server finds :math:`(1 + c^2)/2` of a service left, the mean residual
    life, in place of a whole one. A *fifo* station of k servers is taken as one of demand D/k and a
    delay of D (k-1)/k. The throughput is cut off at the upper bound of :func:`asymptotic_bounds`;
    what customers wait longer then, they wait at the busiest station.

    Range of validity: c from 0 to 1. With c = 1 and single servers it is :func:`mva`; with many
    customers who think long it becomes the formula of Pollaczek and Khinchine for M/G/1. Arrivals
    are taken to be as random as there, so it is pessimistic where thinking, too, hardly varies:
    customers then fall into a stagger and get close to the upper bound. Against simulations with
    one to three *fifo* stations at the knee it was 5 % too high to 4 % too low with exponential
    thinking, and up to 11 % too low with thinking of c = 0.2 (:func:`mva`: up to 22 %).

    Parameters
    ----------
    customers, stations, think_s : see :func:`mva`.
    cv : coefficient of variation of every *fifo* station's service, in place of their own.

    Raises
    ------
    InputError : as :func:`mva`; a ``cv`` above 1.

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
    customers, think_s = _checked(customers, stations, think_s)
    centres, aside_s = [], []
    for station in stations:
        demand_s, servers, shorter = station.demand_s, float(station.servers), None
        if station.kind == "delay":
            servers = math.inf
        elif station.kind == "fifo":
            quantity(f"cv of station {station.name!r}", station.cv, at_most=1.0)
            demand_s, servers = demand_s / station.servers, 1
            shorter = (1 - station.cv**2) / 2
        centres.append(_Centre(demand_s, servers, shorter))
        aside_s.append(station.demand_s - demand_s)
    free, residence_s = _solved(customers, centres, sum(aside_s, think_s))
    throughput = minimum(free, asymptotic_bounds(customers, stations, think_s)[1])
    busy_s = [0 if s.kind == "delay" else s.demand_s / s.servers for s in stations]
    busiest = [where(busy >= maximum(0, *busy_s), 1, 0) for busy in busy_s]
    longer_s = (customers / throughput - customers / free) / maximum(1, sum(busiest))
    residence_s = [
        took + aside + here * longer_s
        for took, aside, here in zip(residence_s, aside_s, busiest, strict=True)
    ]
    return _laps(customers, stations, throughput, residence_s)


def _laps(
    customers: Quantity,
    stations: Sequence[Station],
    throughput: Quantity,
    residence_s: Sequence[Quantity],
) -> Laps:
    """What follows from the throughput and the residence times."""
    work_s = [s.demand_s if s.kind == "delay" else s.demand_s / s.servers for s in stations]
    return Laps(
        throughput_per_s=throughput,
        cycle_s=customers / throughput,
        residence_s=tuple(residence_s),
        queue_length=tuple(throughput * took for took in residence_s),
        utilisation=tuple(throughput * work for work in work_s),
    )


class _Centre(NamedTuple):
    """A station to the recursion: ``shorter`` is the part by which who arrives finds the service
    that is under way shorter than a whole one, None if it is not."""

    demand_s: Quantity
    servers: float
    shorter: Quantity | None = None


class _Network:
    """A closed network that customers enter one by one, without the centres that are ``gone``.

    Keeps what the next one finds, by centre: ``queue`` customers, ``busy`` servers, and ``chance``
    of 0, 1 ... customers, of as many as matter. Numbers are normalised with every customer, lest
    they overflow, and ``weight`` stays 1. Polynomials are not, so that they remain polynomials:
    all of these are times the normalisation constant G(n), which is the weight.
    """

    def __init__(
        self,
        centres: Sequence[_Centre],
        think_s: Quantity,
        gone: frozenset[int],
        smaller: Mapping[frozenset[int], _Network],
        *,
        numbers: bool,
    ) -> None:
        present = [i for i in range(len(centres)) if i not in gone]
        self.centres, self.think_s = [centres[i] for i in present], think_s
        self.without = [smaller[gone | {i}] if _several(centres[i]) else None for i in present]
        self.inner, self.numbers = bool(gone), numbers
        self.queue: list[Quantity] = [0 for _ in present]
        self.busy: list[Quantity] = [0 for _ in present]
        self.chance: list[list[Quantity]] = [
            [1] + [0] * (int(centre.servers) - 2) if _several(centre) else []
            for centre in self.centres
        ]
        self.before: Quantity = 1
        self.weight: Quantity = 1
        self.growth: Quantity = 1
        self.took: list[Quantity] = []

    def enter(self, customers: int) -> None:
        """Let one more in, so that there are so many; it has entered the smaller networks."""
        self.before = self.weight
        self.took = [self._took(i) for i in range(len(self.centres))]
        self.growth = sum(self.took, self.think_s * self.before) / customers
        if self.numbers:
            # with a centre gone a lap may take no time: then nobody is ever found anywhere else
            scale = 1 / (self.growth + (self.growth == 0) if self.inner else self.growth)
        else:
            scale, self.weight = 1, self.growth
        self.queue = [took * scale for took in self.took]
        for i, (centre, rest) in enumerate(zip(self.centres, self.without, strict=True)):
            if centre.shorter is not None:
                self.busy[i] = centre.demand_s * self.before * scale
            if rest is not None:
                chance = self.chance[i]
                empty = chance[0] * rest.growth * scale if self.numbers else rest.weight
                more = [
                    centre.demand_s / (j + 1) * chance[j] * scale for j in range(len(chance) - 1)
                ]
                self.chance[i] = [empty, *more]

    def _took(self, i: int) -> Quantity:
        """Residence time at a centre of who arrives now, times the weight."""
        centre = self.centres[i]
        if centre.servers == math.inf:
            return centre.demand_s * self.before
        found = self.before + self.queue[i]
        if centre.shorter is not None:
            found = found - centre.shorter * self.busy[i]
        for j, chance in enumerate(self.chance[i]):
            found = found + (len(self.chance[i]) - j) * chance
        pace_s = centre.demand_s / int(centre.servers) if _several(centre) else centre.demand_s
        return pace_s * found

    def keep(self, some: slice) -> None:
        """Go on with some of the configurations only."""
        self.think_s = _at(self.think_s, some)
        self.centres = [
            _Centre(_at(c.demand_s, some), c.servers, _at(c.shorter, some)) for c in self.centres
        ]
        self.queue = [_at(queue, some) for queue in self.queue]
        self.busy = [_at(busy, some) for busy in self.busy]
        self.chance = [[_at(p, some) for p in chance] for chance in self.chance]


def _several(centre: _Centre) -> bool:
    """Whether a centre serves several customers, but not all, at once."""
    return 1 < centre.servers < math.inf


def _networks(
    centres: Sequence[_Centre], think_s: Quantity, *, numbers: bool = True
) -> list[_Network]:
    """The network, last, after all those it needs, in which centres of several servers are gone."""
    several = [i for i, centre in enumerate(centres) if _several(centre)]
    found: dict[frozenset[int], _Network] = {}
    for size in range(len(several), -1, -1):
        for gone in map(frozenset, combinations(several, size)):
            found[gone] = _Network(centres, think_s, gone, found, numbers=numbers)
    return list(found.values())


def _solved(
    customers: int | Ids, centres: Sequence[_Centre], think_s: Quantity
) -> tuple[Quantity, Sequence[Quantity]]:
    """Throughput and residence times with so many customers."""
    given = [customers, think_s, *(c.demand_s for c in centres), *(c.shorter for c in centres)]
    if any(is_symbol(value) for value in given):
        return _expressions(int(customers), centres, think_s)
    if any(isinstance(value, np.ndarray) for value in given):
        residence_s: Sequence[Quantity] = _by_block(customers, centres, think_s)
    else:
        residence_s = _entered(int(customers), _networks(centres, think_s)).took
    return customers / sum(residence_s, think_s), residence_s


def _entered(customers: int, networks: Sequence[_Network]) -> _Network:
    """The network with all customers in it."""
    for present in range(1, customers + 1):
        for network in networks:
            network.enter(present)
    return networks[-1]


def _by_block(customers: int | Ids, centres: Sequence[_Centre], think_s: Quantity) -> list[Floats]:
    """Residence times, by centre, where at least one quantity is an array."""
    given = [customers, think_s, *(c.demand_s for c in centres), *(c.shorter for c in centres)]
    shape = np.broadcast_shapes(*(np.shape(value) for value in given))

    def flat(value: Quantity) -> Quantity:
        whole = isinstance(value, np.ndarray)
        return np.broadcast_to(value, shape).reshape(-1) if whole else value

    counts = np.broadcast_to(customers, shape).reshape(-1).astype(np.int64)
    think_s = flat(think_s)
    centres = [_Centre(flat(c.demand_s), c.servers, flat(c.shorter)) for c in centres]
    found = [np.empty(len(counts)) for _ in centres]
    for low in range(0, len(counts), BLOCK):
        # who needs no more customers comes last, and leaves
        index = low + np.argsort(-counts[low : low + BLOCK], kind="stable")
        block = [_Centre(_at(c.demand_s, index), c.servers, _at(c.shorter, index)) for c in centres]
        networks = _networks(block, _at(think_s, index))
        wanted = counts[index]
        left = np.searchsorted(-wanted, -np.arange(wanted[0] + 2), side="right").tolist()
        for present in range(1, len(left) - 1):
            for network in networks:
                network.enter(present)
            done = slice(left[present + 1], left[present])
            if done.start < done.stop:
                for whole, took in zip(found, networks[-1].took, strict=True):
                    whole[index[done]] = _at(took, done)
                for network in networks:
                    network.keep(slice(done.start))
    return [whole.reshape(shape) for whole in found]


def _at(value: Quantity, index: Ids | slice) -> Quantity:
    """The configurations of an index; what is the same for all is left as it is."""
    return value[index] if isinstance(value, np.ndarray) else value


def _expressions(
    customers: int, centres: Sequence[_Centre], think_s: Quantity
) -> tuple[Quantity, Sequence[Quantity]]:
    """Throughput and residence times as quotients of polynomials.

    They are computed in stand-ins for what is given, with exact coefficients, much faster than
    expressions could be expanded.
    """
    import sympy
    from sympy.polys.rings import ring

    given = [think_s, *(c.demand_s for c in centres), *(c.shorter for c in centres)]
    numbers = {value for value in given if isinstance(value, (int, float)) and value == int(value)}
    stand_ins = {value: sympy.Dummy() for value in given if value not in numbers | {None}}
    polynomials, *names = ring(list(stand_ins.values()), sympy.QQ)
    named: dict[Any, Any] = {value: polynomials(int(value)) for value in numbers}
    named |= zip(stand_ins, names, strict=True)
    named[None] = None
    renamed = [_Centre(named[c.demand_s], c.servers, named[c.shorter]) for c in centres]
    network = _entered(customers, _networks(renamed, named[think_s], numbers=False))
    values = {stand_in: sympy.sympify(value) for value, stand_in in stand_ins.items()}

    def expression(polynomial: Any) -> Quantity:
        return polynomials(polynomial).as_expr().xreplace(values)

    before = expression(network.before)
    return before / expression(network.growth), [expression(t) / before for t in network.took]


# -- several classes of customers ------------------------------------------------------------------


class ClassLaps(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Means of a closed network with several classes of customers, in its steady state.

    Attributes
    ----------
    throughput_per_s : (classes,) laps per second of all customers of a class together.
    cycle_s : (classes,) seconds of a lap, thinking included; NaN for a class without customers.
    residence_s : (classes, stations) seconds per lap there; NaN for a class without customers.
    queue_length : (classes, stations) customers there, those in service included.
    """

    throughput_per_s: Floats
    cycle_s: Floats
    residence_s: Floats
    queue_length: Floats


def multiclass_mva(
    customers: Sequence[int],
    demands_s: ArrayLike,
    kinds: Sequence[str],
    think_s: ArrayLike = 0.0,
) -> ClassLaps:
    r"""Exact mean-value analysis where customers differ: devices of different speeds, for one.

    .. math:: R_{c,i}(n) = D_{c,i} \left(1 + Q_i(n - 1_c)\right)

    for all populations n from none to all, where one customer of class c less is
    :math:`n - 1_c`. Every station has one server. Exact for networks of product form: as
    :func:`mva`, and each *fifo* station takes equally long for all classes that come to it.

    Parameters
    ----------
    customers : (classes,) how many there are.
    demands_s : (classes, stations) seconds of service per lap.
    kinds : (stations,) as of :class:`Station`.
    think_s : (classes,) seconds of thinking per lap, or one number for all.

    Raises
    ------
    InputError : sizes that do not match; a number out of range; a *fifo* station without product
        form; more than ``MOST_POPULATIONS`` populations.

    References
    ----------
    Reiser, Lavenberg, 1980, doi 10.1145/322186.322195.

    >>> laps = multiclass_mva([1, 1], [[1.0, 3.0], [2.0, 4.0]], ["shared", "shared"])
    >>> (19 * laps.throughput_per_s).round(12).tolist()
    [3.0, 2.0]
    """
    counts, demands, waits, thinking = _classes(customers, demands_s, kinds, think_s)
    sizes = counts + 1
    populations = math.prod(sizes.tolist())
    if populations > MOST_POPULATIONS:
        raise InputError(
            f"customers: {populations} populations are too many to visit (at most "
            f"{MOST_POPULATIONS}); approximate_multiclass_mva visits none"
        )
    present = np.indices(sizes.tolist(), np.int32).reshape(len(sizes), -1)
    fewer = populations // np.cumprod(sizes)  # how far back one customer of a class less is
    total = present.sum(axis=0)
    order = np.argsort(total, kind="stable")
    steps = np.searchsorted(total[order], np.arange(1, counts.sum() + 2))
    queue = np.zeros((populations, demands.shape[1]))
    for low, high in pairwise(steps.tolist()):
        for c, back in enumerate(fewer.tolist()):
            here = order[low:high][present[c, order[low:high]] > 0]
            took = demands[c] * (1.0 + waits * queue[here - back])
            rate = present[c, here] / (thinking[c] + took.sum(axis=1))
            queue[here] += rate[:, None] * took
    found = np.array(
        [queue[-1 - back] if n else waits for n, back in zip(counts, fewer, strict=True)]
    )
    return _class_laps(counts, thinking, demands * (1.0 + waits * found))


def approximate_multiclass_mva(
    customers: Sequence[int],
    demands_s: ArrayLike,
    kinds: Sequence[str],
    think_s: ArrayLike = 0.0,
) -> ClassLaps:
    r"""Mean-value analysis of large networks: what who arrives finds is guessed from what there is.

    .. math:: Q_i(N - 1_c) \approx Q_i(N) - Q_{c,i}(N) / N_c

    Solved by iteration until no queue length changes by more than ``TOLERANCE`` of all customers.
    Exact for one customer of each class that meets no other, and in the limit of many. In between
    queues are too long: see docs/explanation/queueing.md.

    Parameters
    ----------
    customers, demands_s, kinds, think_s : see :func:`multiclass_mva`; any number of customers.

    Raises
    ------
    InputError : as :func:`multiclass_mva`, but for the number of populations.
    PerfmodelError : no fixed point within ``MOST_ITERATIONS`` iterations.

    References
    ----------
    Bard, "Some extensions to multiclass queueing network analysis", and Schweitzer, "Approximate
    analysis of multiclass closed networks of queues", both 1979. Lazowska et al., 1984, section
    7.4.2.2, has the example.

    >>> laps = approximate_multiclass_mva([1, 1], [[1.0, 3.0], [2.0, 4.0]], ["shared", "shared"])
    >>> laps.throughput_per_s.round(3).tolist()
    [0.154, 0.104]
    """
    counts, demands, waits, thinking = _classes(customers, demands_s, kinds, think_s)
    alone_s = np.maximum(thinking + demands.sum(axis=1), np.finfo(np.float64).tiny)
    own = 1.0 / np.maximum(counts, 1)
    queue = (counts / alone_s)[:, None] * demands
    for _ in range(MOST_ITERATIONS):
        found = queue.sum(axis=0) - own[:, None] * queue
        laps = _class_laps(counts, thinking, demands * (1.0 + waits * found))
        change = np.abs(laps.queue_length - queue).max(initial=0.0)
        queue = laps.queue_length
        if change <= TOLERANCE * counts.sum():
            return laps
    raise PerfmodelError(
        f"queues of several classes: no fixed point in {MOST_ITERATIONS} iterations"
    )


def _class_laps(counts: Ids, thinking: Floats, residence_s: Floats) -> ClassLaps:
    nobody = counts == 0
    cycle_s = np.where(nobody, np.nan, thinking + residence_s.sum(axis=1))
    throughput = np.where(nobody, 0.0, counts / cycle_s)
    return ClassLaps(
        throughput_per_s=throughput,
        cycle_s=cycle_s,
        residence_s=np.where(nobody[:, None], np.nan, residence_s),
        queue_length=throughput[:, None] * residence_s,
    )


def _classes(
    customers: Sequence[int], demands_s: ArrayLike, kinds: Sequence[str], think_s: ArrayLike
) -> tuple[Ids, Floats, Floats, Floats]:
    """Checked customers (classes,), demands (classes, stations), 1 where customers wait for each
    other and 0 at delays (stations,), think times (classes,)."""
    counts = np.array([whole_number("customers", n, at_least=0) for n in customers], np.int64)
    demands, thinking = np.asarray(demands_s, np.float64), np.asarray(think_s, np.float64)
    shape = (len(counts), len(kinds))
    if demands.shape != shape:
        raise InputError(
            f"demands_s: expected the shape (classes, stations) = {shape}, got {demands.shape}"
        )
    if thinking.shape not in ((), shape[:1]):
        raise InputError(f"think_s: expected the shape {shape[:1]}, got {thinking.shape}")
    thinking = np.broadcast_to(thinking, shape[:1])
    quantity("demands_s", demands)
    quantity("think_s", thinking)
    if (thinking + demands.sum(axis=1) <= 0.0)[counts > 0].any():
        raise InputError("demands_s: a lap of a class takes no time")
    for i, kind in enumerate(kinds):
        if kind not in KINDS:
            raise unknown_name(f"kind of station {i}", kind, KINDS)
        some = demands[(counts > 0) & (demands[:, i] > 0.0), i]
        if kind == "fifo" and (some != some[:1]).any():
            raise InputError(
                f"demands_s: a fifo station must take equally long for all classes, got "
                f"{some.tolist()} at station {i}"
            )
    return counts, demands, np.array([float(kind != "delay") for kind in kinds]), thinking


# -- what is given ---------------------------------------------------------------------------------


def _checked(
    customers: Quantity, stations: Sequence[Station], think_s: Quantity, *, symbol: bool = False
) -> tuple[Quantity, Quantity]:
    """Customers and think time if they, and the stations, can be used together."""
    customers, think_s = whole_quantity("customers", customers), quantity("think_s", think_s)
    if is_symbol(customers) and not symbol:
        raise InputError(f"customers: expected a whole number, got the symbol {customers}")
    times = [think_s, *(station.demand_s for station in stations)]
    together("stations", customers, *times, *(station.cv for station in stations))
    if not any(is_symbol(value) for value in times) and np.any(sum(times) <= 0.0):
        raise InputError("stations: a lap takes no time")
    return customers, think_s


def _split(stations: Sequence[Station], think_s: Quantity) -> tuple[Quantity, Quantity]:
    """Seconds of a lap in which nobody waits, and of service where customers may have to wait."""
    delays = [station.demand_s for station in stations if station.kind == "delay"]
    queues = [station.demand_s for station in stations if station.kind != "delay"]
    return sum(delays, think_s), sum(queues)


def _busy_s(stations: Sequence[Station]) -> list[Quantity]:
    """Seconds per lap for which each station that is no delay is taken."""
    return [s.demand_s / s.servers for s in stations if s.kind != "delay"]
