"""Generate the reference page of all architectures from their descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from perfmodel.architectures.base import Architecture
from perfmodel.inputs.options import OptionDescription, described

WORDS = {bool: "true or false", int: "whole number", float: "number"}


def reference(architectures: Iterable[Architecture]) -> str:
    """Return a Markdown section per architecture: names, options, assumptions and source."""
    return "\n".join(_section(one) for one in architectures)


def _section(one: Architecture) -> str:
    lines = [f"## {one.name}", "", f"{one.title[0].upper()}{one.title[1:]}.", ""]
    for alias, options in one.aliases.items():
        short = f"is short for {_set(options)}" if options else "is another name"
        lines += [f"- `{alias}` {short}."]
    lines += [""] * bool(one.aliases)
    lines += ["| option | values | default | unit | meaning |", "|---|---|---|---|---|"]
    lines += [_row(each) for each in described(one.options)]
    lines += ["", "Assumptions:", "", *(f"- {text}" for text in one.assumptions)]
    return "\n".join([*lines, "", f"Described in {one.source}.", ""])


def _set(options: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in options.items())


def _row(each: OptionDescription) -> str:
    default = str(each.default).lower() if isinstance(each.default, bool) else each.default
    text = each.about.help if each.about.formulas else f"{each.about.help} (simulated only)"
    values = ", ".join([_values(each.type), *(f"`{word}`" for word in each.about.by_cluster)])
    return f"| `{each.name}` | {values} | {default} | {each.unit} | {text} |"


def _values(kind: Any) -> str:
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.LiteralType):
        return ", ".join(f"`{value}`" for value in info.values)
    return WORDS[kind]
