"""How fast workers go on of which none may be far ahead of the slowest, if nothing else holds them
up."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats

DRAWS = 4_000_000
"""Random factors of a recursion."""

FEWEST_ROUNDS, MOST_ROUNDS = 200, 4000
"""Fewest and most iterations of a recursion, of which the first quarter is dropped."""


def bounded_lead_s(
    varying_s: Floats, fixed_s: Floats, factors: Floats, bound: int, seed: int = 0
) -> float:
    """Return the mean time of an iteration of workers under SSP (s).

    An iteration begins once the worker's last has ended, and all workers have ended the one that
    lies ``bound`` iterations before that (Ho et al., NIPS 2013). The times are drawn, and followed
    from iteration to iteration.

    Parameters
    ----------
    varying_s, fixed_s : mean time of an iteration of each worker that varies, and the rest of it
        (s), (workers,).
    factors : equally probable factors on the time that varies.

    >>> round(bounded_lead_s(np.array([1.0, 2.0]), np.zeros(2), np.ones(1), bound=3), 6)
    2.0
    """
    workers = len(varying_s)
    rounds = min(max(DRAWS // workers, FEWEST_ROUNDS), MOST_ROUNDS)
    random = np.random.default_rng(seed)
    ended_s = np.zeros(workers)
    slowest_s = np.zeros(rounds)
    for k in range(rounds):
        drawn = factors[random.integers(len(factors), size=workers)]
        least_s = slowest_s[k - bound - 1] if k > bound else 0.0
        ended_s = np.maximum(ended_s, least_s) + varying_s * drawn + fixed_s
        slowest_s[k] = ended_s.max()
    first = rounds // 4
    return float(slowest_s[-1] - slowest_s[first]) / (rounds - 1 - first)
