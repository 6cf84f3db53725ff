"""Values fitted to measured runs, stored next to this file: one entry per split and fold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError

Entry = TypeVar("Entry")

FOLDER = Path(__file__).parent / "fitted"


def rounded(value: float, digits: int = 6) -> float:
    """Round a stored value to this many digits; six are more than published rows have."""
    return float(f"{value:.{digits}g}")


def write(source: str, entries: Mapping[str, object]) -> None:
    """Store the fits of a source by name of the split, with one line per field."""
    lines = []
    for name, entry in entries.items():
        fields: dict[str, object] = msgspec.to_builtins(entry)
        inner = ",\n".join(f' "{k}": {msgspec.json.encode(v).decode()}' for k, v in fields.items())
        lines.append(f'"{name}": {{\n{inner}\n}}')
    FOLDER.mkdir(exist_ok=True)
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    files.write(FOLDER / f"{source}.json", text.encode())


def read(source: str, kind: type[Entry]) -> dict[str, Entry]:
    """Return the fits of a source by name of the split.

    Raises
    ------
    InputError : there are none, or they have another type.
    """
    path = FOLDER / f"{source}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, kind])  # type: ignore[valid-type]
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}; --fit makes it") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}; --fit makes it") from None
