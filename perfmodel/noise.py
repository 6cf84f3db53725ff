"""Random numbers that depend on (seed, stream, index) alone, never on the order of events."""

from __future__ import annotations

import math

import numpy as np

from perfmodel.graph import DelayDistribution

_BLOCK = 64
_FACTORS, _OFFSETS = 0, 1


def _generator(seed: int, purpose: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, purpose, stream])))


def offsets(seed: int, count: int) -> list[float]:
    """Random parts in [0, 1) by which ``count`` streams start late, spread evenly.

    One falls in each of ``count`` equal intervals, in random order (Latin hypercube sampling:
    McKay, Beckman, Conover, Technometrics 21(2), 1979, doi 10.2307/1268522).
    """
    generator = _generator(seed, _OFFSETS, 0)
    spread = (generator.permutation(count) + generator.random(count)) / max(count, 1)
    return [float(part) for part in spread]


class Factors:
    """The factors of one stream (mean 1, given coefficient of variation), extended as needed.

    Lognormal: exp(s z - s^2/2) with s^2 = ln(1 + cv^2). Gamma: shape 1/cv^2, scale cv^2.
    """

    def __init__(self, seed: int, stream: int, cv: float, kind: DelayDistribution) -> None:
        self._generator = _generator(seed, _FACTORS, stream)
        self._cv = cv
        self._kind = kind
        self._values: list[float] = []

    def __getitem__(self, index: int) -> float:
        while index >= len(self._values):
            self._values.extend(self._block().tolist())
        return self._values[index]

    def _block(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        if self._kind == "gamma":
            variance = self._cv**2
            return self._generator.standard_gamma(1.0 / variance, _BLOCK) * variance
        sigma = math.sqrt(math.log1p(self._cv**2))
        return np.exp(sigma * self._generator.standard_normal(_BLOCK) - 0.5 * sigma * sigma)
