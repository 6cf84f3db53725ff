"""How precisely the fitted values of a cluster or a workload are known."""

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, unknown_name, whole_number

Feature = Literal["workers", "nodes", "servers", "batch_size", "bandwidth_bytes_per_s"]

FEATURES: tuple[Feature, ...] = (
    "workers",
    "nodes",
    "servers",
    "batch_size",
    "bandwidth_bytes_per_s",
)
"""Job features whose range among the fitted runs is recorded."""


MOST_SPREAD = 10.0
"""Largest standard deviation of the logarithm of a step time; exp(10) is a factor of 22,000."""

MOST_COVARIANCE = 1e6
"""Largest covariance of the logarithms of two parameters. It may be large: a parameter without any
effect is not known at all."""


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What remains uncertain after a fit to measured steps.

    Attributes
    ----------
    parameters : the fitted fields, such as ``nic.efficiency`` of a cluster or ``forward_s`` of a
        workload; a number in the path is an index.
    covariance : of the logarithms of the parameters, shape (parameters, parameters).
    spread : standard deviation of the logarithm of a measured step time around its prediction, over
        held-out runs.
    computing_spread : the same for the computing part of a step; the rest is waiting.
    ranges : smallest and largest value among the fitted runs, by feature.
    growth : standard deviation added per doubling of a feature beyond its range.
    rows : number of measured steps in the fit.
    """

    parameters: tuple[str, ...] = ()
    covariance: tuple[tuple[float, ...], ...] = ()
    spread: float = 0.0
    computing_spread: float = 0.0
    ranges: dict[str, tuple[float, float]] = {}
    growth: dict[str, float] = {}
    rows: int = 0

    def __post_init__(self) -> None:
        count = len(self.parameters)
        sizes = {len(self.covariance), *map(len, self.covariance)}
        if sizes != {count}:
            raise InputError(
                f"covariance: must have {count} rows and columns, one for each parameter"
            )
        if len(set(self.parameters)) < count:
            raise InputError("parameters: every parameter may be given only once")
        for i, row in enumerate(self.covariance):
            for j, value in enumerate(row):
                number(
                    f"covariance[{i}][{j}]",
                    value,
                    at_least=-MOST_COVARIANCE,
                    at_most=MOST_COVARIANCE,
                )
        matrix = self._matrix
        if not np.allclose(matrix, matrix.T):
            raise InputError("covariance: must be symmetric")
        if count and np.linalg.eigvalsh(matrix)[0] < -1e-9 * np.trace(matrix):
            raise InputError("covariance: must not have negative variances")
        number("spread", self.spread, at_most=MOST_SPREAD)
        number("computing_spread", self.computing_spread, at_most=MOST_SPREAD)
        whole_number("rows", self.rows, at_least=0)
        for name in (*self.ranges, *self.growth):
            if name not in FEATURES:
                raise unknown_name("feature", name, FEATURES)
        for name, (least, most) in self.ranges.items():
            if not number(f"ranges.{name}", least, above=0.0) <= number(f"ranges.{name}", most):
                raise InputError(f"ranges.{name}: give the smallest value first, then the largest")
        for name, spread in self.growth.items():
            number(f"growth.{name}", spread, at_most=MOST_SPREAD)

    @property
    def _matrix(self) -> Floats:
        count = len(self.parameters)
        return np.array(self.covariance, np.float64).reshape(count, count)

    def variance(self, elasticities: Floats) -> float:
        """Variance of the logarithm of a step time with these ``elasticities``, shape
        (parameters,): its relative change per relative change of each parameter."""
        return max(float(elasticities @ self._matrix @ elasticities), 0.0)  # rounding

    def beyond(self, features: Mapping[str, float]) -> dict[str, float]:
        """Doublings by which features of a job are outside their range; only those outside."""
        excess = {}
        for name, value in features.items():
            least, most = self.ranges.get(name, (value, value))
            doublings = max(math.log2(value / most), math.log2(least / value))
            if doublings > 0.0:
                excess[name] = doublings
        return excess

    def extrapolation(self, features: Mapping[str, float]) -> float:
        """Standard deviation of the logarithm of a step time from being outside the ranges."""
        return math.hypot(*(self.growth.get(n, 0.0) * d for n, d in self.beyond(features).items()))


Struct = TypeVar("Struct", bound=msgspec.Struct)


def value_at(struct: msgspec.Struct, path: str) -> float:
    """Number in a field, such as ``nic.efficiency`` or ``collectives.0.pieces.1.startup_s``.

    Raises
    ------
    InputError : there is no such field, or it is not a number.
    """
    value: object = struct
    for name in path.split("."):
        value = _inside(value, name, path)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"calibration: {path!r} is not a number")
    return float(value)


def with_value(struct: Struct, path: str, value: float) -> Struct:
    """Return a copy with another number in a field.

    Raises
    ------
    InputError : as :func:`value_at`; or the field cannot have that value.
    """
    value_at(struct, path)
    changed: Struct = _changed(struct, path.split("."), value)
    return changed


def scaled(struct: Struct, path: str, factor: float) -> Struct:
    """Return a copy with the number in a field multiplied by ``factor``.

    Raises
    ------
    InputError : as :func:`with_value`.
    """
    return with_value(struct, path, value_at(struct, path) * factor)


def _changed(part: Any, names: list[str], value: float) -> Any:
    if not names:
        return value
    inner = _changed(_inside(part, names[0], names[0]), names[1:], value)
    if isinstance(part, tuple):
        at = int(names[0])
        return (*part[:at], inner, *part[at + 1 :])
    return msgspec.structs.replace(part, **{names[0]: inner})


def _inside(part: object, name: str, path: str) -> object:
    if isinstance(part, tuple) and name.isdigit() and int(name) < len(part):
        return part[int(name)]
    if isinstance(part, msgspec.Struct):
        if name in part.__struct_fields__:
            return getattr(part, name)
        raise unknown_name(f"field of the calibrated {path!r}:", name, part.__struct_fields__)
    raise InputError(f"calibration: there is no field {path!r}")
