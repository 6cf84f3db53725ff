r"""Costs of collectives in closed form: latency steps, bytes over each member's link, seconds.

All times follow the alpha-beta-gamma model (Hockney, Parallel Computing 20(3), 1994, doi
10.1016/S0167-8191(06)80021-9): a message of *n* bytes takes alpha + beta n, and adding it to local
data takes gamma n. Here alpha is ``latency_s``, beta is 1 / ``bandwidth_bytes_per_s``, and gamma is
``reduce_per_byte_s``. Each of the *p* ranks has its own link, which carries the full bandwidth in
both directions at once. A single rank takes no time. All arguments may be numbers, arrays or
symbols; numbers of ranks are whole numbers.

Measured times can replace a closed form (:func:`measured_collective_s`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from perfmodel.base.quantities import Quantity, ceil_log2, floor_log2, where

RingOperation = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast"]
"""Collectives that run on rings."""

Operation = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]
"""Collectives."""

Growth = Literal["constant", "log", "ring"]
"""How a component of a collective's time grows with the number of ranks: see
:func:`startup_growth` and :func:`per_byte_growth`."""


def ring_allreduce_bytes(ranks: Quantity, size_bytes: Quantity) -> Quantity:
    r"""Return the bytes each rank sends (and receives) in a ring all-reduce.

    .. math:: 2 \frac{p-1}{p} n

    References
    ----------
    Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    J. Parallel Distrib. Comput. 69, 2009, doi 10.1016/j.jpdc.2008.09.002.

    >>> ring_allreduce_bytes(4, 100.0)
    150.0
    """
    return 2.0 * (ranks - 1) / ranks * size_bytes


def ring_allreduce_steps(ranks: Quantity) -> Quantity:
    """Return the latency steps of a ring all-reduce: p-1 for reduce-scatter, p-1 for all-gather.

    >>> ring_allreduce_steps(8)
    14
    """
    return 2 * (ranks - 1)


def half_ring_bytes(ranks: Quantity, size_bytes: Quantity) -> Quantity:
    r"""Return the bytes each rank sends (and receives) in a ring reduce-scatter or all-gather.

    .. math:: \frac{p-1}{p} n

    >>> half_ring_bytes(4, 100.0)
    75.0
    """
    return (ranks - 1) / ranks * size_bytes


class RingUse(NamedTuple):
    """Steps of a collective on a ring and, per byte of its size, the bytes that each rank sends
    (and receives) and the bytes that it adds."""

    steps: Quantity
    sent: Quantity
    added: Quantity


def ring_use(operation: RingOperation, ranks: Quantity) -> RingUse:
    """Return the steps and the bytes of a collective on a ring.

    >>> ring_use("all_reduce", 4)
    RingUse(steps=6, sent=1.5, added=0.75)
    """
    half = half_ring_bytes(ranks, 1.0)
    match operation:
        case "all_reduce":
            return RingUse(ring_allreduce_steps(ranks), ring_allreduce_bytes(ranks, 1.0), half)
        case "reduce_scatter":
            return RingUse(ranks - 1, half, half)
        case "all_gather":
            return RingUse(ranks - 1, half, 0.0)
        case "broadcast":
            return RingUse(ranks - 1, where(ranks > 1, 1.0, 0.0), 0.0)


def ring_s(
    operation: RingOperation,
    ranks: Quantity,
    size_bytes: Quantity,
    *,
    bandwidth_bytes_per_s: Quantity,
    latency_s: Quantity = 0.0,
    reduce_per_byte_s: Quantity = 0.0,
) -> Quantity:
    r"""Return the seconds of a collective of n bytes on a ring, exact for any number of ranks.

    An all-reduce is a reduce-scatter, in which each rank gets the sum of n/p bytes, and an
    all-gather, in which it starts with n/p of them:

    .. math:: (p-1) \alpha + \frac{p-1}{p} n (\beta + \gamma), \quad
              (p-1) \alpha + \frac{p-1}{p} n \beta

    A broadcast runs along a chain, pipelined in very small pieces, as in NCCL. No broadcast is
    faster for large messages:

    .. math:: (p-1) \alpha + n \beta

    References
    ----------
    Patarasuk, Yuan, J. Parallel Distrib. Comput. 69, 2009, doi 10.1016/j.jpdc.2008.09.002.
    Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
    Int. J. High Perform. Comput. Appl. 19(1), 2005, doi 10.1177/1094342005051521.
    van de Geijn, Watts, "SUMMA: scalable universal matrix multiplication algorithm", Concurrency:
    Practice and Experience 9(4), 1997 (a broadcast as a pipeline round a ring).

    >>> ring_s("all_reduce", 4, 100.0, bandwidth_bytes_per_s=50.0, latency_s=0.5)
    6.0
    >>> ring_s("reduce_scatter", 4, 100.0, bandwidth_bytes_per_s=50.0, reduce_per_byte_s=0.02)
    3.0
    >>> ring_s("broadcast", 5, 100.0, bandwidth_bytes_per_s=50.0, latency_s=0.5)
    4.0
    """
    steps, sent, added = ring_use(operation, ranks)
    return (
        steps * latency_s
        + sent * size_bytes / bandwidth_bytes_per_s
        + added * size_bytes * reduce_per_byte_s
    )


def broadcast_s(
    ranks: Quantity,
    size_bytes: Quantity,
    *,
    bandwidth_bytes_per_s: Quantity,
    latency_s: Quantity = 0.0,
) -> Quantity:
    r"""Return the seconds of a broadcast along a binomial tree, all bytes at once.

    .. math:: \lceil \lg p \rceil (\alpha + n \beta)

    References
    ----------
    Thakur, Rabenseifner, Gropp, 2005, doi 10.1177/1094342005051521.

    >>> broadcast_s(5, 100.0, bandwidth_bytes_per_s=50.0, latency_s=0.5)
    7.5
    """
    return ceil_log2(ranks) * (latency_s + size_bytes / bandwidth_bytes_per_s)


def tree_allreduce_s(
    ranks: Quantity,
    size_bytes: Quantity,
    *,
    bandwidth_bytes_per_s: Quantity,
    latency_s: Quantity = 0.0,
    reduce_per_byte_s: Quantity = 0.0,
) -> Quantity:
    r"""Return the seconds of a reduction along a binomial tree and a broadcast back, unpipelined.

    .. math:: 2 \lceil \lg p \rceil (\alpha + n \beta) + \lceil \lg p \rceil n \gamma

    References
    ----------
    Thakur, Rabenseifner, Gropp, 2005, doi 10.1177/1094342005051521.

    >>> tree_allreduce_s(4, 100.0, bandwidth_bytes_per_s=50.0, latency_s=0.5)
    10.0
    """
    there_and_back = 2 * broadcast_s(
        ranks, size_bytes, bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s
    )
    return there_and_back + ceil_log2(ranks) * size_bytes * reduce_per_byte_s


def rabenseifner_allreduce_s(
    ranks: Quantity,
    size_bytes: Quantity,
    *,
    bandwidth_bytes_per_s: Quantity,
    latency_s: Quantity = 0.0,
    reduce_per_byte_s: Quantity = 0.0,
) -> Quantity:
    r"""Return the seconds of recursive-halving reduce-scatter and recursive-doubling all-gather.

    .. math:: 2 \lg q\, \alpha + 2 \frac{q-1}{q} n \beta + \frac{q-1}{q} n \gamma

    for p = q, a power of two. Otherwise q is the next lower power of two; the ranks beyond it first
    send all their data to a neighbour, and receive the sum afterwards, which adds

    .. math:: 2 (\alpha + n \beta) + n \gamma

    References
    ----------
    Thakur, Rabenseifner, Gropp, 2005, doi 10.1177/1094342005051521.

    >>> rabenseifner_allreduce_s(4, 100.0, bandwidth_bytes_per_s=50.0, latency_s=0.5)
    5.0
    >>> rabenseifner_allreduce_s(6, 100.0, bandwidth_bytes_per_s=50.0, latency_s=0.5)
    10.0
    """
    power = 2 ** floor_log2(ranks)
    over = ceil_log2(ranks) - floor_log2(ranks)  # 0 for a power of two, else 1
    share = half_ring_bytes(power, size_bytes)
    return (
        2 * (floor_log2(ranks) + over) * latency_s
        + 2 * (share + over * size_bytes) / bandwidth_bytes_per_s
        + (share + over * size_bytes) * reduce_per_byte_s
    )


def double_tree_allreduce_s(
    ranks: Quantity,
    size_bytes: Quantity,
    *,
    chunks: int,
    bandwidth_bytes_per_s: Quantity,
    latency_s: Quantity = 0.0,
) -> Quantity:
    r"""Return an upper bound (s) on an all-reduce along two binary trees, in k ``chunks`` per half.

    .. math:: (4 k + 4 \lceil \lg p \rceil) \left( \alpha + \frac{n}{2 k} \beta \right)

    At least 4k rounds are needed for p > 2. With enough chunks and little latency the bound
    approaches 2 n beta. The exact number of rounds is that of
    :func:`perfmodel.communication.schedules.double_tree_all_reduce`.

    References
    ----------
    Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
    Parallel Computing 35(12), 2009, doi 10.1016/j.parco.2009.09.001.

    >>> double_tree_allreduce_s(8, 100.0, chunks=4, bandwidth_bytes_per_s=50.0)
    7.0
    """
    rounds = where(ranks > 1, 4 * (chunks + ceil_log2(ranks)), 0)
    return rounds * (latency_s + size_bytes / (2 * chunks) / bandwidth_bytes_per_s)


def hierarchical_allreduce_s(
    nodes: Quantity,
    devices_per_node: Quantity,
    size_bytes: Quantity,
    *,
    bandwidth_bytes_per_s: Quantity,
    intra_bandwidth_bytes_per_s: Quantity,
    latency_s: Quantity = 0.0,
    intra_latency_s: Quantity = 0.0,
    reduce_per_byte_s: Quantity = 0.0,
) -> Quantity:
    r"""Return the seconds of reduce-scatter inside nodes, all-reduce among them, all-gather inside.

    .. math:: T_{ring}(g, n; \alpha_i, \beta_i) + T_{ring}(m, n/g; \alpha, \beta)

    with g devices on each of m nodes. Rates are those of one device while all devices of its node
    send: if they share one link, 1/g of that link's rate. There are g rings among nodes, one for
    each device's part.

    References
    ----------
    Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", 2018, arXiv
    1811.05233 (2D-torus all-reduce).

    >>> hierarchical_allreduce_s(2, 4, 100.0, bandwidth_bytes_per_s=12.5,
    ...                          intra_bandwidth_bytes_per_s=75.0)
    4.0
    """
    inside = ring_s(
        "all_reduce",
        devices_per_node,
        size_bytes,
        bandwidth_bytes_per_s=intra_bandwidth_bytes_per_s,
        latency_s=intra_latency_s,
        reduce_per_byte_s=reduce_per_byte_s,
    )
    between = ring_s(
        "all_reduce",
        nodes,
        size_bytes / devices_per_node,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        latency_s=latency_s,
        reduce_per_byte_s=reduce_per_byte_s,
    )
    return inside + between


def all_to_all_s(
    ranks: Quantity,
    size_bytes: Quantity,
    *,
    bandwidth_bytes_per_s: Quantity,
    latency_s: Quantity = 0.0,
    at_once: bool = False,
) -> Quantity:
    r"""Return the seconds of an all-to-all, in which each rank has n bytes: n/p for every rank.

    Pairwise, in p-1 rounds; or with all messages ``at_once``, whose latencies overlap:

    .. math:: (p-1) \left( \alpha + \frac{n}{p} \beta \right), \quad
              \alpha + \frac{p-1}{p} n \beta

    References
    ----------
    Thakur, Rabenseifner, Gropp, 2005, doi 10.1177/1094342005051521 (pairwise exchange, for long
    messages).

    >>> all_to_all_s(4, 100.0, bandwidth_bytes_per_s=50.0, latency_s=0.5)
    3.0
    >>> all_to_all_s(4, 100.0, bandwidth_bytes_per_s=50.0, latency_s=0.5, at_once=True)
    2.0
    """
    rounds = where(ranks > 1, 1, 0) if at_once else ranks - 1
    return rounds * latency_s + half_ring_bytes(ranks, size_bytes) / bandwidth_bytes_per_s


class LinearCost(msgspec.Struct, frozen=True, eq=False):
    """Linear cost of a collective of at least ``above_bytes`` bytes: start-up, time per byte."""

    startup_s: Quantity
    per_byte_s: Quantity
    above_bytes: Quantity = 0.0


def line_s(lines: Sequence[LinearCost], size_bytes: Quantity) -> tuple[Quantity, Quantity]:
    """Return the start-up time and the time to move n bytes, from the piece that applies to n.

    >>> line_s([LinearCost(1.0, 0.5), LinearCost(2.0, 0.25, above_bytes=8.0)], 8.0)
    (2.0, 2.0)
    """
    startup_s, per_byte_s = lines[0].startup_s, lines[0].per_byte_s
    for line in lines[1:]:
        applies = size_bytes >= line.above_bytes
        startup_s = where(applies, line.startup_s, startup_s)
        per_byte_s = where(applies, line.per_byte_s, per_byte_s)
    return startup_s, per_byte_s * size_bytes


def startup_growth(growth: Growth, ranks: Quantity) -> Quantity:
    r"""Return the number of successive messages, relative to that for two ranks.

    *log*: :math:`\lceil \lg p \rceil`, as along a tree; *ring*: :math:`p - 1`.

    >>> [startup_growth(growth, 8) for growth in ("constant", "log", "ring")]
    [1.0, 3, 7]
    """
    if growth == "constant":
        return where(ranks > 1, 1.0, 0.0)
    return ceil_log2(ranks) if growth == "log" else ranks - 1


def per_byte_growth(growth: Growth, ranks: Quantity) -> Quantity:
    r"""Return the bytes over each member's link, relative to those for two ranks.

    *log*: :math:`\lceil \lg p \rceil`, as along a tree; *ring*: :math:`2 \frac{p-1}{p}`.

    >>> [per_byte_growth(growth, 8) for growth in ("constant", "log", "ring")]
    [1.0, 3, 1.75]
    """
    return ring_allreduce_bytes(ranks, 1.0) if growth == "ring" else startup_growth(growth, ranks)
