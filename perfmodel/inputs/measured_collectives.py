"""Times of collectives from piecewise linear fits to measurements on a cluster."""

from __future__ import annotations

from perfmodel.base.quantities import Quantity, where
from perfmodel.inputs.cluster import Collective
from perfmodel.theory.collective_times import LinearCost, line_s, per_byte_growth, startup_growth


def measured_lines(measured: Collective, ranks: Quantity) -> tuple[LinearCost, ...]:
    """The pieces of a measured collective, among ``ranks`` ranks."""
    factor: Quantity = 1.0
    for each in measured.uneven:
        factor = where(ranks == each.ranks, each.factor, factor)
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

    >>> from perfmodel.inputs.cluster import Piece
    >>> measured = Collective(
    ...     operation="all_reduce", pieces=(Piece(0.5, 0.02),), ranks=(2, 8), bytes=(1.0, 1e3)
    ... )
    >>> measured_collective_s(measured, 4, 100.0)
    4.5
    """
    startup_s, moving_s = line_s(measured_lines(measured, ranks), size_bytes)
    return startup_s + moving_s
