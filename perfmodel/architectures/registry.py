"""Finds architectures by name.

A file ``architectures/NAME.py``, or a folder, with an :class:`Architecture` called ``ARCHITECTURE``
is all it takes: the command line, the listings and the conformance tests find it.
"""

from __future__ import annotations

import functools
import math
import pkgutil
from collections.abc import Mapping
from typing import Any

import msgspec

from perfmodel import architectures
from perfmodel.architectures.base import Architecture, Coarse, architecture_of, load
from perfmodel.base.errors import InputError, nearest, unknown_name
from perfmodel.base.files import ready
from perfmodel.base.units import parse
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import Options, described

SHARED = frozenset({"base", "parts", "reference", "registry"})
"""Modules of this folder that are no architectures."""


def model_of(job: Job) -> Coarse:
    """The coarse model of a job's architecture."""
    return coarse_of(architecture_of(job))


def coarse_of(architecture: Architecture) -> Coarse:
    """The coarse model of an architecture.

    Raises
    ------
    InputError : it has none.
    """
    if architecture.coarse is None:
        raise InputError(f"fidelity: {architecture.name} has no coarse model (allowed: fine)")
    return architecture.coarse


@functools.cache
def names() -> tuple[str, ...]:
    """Names of all architectures, sorted."""
    found = {module.name for module in pkgutil.iter_modules(architectures.__path__)}
    return tuple(sorted(found - SHARED))


def all_architectures() -> list[Architecture]:
    """Every architecture, by name."""
    return [load(name) for name in names()]


def find(name: str) -> tuple[Architecture, Mapping[str, Any]]:
    """The architecture called ``name`` and the options that name stands for (for an alias).

    Raises
    ------
    InputError : no architecture has that name.
    """
    known = list(names())
    if name in known:
        return load(name), {}
    aliases = {alias: a for a in all_architectures() for alias in a.aliases}
    if name in aliases:
        return aliases[name], aliases[name].aliases[name]
    raise unknown_name("architecture", name, [*known, *aliases])


def read_options(architecture: Architecture, given: Mapping[str, Any]) -> Options:
    """Make an architecture's options from names and values; text is read by the field's type.

    Raises
    ------
    InputError : an option that the architecture does not have, or a value it does not allow.
    """
    fields = {each.name: each for each in described(architecture.options)}
    values = {}
    for name, value in given.items():
        if name not in fields:
            hint = nearest(name, fields)
            suggestion = f"; did you mean {hint!r}?" if hint else ""
            raise InputError(
                f"option {name!r} does not apply to {architecture.name}{suggestion} "
                f"(it has: {', '.join(fields)})"
            )
        unit = fields[name].unit
        if value == "inf" and fields[name].type is float:
            value = math.inf
        elif isinstance(value, str) and unit and not _is_number(value):
            value = parse(value, unit, name)
        values[name] = value
    try:
        return msgspec.convert(values, ready(architecture.options), strict=False)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        if name not in fields:  # the options' own check, whose text names the option
            raise InputError(text) from None
        raise InputError(
            f"option {name} of {architecture.name}: expected {_expected(fields[name].type)}, "
            f"got {values[name]!r}{_suggested(fields[name].type, values[name])}"
        ) from None


def _expected(kind: Any) -> str:
    """What an option of a type can be, for an error message."""
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.LiteralType):
        return f"one of {', '.join(map(str, info.values))}"
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    return words.get(kind, str(kind))


def _suggested(kind: Any, value: Any) -> str:
    """The allowed value nearest to ``value``, for an error message."""
    info = msgspec.inspect.type_info(kind)
    if not isinstance(info, msgspec.inspect.LiteralType):
        return ""
    hint = nearest(str(value), map(str, info.values))
    return f"; did you mean {hint!r}?" if hint else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
