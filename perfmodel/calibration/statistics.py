"""Estimates with their intervals, and residuals of a fit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.uncertainty import COVERAGE, WIDTH
from perfmodel.reporting.drawn import Drawn


class Estimate(msgspec.Struct, frozen=True):
    """A fitted value and its 90 % interval."""

    value: float
    low: float
    high: float


class Written(Drawn, frozen=True):
    """A fit that can be written as JSON."""

    def to_dict(self) -> dict[str, object]:
        """Return the fit as JSON-like values."""
        values: dict[str, object] = msgspec.to_builtins(self)
        return values

    def to_json(self) -> str:
        """Return the fit as JSON text."""
        return json.dumps(self.to_dict(), indent=1)


class Residuals(msgspec.Struct, frozen=True):
    """Absolute errors of the step time, over all runs of the fit."""

    median: float
    p90: float
    worst: float

    @classmethod
    def of(cls, errors: ArrayLike) -> Residuals:
        """Summarise signed errors, at least one."""
        sizes = np.abs(np.asarray(errors, np.float64))
        return cls(float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(sizes.max()))


class RunError(msgspec.Struct, frozen=True):
    """A run and its errors, predicted / measured - 1: of the fit, and of a fit without this run
    (None: there were too few runs)."""

    place: str
    arch: str
    workers: int
    error: float
    held_out: float | None


Status = Literal["identified", "confounded", "not identified"]
"""Whether measurements determine a parameter: on its own, only together with others, or not."""


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter after a fit.

    Attributes
    ----------
    unit : SI; empty for a fraction or a factor.
    was : its value before the fit.
    low, high : its 90 % interval.
    status : whether the measurements determine it.
    note : a remark; may be empty.
    """

    name: str
    unit: str
    was: float
    value: float
    low: float
    high: float
    status: Status = "identified"
    note: str = ""

    @property
    def determined(self) -> bool:
        """Whether the measurements determine it, alone or together with others."""
        return self.status != "not identified"

    @classmethod
    def kept(cls, name: str, unit: str, was: float, note: str) -> Fitted:
        """A parameter that keeps its value, because nothing determines it."""
        estimate = cls(name=name, unit=unit, was=was, value=was, low=was, high=was)
        return msgspec.structs.replace(estimate, status="not identified", note=note)

    @classmethod
    def spread(cls, name: str, unit: str, value: float, spread: float, was: float = 0.0) -> Fitted:
        """A parameter whose logarithm has the standard deviation ``spread``."""
        factor = math.exp(WIDTH * spread)
        low, high = value / factor, value * factor
        return cls(name=name, unit=unit, was=was, value=value, low=low, high=high)


def rounded(value: float, digits: int = 6) -> float:
    """Round to this many digits; no measurement is more precise than six."""
    return float(f"{value:.{digits}g}")


def nested(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    """A covariance as rounded and exactly symmetric rows, as files store it."""
    rows = ((matrix + matrix.T) / 2.0).tolist()
    return tuple(tuple(rounded(value) for value in row) for row in rows)


def folds(count: int, parts: int) -> list[NDArray[np.int64]]:
    """Deterministic random partition of ``count`` indices into parts of almost equal size."""
    order = np.random.Generator(np.random.Philox(0)).permutation(count)
    return [np.sort(part) for part in np.array_split(order, min(parts, count))]


def median_interval(values: Sequence[float], coverage: float = 0.9) -> tuple[Estimate, float]:
    r"""Median, the narrowest interval between two of the values that contains it with at least the
    probability ``coverage``, and the actual probability.

    For any distribution, the k-th smallest and the k-th largest of n values contain the median with
    probability :math:`1 - 2^{1-n} \sum_{i<k} \binom{n}{i}` (David, Nagaraja, "Order Statistics",
    2003, section 7.1). If even the smallest and largest value fall short of it, these two are
    returned.

    >>> median_interval([3.0, 1.0, 2.0])
    (Estimate(value=2.0, low=1.0, high=3.0), 0.75)
    """
    ordered, n = sorted(values), len(values)

    def held(k: int) -> float:
        return 1.0 - sum(math.comb(n, i) for i in range(k)) * 2.0 ** (1 - n)

    k = max((k for k in range(1, n // 2 + 1) if held(k) >= coverage), default=1)
    middle = float(np.median(ordered))
    return Estimate(middle, ordered[k - 1], ordered[n - k]), held(k)


Rows = slice | NDArray[np.int64] | NDArray[np.bool_]
"""A choice of rows: an index of arrays."""

EVERY = slice(None)

MOST_WIDER = 2.0
"""Largest factor by which few groups widen a spread: for two, Student's t would give nearly
four."""


class LeftOut(NamedTuple):
    """Rows as predicted by fits without their group, (rows,).

    Attributes
    ----------
    misses : logarithms of predicted over measured.
    explained : variance of each that the covariance of such a fit predicts.
    fitted : misses in the fit to all rows.
    """

    misses: Floats
    explained: Floats
    fitted: Floats

    def spread(self, groups: int, of: Rows = EVERY) -> float:
        """The :func:`spread_of` the rows ``of``, from ``groups`` groups, beyond the explained
        variance; at least that of the fit to all rows."""
        within = spread_of(self.fitted[of], len(self.fitted[of]))
        return max(spread_of(self.misses[of], groups, self.explained[of]), within)


def spread_beside(misses: Floats, explained: Floats | float = 0.0) -> float:
    """Standard deviation beyond ``explained``, the variance of each miss that is already accounted
    for: 9 in 10 misses should lie in an interval that combines both."""
    needed = float(np.quantile((misses / WIDTH) ** 2 - explained, COVERAGE))
    return math.sqrt(max(needed, 0.0))


def spread_of(misses: Floats, groups: int, explained: Floats | float = 0.0) -> float:
    """The :func:`spread_beside`; with few independent ``groups`` it is wider, by Student's t with
    that many degrees of freedom."""
    from scipy.special import stdtrit

    wider = float(stdtrit(max(groups - 1, 1), 0.5 + COVERAGE / 2.0)) / WIDTH
    return spread_beside(misses, explained) * min(wider, MOST_WIDER)
