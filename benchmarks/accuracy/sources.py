"""The sources of measured runs with an adapter."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, cast

from benchmarks.accuracy.cases import About, Case
from perfmodel.base.errors import unknown_name

FIRST = (
    "field",
    "testbed",
    "testbed_hybrid",
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
"""Sources in the order of the page; others follow by name."""


def known(folders: Iterable[str] = (str(Path(__file__).parent),)) -> tuple[str, ...]:
    """Return the names of all adapters: modules that describe their source in ``ABOUT``."""
    found = {
        path.stem
        for folder in folders
        for path in Path(folder).glob("*.py")
        if "\nABOUT = about(" in path.read_text(encoding="utf-8")
    }
    return (*(name for name in FIRST if name in found), *sorted(found - set(FIRST)))


SOURCES = known()


class Adapter(Protocol):
    """A module for one source: its description, and its cases from a folder of measurements."""

    ABOUT: About

    def cases(self, folder: Path) -> list[Case]:
        """Return every measured value with its prediction."""


def named(name: str) -> str:
    """Return the name of a source, given it or that of its folder.

    Raises
    ------
    InputError : there is no such source.
    """
    if name in SOURCES:
        return name
    for source in SOURCES:
        if adapter(source).ABOUT.folder == name:
            return source
    raise unknown_name("source", name, SOURCES, None)


def adapter(name: str) -> Adapter:
    """Return the adapter of a source, given its name or that of its folder.

    Raises
    ------
    InputError : there is no such source.
    """
    return cast(Adapter, importlib.import_module(f"benchmarks.accuracy.{named(name)}"))


def fit_of(found: Adapter) -> Callable[[Path], None] | None:
    """Return the function that calibrates an adapter on a folder; None if nothing is fitted."""
    fit: Callable[[Path], None] | None = getattr(found, "fit", None)
    return fit
