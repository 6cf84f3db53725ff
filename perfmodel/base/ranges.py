"""Ranges of the numbers in a struct, declared as a table and checked when it is made."""

import copy
import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypeVar

import msgspec

from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.limits import MOST_WHOLE, limits_of

T = TypeVar("T", bound=msgspec.Struct)

LEAST_MOST = 1e9
"""The smallest upper limit of any unit; all lower limits are 1 or less."""


class Range(NamedTuple):
    """The range of a number, in the limits of the unit that its name ends in.

    ``whole`` numbers are integers. ``besides`` are values outside the range that are allowed, such
    as None.
    """

    at_least: float = 0.0
    at_most: float | None = None
    above: float | None = None
    whole: bool = False
    besides: tuple[float | None, ...] = ()

    def holds(self, name: str, value: object) -> bool:
        """Whether a value, or each in a tuple, is a plain number in the range."""
        if isinstance(value, tuple):
            return all(self.holds(name, part) for part in value)
        if type(value) is not int and (self.whole or type(value) is not float):
            return False
        least, most = self.at_least, LEAST_MOST if self.at_most is None else self.at_most
        if self.above is not None:
            small = self.above == 0.0 and value < 1.0
            least = limits_of(name).least if small else math.nextafter(self.above, math.inf)
        if value > most and self.at_most is None and not self.whole:
            most = limits_of(name).most
        return bool(least <= value <= most)

    def check(self, name: str, value: object) -> None:
        """Raise InputError if a value, or any in a tuple, is out of range."""
        if isinstance(value, tuple):
            for k, part in enumerate(value):
                self.check(f"{name}[{k}]", part)
        elif self.whole:
            most = MOST_WHOLE if self.at_most is None else int(self.at_most)
            whole_number(name, value, at_least=int(self.at_least), at_most=most)
        else:
            number(name, value, at_least=self.at_least, above=self.above, at_most=self.at_most)


NOT_NEGATIVE = Range()
POSITIVE = Range(above=0.0)
COUNT = Range(1, whole=True)
FRACTION = Range(at_most=1.0)


def or_none(limits: Range) -> Range:
    """Return a range that also allows None."""
    return limits._replace(besides=(None,))


def or_inf(limits: Range) -> Range:
    """Return a range that also allows infinity."""
    return limits._replace(besides=(math.inf,))


class Ranged(msgspec.Struct, frozen=True):
    """A struct whose numbers are in the ranges of ``RANGES``, and of those of its bases.

    ``PLACE``, a format of the struct, says where its numbers are, before their names in errors.

    Raises
    ------
    InputError : a number is out of range.
    """

    RANGES: ClassVar[Mapping[str, Range]] = {}
    PLACE: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, limits in self.RANGES.items():
            value = getattr(self, name)
            if value in limits.besides or limits.holds(name, value):
                continue
            try:
                limits.check(name, value)
            except InputError as error:
                raise InputError(self.PLACE.format(self) + str(error)) from None


def unchecked(one: T, **values: object) -> T:
    """Return a copy of a struct with other values that need no check, such as names."""
    made = copy.copy(one)
    for name, value in values.items():
        msgspec.structs.force_setattr(made, name, value)
    return made
