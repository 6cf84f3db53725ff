"""The configuration file: values of flags that are not given on the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from perfmodel.base.errors import InputError, PerfmodelError, nearest, plain
from perfmodel.cli.streams import READ, WRITTEN
from perfmodel.cli.verbosity import VERBOSITY, remark

VARIABLE = "PERFMODEL_CONFIG"
"""Environment variable with the file's path; empty: no configuration."""

IGNORED = "perfmodel.no-config"
"""Key of --no-config in a context's ``meta``."""

ACTING = "perfmodel.configuration"
"""Key of the :class:`Acting` configuration in a context's ``meta``."""

TOLD = "perfmodel.told"
"""Key of the configured values that act, as they would be typed, in a context's ``meta``."""

RIVALS = {
    "model": "workload",
    "workload": "model",
    "batch_size": "global_batch_size",
    "global_batch_size": "batch_size",
    "one_device_speed": "step_time",
    "step_time": "one_device_speed",
    "one_device_samples_per_s": "one_device_step_s",
    "one_device_step_s": "one_device_samples_per_s",
}
"""Flags, and arguments with other names, of which only one can be given: on the command line it
replaces the other as well."""

NEVER = frozenset({"help", "version", "no-config"})
"""Flags that make no sense in a file."""

PATHS = READ | WRITTEN | {"--plot", "--token-file", "--resume"}
"""Flags whose relative paths are relative to the configuration file."""


class Entry(NamedTuple):
    """A value of the file, and where it stands."""

    value: Any
    place: str


class Acting(NamedTuple):
    """The configured values of a command, as they would be typed, by the parameter's name."""

    path: Path
    typed: dict[str, list[str]]


