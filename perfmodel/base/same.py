"""Values that equal others only if they are the same object: keys of caches."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Generic, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
R = TypeVar("R")


class Same(Generic[T]):
    """A value that equals another only if it is the same object: hashing and comparing it takes no
    longer if it is large. It is kept alive, so that no other takes its place.

    >>> a, b = [1], [1]
    >>> Same(a) == Same(a), Same(a) == Same(b), len({Same(a), Same(a)})
    (True, False, 1)
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value


def kept(
    most: int,
) -> Callable[[Callable[[T, Unpack[Ts]], R]], Callable[[T, Unpack[Ts]], R]]:
    """Make a function keep its last ``most`` results, each for the same first argument, whatever
    that contains, and equal others.

    >>> lengths = kept(8)(len)
    >>> values = [1]
    >>> lengths(values), values.append(2), lengths(values), lengths([1, 2])
    (1, None, 1, 2)
    """

    def keeping(function: Callable[[T, Unpack[Ts]], R]) -> Callable[[T, Unpack[Ts]], R]:
        @functools.lru_cache(maxsize=most)
        def known(first: Same[T], others: tuple[*Ts]) -> R:
            return function(first.value, *others)

        def of(first: T, *others: *Ts) -> R:
            return known(Same(first), others)

        return of

    return keeping


class SameItems(Generic[T]):
    """A tuple that equals another only if its items are the same objects.

    >>> a, b = [1], [1]
    >>> SameItems((a, b)) == SameItems((a, b)), SameItems((a, a)) == SameItems((a, b))
    (True, False)
    """

    __slots__ = ("_hash", "value")

    def __init__(self, value: tuple[T, ...]) -> None:
        self.value = value
        self._hash = hash(tuple(map(id, value)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SameItems) or len(other.value) != len(self.value):
            return False
        return all(map(operator.is_, self.value, other.value))
