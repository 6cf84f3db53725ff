"""Generate the reference page of all architectures from their descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfmodel.architectures.base import Architecture
from perfmodel.architectures.registry import TYPES, values_of
from perfmodel.inputs.options import OptionDescription, described


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
    lines += [_row(option) for option in described(one.options)]
    lines += ["", "Assumptions:", "", *(f"- {text}" for text in one.assumptions)]
    return "\n".join([*lines, "", f"Described in {one.source}.", ""])


def _set(options: Mapping[str, object]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in options.items())


def _row(option: OptionDescription) -> str:
    default = str(option.default).lower() if isinstance(option.default, bool) else option.default
    text = option.about.help if option.about.formulas else f"{option.about.help} (simulated only)"
    words = [f"`{word}`" for word in (*(values_of(option) or ()), *option.about.by_cluster)]
    kind = [] if values_of(option) else [TYPES[option.type].removeprefix("a ")]
    values = ", ".join([*kind, *words])
    return f"| `{option.name}` | {values} | {default} | {option.unit} | {text} |"
