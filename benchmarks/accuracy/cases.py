"""One measured figure and its prediction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """``relative``: the error is a fraction of the measured value, else a plain difference.

    ``interval`` should hold 90 % of measured values, where the prediction says so much. The case
    counts in its ``group`` and in ``pools``.
    """

    group: str
    name: str
    predicted: float
    measured: float
    relative: bool = True
    interval: tuple[float, float] | None = None
    pools: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Signed error: positive when the prediction is too high."""
        difference = self.predicted - self.measured
        return difference / self.measured if self.relative else difference
