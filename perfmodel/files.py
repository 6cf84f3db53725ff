"""Reading and writing input files: JSON or TOML, a versioned schema, errors located by path."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perfmodel.errors import InputError, nearest
from perfmodel.units import dimension_of, parse

T = TypeVar("T", bound=msgspec.Struct)

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`")
_NOT_A_CHOICE = re.compile(r"Invalid enum value (?P<given>.*)")
_AT = re.compile(r" - at `\$?\.?(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")


def read(path: str | Path, kind: type[T], schema: str) -> T:
    """Read ``path`` (JSON, or TOML by its ending) as ``kind`` after checking its schema name.

    Numbers may be written with units ("10Gbps", "50us") wherever the field's name ends in a unit.

    Raises
    ------
    InputError : missing, unreadable or truncated file, other schema, unknown key, wrong type,
        value out of range; the text begins with the file and the place in it.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror or error}") from None
    return decode(data, kind, schema, name=str(path), toml=path.suffix == ".toml")


def decode(data: bytes, kind: type[T], schema: str, *, name: str, toml: bool = False) -> T:
    """Like :func:`read`, from bytes; ``name`` is what errors call the document."""
    try:
        raw = _toml(data) if toml else msgspec.json.decode(data)
    except RecursionError:
        raise InputError(f"{name}: nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        what = "TOML" if toml else "JSON"
        raise InputError(f"{name}: not valid {what}: {error}") from None
    if not isinstance(raw, dict):
        raise InputError(
            f"{name}: expected an object with a 'schema' key, got {type(raw).__name__}"
        )
    found = raw.get("schema")
    if found != schema:
        raise InputError(f"{name}: schema: expected {schema!r}, got {found!r}")
    try:
        return msgspec.convert(_with_units(raw, ""), kind)
    except RecursionError:
        raise InputError(f"{name}: nested too deeply") from None
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except msgspec.ValidationError as error:
        raise InputError(f"{name}: {_located(str(error), kind)}") from None


def write(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path`` whole or not at all.

    Raises
    ------
    InputError : the place cannot be written.
    """
    if not str(path):
        raise InputError("cannot write: the file has no name")
    import tempfile  # brings in much that reading does not need

    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"{path}: cannot write: {error.strerror or error}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot write: {error.strerror or error}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def looks_like_path(text: str) -> bool:
    """Whether text names a file rather than something in the catalogue."""
    return "/" in text or "\\" in text or text.endswith((".json", ".toml"))


def _toml(data: bytes) -> Any:
    import tomllib

    return tomllib.loads(data.decode("utf-8"))


def _with_units(value: Any, place: str) -> Any:
    """Replace text such as "10Gbps" by its SI value in every field whose name ends in a unit."""
    if isinstance(value, list):
        # long lists of numbers are the bulk of a profile and carry no text
        if value and isinstance(value[0], (dict, list, str)):
            return [_with_units(item, f"{place}[{i}]") for i, item in enumerate(value)]
        return value
    if isinstance(value, str):
        dimension = dimension_of(place.rpartition(".")[2].partition("[")[0])
        return parse(value, dimension, place) if dimension else value
    if not isinstance(value, dict):
        return value
    out = {}
    for key, item in value.items():
        where = f"{place}.{key}" if place else str(key)
        out[key] = _with_units(item, where)
    return out


def _located(message: str, kind: type) -> str:
    """Turn "Expected ... - at `$.a[0]`" into "a[0]: expected ...", with the nearest field name."""
    at = _AT.search(message)
    path = at["path"] if at else ""
    text = message[: at.start()] if at else message
    if unknown := _UNKNOWN_FIELD.search(text):
        fields = _fields_at(kind, path)
        hint = nearest(unknown["field"], fields)
        suggestion = f"; did you mean {hint!r}?" if hint else ""
        text = f"unknown key {unknown['field']!r}{suggestion} (allowed: {', '.join(fields)})"
    elif wrong := _NOT_A_CHOICE.fullmatch(text):
        choices = ", ".join(map(str, _choices(_type_at(kind, path))))
        text = f"expected one of {choices}, got {wrong['given']}"
    elif text[:1].isupper():
        text = text[0].lower() + text[1:]
    return f"{path}: {text}" if path else text


def _type_at(kind: type, path: str) -> Any:
    """The type that ``path`` leads to inside ``kind``."""
    node: Any = msgspec.inspect.type_info(kind)
    for key, _index in _STEP.findall(path):
        node = _struct(node)
        if key and isinstance(node, msgspec.inspect.StructType):
            node = next((f.type for f in node.fields if f.encode_name == key), node)
    return node


def _choices(node: Any) -> tuple[Any, ...]:
    """The words a type allows."""
    nodes = getattr(node, "types", (node,))
    return next((n.values for n in nodes if isinstance(n, msgspec.inspect.LiteralType)), ())


def _fields_at(kind: type, path: str) -> list[str]:
    """The field names of the struct that ``path`` leads to inside ``kind``."""
    node = _struct(_type_at(kind, path))
    return [f.encode_name for f in node.fields] if hasattr(node, "fields") else []


def _struct(node: Any) -> Any:
    """Look through containers and unions for the struct inside."""
    for inner in ("item_type", "value_type", "type"):
        if hasattr(node, inner):
            return _struct(getattr(node, inner))
    if hasattr(node, "types"):
        return next((s for s in map(_struct, node.types) if hasattr(s, "fields")), node)
    return node
