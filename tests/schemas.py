"""The stored JSON Schemas, for tests of commands whose answers need files that tests make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "reference" / "schemas"


def stored(name: str) -> Any:
    """The JSON Schema of a file or an answer."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def breaches(name: str, values: Mapping[str, object]) -> list[str]:
    """Keys of an answer that its schema does not know, requires, or has with another value."""
    schema = stored(name)
    known = schema["properties"]
    fixed = {key: part["const"] for key, part in known.items() if "const" in part}
    return [
        *(key for key in values if key not in known),
        *(key for key in schema["required"] if key not in values),
        *(key for key, value in fixed.items() if values.get(key) != value),
    ]
