"""Where a number comes from: sources of inputs, assumptions that were filled in, and the run."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SourceKind = Literal["exact", "measured", "published", "estimated"]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who says so.

    ``kind`` is *exact* (a definition), *measured* (by this project's profiler or by the user),
    *published* (a figure measured by others) or *estimated* (derived by a rule).
    """

    kind: SourceKind
    text: str
    url: str | None = None
    date: str | None = None


class Assumption(msgspec.Struct, frozen=True):
    """A value the user did not give: its name, value, SI unit ("" if none), and why this one."""

    name: str
    value: float | int | str | bool | None
    unit: str
    source: str


class Provenance(msgspec.Struct, frozen=True):
    """What made a result: enough to make it again."""

    perfmodel: str
    python: str
    numpy: str
    seed: int
    inputs: dict[str, Any]


def provenance(seed: int, inputs: dict[str, Any]) -> Provenance:
    """The provenance of a result computed now from ``inputs`` (JSON-like values)."""
    import sys

    import numpy as np

    from perfmodel import __version__

    return Provenance(__version__, sys.version.split()[0], np.__version__, seed, inputs)
