"""Valid files and command lines with mistakes in them.

Hypothesis draws only the seeds; drawing from lists itself, it mostly picks their beginnings.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 1000, 10**6, 10**9, 2**31, 2**63, 10**30, 10**400),
    *(-(10**400), 0.0, -0.0, 1e-300, 5e-324, 1e-12, 1e-3, 0.5, 1.0, 1.5, 1e6, 1e12, 1e18, 1e300),
    *(-1e300, "", "x", "\0", "\x1b[2J", "a\nb", "ü", "1e999s", "10Gbps", "1e-300bps", "1GB", "5us"),
    *("nan", "inf", "-inf", "NaN", "9" * 300, "9" * 5000, "x" * 10**5, "/", "../x", "a\0b.json"),
    *("v100", "resnet18", "ps", "ring", "asp", "float32", [], {}, [[]], [1], ["x"]),
    *([1e300, 1e-300], {"x": 1}, {"": {}}, [None], [10**400], [0, 0], [-1.0, 2.0], "true", "0"),
    *("1", "2.5", "\ud800", "\u202ex", "\ufeff", "$x_{", "-5s", 1e9 + 1.0, -(10**9)),
)
"""Replacements for a value."""

Path = tuple[str | int, ...]
T = TypeVar("T")


def drawn(make: Callable[[Random], T]) -> st.SearchStrategy[T]:
    """Strategy for the results of ``make`` with a random generator."""
    return st.integers(0, 2**64 - 1).map(lambda seed: make(Random(seed)))


def places(value: Any, at: Path = ()) -> Iterator[Path]:
    """Paths of all values in a document."""
    if at:
        yield at
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from places(item, (*at, key))


def odd_value(r: Random) -> Any:
    """A copy of an odd value: a later mistake may be made inside it."""
    return copy.deepcopy(r.choice(ODD))


_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?(e-?\d{1,3})?")


def scaled(r: Random, value: Any) -> Any:
    """Another number, often of another magnitude, in place of a number or of those in a text."""
    if isinstance(value, str):
        found = list(_NUMBER.finditer(value))
        if not found:
            return odd_value(r)
        number = r.choice(found)
        kind = float if {".", "e"} & set(number[0]) else int
        other = scaled(r, kind(number[0]))
        return f"{value[: number.start()]}{other}{value[number.end() :]}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return odd_value(r)
    if isinstance(value, int):
        near = (value + 1, value - 1, 2 * value)
        return r.choice((*near, 10 ** r.randint(0, 20), r.randint(0, 100)))
    return value * 10.0 ** r.choice((r.randint(-3, 3), r.randint(-20, 20), r.uniform(-1, 1)))


def documents(r: Random, valid: Any) -> Any:
    """A document with one to three mistakes: a value changed, missing, duplicated or renamed."""
    document = copy.deepcopy(valid)
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        found = list(places(document))
        if not found:
            break
        *above, last = r.choice(found)
        parent = document
        for key in above:
            parent = parent[key]
        what = r.choice(("odd", "odd", "scaled", "scaled", "scaled", "gone", "twice", "moved"))
        old = parent[last]
        if what == "gone":
            del parent[last]
        elif what == "twice" and isinstance(parent, list):
            parent.append(copy.deepcopy(old))
        elif what == "moved" and isinstance(parent, dict):
            parent[r.choice((*parent, "other", "", "\x1b"))] = parent.pop(last)
        elif what == "scaled":
            parent[last] = scaled(r, old)
        else:
            parent[last] = odd_value(r)
    return document


def texts(r: Random, valid: bytes) -> bytes:
    """A file with bytes deleted, changed, inserted, or cut off."""
    data = bytearray(valid)
    for _ in range(r.choice((1, 1, 2, 5))):
        at = r.randint(0, max(len(data) - 1, 0))
        what = r.choice(("gone", "other", "more", "end", "twice"))
        if what == "gone":
            del data[at : at + r.choice((1, 2, 30))]
        elif what == "other" and data:
            data[at] = r.randint(0, 255)
        elif what == "end":
            del data[at:]
        elif what == "twice":
            data[at:at] = data[at : at + r.choice((1, 10, 100))]
        else:
            more = (b"\0", b"[" * 5000, b"9" * 400, b"-", b"e99", b"\n", b",", b'"', b"\xff")
            data[at:at] = r.choice((*more, b"\x1b[m", b"1e-300", b"1e300"))
    return bytes(data)


def as_json(document: Any) -> bytes:
    """The document as JSON, with NaN as Python writes it."""
    return json.dumps(document).encode()


def tables(r: Random, valid: Sequence[Sequence[str]]) -> bytes:
    """A table (CSV) with odd cells."""
    rows = documents(r, [list(row) for row in valid])
    if not isinstance(rows, list):
        return str(rows).encode()
    lines = []
    for row in rows:
        cells = row if isinstance(row, list) else [row]
        lines.append(",".join(map(str, cells)))
    return "\n".join(lines).encode("utf-8", "replace")


def command_lines(r: Random, valid: Sequence[Sequence[str]]) -> list[str]:
    """Words of a command line with mistakes in them."""
    words = list(r.choice(valid))
    flags = sorted({word for line in valid for word in line if word.startswith("--")})
    odd = [value for value in map(str, ODD) if "\0" not in value and value not in ("/", "../x")]
    for _ in range(r.choice((1, 1, 2, 3))):
        values = [i for i, word in enumerate(words) if i and not word.startswith("-")]
        at = r.choice(values if values and r.random() < 0.9 else range(len(words)))
        what = r.choice(("odd", "odd", "scaled", "scaled", "scaled", "gone", "flag", "part"))
        if what == "gone" and len(words) > 1:
            del words[at]
        elif what == "flag":
            words[at:at] = [r.choice(flags), r.choice(odd)]
        elif what == "scaled":
            words[at] = str(scaled(r, words[at]))
        elif what == "part" and "=" in words[at]:
            words[at] = f"{words[at].partition('=')[0]}={r.choice(odd)}"
        else:
            words[at] = r.choice(odd)
    return words
