"""Time of attention over a whole sequence, computed tile by tile (flash attention).

A multiprocessor computes a tile of queries against all keys before them, so that tiles of later
queries take longer. The longest may end after all others, and bounds the time if there are few. The
exponentials of scores and their products overlap in part: times add as powers do. Fetching takes
place at the same time. Kernels of many milliseconds reach the limit of power, which lowers the
clock. If it is not causal, all tiles take as long as the longest. In a window a tile has only the
keys of the window's tiles. Sequences of one query have one tile for all heads that share keys.
Engines of inference first copy keys and values into a cache; training does not, but goes on without
breaks, so that its clock is the lower one.

References
----------
Dao, "FlashAttention-2", 2023, arXiv 2307.08691, algorithm 1 and section 3.2; Shah et al.,
"FlashAttention-3", 2024, arXiv 2407.08608, section 3.1, on exponentials beside products.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.base.quantities import Quantity, ceiling, minimum, where
from perfmodel.theory.products import fourth

BACKWARD = 2.5 * 73.0 / 63.0
"""Time of the backward pass over that of the forward pass.

It has five products instead of two, and reaches up to 63 % of the peak rate of an A100 where the
forward pass reaches 73 % (Dao, section 1).
"""

USUAL_HEAD = 128.0
"""Width of a head at which rates are stated."""

WIDEST_HEAD = 256.0
"""Widest head of the usual kernels; wider ones have another kernel."""

VALUE_BYTES = 2.0

HEAT_S = 8e-3
"""Seconds of a kernel by which half of the effect of the limit of power is there. Kernels of the
devices that were measured agree (7.5 to 10 ms, fitted to each alone)."""

CACHED_AT_ONCE = 512.0
"""Values of a token that the kernel that fills the cache copies at a time, a thread each."""


class AttentionRates(NamedTuple):
    """What attention achieves on a device in 16 bits.

    Attributes
    ----------
    flop_per_s : rate of both products of long sequences with heads of :data:`USUAL_HEAD`.
    bytes_per_s : of queries, keys, values and results.
    launch_s : of a call, however small.
    tile_s : of a tile of queries, besides its operations.
    softmax : time of a score's exponential and sums over that of its products at the usual head.
    tail : part of the longest tile's time that follows the work of all others.
    lone : part of the longest tile's time that it takes if it has a multiprocessor for itself, or
        if its keys are divided.
    wide : how many times longer heads above :data:`WIDEST_HEAD` take.
    queries : rows of a tile.
    cache_bytes_per_s : at which keys and values are copied into a cache, by a kernel of its own;
        None if they are not.
    token_s : of a token in that kernel, if it has :data:`CACHED_AT_ONCE` or more values.
    throttle : by what part of its time a long kernel gets longer, since the limit of power lowers
        the clock.
    heat_s : time of a kernel by which half of that is there; 0 if the clock is low from the start.
    overlap : exponent with which times of exponentials and products add: 1 if they do not overlap,
        without limit if they do in full.
    """

    flop_per_s: Quantity
    bytes_per_s: Quantity
    launch_s: Quantity
    tile_s: Quantity
    softmax: Quantity
    tail: Quantity
    lone: Quantity = 1.0
    wide: Quantity = 1.0
    queries: float = 128.0
    cache_bytes_per_s: Quantity | None = None
    token_s: Quantity = 0.0
    throttle: Quantity = 0.0
    heat_s: float = HEAT_S
    overlap: float = 2.0


class Mask(NamedTuple):
    """Which tokens a token attends to: those before it, if ``causal`` is 1, or all, if it is 0;
    and only the last ``window``, itself included, if there is one."""

    causal: Quantity = 1.0
    window: Quantity | None = None


CAUSAL = Mask()


def attention_s(
    sequences: Quantity,
    length: Quantity,
    heads: Quantity,
    kv_heads: Quantity,
    head: Quantity,
    rates: AttentionRates,
    multiprocessors: float,
    *,
    mask: Mask = CAUSAL,
) -> Quantity:
    """Return the seconds of attention of ``sequences`` of ``length`` tokens."""
    both = 1.0 + (rates.softmax * USUAL_HEAD / head) ** rates.overlap
    slower = (both / (1.0 + rates.softmax**rates.overlap)) ** (1.0 / rates.overlap)
    rate = rates.flop_per_s / multiprocessors / where(head > WIDEST_HEAD, rates.wide, 1.0)
    rows = ceiling(length / rates.queries)
    step_s = 4.0 * rates.queries * rates.queries * head / rate * slower
    shared = ceiling(heads / kv_heads / rates.queries)
    tiles = sequences * where(length > 1.0, heads * rows, kv_heads * shared)
    causal, window, most = *mask, rows
    if window is not None:
        most = minimum(rows, 1.0 + ceiling((window - 1.0) / rates.queries))
    mean_s = (most - causal * most * (most - 1.0) / (2.0 * rows)) * step_s + rates.tile_s
    longest_s = most * step_s + rates.tile_s
    spread_s = tiles / multiprocessors * mean_s + causal * rates.tail * longest_s * (
        1.0 - 1.0 / rows
    )
    moved = VALUE_BYTES * sequences * length * head * 2.0 * (heads + kv_heads)
    fetch_s = moved / rates.bytes_per_s
    busy_s = (fourth(spread_s) + fourth(rates.lone * longest_s) + fourth(fetch_s)) ** 0.25
    busy_s = busy_s * (1.0 + rates.throttle * busy_s**2 / (busy_s**2 + rates.heat_s**2))
    if rates.cache_bytes_per_s is None:
        return rates.launch_s + busy_s
    cached_s = VALUE_BYTES * 2.0 * kv_heads * head / rates.cache_bytes_per_s
    cached_s = cached_s + rates.token_s * minimum(1.0, kv_heads * head / CACHED_AT_ONCE)
    return rates.launch_s + busy_s + sequences * length * cached_s
