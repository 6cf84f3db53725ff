"""Counter-based random numbers, and random factors on durations."""

from __future__ import annotations

from perfmodel.engine.codes import World

# -- random numbers ----------------------------------------------------------------------------


def draw(w: World, stream: int, counter: int, word: int) -> int:
    """Return word 0 or 1 (32 bits) of ``stream`` at ``counter``; it only depends on these and the
    seed.

    Philox2x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
    SC 2011, doi 10.1145/2063384.2063405.
    """
    a, b = philox(counter & 0xFFFFFFFF, stream, w.state[0].key)
    return a if word == 0 else b


def philox(a: int, b: int, key: int) -> tuple[int, int]:
    """Compute Philox2x32-10 of a counter of two 32-bit words and a key of one."""
    for _ in range(10):
        product = a * 0xD256D193
        a = ((product >> 32) & 0xFFFFFFFF) ^ key ^ b
        b = product & 0xFFFFFFFF
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
    return a, b


def noise_factor(w: World, stream: int, iteration: int) -> float:
    """Return a stream's factor in an iteration: one of the equally likely values in its table."""
    x = w.streams[stream]
    if x.at != iteration:
        x.at = iteration
        x.factor = w.table[x.first + (draw(w, stream, iteration, 0) >> 16)]
    return float(x.factor)
