"""One measured figure and its prediction, and what there is to say of a source of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """``relative``: the error is a fraction of the measured value, else a plain difference.

    Attributes
    ----------
    interval : should hold 90 % of measured values, where the prediction says so much.
    pools : groups that the case counts in beside ``group``.
    others : other predictions of the same figure by name, such as that of a naive baseline.
    setting : cases of one setting are ranked by throughput; empty where that makes no sense.
    samples : samples of all workers in one step, for the throughput.
    """

    group: str
    name: str
    predicted: float
    measured: float
    relative: bool = True
    interval: tuple[float, float] | None = None
    pools: tuple[str, ...] = ()
    others: Mapping[str, float] = field(default_factory=dict)
    setting: str = ""
    samples: float = 0.0

    @property
    def error(self) -> float:
        """Signed error: positive when the prediction is too high."""
        return self.error_of(self.predicted)

    def error_of(self, predicted: float) -> float:
        """Signed error of another prediction."""
        difference = predicted - self.measured
        return difference / self.measured if self.relative else difference


@dataclass(frozen=True)
class Split:
    """What was calibrated on and what was predicted, in words."""

    calibrated: str
    predicted: str


@dataclass(frozen=True)
class About:
    """A source: its title, who measured it, its folder, its splits by name, and remarks.

    ``remarks`` is Markdown: mechanisms, reasons of the worst cases, what is not covered.
    """

    title: str
    citation: str
    folder: str
    splits: Mapping[str, Split]
    remarks: str
