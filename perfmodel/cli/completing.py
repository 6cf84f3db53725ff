"""Words that a shell can complete: names of the catalogue, options of architectures, and files.

Nothing is imported that takes long: a shell asks at each press of the Tab key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from perfmodel.base.errors import PerfmodelError
from perfmodel.cli import outline
from perfmodel.inputs import shipped

Items = Iterable[CompletionItem[str]]
Complete = Callable[[click.Context, str], Items]
"""Takes the command as typed so far, and the word to complete."""


class Completed(click.types.StringParamType):
    """Any text; a shell completes it."""

    def __init__(self, complete: Complete, *, several: bool) -> None:
        """With ``several`` the text is a list with commas, whose last word is completed."""
        self.complete, self.several = complete, several

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """The words that the text can be completed to."""
        head, comma, word = incomplete.rpartition(",") if self.several else ("", "", incomplete)
        try:
            found = list(self.complete(ctx, word))
        except (OSError, SyntaxError, ValueError, LookupError, PerfmodelError):
            return []  # a shell is no place for error messages
        before = head + comma
        return [
            each if each.type != "plain" else _item(before + each.value, each.help)
            for each in found
            if each.type != "plain" or each.value.startswith(word)
        ]


def _item(value: str, help: str | None = None) -> CompletionItem[str]:
    return CompletionItem(value, help=help)


def words(*names: str) -> Complete:
    """Complete to one of these words."""
    return lambda _, __: map(_item, names)


def named(names: Callable[[], Iterable[str]], *, files: bool = False) -> Complete:
    """Complete to names, or with ``files`` to the path of a file."""

    def complete(_: click.Context, word: str) -> Items:
        yield from map(_item, sorted(names()))
        if files:
            yield CompletionItem(word, type="file")

    return complete


def path(kind: str) -> Complete:
    """Complete to the path of a file, or of a folder (dir)."""
    return lambda _, word: [CompletionItem(word, type=kind)]


def options_of(parameter: str, default: str) -> Complete:
    """Complete KEY=VALUE, where another parameter names the architecture."""

    def complete(context: click.Context, word: str) -> Items:
        key, equals, _ = word.partition("=")
        given = context.params.get(parameter) or default
        if parameter == "name" and context.args:  # Click has not yet told what it is the name of
            given = context.args[0]
        architectures = str(given).split(",")
        found = {each.name: each for name in architectures for each in outline.options(name)}
        if not equals:
            return [_item(f"{each.name}=", each.help) for each in found.values()]
        return [_item(f"{key}={value}") for value in found[key].words] if key in found else []

    return complete


def _everything() -> Iterable[str]:
    return {
        *outline.architectures(),
        *shipped.model_names(),
        *shipped.device_names(),
        *shipped.cluster_names(),
    }


VARIABLES = ("bandwidth", "latency", "workers", "servers", "batch-size")

FLAGS: dict[str, Complete] = {
    "--model": named(shipped.model_names),
    "--device": named(shipped.device_names),
    "--cluster": named(shipped.cluster_names, files=True),
    "--base": named(shipped.cluster_names, files=True),
    "--arch": named(outline.architectures),
    "--against": named(outline.architectures),
    "--island-arch": named(outline.architectures),
    "--precision": words("float32", "tf32", "mixed"),
    "--objective": words("cost", "time", "throughput", "samples-per-usd"),
    "--option": options_of("arch", "ps"),
    "--island-option": options_of("island_arch", "allreduce"),
}
"""What follows a flag, in most commands."""

OF_COMMANDS: dict[tuple[str, str], Complete] = {
    ("show", "name"): named(_everything),
    ("show", "--option"): options_of("name", ""),
    ("plan", "--option"): options_of("arch", "allreduce,ps,p2p,zero1,zero3"),
    ("require", "variable"): words(*VARIABLES),
    ("profile", "--model"): words("torchvision:", "transformers:"),
    ("profile", "--device"): words("cpu", "cuda"),
    ("training", "--model"): words("torchvision:", "transformers:"),
    **{
        (command, argument): path("file")
        for command, argument in (
            ("import", "trace"),
            ("validate", "cases"),
            ("network", "paths"),
            ("runs", "table"),
            ("server", "paths"),
        )
    },
}
"""What arguments of a command are, and flags that mean something else there."""

CHOICES = re.compile(r"[a-z][a-z0-9-]*(\|[a-z][a-z0-9-]*)+")
"""Metavariable that lists the words."""


def add_words(command: click.Command) -> None:
    """Let a shell complete the values of a command's options and arguments."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_words(each)
        return
    for parameter in command.params:
        complete = _complete(str(command.name), parameter)
        if complete is not None and parameter.type == click.STRING:
            several = (parameter.metavar or "").endswith(",...")
            parameter.type = Completed(complete, several=several)


def _complete(command: str, parameter: click.Parameter) -> Complete | None:
    flag = parameter.opts[0]
    metavar = parameter.metavar or ""
    if (command, flag) in OF_COMMANDS:
        return OF_COMMANDS[command, flag]
    if CHOICES.fullmatch(metavar):
        return words(*metavar.split("|"))
    if metavar in ("FILE", "FILE|-"):
        return path("file")
    if metavar == "FOLDER":
        return path("dir")
    return FLAGS.get(flag)


@add_completion_class
class Bash(BashComplete):
    """Bash takes ``=`` and ``:`` for the ends of words; here they are parts of words."""

    source_template = """\
%(complete_func)s() {
    local type value IFS=$'\\n'
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete "$1")
    if [[ ${#COMPREPLY[@]} -eq 1 && $COMPREPLY == *[=:] ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one that it is in."""
        line = os.environ["COMP_LINE"]
        given = split_arg_string(line)[1:]
        if not given or line[-1:].isspace():
            return given, ""
        return given[:-1], given[-1]

    def complete(self) -> str:
        """The words, each without what Bash takes for words before it."""
        given, word = self.get_completion_args()
        before = word[: max(word.rfind("="), word.rfind(":")) + 1]
        found = []
        for each in self.get_completions(given, word):
            each.value = each.value.removeprefix(before)
            found.append(self.format_completion(each))
        return "\n".join(found)


def script(command: click.Command, shell: str, variable: str) -> str:
    """The script for a shell."""
    made: Any = get_completion_class(shell)
    return str(made(command, {}, "perfmodel", variable).source())
