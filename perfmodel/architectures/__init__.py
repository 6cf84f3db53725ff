"""Architectures: how workers train together. One file each; this registry finds them by name.

A file ``architectures/NAME.py`` with an :class:`Architecture` called ``ARCHITECTURE`` is all it
takes: the command line, the listings and the conformance tests follow.
"""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from perfmodel.errors import InputError, nearest, unknown_name
from perfmodel.graph import OpGraph
from perfmodel.job import Job
from perfmodel.phases import Phases, Quantities
from perfmodel.units import dimension_of, parse


class Coarse(msgspec.Struct, frozen=True, kw_only=True):
    """The coarse model of an architecture.

    Attributes
    ----------
    phases : the model itself.
    exact : for which jobs it equals the simulation.
    leaves_out : what a job has that the model knows nothing of; None if there is nothing.

    How far it is off for the other jobs is measured: :mod:`perfmodel.bands`.
    """

    phases: Callable[[Job, Quantities], Phases]
    exact: Callable[[Job], bool]
    leaves_out: Callable[[Job], str | None]


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """What the rest of the package needs to know of an architecture.

    Attributes
    ----------
    options : msgspec struct of the options, every field with a default.
    build : the fine-grained op graph of one job.
    coarse : the coarse model.
    fold : the same with one worker that stands for all of them, for jobs whose workers are alike
        (_workers.alike); None, or returns None, where one worker cannot stand for all.
    asynchronous : whether a job with these options lets workers drift apart.
    server_bytes : memory need of one server of a job (bytes); None where there is no server.
    worker_bytes : memory need of one worker (bytes); None where it has parameters, gradients,
        activations and, without a server, the optimizer's state.
    assumptions : what the model takes for granted, one sentence each.
    source : where the semantics are described.
    unused : names of the options that have no effect, given the others.
    model_age : for architectures that exchange models, how many local steps one is from the last
        exchange; None, or returns None, where each step works on a model of its own time.
    notes : what a prediction has to say of a job beyond its figures; None for nothing.
    aliases : other names, each with the options it stands for.
    """

    name: str
    title: str
    options: type[Any]
    build: Callable[[Job], OpGraph]
    asynchronous: Callable[[Any], bool]
    server_bytes: Callable[[Job], float] | None
    assumptions: tuple[str, ...]
    source: str
    option_help: Mapping[str, str]
    aliases: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    fold: Callable[[Job], OpGraph | None] | None = None
    worker_bytes: Callable[[Job], float] | None = None
    unused: Callable[[Any], Collection[str]] = lambda options: ()
    model_age: Callable[[Job], ModelAge | None] | None = None
    notes: Callable[[Job], tuple[str, ...]] | None = None
    coarse: Coarse | None = None


class ModelAge(msgspec.Struct, frozen=True):
    """Local steps that a worker's model is from its last exchange.

    ``exchange_every`` is the mean number of steps between exchanges; ``mean`` and ``p90`` are of
    the age with which a step begins.
    """

    exchange_every: float
    mean: float
    p90: int


@functools.cache
def names() -> tuple[str, ...]:
    """Names of all architectures, sorted."""
    found = (m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return tuple(sorted(found))


def all_architectures() -> list[Architecture]:
    """Every architecture, by name."""
    return [_load(name) for name in names()]


def find(name: str) -> tuple[Architecture, Mapping[str, Any]]:
    """The architecture called ``name`` and the options that name stands for (for an alias).

    Raises
    ------
    InputError : no architecture has that name.
    """
    known = list(names())
    if name in known:
        return _load(name), {}
    aliases = {alias: a for a in all_architectures() for alias in a.aliases}
    if name in aliases:
        return aliases[name], aliases[name].aliases[name]
    raise unknown_name("architecture", name, [*known, *aliases])


@functools.cache
def _load(name: str) -> Architecture:
    architecture: Architecture = importlib.import_module(f"{__name__}.{name}").ARCHITECTURE
    return architecture


def read_options(architecture: Architecture, given: Mapping[str, Any]) -> Any:
    """Make an architecture's options from names and values; text is read by the field's type.

    Raises
    ------
    InputError : an option that the architecture does not have, or a value it does not allow.
    """
    fields = {f.name: f for f in msgspec.structs.fields(architecture.options)}
    values = {}
    for name, value in given.items():
        if name not in fields:
            hint = nearest(name, fields)
            suggestion = f"; did you mean {hint!r}?" if hint else ""
            raise InputError(
                f"option {name!r} does not apply to {architecture.name}{suggestion} "
                f"(it has: {', '.join(fields)})"
            )
        dimension = dimension_of(name)
        if value == "inf" and fields[name].type is float:
            value = math.inf
        elif isinstance(value, str) and dimension and not _is_number(value):
            value = parse(value, dimension, name)
        values[name] = value
    try:
        return msgspec.convert(values, architecture.options, strict=False)
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
    """The allowed word most like ``value``, for an error message."""
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


__all__ = [
    "Architecture",
    "all_architectures",
    "find",
    "names",
    "read_options",
]
