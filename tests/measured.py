"""Location of measured runs, which are not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
