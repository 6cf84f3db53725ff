"""Writes workload files, one layer per line, and adds timings to existing ones."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

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
    if list(map(_tensors, old.layers)) != list(map(_tensors, new.layers)):
        raise InputError(f"{name}: {difference(old, new)}; give another file")
    timings = {_key(timing): timing for timing in (*old.timings, *new.timings)}
    return msgspec.structs.replace(
        old,
        timings=ordered(timings.values()),
        noise_scale=new.noise_scale or old.noise_scale,
        buffer_bytes=new.buffer_bytes or old.buffer_bytes,
    )


def ordered(timings: Collection[Timing]) -> tuple[Timing, ...]:
    """Sort timings: measured ones first, by device, precision and batch size, then the others
    unsorted."""
    measured = sorted((t for t in timings if t.source.kind == "measured"), key=_key)
    return (*measured, *(t for t in timings if t.source.kind != "measured"))


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
    fields = _short(profile)
    if profile.timings:
        fields["timings"] = fields.pop("timings")  # last
    rows = {
        "layers": [f"  {json.dumps(_short(layer))}" for layer in profile.layers],
        "timings": [f"  {{{_timing(timing)}}}" for timing in profile.timings],
    }
    lines = []
    for name, value in fields.items():
        text = ",\n".join(rows[name]).join(("[\n", "\n ]")) if name in rows else json.dumps(value)
        lines.append(f" {json.dumps(name)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _timing(timing: Timing) -> str:
    """Format the fields of a timing; lists, and the fields after them, begin a new line."""
    fields = _short(timing)
    fields["source"] = fields.pop("source")  # last
    text, after_list = "", False
    for name, value in fields.items():
        is_list = isinstance(value, list | dict)
        separator = ",\n   " if is_list or after_list else ", "
        text += f"{separator if text else ''}{json.dumps(name)}: {json.dumps(value)}"
        after_list = is_list
    return text


def _short(struct: msgspec.Struct) -> dict[str, object]:
    """Return the schema, the precision, and the fields that differ from their defaults."""
    return {
        field.name: _rounded(msgspec.to_builtins(getattr(struct, field.name)))
        for field in msgspec.structs.fields(struct)
        if getattr(struct, field.name) != field.default or field.name in ("schema", "precision")
    }


def _rounded(value: object) -> object:
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


def _tensors(layer: Layer) -> tuple[str, tuple[tuple[str, float], ...]]:
    return layer.name, tuple((tensor.name, tensor.bytes) for tensor in layer.tensors)
