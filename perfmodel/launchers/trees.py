"""Configurations as trees of values: of JSON, TOML, and the part of YAML that they are written in.

Of YAML, mappings nested by indentation are read, with scalars and flow lists of scalars as values;
block lists are read as lists of their scalars. That is what the launchers themselves write.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.files import parse_toml

MOST_DEPTH = 50
"""Most levels of a configuration; deeper ones are surely none."""

_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "none", "~", ""), None),
}


def read(text: str, name: str) -> dict[str, object]:
    """Read a configuration; ``name`` is the file's.

    Raises
    ------
    InputError : it is not a mapping of JSON, TOML or YAML.

    >>> read("trainer:\\n  devices: 8\\n  strategy: 'fsdp'\\n", "run.yaml")
    {'trainer': {'devices': 8, 'strategy': 'fsdp'}}
    """
    if text.lstrip()[:1] == "{":
        try:
            value = msgspec.json.decode(text.encode())
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"{name}: not valid JSON: {error}") from None
        return dict(value)
    if re.search(r"^[ \t]*\[[\w.-]+\][ \t]*(?:#.*)?$", text, re.M):
        try:
            return dict(parse_toml(text.encode()))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InputError(f"{name}: not valid TOML: {error}") from None
    return _yaml(text, name)


def _yaml(text: str, name: str) -> dict[str, object]:
    root: dict[str, object] = {}
    levels: list[tuple[int, dict[str, object]]] = [(-1, root)]
    last: tuple[dict[str, object], str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        words = re.sub(r"(?:^|[ \t])#.*$", "", line).rstrip()
        if not words.strip() or words.strip() in ("---", "..."):
            continue
        indent, words = len(words) - len(words.lstrip()), words.strip()
        if words.startswith("- ") or words == "-":
            if last is not None:
                inside, key = last
                before = inside[key]
                inside[key] = [*(before if isinstance(before, list) else []), _scalar(words[1:])]
            continue
        matched = re.fullmatch(r"([\w.\"'/-]+)[ \t]*:(?:[ \t]+(.*))?", words)
        if matched is None:
            continue  # a part of a longer text, or what no launcher writes
        while levels[-1][0] >= indent:
            levels.pop()
        if len(levels) > MOST_DEPTH:
            raise InputError(f"{name}: line {number}: nested too deeply")
        key, value = matched[1].strip("\"'"), matched[2]
        inside = levels[-1][1]
        if value is None:
            branch: dict[str, object] = {}
            inside[key] = branch
            levels.append((indent, branch))
        else:
            inside[key] = _scalar(value)
        last = (inside, key)
    return root


def _scalar(text: str) -> object:
    """A value of YAML: a number, a word with a meaning, a flow list, or text."""
    words = text.strip()
    if words[:1] == "[" and words[-1:] == "]":
        return [_scalar(part) for part in words[1:-1].split(",") if part.strip()]
    if words[:1] in ("'", '"'):
        return words.strip("'\"")
    if words.lower() in _WORDS:
        return _WORDS[words.lower()]
    for kind in (int, float):
        try:
            return kind(words)
        except ValueError:
            continue
    return words


def at(tree: object, *path: str) -> Any:
    """The value at a path of keys; None if it is not there, or "auto".

    >>> at({"zero_optimization": {"stage": 2}}, "zero_optimization", "stage")
    2
    """
    for key in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(key)
    return None if tree == "auto" else tree


def count(tree: object, *path: str) -> int | None:
    """The whole number above 0 at a path; None if there is none."""
    value = at(tree, *path)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < 10**9 else None
