"""Times of collectives from piecewise linear fits to measurements on a cluster."""

from typing import ClassVar

from perfmodel.base.errors import InputError
from perfmodel.base.quantities import Quantity, where
from perfmodel.base.ranges import COUNT, NOT_NEGATIVE, POSITIVE, Ranged, or_none
from perfmodel.theory.collective_times import (
    Growth,
    LinearCost,
    Operation,
    line_s,
    per_byte_growth,
    startup_growth,
)

RANKS = COUNT._replace(at_least=2)
"""Range of a number of ranks."""


class Piece(Ranged, frozen=True, forbid_unknown_fields=True):
    """Time of a collective from ``above_bytes`` bytes up to the start of the next piece.

    n bytes take ``startup_s + n * per_byte_s`` between two ranks; with more ranks, the two parts
    grow as ``startup_growth`` and ``per_byte_growth`` say.
    """

    RANGES: ClassVar = dict.fromkeys(("startup_s", "per_byte_s", "above_bytes"), NOT_NEGATIVE)

    startup_s: float
    per_byte_s: float
    above_bytes: float = 0.0
    startup_growth: Growth = "ring"
    per_byte_growth: Growth = "ring"


class Uneven(Ranged, frozen=True, forbid_unknown_fields=True):
    """Correction for ``ranks`` ranks: collectives took ``factor`` times the pieces' time."""

    RANGES: ClassVar = {"ranks": RANKS, "factor": POSITIVE}

    ranks: int
    factor: float


class Collective(Ranged, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured times of a collective, which replace the closed form of a ring.

    Attributes
    ----------
    operation : the collective; bytes are counted as in
        :class:`perfmodel.measuring.measurements.Measurement`.
    pieces : in order of size, the first from 0 bytes on; libraries switch algorithms with the size.
    ranks, bytes : smallest and largest measured values; beyond them times are extrapolated.
    uneven : corrections for rank counts off the fitted growth, as with devices wired in pairs.
    error_fraction : 90th percentile of the deviation of measured times from the pieces; None if
        unknown.
    """

    RANGES: ClassVar = {
        "ranks": RANKS,
        "bytes": NOT_NEGATIVE,
        "error_fraction": or_none(NOT_NEGATIVE),
    }

    operation: Operation
    pieces: tuple[Piece, ...]
    ranks: tuple[int, int]
    bytes: tuple[float, float]
    uneven: tuple[Uneven, ...] = ()
    error_fraction: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        begins = [piece.above_bytes for piece in self.pieces]
        if not begins or begins[0] != 0.0:
            raise InputError("pieces: the first must be above_bytes = 0")
        if begins != sorted(set(begins)):
            raise InputError("pieces: above_bytes must increase from piece to piece")
        for name, (least, most) in (("ranks", self.ranks), ("bytes", self.bytes)):
            if least > most:
                raise InputError(
                    f"{name}: give the smallest value first, then the largest; "
                    f"got {least:g} and {most:g}"
                )
        counts = [group.ranks for group in self.uneven]
        for count in counts:
            if counts.count(count) > 1:
                raise InputError(f"uneven: {count} ranks are given twice")


def measured_lines(measured: Collective, ranks: Quantity) -> tuple[LinearCost, ...]:
    """The pieces of a measured collective, among ``ranks`` ranks."""
    factor: Quantity = 1.0
    for group in measured.uneven:
        factor = where(ranks == group.ranks, group.factor, factor)
    return tuple(
        LinearCost(
            factor * piece.startup_s * startup_growth(piece.startup_growth, ranks),
            factor * piece.per_byte_s * per_byte_growth(piece.per_byte_growth, ranks),
            piece.above_bytes,
        )
        for piece in measured.pieces
    )


def measured_collective_s(measured: Collective, ranks: Quantity, size_bytes: Quantity) -> Quantity:
    r"""Seconds of a measured collective of n bytes, from the piece for that size.

    .. math:: g_\alpha(p)\, \alpha + g_\beta(p)\, n \beta

    >>> measured = Collective(
    ...     operation="all_reduce", pieces=(Piece(0.5, 0.02),), ranks=(2, 8), bytes=(1.0, 1e3)
    ... )
    >>> measured_collective_s(measured, 4, 100.0)
    4.5
    """
    startup_s, moving_s = line_s(measured_lines(measured, ranks), size_bytes)
    return startup_s + moving_s
