"""Time of attention over a whole sequence, computed tile by tile (flash attention).

A multiprocessor computes a tile of queries against all keys before them, so that tiles of later
queries take longer. The longest may end after all others. Fetching takes place at the same time.
If it is not causal, all tiles take as long as the longest. In a window a tile has only the keys of
the window's tiles.

References
----------
Dao, "FlashAttention-2", 2023, arXiv 2307.08691, algorithm 1 and section 3.2.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.base.quantities import Quantity, ceiling, minimum
from perfmodel.theory.products import fourth

BACKWARD = 2.5 * 73.0 / 63.0
"""Time of the backward pass over that of the forward pass.

It has five products instead of two, and reaches up to 63 % of the peak rate of an A100 where the
forward pass reaches 73 % (Dao, section 1).
"""

USUAL_HEAD = 128.0
"""Width of a head at which rates are stated."""

VALUE_BYTES = 2.0


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
    queries : rows of a tile.
    """

    flop_per_s: Quantity
    bytes_per_s: Quantity
    launch_s: Quantity
    tile_s: Quantity
    softmax: Quantity
    tail: Quantity
    queries: float = 128.0


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
    efficiency = (1.0 + rates.softmax) / (1.0 + rates.softmax * USUAL_HEAD / head)
    rate = rates.flop_per_s * efficiency / multiprocessors
    rows = ceiling(length / rates.queries)
    step_s = 4.0 * rates.queries * rates.queries * head / rate
    tiles = sequences * heads * rows
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
    return rates.launch_s + (fourth(spread_s) + fourth(longest_s) + fourth(fetch_s)) ** 0.25
