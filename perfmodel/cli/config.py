"""The configuration file: Click's defaults of a command's parameters, from TOML."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from perfmodel.base import files
from perfmodel.base.errors import InputError, PerfmodelError, nearest, plain
from perfmodel.cli.groups import commands
from perfmodel.cli.jobs import FLAGS, MODEL_FLAGS, RIVALS
from perfmodel.cli.types import File
from perfmodel.cli.verbosity import remark

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "PERFMODEL_CONFIG"
"""Environment variable with the file's path; empty: no configuration."""


def location() -> Path | None:
    """The file: that of PERFMODEL_CONFIG, else that of the user if there is one.

    Raises
    ------
    InputError : PERFMODEL_CONFIG names a file that does not exist.
    """
    variable = os.environ.get(VARIABLE)
    if variable == "":
        return None
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = os.path.expanduser(variable or f"{home}/perfmodel/config.toml")
    if os.path.isfile(path):
        from pathlib import Path

        return Path(path)
    if variable is not None:
        raise InputError(f"{VARIABLE}: {plain(variable)} is no file")
    return None


def default_map(context: click.Context) -> dict[str, str | list[str]]:
    """The configured values of a command as they would be typed, by the parameter's name.

    The command's own table comes before ``[all]``.

    Raises
    ------
    InputError : the file cannot be read, or has an unknown table or key, or a wrong value; the text
        begins with the file and the place in it.
    """
    path = location()
    if path is None:
        return {}
    root = context.find_root()
    group = root.command if isinstance(root.command, click.Group) else click.Group()
    parameters = {key: p for key, p in _keys(context.command) if not p.required}
    names = context.command_path.removeprefix(root.command_path).split()
    defaults: dict[str, str | list[str]] = {}
    for table, values in _tables(path, ("all", *group.list_commands(root)), names).items():
        for key, value in values.items():
            place = f"{path}: [{table}] {key}"
            parameter = parameters.get(key)
            if parameter is None:
                known: Iterable[str] = parameters
                if table == "all":
                    known = sorted({k for _, c in commands(group, root) for k, _ in _keys(c)})
                if key not in known:
                    raise _unknown(place, "key", key, known)
            elif table != "all" or _reaches(context.command, str(parameter.name)):
                defaults.pop(RIVALS.get(str(parameter.name), ""), None)
                words = _words(context, parameter, value, place, path.parent)
                defaults[str(parameter.name)] = words
    return defaults


def tell(context: click.Context, values: dict[str, object]) -> None:
    """Print the configured values that the command line does not replace; drop the others.

    Parameters
    ----------
    values : what the command gets; its configured values that contradict the command line become
        None.
    """
    path, typed = location(), []
    for parameter in context.command.params:
        name = str(parameter.name)
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
            continue
        if context.get_parameter_source(RIVALS.get(name, "")) is ParameterSource.COMMANDLINE:
            values[name] = None
            context.set_parameter_source(name, ParameterSource.DEFAULT)
        elif name in values:
            typed += _typed(parameter, (context.default_map or {})[name])
    if typed and path is not None:
        shown = str(path)
        with suppress(RuntimeError, ValueError):  # it is in no home
            from pathlib import Path

            shown = f"~/{path.relative_to(Path.home())}"
        remark(plain(f"perfmodel: defaults from {shown}: {' '.join(typed)}"))


def _tables(path: Path, known: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, object]]:
    """The table of all commands and that of one, by their names in the file."""
    try:
        tables = files.parse_toml(files.read_bytes(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    for name, value in tables.items():
        if not isinstance(value, dict):
            raise InputError(f"{path}: {name}: expected a table, such as [all] or [predict]")
        if name not in known:
            raise _unknown(f"{path}: [{name}]", "table", name, known)
    table = tables
    for name in names:
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise InputError(f"{path}: {'.'.join(names)}: expected a table")
    return {"all": tables.get("all", {}), ".".join(names): table}


def _unknown(place: str, kind: str, name: str, known: Iterable[str]) -> InputError:
    hint = nearest(name, known)
    suggestion = f"; did you mean {hint!r}?" if hint else ""
    return InputError(f"{place}: unknown {kind}{suggestion} (allowed: {', '.join(known)})")


def _keys(command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
    """The options of a command by their keys: their long names without dashes."""
    for option in command.params:
        key = next((flag[2:] for flag in option.opts if flag.startswith("--")), "")
        if key not in ("", "help", "version"):
            yield key, option


def _reaches(command: click.Command, name: str) -> bool:
    """Whether a value for all commands is meant for a parameter of this one, too.

    What describes a job, or says how it is predicted, is for the commands that predict one: --model
    of ``perfmodel profile`` means something else.
    """
    predicts = command.name == "plan" or any(p.name == "job" for p in command.params)
    return predicts or name not in {"job", *FLAGS, *MODEL_FLAGS}


def _words(
    context: click.Context, parameter: click.Parameter, value: object, place: str, folder: Path
) -> str | list[str]:
    """A value as it would be typed; refuses what the command line would refuse."""
    values = value if isinstance(value, list) else [value]
    typed = [_below(str(v), folder, parameter.type) for v in values]
    words = typed if parameter.multiple else ",".join(typed)
    try:
        parameter.type_cast_value(context, words)
    except click.UsageError as error:
        raise InputError(f"{place}: {error.message}") from None
    except PerfmodelError as error:
        text = str(error).removeprefix(f"{parameter.opts[0]}: ")
        raise InputError(f"{place}: {text}") from None
    return words


def _below(text: str, folder: Path, kind: object) -> str:
    """A text; in paths, with commas between them, relative ones are found from ``folder``."""
    kind = getattr(kind, "kind", kind)  # of a list
    if not isinstance(kind, click.Path):
        return text
    from pathlib import Path

    may_be_name = isinstance(kind, File) and kind.names is not None
    return ",".join(
        part
        if part == "-" or (may_be_name and not files.looks_like_path(part))
        else str(folder / Path(part).expanduser())
        for part in text.split(",")
    )


def _typed(parameter: click.Parameter, words: str | list[str]) -> list[str]:
    """A value as it would be typed on the command line."""
    from shlex import quote

    flag = parameter.opts[0]
    if getattr(parameter, "is_flag", False):
        return [flag] if click.BOOL.convert(words, None, None) else parameter.secondary_opts[:1]
    return [f"{flag} {quote(w)}" for w in ([words] if isinstance(words, str) else words)]
