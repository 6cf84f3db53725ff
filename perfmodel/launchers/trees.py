"""Configurations as trees of values, of JSON, TOML or YAML."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.files import parse_toml

LEVELS = 100
"""Levels of nesting that YAML may have; libyaml 0.2.5 has no limit, and overflows the stack."""


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
    try:
        if _deep(text):
            raise ValueError(f"nested in more than {LEVELS} levels")
        value = msgspec.yaml.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{name}: not valid YAML: {problem}") from None
    if not isinstance(value, dict):
        raise InputError(f"{name}: expected a mapping of YAML, got {type(value).__name__}")
    return value


def _deep(text: str) -> bool:
    """Whether YAML has more than ``LEVELS``; errors before that are left to decoding."""
    import yaml

    level = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.CollectionStartEvent):
                level += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                level -= 1
            if level > LEVELS:
                return True
    except yaml.YAMLError:
        return False
    return False


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
