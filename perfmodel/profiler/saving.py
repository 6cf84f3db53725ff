"""Writes measured workloads to files, one layer per line, and merges them with existing timings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError
from perfmodel.inputs.profile import Layer, Profile, Timing, read_profile

DIGITS = 6
"""Significant digits in files."""


def save(path: str | Path, profile: Profile, *, append: bool = False) -> Profile:
    """Write a workload file, and return what was written.

    With ``append`` the timings are added to those already in the file, if it exists.

    Raises
    ------
    InputError : the file describes different layers, or cannot be read or written.
    """
    if append and Path(path).exists():
        profile = joined(read_profile(path), profile, str(path))
    files.write(path, dumped(profile))
    return profile


def joined(old: Profile, new: Profile, name: str) -> Profile:
    """Return the profile ``old`` with the timings of ``new`` added.

    They replace timings of the same device, precision and batch size. The noise scale and buffers
    of ``new`` also replace the old ones, if it has any.

    Raises
    ------
    InputError : their layers or tensors differ; the text begins with ``name``.
    """
    if _shape(old) != _shape(new):
        raise InputError(f"{name}: {difference(old, new)}; give another file")
    replaced = {_key(timing) for timing in new.timings}
    kept = [timing for timing in old.timings if _key(timing) not in replaced]
    return msgspec.structs.replace(
        old,
        timings=ordered([*kept, *new.timings]),
        noise_scale=new.noise_scale or old.noise_scale,
        buffer_bytes=new.buffer_bytes or old.buffer_bytes,
    )


def ordered(timings: list[Timing]) -> tuple[Timing, ...]:
    """Sort timings: measured ones first, by device, precision and batch size, then the others
    unsorted."""
    measured = [timing for timing in timings if timing.source.kind == "measured"]
    others = [timing for timing in timings if timing.source.kind != "measured"]
    return (*sorted(measured, key=_key), *others)


def difference(old: Profile, new: Profile) -> str:
    """Describe the first difference between the layers of two profiles."""
    if len(old.layers) != len(new.layers):
        return f"has {len(old.layers)} layers, but this model has {len(new.layers)}"
    for before, after in zip(old.layers, new.layers, strict=True):
        if _tensors(before) != _tensors(after):
            return f"layer {before.name!r} differs from this model's ({after.name!r})"
    return "the layers are the same"


def dumped(profile: Profile) -> bytes:
    """Return the profile as JSON, with each layer and each list of numbers on its own line."""
    values = msgspec.to_builtins(profile)
    defaults = {field.encode_name: field.default for field in msgspec.structs.fields(Profile)}
    lines = []
    values["timings"] = values.pop("timings")  # last
    for key, value in values.items():
        if value == defaults[key] and key != "schema":
            continue
        if key == "layers":
            rows = ",\n".join("  " + json.dumps(_short(layer, Layer)) for layer in value)
            lines.append(f' "layers": [\n{rows}\n ]')
        elif key == "timings":
            entries = ",\n".join("  {" + _timing(_short(entry, Timing)) + "}" for entry in value)
            lines.append(f' "timings": [\n{entries}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(_rounded(value))}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _timing(entry: dict[str, Any]) -> str:
    """Format the fields of a timing; lists, and the fields after them, begin a new line."""
    text, listed = "", False
    for key, value in entry.items():
        alone = isinstance(value, list | dict)
        separator = ",\n   " if alone or listed else ", "
        text += f"{separator if text else ''}{json.dumps(key)}: {json.dumps(value)}"
        listed = alone
    return text


def _short(values: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the values that differ from the defaults, rounded; the source comes last."""
    found = {
        field.encode_name: _rounded(values[field.encode_name])
        for field in msgspec.structs.fields(kind)
        if values[field.encode_name] != field.default or field.encode_name == "precision"
    }
    if "source" in found:
        source = found.pop("source")
        found["source"] = {key: value for key, value in source.items() if value is not None}
    return found


def _rounded(value: Any) -> Any:
    """Round numbers to ``DIGITS`` significant digits; whole numbers get no decimal point."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else float(f"{value:.{DIGITS}g}")
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items() if item is not None}
    return value


def _key(timing: Timing) -> tuple[str, str, int]:
    return timing.device, timing.precision, timing.batch_size


def _shape(profile: Profile) -> list[Any]:
    return [_tensors(layer) for layer in profile.layers]


def _tensors(layer: Layer) -> tuple[str, tuple[tuple[str, float], ...]]:
    return layer.name, tuple((tensor.name, tensor.bytes) for tensor in layer.tensors)
