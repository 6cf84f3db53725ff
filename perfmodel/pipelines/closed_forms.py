"""Durations of schedules as formulas, for equal stages: on numbers, arrays or symbols.

All are without transfers. ``forward_s`` and ``backward_s`` are the seconds of one micro-batch on
all stages of a rank; ``input_s`` and ``weight_s`` are the two parts of ``backward_s``.
"""

from __future__ import annotations

from perfmodel.base.quantities import Quantity, maximum, quantity, together, whole_quantity


def flush_s(
    ranks: Quantity, micro_batches: Quantity, forward_s: Quantity, backward_s: Quantity
) -> Quantity:
    """Seconds of GPipe and of 1F1B: (m + p - 1) (F + B).

    Source: Huang et al., NeurIPS 2019, section 2.3; Narayanan et al., SC 2021, section 2.2.1.

    >>> flush_s(4, 8, 1.0, 2.0)
    33.0
    """
    return interleaved_s(ranks, micro_batches, 1, forward_s, backward_s)


def interleaved_s(
    ranks: Quantity,
    micro_batches: Quantity,
    chunks: Quantity,
    forward_s: Quantity,
    backward_s: Quantity,
) -> Quantity:
    """Seconds of interleaved 1F1B, if m is a multiple of p: (m + (p - 1) / v) (F + B).

    Source: Narayanan et al., SC 2021, section 2.2.2.

    >>> interleaved_s(4, 8, 2, 1.0, 2.0)
    28.5
    """
    _checked(ranks, micro_batches, chunks, forward_s, backward_s)
    return (micro_batches + (ranks - 1) / chunks) * (forward_s + backward_s)


def zb_h1_bubble_s(
    ranks: Quantity, forward_s: Quantity, input_s: Quantity, weight_s: Quantity
) -> Quantity:
    """Idle seconds of each rank in a step with ZB-H1: (p - 1) (F + I - W).

    Exact for the order of :func:`perfmodel.pipelines.zero_bubble.zb_h1` if W is at most F and
    m at least p; where W is more than I, it has (p - 1) F.

    Source: Qi et al. 2023, table 2 (whose T_B is the part for the inputs).

    >>> zb_h1_bubble_s(4, 1.0, 1.0, 1.0)
    3.0
    """
    _checked(ranks, 1, 1, forward_s, input_s, weight_s)
    return (ranks - 1) * (forward_s + maximum(input_s - weight_s, 0.0))


def zb_h2_bubble_s(
    ranks: Quantity, forward_s: Quantity, input_s: Quantity, weight_s: Quantity
) -> Quantity:
    """Idle seconds of each rank between its first and last action in ZB-H2: (p - 1) (F + I - 2 W).

    0 where this is negative. Ranks end one after the other, so that it is the idle time of a step
    only if none waits for the others' last action before it updates its weights; otherwise a step
    has at least (p - 1) F. Exact for the order of :func:`perfmodel.pipelines.zero_bubble.zb_h2` if
    W is at most F and m at least 2 p - 1.

    Source: Qi et al. 2023, table 2.

    >>> zb_h2_bubble_s(4, 1.0, 1.0, 1.0)
    0.0
    """
    _checked(ranks, 1, 1, forward_s, input_s, weight_s)
    return (ranks - 1) * maximum(forward_s + input_s - 2 * weight_s, 0.0)


def dualpipe_bubble_s(
    ranks: Quantity, pair_s: Quantity, backward_s: Quantity, weight_s: Quantity
) -> Quantity:
    """Idle seconds of the ranks in DualPipe: (p / 2 - 1) (F&B + B - 3 W).

    ``pair_s`` is F&B: a forward and a backward pass that run together. Exact for the rank with most
    idle time if F = I and W is at most F.

    Source: deepseek-ai/DualPipe.

    >>> dualpipe_bubble_s(8, 3.0, 2.0, 1.0)
    6.0
    """
    _checked(ranks, 1, 1, pair_s, backward_s, weight_s)
    return (ranks / 2 - 1) * (pair_s + backward_s - 3 * weight_s)


def bubble_fraction(ranks: Quantity, micro_batches: Quantity, chunks: Quantity = 1) -> Quantity:
    """Idle share of the time of 1F1B, GPipe (v = 1) and interleaved 1F1B: (p - 1) / (v m + p - 1).

    Narayanan et al. (SC 2021) divide by the busy time instead: (p - 1) / (v m).

    >>> bubble_fraction(4, 9), bubble_fraction(4, 9, 3)
    (0.25, 0.1)
    """
    _checked(ranks, micro_batches, chunks)
    return (ranks - 1) / (chunks * micro_batches + ranks - 1)


def _checked(
    ranks: Quantity, micro_batches: Quantity, chunks: Quantity, *seconds: Quantity
) -> None:
    """Check the arguments of a formula.

    Raises
    ------
    InputError : a count is no whole number from 1 on; a time is negative or not finite; arrays do
        not broadcast, or are mixed with symbols.
    """
    counts = {"ranks": ranks, "micro_batches": micro_batches, "chunks": chunks}
    for name, value in counts.items():
        whole_quantity(name, value)
    for value in seconds:
        quantity("seconds", value)
    together("ranks, micro_batches, chunks, seconds", *counts.values(), *seconds)
