"""Durations of overlapping work, as recursions on floats, arrays and symbols.

Each is exact for one worker whose messages take a constant time. See
:mod:`perfmodel.base.quantities`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfmodel.base.quantities import Quantity, ceiling, is_symbol, maximum, where


def wait_free(ready_s: Sequence[Quantity], seconds: Sequence[Quantity]) -> Quantity:
    r"""Return the end of the last of several messages, sent one after the other as they become
    ready.

    .. math:: E_k = \max(E_{k-1}, r_k) + t_k

    Wait-free back-propagation: Zhang et al. (Poseidon), USENIX ATC 2017; Shi, Chu, Li, INFOCOM
    2019, doi 10.1109/INFOCOM.2019.8737367, eq. 6 to 8.

    >>> wait_free([1.0, 2.0], [3.0, 1.0])
    5.0
    """
    end: Quantity = 0.0
    for ready, duration in zip(ready_s, seconds, strict=True):
        end = maximum(end, ready) + duration
    return end


def in_tandem(ready_s: Sequence[Quantity], *stages: Sequence[Quantity]) -> Quantity:
    r"""Return the end of the last of several messages that pass through stages in order, each stage
    handling one message at a time. ``stages`` hold the seconds of each message.

    .. math:: E_{k,s} = \max(E_{k-1,s}, E_{k,s-1}) + t_{k,s}, \quad E_{k,0} = r_k

    The recursion of a flow shop: Johnson, Naval Res. Logist. Q. 1, 1954, doi
    10.1002/nav.3800010110. With one stage it is :func:`wait_free`.

    >>> in_tandem([1.0, 2.0], [3.0, 1.0], [2.0, 2.0])
    8.0
    """
    ends: list[Quantity] = [0.0 for _ in stages]
    for ready, *seconds in zip(ready_s, *stages, strict=True):
        end: Quantity = ready
        for stage, duration in enumerate(seconds):
            ends[stage] = end = maximum(ends[stage], end) + duration
    return ends[-1]


def equal_wait_free(ready_s: Quantity, seconds: Quantity, messages: Quantity) -> Quantity:
    r"""Return :func:`wait_free` for equal messages that become ready at equal intervals;
    ``ready_s`` and ``seconds`` are totals over all messages.

    .. math:: \max(r / m + t, \; r + t / m)

    >>> equal_wait_free(6.0, 3.0, 3.0), wait_free([2.0, 4.0, 6.0], [1.0, 1.0, 1.0])
    (7.0, 7.0)
    """
    return maximum(ready_s / messages + seconds, ready_s + seconds / messages)


def merged_wait_free(
    ready_s: Sequence[Quantity],
    size_bytes: Sequence[Quantity],
    *,
    startup_s: Quantity,
    per_byte_s: Quantity,
) -> Quantity:
    """Return the end of the last message if layers are merged as in MG-WFBP.

    The rule is that of :func:`perfmodel.theory.buckets.mg_wfbp_buckets`, but also for arrays.

    >>> merged_wait_free([1.0, 2.0, 9.0], [1.0, 1.0, 1.0], startup_s=2.0, per_byte_s=1.0)
    12.0
    """
    end: Quantity = 0.0
    free: Quantity = 0.0
    merged: Quantity = 0.0
    for index, (ready, size) in enumerate(zip(ready_s, size_bytes, strict=True)):
        merged = merged + size
        begin = maximum(free, ready)
        end = begin + startup_s + merged * per_byte_s
        if index + 1 < len(ready_s):
            following = ready_s[index + 1]
            merge = (following < end) & (following - begin < startup_s)
            free = where(merge, free, end)
            merged = where(merge, merged, 0.0)
    return end


def fused_wait_free(
    ready_s: Sequence[Quantity],
    size_bytes: Sequence[Quantity],
    *,
    startup_s: Quantity,
    per_byte_s: Quantity,
    cycle_s: Quantity,
    cap_bytes: Quantity,
) -> Quantity:
    """Return the end of the last message if each fuses, at a tick, all tensors ready by then.

    Ticks are counted from the start, so a message may begin up to a cycle late. A message holds at
    most ``cap_bytes``, or one tensor. This is Horovod's tensor fusion: Sergeev, Del Balso, 2018,
    arXiv 1802.05799.

    >>> fused_wait_free([1.0, 2.0], [1.0, 1.0], startup_s=0.0, per_byte_s=1.0, cycle_s=4.0,
    ...                 cap_bytes=9.0)
    6.0
    """
    end: Quantity = 0.0
    begin: Quantity = -1.0
    merged: Quantity = 0.0
    for ready, size in zip(ready_s, size_bytes, strict=True):
        joins = (ready <= begin) & (merged + size <= cap_bytes)
        tick = ceiling(maximum(end, ready) / cycle_s) * cycle_s
        begin = where(joins, begin, tick)
        merged = where(joins, merged + size, size)
        end = begin + startup_s + merged * per_byte_s
    return end


def blend(first: Quantity, second: Quantity, sharpness: float) -> Quantity:
    r"""Return the p-norm of two durations: partial overlap, with p as its sharpness.

    .. math:: (a^p + b^p)^{1/p}

    With p = 1 there is no overlap; as p goes to infinity the longer hides the shorter.

    >>> blend(3.0, 4.0, 2.0)
    5.0
    """
    top = maximum(first, second)
    if sharpness == math.inf:
        return top
    if is_symbol(top):
        return (first**sharpness + second**sharpness) ** (1 / sharpness)
    safe = where(top > 0.0, top, 1.0)
    return top * ((first / safe) ** sharpness + (second / safe) ** sharpness) ** (1.0 / sharpness)
