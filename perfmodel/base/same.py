"""Values that equal others only if they are the same object: keys of caches."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


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