def completed(context: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a command, with those of the configuration for flags that were not given.

    Raises
    ------
    InputError : the file cannot be read, or has an unknown table or key, or a wrong value; the text
        begins with the file and the place in it.
    """
    path = None if context.meta.get(IGNORED) else location()
    if path is None:
        return values
    entries = _entries(path, _read(path), context)
    found, typed = dict(values), {}
    for parameter in context.command.params:
        name = str(parameter.name)
        entry = entries.get(_key(parameter))
        if entry is None or _given(context, name) or _given(context, RIVALS.get(name, "")):
            continue
        raw = _raw(parameter, entry, path.parent)
        value = _converted(context, parameter, raw, entry.place)
        if parameter.expose_value:
            found[name] = value
            context.set_parameter_source(name, ParameterSource.DEFAULT_MAP)
            typed[name] = _typed(parameter, raw)
    if "tolerance" in typed and "max_ops" in found and found["fidelity"] != "auto":
        del typed["tolerance"]  # it says when to simulate, which is settled
        found["tolerance"] = None
    context.meta[ACTING] = Acting(path, typed)
    if "job" not in found:  # else JobFlags.arguments knows which values act
        tell()
    return found


def location() -> Path | None:
    """The file: that of PERFMODEL_CONFIG, else that of the user if there is one.

    Raises
    ------
    InputError : PERFMODEL_CONFIG names a file that does not exist.
    """
    given = os.environ.get(VARIABLE)
    if given == "":
        return None
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(given or f"{home}/perfmodel/config.toml")
    with suppress(RuntimeError):  # the user has no home
        path = path.expanduser()
    if path.is_file():
        return path
    if given is not None:
        raise InputError(f"{VARIABLE}: {plain(given)} is no file")
    return None


def configured(context: click.Context, names: Iterable[str]) -> frozenset[str]:
    """Those of a command's parameters that have their values from the configuration."""
    source = ParameterSource.DEFAULT_MAP
    return frozenset(n for n in names if context.get_parameter_source(n) is source)


def tell(acts: Callable[[str, str], bool] = lambda _, __: True) -> None:
    """Print the configured values that act: ``acts`` takes a parameter's name, and a word of it."""
    meta = click.get_current_context().meta
    found: Acting | None = meta.get(ACTING)
    if found is None:
        return
    words = [word for name, typed in found.typed.items() for word in typed if acts(name, word)]
    if words and words != meta.get(TOLD):
        meta[TOLD] = words
        path = str(found.path)
        with suppress(RuntimeError, ValueError):  # it is in no home
            path = f"~/{found.path.relative_to(Path.home())}"
        remark(plain(f"perfmodel: defaults from {path}: {' '.join(words)}"))


def told() -> list[str]:
    """The configured values that act, as they would be typed."""
    found: list[str] = click.get_current_context().meta.get(TOLD, [])
    return found


def _read(path: Path) -> dict[str, Any]:
    from perfmodel.base import files

    try:
        return files.toml(files.read_bytes(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not valid TOML: {error}") from None


def _entries(path: Path, tables: dict[str, Any], context: click.Context) -> dict[str, Entry]:
    """The values that the file has for a command, by key; its own table comes before [all]."""
    commands = _root(context).list_commands(context)
    for name, value in tables.items():
        if not isinstance(value, dict):
            raise InputError(f"{path}: {name}: expected a table, such as [all] or [predict]")
        _known(f"{path}: [{name}]", "table", name, ("all", *commands))
    names = _names(context)
    keys = {_key(parameter): parameter for parameter in context.command.params}
    keys = {key: p for key, p in keys.items() if key and not p.required}
    found = {}
    for key, value in tables.get("all", {}).items():
        place = f"{path}: [all] {key}"
        if key in keys:
            if _applies(context, keys[key]):
                found[key] = Entry(value, place)
        elif key not in _all_keys(context):
            _known(place, "key", key, sorted(_all_keys(context)))
    own: Any = tables
    for name in names:
        own = own.get(name, {})
        if not isinstance(own, dict):
            raise InputError(f"{path}: {'.'.join(names)}: expected a table")
    for key, value in own.items():
        place = f"{path}: [{'.'.join(names)}] {key}"
        _known(place, "key", key, tuple(keys))
        rival = RIVALS.get(key.replace("-", "_"), "").replace("_", "-")
        found.pop(rival, None)
        found[key] = Entry(value, place)
    return found


def _known(place: str, what: str, name: str, known: Iterable[str]) -> None:
    known = list(known)
    if name not in known:
        hint = nearest(name, known)
        suggestion = f"; did you mean {hint!r}?" if hint else ""
        raise InputError(f"{place}: unknown {what}{suggestion} (allowed: {', '.join(known)})")


def _names(context: click.Context) -> list[str]:
    """The words that name a command: measure, network."""
    found: list[str] = []
    while context.parent is not None:
        found.insert(0, str(context.command.name))
        context = context.parent
    return found


def _applies(context: click.Context, parameter: click.Parameter) -> bool:
    """Whether a value for all commands is meant for this one, too.

    What describes a job, or says how it is predicted, is for the commands that predict one: --model
    of ``perfmodel profile`` means something else.
    """
    if "job" in (each.name for each in context.command.params) or context.command.name == "plan":
        return True
    other = _root(context).get_command(context, "advise")  # which has those options, and --json
    of_jobs = {each.name for each in other.params if each.expose_value} if other is not None else ()
    return parameter.name == "as_json" or parameter.name not in of_jobs


def _all_keys(context: click.Context) -> set[str]:
    """The keys of all commands."""
    root = _root(context)
    names = root.list_commands(context)
    found: set[str] = set()
    for command in filter(None, (root.get_command(context, name) for name in names)):
        leaves = command.commands.values() if isinstance(command, click.Group) else [command]
        found |= {_key(parameter) for leaf in leaves for parameter in leaf.params}
    return found - {""}


def _root(context: click.Context) -> click.Group:
    root = context.find_root().command
    return root if isinstance(root, click.Group) else click.Group()


def _key(parameter: click.Parameter) -> str:
    """The key of a flag: its long name without dashes; "" for what is no key."""
    if isinstance(parameter, click.Argument):
        return ""
    name = next((o for o in parameter.opts if o.startswith("--")), "").removeprefix("--")
    return "" if name in NEVER else name


def _given(context: click.Context, name: str) -> bool:
    """Whether a parameter has its value from the command line."""
    if name in ("quiet", "verbose"):
        return VERBOSITY in context.meta
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _converted(context: click.Context, parameter: click.Parameter, raw: Any, place: str) -> Any:
    """A value as the command gets it: read as on the command line."""
    try:
        value = parameter.type_cast_value(context, raw)
        if parameter.callback is not None:
            value = parameter.callback(context, parameter, value)
    except (click.UsageError, PerfmodelError) as error:
        text = error.message if isinstance(error, click.UsageError) else str(error)
        raise InputError(f"{place}: {text.removeprefix(f'{parameter.opts[0]}: ')}") from None
    return value


def _raw(parameter: click.Parameter, entry: Entry, folder: Path) -> Any:
    """A value as text, as it would be typed; a flag as true or false."""
    value = entry.value
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise InputError(f"{entry.place}: expected true or false, got {value!r}")
        return value
    several = value if isinstance(value, list) else [value]
    if isinstance(value, list) is not parameter.multiple or not all(map(_is_text, several)):
        wanted = "a list of texts" if parameter.multiple else "a text or a number"
        raise InputError(f"{entry.place}: expected {wanted}, got {value!r}")
    texts = [_found(str(each), folder, parameter) for each in several]
    return texts if parameter.multiple else texts[0]


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _found(text: str, folder: Path, parameter: click.Parameter) -> str:
    """A text; in paths, with commas between them, relative ones are found from ``folder``."""
    if parameter.opts[0] not in PATHS:
        return text
    from perfmodel.base.files import looks_like_path

    named = "NAME" in (getattr(parameter, "metavar", None) or "")
    return ",".join(
        part
        if part == "-" or (named and not looks_like_path(part))
        else str(folder / Path(part).expanduser())
        for part in text.split(",")
    )


def _typed(parameter: click.Parameter, value: Any) -> list[str]:
    """A value as it would be typed on the command line."""
    from shlex import quote

    flag = parameter.opts[0]
    if isinstance(value, bool):
        off = parameter.secondary_opts
        return [flag] if value else off[:1]
    values = value if isinstance(value, list) else [value]
    return [f"{flag} {quote(str(each))}" for each in values]
