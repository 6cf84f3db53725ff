"""Location of measured runs, which are not part of the repository, and their predictions."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.sources import Adapter

DATA = Path(
    os.environ.get("PERFMODEL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)
"""Holds a folder for each source."""


def measured(name: str, file: str = "") -> Path:
    """The folder of a source; skips the test if the folder, or ``file`` in it, is missing."""
    folder = DATA / name
    if not (folder / file).exists():
        pytest.skip(f"{name} is not at hand (set PERFMODEL_DATA to the folder that holds it)")
    return folder


def predicted_cases(source: Adapter, file: str = "") -> tuple[Case, ...]:
    """The cases of a source, predicted once in each process; skips the test if its folder, or
    ``file`` in it, is missing."""
    return _cases(source, measured(source.ABOUT.folder, file))


@functools.cache
def _cases(source: Adapter, folder: Path) -> tuple[Case, ...]:
    return tuple(source.cases(folder))
