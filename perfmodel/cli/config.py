"""The configuration file: Click's defaults of a command's parameters, from TOML."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

import click
from click.core import ParameterSource

from perfmodel.base import files
from perfmodel.base.errors import InputError, PerfmodelError, nearest, plain
from perfmodel.cli.help import commands
from perfmodel.cli.jobs import JOB_FLAGS, RIVALS, ModelFlags
from perfmodel.cli.types import File, ParamType
from perfmodel.cli.verbosity import remark

VARIABLE = "PERFMODEL_CONFIG"
"""Environment variable with the file's path; empty: no configuration."""

NEVER = frozenset({"help", "version"})
"""Flags that make no sense in a file."""


def location() -> Path | None:
    """The file: that of PERFMODEL_CONFIG, else that of the user if there is one.

    Raises
    ------
    InputError : PERFMODEL_CONFIG names a file that does not exist.
    """
    named = os.environ.get(VARIABLE)
    if named == "":
        return None
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(named or f"{home}/perfmodel/config.toml")
    with suppress(RuntimeError):  # the user has no home
        path = path.expanduser()
    if path.is_file():
        return path
    if named is not None:
        raise InputError(f"{VARIABLE}: {plain(named)} is no file")
    return None


def default_map(context: click.Context) -> dict[str, Any]:
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
    tables = _tables(path, ("all", *group.list_commands(root)), names)
    defaults: dict[str, Any] = {}
    for table, values in tables.items():
        for key, value in values.items():
            place = f"{path}: [{table}] {key}"
            parameter = parameters.get(key)
            if parameter is None:
                known: Iterable[str] = parameters
                if table == "all":
                    known = {k for _, c in commands(group, root) for k, _ in _keys(c)}
                if key not in known:
                    raise _unknown(place, "key", key, known)
            elif table != "all" or _reaches(context.command, str(parameter.name)):
                defaults.pop(RIVALS.get(str(parameter.name), ""), None)
                defaults[str(parameter.name)] = _checked(
                    context, parameter, value, place, path.parent
                )
    return defaults


def tell(context: click.Context, values: dict[str, Any]) -> None:
    """Print the configured values that the command line does not replace; drop the others.

    Parameters
    ----------
    values : what the command gets; its configured values that contradict the command line become
        None.
    """
    path, configured = location(), context.default_map or {}
    typed = []
    for parameter in context.command.params:
        name = str(parameter.name)
        if (
            context.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP
            or name not in values
        ):
            continue
        if context.get_parameter_source(RIVALS.get(name, "")) is ParameterSource.COMMANDLINE:
            values[name] = None
            context.set_parameter_source(name, ParameterSource.DEFAULT)
        else:
            typed += _typed(parameter, configured[name])
    if typed and path is not None:
        shown = str(path)
        with suppress(RuntimeError, ValueError):  # it is in no home
            shown = f"~/{path.relative_to(Path.home())}"
        remark(plain(f"perfmodel: defaults from {shown}: {' '.join(typed)}"))


def _tables(path: Path, known: Iterable[str], names: list[str]) -> dict[str, dict[str, Any]]:
    """The table of all commands and that of one, by their names in the file."""
    try:
        tables = files.parse_toml(files.read_bytes(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not valid TOML: {error}") from None
    for name, value in tables.items():
        if not isinstance(value, dict):
            raise InputError(f"{path}: {name}: expected a table, such as [all] or [predict]")
        if name not in known:
            raise _unknown(f"{path}: [{name}]", "table", name, known)
    nested: Any = tables
    for name in names:
        nested = nested.get(name, {})
        if not isinstance(nested, dict):
            raise InputError(f"{path}: {'.'.join(names)}: expected a table")
    return {"all": tables.get("all", {}), ".".join(names): nested}


def _unknown(place: str, what: str, name: str, known: Iterable[str]) -> InputError:
    known = sorted(known) if isinstance(known, set) else list(known)
    hint = nearest(name, known)
    suggestion = f"; did you mean {hint!r}?" if hint else ""
    return InputError(f"{place}: unknown {what}{suggestion} (allowed: {', '.join(known)})")


def _keys(command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
    """The options of a command by their keys: their long names without dashes."""
    for option in command.params:
        key = next((flag for flag in option.opts if flag.startswith("--")), "").removeprefix("--")
        if key and key not in NEVER:
            yield key, option


def _reaches(command: click.Command, name: str) -> bool:
    """Whether a value for all commands is meant for a parameter of this one, too.

    What describes a job, or says how it is predicted, is for the commands that predict one: --model
    of ``perfmodel profile`` means something else.
    """
    of_jobs = {*JOB_FLAGS, *ModelFlags._fields}
    predicts = command.name == "plan" or any(each.name == "job" for each in command.params)
    return predicts or name not in of_jobs


def _checked(
    context: click.Context, parameter: click.Parameter, value: Any, place: str, folder: Path
) -> Any:
    """A value as it would be typed; refuses what the command line would refuse."""
    typed = [_below(str(v), folder, parameter.type) for v in _several(value)]
    answer: Any = typed if parameter.multiple else ",".join(typed)
    try:
        parameter.type_cast_value(context, answer)
    except (click.UsageError, PerfmodelError) as error:
        text = error.message if isinstance(error, click.UsageError) else str(error)
        raise InputError(f"{place}: {text.removeprefix(f'{parameter.opts[0]}: ')}") from None
    return answer


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _below(text: str, folder: Path, kind: ParamType) -> str:
    """A text; in paths, with commas between them, relative ones are found from ``folder``."""
    kind = getattr(kind, "kind", kind)  # of a list
    if not isinstance(kind, click.Path):
        return text
    named = isinstance(kind, File) and kind.names is not None
    return ",".join(
        part
        if part == "-" or (named and not files.looks_like_path(part))
        else str(folder / Path(part).expanduser())
        for part in text.split(",")
    )


def _typed(parameter: click.Parameter, value: Any) -> list[str]:
    """A value as it would be typed on the command line."""
    flag = parameter.opts[0]
    if getattr(parameter, "is_flag", False):
        return [flag] if click.BOOL.convert(value, None, None) else parameter.secondary_opts[:1]
    return [f"{flag} {quote(each)}" for each in _several(value)]
