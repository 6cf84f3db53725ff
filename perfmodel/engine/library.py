"""The event loop as machine code: a shared library beside this file, compiled from the same source.

It is built with the package (:mod:`perfmodel.engine.building`). A note beside it records its
source, its platform and its checksum. So a library that is damaged, or was built from other source,
is never loaded.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
LIBRARY, NOTE = "event_loop.so", "event_loop.json"
"""File names of the library and of the note about it."""

COMPILED = (
    *("prefetch", "pools", "filling", "sharing"),
    *("timers", "draws", "waits", "starting", "ending", "loop"),
)
"""The compiled modules, in import order."""

_SOURCES = (*COMPILED, "world", "numba_world", "building")

PLATFORM = getattr(sys.implementation, "_multiarch", "") or f"{sys.platform}, {sys.maxsize:x}"
"""Platform of the machine code: processor, operating system and C library."""


class Note(NamedTuple):
    """Note about a library: the digest of its source, its platform, its own digest, and the reason
    if it could not be built."""

    source: str
    platform: str
    library: str
    failure: str = ""


def digest(data: bytes) -> str:
    """Return length and CRC-32 of data.

    They detect other versions and damage. A cryptographic hash would take longer to import than the
    library takes to load.
    """
    return f"{len(data)}-{zlib.crc32(data):08x}"


def source_digest() -> str:
    """Return the digest of the compiled source and of the code that compiles it."""
    return digest(b"".join((FOLDER / f"{name}.py").read_bytes() for name in _SOURCES))


class Library(NamedTuple):
    """The library in a folder: its ``path``, and the ``reason`` why it cannot be used, if any.

    ``refused`` means that there is a library, but not a valid one; ``lasting`` that building it
    again would fail in the same way.
    """

    path: Path
    reason: str = ""
    refused: bool = False
    lasting: bool = False


def find(folder: Path = FOLDER) -> Library:
    """Look for the library in a folder, and check it."""
    path = folder / LIBRARY
    note = _read(folder / NOTE)
    if note is None:
        missing = not path.exists()
        reason = "it has not been built" if missing else f"{path} has no valid note beside it"
        return Library(path, reason, refused=not missing)
    if note.source != source_digest():
        return Library(path, f"{path} was built from another version of the source", refused=True)
    if note.platform != PLATFORM:
        where = f"{path} was built for {note.platform}, but this machine is {PLATFORM}"
        return Library(path, where, refused=True)
    if note.failure:
        return Library(path, f"it could not be built: {note.failure}", lasting=True)
    try:
        code = path.read_bytes()
    except OSError as error:
        return Library(path, f"cannot read {path}: {error.strerror}", refused=True)
    if digest(code) != note.library:
        return Library(path, f"{path} is damaged", refused=True)
    return Library(path)


def _read(path: Path) -> Note | None:
    """Read the note; None if there is none or it is invalid."""
    try:
        found = json.loads(path.read_bytes())
        note = Note(**found)
    except (OSError, ValueError, TypeError):
        return None
    return note if all(isinstance(value, str) for value in note) else None
