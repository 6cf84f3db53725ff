"""What collectives cost: latency steps, and bytes over each member's link."""

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
