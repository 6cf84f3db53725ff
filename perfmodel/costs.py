"""Alpha-beta costs of collectives: latency steps, bytes over each NIC, and reduction work."""

from __future__ import annotations


def ring_allreduce_bytes(ranks: int, size_bytes: float) -> float:
    r"""Bytes each rank sends, and receives, in a ring all-reduce.

    .. math:: 2 \frac{p-1}{p} n

    References
    ----------
    Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    J. Parallel Distrib. Comput. 69, 2009, doi 10.1016/j.jpdc.2008.09.002.

    >>> ring_allreduce_bytes(4, 100.0)
    150.0
    """
    return 2.0 * (ranks - 1) / ranks * size_bytes


def ring_allreduce_steps(ranks: int) -> int:
    """Latency steps of a ring all-reduce: p-1 of reduce-scatter and p-1 of all-gather.

    >>> ring_allreduce_steps(8)
    14
    """
    return 2 * (ranks - 1)


def ring_allreduce_s(
    ranks: int,
    size_bytes: float,
    *,
    bandwidth_bytes_per_s: float,
    latency_s: float = 0.0,
    reduce_per_byte_s: float = 0.0,
) -> float:
    r"""Seconds of a ring all-reduce that has the network to itself.

    .. math:: 2(p-1)\alpha + 2\frac{p-1}{p} n\beta + \frac{p-1}{p} n\gamma

    >>> ring_allreduce_s(4, 1e8, bandwidth_bytes_per_s=1.25e9)
    0.12
    """
    return (
        ring_allreduce_steps(ranks) * latency_s
        + ring_allreduce_bytes(ranks, size_bytes) / bandwidth_bytes_per_s
        + ring_allreduce_bytes(ranks, size_bytes) / 2.0 * reduce_per_byte_s
    )
