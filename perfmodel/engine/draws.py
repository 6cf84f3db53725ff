"""Counter-based random numbers, and random factors on durations."""

from __future__ import annotations

from perfmodel.engine.codes import Id
from perfmodel.engine.world import World

WORD = 0xFFFFFFFF
"""All bits of a word."""
FACTOR, STEP = 0xD256D193, 0x9E3779B9
"""Constants of Philox2x32."""

# -- random numbers ----------------------------------------------------------------------------


def draw(w: World, stream: int, counter: int, word: int) -> int:
    """Return word 0 or 1 (32 bits) of ``stream`` at ``counter``; it only depends on these and the
    seed.

    Philox2x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
    SC 2011, doi 10.1145/2063384.2063405.
    """
    return philox(counter & WORD, stream, w.state[0].key, word)


def philox(a: int, b: int, key: int, word: int) -> int:
    """Compute word 0 or 1 of Philox2x32-10 of a counter of two 32-bit words and a key of one."""
    for _ in range(10):
        product: Id = a * FACTOR  # wraps around to negative numbers in compiled code
        a = ((product >> 32) & WORD) ^ key ^ b
        b = product & WORD
        key = (key + STEP) & WORD
    return a if word == 0 else b


def noise_factor(w: World, stream: int, iteration: int) -> float:
    """Return a stream's factor in an iteration: one of the equally likely values in its table."""
    x = w.streams[stream]
    if x.at != iteration:
        x.at = iteration
        x.factor = w.table[x.first + (draw(w, stream, iteration, 0) >> 16)]
    return float(x.factor)
