"""``python docs/command_line.py``: write the commands into ``docs/reference/command-line.md``.

The text before the first command is written by hand; the commands are described by their help.
"""

from __future__ import annotations

import re
import sys
from inspect import cleandoc
from pathlib import Path

import click

from perfmodel.cli import cli
from perfmodel.cli.groups import commands
from perfmodel.cli.jobs import FLAGS, MODEL_FLAGS
from perfmodel.cli.shared import SHARED
from perfmodel.cli.types import Several

PAGE = Path(__file__).parent / "reference" / "command-line.md"
DEFAULT = re.compile(r"\s*\[default: (?P<default>.*)\]$", re.S)
PRINTED = PAGE.with_name("commands.md")
"""Page of what commands print."""

HOW = {
    "report": "report.md",
    "profile": "profile-your-model.md",
    "measure network": "measure-network.md",
    "measure training": "measure-training.md",
    "measure operators": "predict-another-gpu.md",
    "calibrate operators": "predict-another-gpu.md",
    "calibrate network": "calibrate-network.md",
    "calibrate runs": "calibrate.md",
    "calibrate server": "calibrate.md",
    "import": "import-a-trace.md",
    "what-if": "import-a-trace.md#jobs-that-divide-a-model",
}
"""Pages that say how to use a command."""

OF_JOBS = frozenset(("job", *FLAGS, *MODEL_FLAGS)) - {"fidelity"}
"""Parameters that are described once, with ``perfmodel predict``."""


def row(option: click.Option, context: click.Context) -> str:
    """The row of an option: its flags and the name of its value, its meaning, its default."""
    meaning, default = option.help or "", ""
    if found := DEFAULT.search(meaning):
        meaning, default = meaning[: found.start()], found["default"]
    elif option.show_default:
        default = str(option.default)
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else f" {option.make_metavar(context).strip('[]')}"
    meaning += " Required." * option.required
    return "| " + " | ".join(escaped(text) for text in (flags + value, meaning, default)) + " |"


def escaped(text: str) -> str:
    """A text as Markdown in a table."""
    return text.replace("|", r"\|").replace("*", r"\*").replace("<", "&lt;")


def section(name: str, command: click.Command) -> str:
    """The section of a command: its arguments, its help, its examples and its options."""
    context = click.Context(command, info_name=f"perfmodel {name}")
    text, _, examples = cleandoc(command.help or "").partition("\n\n\b\n")
    options = [p for p in command.params if isinstance(p, click.Option) and p not in SHARED]
    if name != "predict" and any(option.name == "job" for option in options):
        several = any(isinstance(option.type, Several) for option in options)
        lists = ", with [lists](commands.md#lists) of values" if several else ""
        text += f"\n\nIt takes [`predict`](#perfmodel-predict)'s options of a job{lists}."
        options = [option for option in options if option.name not in OF_JOBS]
    if f"\n## perfmodel {name}\n" in PRINTED.read_text(encoding="utf-8"):
        text += f"\n\n[What it prints](commands.md#perfmodel-{name.replace(' ', '-')})."
    if name in HOW:
        text += f"\n\n[How to use it](../how-to/{HOW[name]})."
    arguments = " ".join(
        p.make_metavar(context)
        for p in command.params
        if p not in options
        if isinstance(p, click.Argument)
    )
    lines = [f"## perfmodel {name}", "", text.replace("*", r"\*"), ""]
    if arguments:
        lines += ["```text", f"perfmodel {name} [OPTIONS] {arguments}", "```", ""]
    if examples:
        lines += ["```bash", examples.strip(), "```", ""]
    if options:
        lines += ["| option | meaning | default |", "|---|---|---|"]
        lines += [*(row(option, context) for option in options), ""]
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the sections of all commands in place of those that it has."""
    head = text.partition("\n## perfmodel ")[0]
    context = click.Context(cli, info_name="perfmodel")
    return "\n".join([head, *(section(*each) for each in commands(cli, context))])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
