"""Version and capabilities of this installation of the package."""

from __future__ import annotations

import functools
import zlib
from pathlib import Path

from perfmodel import __version__
from perfmodel.engine import library

PACKAGE = Path(__file__).parent.parent


def how_it_simulates() -> str:
    """Say in words how this installation simulates."""
    reason = library.compiled()[1]
    if not reason:
        return "simulates with compiled code"
    return f"simulates in plain Python, many times slower, without compiled code: {reason}"


@functools.cache
def fingerprint() -> str:
    """Return the version, source and NumPy of this installation: if equal, so are predictions.

    Inputs such as profiles are not included: a job holds them as values.
    """
    import numpy as np

    digest = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        digest = zlib.crc32(path.read_bytes(), digest)
    digest = zlib.crc32((PACKAGE / "predicting" / "bands.json").read_bytes(), digest)
    return f"perfmodel {__version__} (source {digest:08x}, NumPy {np.__version__})"
