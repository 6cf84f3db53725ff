"""Provenance of numbers: sources of inputs, assumptions, and the software used."""

from typing import Any, Literal

import msgspec

SourceKind = Literal["exact", "measured", "published", "estimated"]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Source of a number.

    ``kind`` is *exact* (a definition), *measured* (by this project's profiler or by the user),
    *published* (measured by others) or *estimated* (derived by a rule).
    """

    kind: SourceKind
    text: str
    url: str | None = None
    date: str | None = None


class Assumption(msgspec.Struct, frozen=True):
    """A default that was used: its name, value, SI unit ("" if none), and the reason."""

    name: str
    value: float | int | str | bool | None
    unit: str
    source: str


class Provenance(msgspec.Struct, frozen=True):
    """Everything needed to reproduce a result."""

    perfmodel: str
    python: str
    numpy: str
    seed: int
    inputs: dict[str, Any]


def provenance(seed: int, inputs: dict[str, Any]) -> Provenance:
    """Return the provenance of a result computed now from ``inputs`` (JSON-like values)."""
    import sys

    import numpy as np

    from perfmodel import __version__

    return Provenance(__version__, sys.version.split()[0], np.__version__, seed, inputs)
