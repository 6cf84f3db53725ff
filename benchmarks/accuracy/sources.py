"""The sources of measured runs that there is an adapter for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from benchmarks.accuracy.cases import About, Case
from perfmodel.base.errors import unknown_name

SOURCES = (
    "testbed",
    "hkbu",
    "pollux",
    "sia",
    "cmdare",
    "dl2",
    "tensorflow",
    "horovod",
    "dlperf",
    "mxnet",
    "kungfu",
    "staleness_delay",
    "bytedance",
    "adsp",
    "transient",
    "collectives",
)


class Adapter(Protocol):
    """A module for one source: what it is, and its cases from a folder of measurements."""

    ABOUT: About

    def cases(self, folder: Path) -> list[Case]:
        """Every measured figure that is predicted, with its prediction."""


def adapter(name: str) -> Adapter:
    """The adapter of a source, also by the name of its folder.

    Raises
    ------
    InputError : there is no such source.
    """
    if name in SOURCES:
        return cast(Adapter, importlib.import_module(f"benchmarks.accuracy.{name}"))
    every = [adapter(source) for source in SOURCES]
    for each in every:
        if each.ABOUT.folder == name:
            return each
    raise unknown_name("source", name, SOURCES)


def fit_of(found: Adapter) -> Callable[[Path], None] | None:
    """What calibrates an adapter on the rows of a folder; None where nothing is fitted."""
    fit: Callable[[Path], None] | None = getattr(found, "fit", None)
    return fit
