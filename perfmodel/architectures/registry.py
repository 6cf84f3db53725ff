"""Find architectures by name.

A file ``architectures/NAME.py``, or a folder, with an :class:`Architecture` called ``ARCHITECTURE``
is all it takes: the command line, the listings and the conformance tests find it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
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
"""Modules of this folder that are not architectures."""


def model_of(job: Job) -> Coarse:
    """Return the coarse model of a job's architecture."""
    return coarse_of(architecture_of(job))


def coarse_of(architecture: Architecture) -> Coarse:
    """Return the coarse model of an architecture.

    Raises
    ------
    InputError : it has none.
    """
    if architecture.coarse is None:
        raise InputError(f"fidelity: {architecture.name} has no coarse model (allowed: fine)")
    return architecture.coarse


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all architectures, sorted."""
    places = [Path(place) for place in architectures.__path__]
    files = {file.stem for place in places for file in place.glob("[!_]*.py")}
    packages = {file.parent.name for place in places for file in place.glob("*/__init__.py")}
    return tuple(sorted((files | packages) - SHARED))


def all_architectures() -> list[Architecture]:
    """Return every architecture, ordered by name."""
    return [load(name) for name in names()]


def find(name: str) -> tuple[Architecture, Mapping[str, Any]]:
    """Return the architecture called ``name``, and the options the name stands for if an alias.

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
    """Make an architecture's options from names and values; parse text by the field's type.

    Raises
    ------
    InputError : the architecture does not have an option, or does not allow its value.
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
        if name not in fields:  # raised by the options' own check, whose message names the option
            raise InputError(text) from None
        raise InputError(
            f"option {name} of {architecture.name}: expected {_expected(fields[name].type)}, "
            f"got {values[name]!r}{_suggested(fields[name].type, values[name])}"
        ) from None


def _expected(kind: Any) -> str:
    """Describe the values that an option of this type can take, for an error message."""
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.LiteralType):
        return f"one of {', '.join(map(str, info.values))}"
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    return words.get(kind, str(kind))


def _suggested(kind: Any, value: Any) -> str:
    """Suggest the allowed value nearest to ``value``, for an error message."""
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
