"""What is to be removed, and the version that removes it: the only mechanism for that."""

from __future__ import annotations

import warnings
from typing import NamedTuple


class Deprecation(NamedTuple):
    """A name that goes away: what to use instead, and the first version without it."""

    instead: str
    removed_in: str


RENAMED: dict[str, Deprecation] = {}
"""Public names of the package that have another name now, by the old one.

Whatever else is deprecated (an option, a key of a file) has an entry too, under the text that
messages call it by, and calls :func:`warn` where it is used. A test fails once the package has
reached the version that removes an entry.
"""


def warn(name: str, stacklevel: int = 3) -> None:
    """Warn that something is deprecated, with its entry in :data:`RENAMED`.

    It is a FutureWarning, which Python shows to users, and not to developers alone.
    """
    entry = RENAMED[name]
    text = f"{name} is deprecated and goes away in {entry.removed_in}: use {entry.instead}"
    warnings.warn(text, FutureWarning, stacklevel=stacklevel)


def overdue(version: str) -> list[str]:
    """Return the entries that a version should not have any more.

    >>> overdue("1.0.0")
    []
    """
    now = _numbers(version)
    return [name for name, entry in RENAMED.items() if now >= _numbers(entry.removed_in)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
