"""The compiled event loop: an extension module that setup.py makes of the modules listed here.

It knows of which source it was made, so it is never used with other source.
"""

from __future__ import annotations

import functools
import importlib
import os
import zlib
from types import ModuleType

MODULES = (
    *("codes", "prefetch", "heaps", "pools", "filling", "sharing"),
    *("timers", "draws", "waits", "queues", "starting", "ending", "loop"),
)
"""The compiled modules."""

FOLDER = os.path.dirname(__file__)
"""Where the sources of the modules are."""

EXTENSION = "perfmodel.engine._loop"
"""Name of the extension module."""

MISSING = (
    "it was not compiled when perfmodel was installed; to compile it, get a C compiler and the "
    "headers of Python (Debian: gcc, python3-dev), and reinstall with pip's --no-cache-dir"
)


def source_digest() -> str:
    """Return the CRC-32 of the source of the compiled event loop.

    It detects other versions. A cryptographic hash would take longer to import than the loop takes
    to load.
    """
    digest = 0
    for name in (*MODULES, "world"):
        with open(f"{FOLDER}/{name}.py", "rb") as file:
            digest = zlib.crc32(file.read(), digest)
    return f"{digest:08x}"


@functools.cache
def compiled() -> tuple[ModuleType | None, str]:
    """Return the extension module, or else None and the reason why it cannot be used."""
    try:
        extension = importlib.import_module(EXTENSION)
    except ModuleNotFoundError:
        return None, MISSING
    except ImportError as error:
        return None, f"it cannot be loaded: {str(error).splitlines()[0]}"
    if source_digest() != extension.SOURCE:
        return None, f"{extension.__file__} was compiled from other source: reinstall perfmodel"
    return extension, ""
