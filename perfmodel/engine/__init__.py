"""Simulates any op graph until its rates are known, and measures it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.engine.measures import Measures, OpSpan
    from perfmodel.engine.simulation import (
        first_iterations,
        makespan,
        run_spread,
        simulate,
        timeline,
    )

__all__ = [
    "Measures",
    "OpSpan",
    "first_iterations",
    "makespan",
    "run_spread",
    "simulate",
    "timeline",
]


def __getattr__(name: str) -> object:
    """Import on first use, so that looking up the compiled library does not import the rest."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "measures" if name in ("Measures", "OpSpan") else "simulation"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
