"""Aims: conditions on a prediction, such as ``scaling>0.9``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from perfmodel.base.errors import InputError, unknown_name
from perfmodel.base.units import HOUR_S, parse, show
from perfmodel.results.memory import SURE
from perfmodel.results.prediction import Prediction


class AimQuantity(NamedTuple):
    """A predicted quantity that an aim can constrain.

    ``of(prediction, alone)`` returns its value and the lower and upper bound of its interval;
    ``alone`` is the throughput of one worker alone (samples/s). ``label`` names it on an axis.
    """

    meaning: str
    label: str
    unit: str
    of: Callable[[Prediction, float], tuple[float, float, float]]


def _ends(p: Prediction, name: str, value: float) -> tuple[float, float, float]:
    """A value, and the ends of its interval; the value itself without one."""
    ends = getattr(p.interval, name, None) or (value, value)
    return (value, *ends)


def _idle(p: Prediction, _: float) -> tuple[float, float, float]:
    return _ends(p, "idle_fraction", p.idle_fraction.mean)


def _rate(p: Prediction, _: float) -> tuple[float, float, float]:
    return _ends(p, "throughput_samples_per_s", p.throughput_samples_per_s)


def _scaling(p: Prediction, alone: float) -> tuple[float, float, float]:
    rate, low, high = _rate(p, alone)
    ideal = p.workers * alone
    return rate / ideal, low / ideal, high / ideal


def _step(p: Prediction, _: float) -> tuple[float, float, float]:
    return _ends(p, "iteration_s", p.iteration_s)


def _time(p: Prediction, _: float) -> tuple[float, float, float]:
    if p.training is None:
        raise InputError("time: needs the number of samples per epoch (--dataset-size)")
    seconds, (step, low, high) = p.training.training_s, _step(p, 0.0)
    return seconds, seconds * low / step, seconds * high / step


def _staleness(p: Prediction, _: float) -> tuple[float, float, float]:
    return _ends(p, "staleness", p.staleness.mean) if p.staleness is not None else (0.0, 0.0, 0.0)


def _fits(p: Prediction, _: float) -> tuple[float, float, float]:
    if p.memory.fits is None:
        raise InputError(f"fits: the memory of {p.device} is unknown")
    return (p.memory.fits,) * 3


QUANTITIES: Mapping[str, AimQuantity] = {
    "idle": AimQuantity("mean idle fraction of the workers", "idle fraction", "", _idle),
    "scaling": AimQuantity(
        "throughput relative to linear scaling of one worker alone",
        "scaling efficiency",
        "",
        _scaling,
    ),
    "throughput": AimQuantity(
        "samples per second of all workers", "throughput", "samples_per_s", _rate
    ),
    "step": AimQuantity("mean iteration time", "iteration time", "s", _step),
    "time": AimQuantity("time of the whole training", "training time", "s", _time),
    "staleness": AimQuantity("mean staleness", "staleness", "updates", _staleness),
    "fits": AimQuantity(
        "probability that a worker fits into its device", "probability of fitting", "", _fits
    ),
}
"""Quantities that an aim can constrain, by name."""

FRACTIONS = ("idle", "scaling", "fits")
"""Those that are at most 1, and may be in percent."""

_AIM = re.compile(r"\s*([a-z_-]+)\s*([<>])=?\s*(\S+)\s*")


class Aim(msgspec.Struct, frozen=True):
    """A condition on a prediction: a quantity is below or above a value (SI)."""

    quantity: str
    below: bool
    value: float

    @classmethod
    def parse(cls, text: str) -> Aim:
        """Parse a condition such as ``idle<0.2``, ``scaling>90%`` or ``time<24h``.

        ``fits`` alone stands for ``fits>90%``.

        Raises
        ------
        InputError : not a condition, an unknown quantity, or a value that is not a positive number.

        >>> Aim.parse("time<24h")
        Aim(quantity='time', below=True, value=86400.0)
        """
        match = _AIM.fullmatch(f"fits>{SURE}" if text.strip() == "fits" else text)
        if match is None:
            raise InputError(
                f"aim: cannot parse {text!r}; expected a condition such as 'scaling>0.9' "
                f"({', '.join(QUANTITIES)})"
            )
        name, sign, amount = match.groups()
        if name not in QUANTITIES:
            raise unknown_name("aim", name, QUANTITIES)
        percent = amount.endswith("%")
        if percent and name not in FRACTIONS:
            raise InputError(
                f"aim: {name}: is no fraction, got {amount!r} (percent of: {', '.join(FRACTIONS)})"
            )
        try:
            value = float(amount.removesuffix("%")) / (100.0 if percent else 1.0)
        except ValueError:
            if QUANTITIES[name].unit != "s":
                raise InputError(f"aim: {name}: expected a number, got {amount!r}") from None
            value = parse(amount, "s", f"aim: {name}")
        if not (value > 0.0 and math.isfinite(value)):
            raise InputError(f"aim: {name}: must be a positive number, got {amount!r}")
        if name in FRACTIONS and value > 1.0:
            raise InputError(f"aim: {name}: must be at most 1, got {amount!r}")
        return cls(name, sign == "<", value)

    @property
    def text(self) -> str:
        """The condition as text.

        >>> Aim("idle", True, 0.2).text
        'idle < 0.2'
        """
        shown = f"{self.value:g}"
        if QUANTITIES[self.quantity].unit == "s":
            hours = self.value >= HOUR_S
            shown = f"{self.value / HOUR_S:.4g} h" if hours else show(self.value, "s")
        return f"{self.quantity} {'<' if self.below else '>'} {shown}"

    def met(self, value: float) -> bool:
        """Return whether a value meets the condition."""
        return value < self.value if self.below else value > self.value
