"""Recorded profiles, as tables and as JSON-like values."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.tables import print_table
from perfmodel.cli.printing.text import bold, show
from perfmodel.inputs.profile import Profile
from perfmodel.profiler.record import MeasuredBatch, RecordedProfile

SCHEMA = "perfmodel.profile/1"
"""Schema of the JSON of a recorded profile."""

TOP = 8
"""Number of layers in the table."""


def show_recorded(recorded: RecordedProfile) -> None:
    """Print a line for each batch size, and the layers that took longest at the last one."""
    profile = recorded.profile
    timing, last = recorded.measured[0].timing, recorded.measured[-1]
    tensors = sum(len(layer.tensors) for layer in profile.layers)
    show(
        f"{bold(profile.name)} on {timing.device}, {timing.precision}: "
        f"{len(profile.layers)} layers, {tensors} tensors, "
        f"{quantity(profile.parameter_bytes, 'bytes')} of gradients"
    )
    heads = ("batch", "step", "std", "forward", "backward", "optimizer")
    print_table((*heads, "loading", "copies", "other", "overhead"), map(_cells, recorded.measured))
    for batch in recorded.measured:
        size = batch.timing.batch_size
        if batch.average.other_s:
            show(f"other at batch size {size}: {batch.average.places}")
        if batch.overhead is not None:
            show(f"at batch size {size}, {batch.overhead}")
    show(f"\nlayers that take longest at batch size {last.timing.batch_size}:")
    print_table(
        ("layer", "kind", "forward", "backward", "of step", "gradients"),
        [
            (
                *(row["name"], row["kind"]),
                *(quantity(seconds, "s") for seconds in (row["forward_s"], row["backward_s"])),
                *(f"{row['step_fraction']:.1%}", quantity(row["bytes"], "bytes")),
            )
            for row in layers(recorded, last)[:TOP]
        ],
    )
    if profile.noise_scale is not None:
        show(str(profile.noise_scale))
    for note in dict.fromkeys(note for batch in recorded.measured for note in batch.notes):
        show(f"note: {note}")


def show_described(profile: Profile) -> None:
    """Print what is known of a model without timings."""
    tensors = sum(len(layer.tensors) for layer in profile.layers)
    flop = sum(layer.forward_flop for layer in profile.layers)
    kept = sum(profile.kept_bytes)
    operators = sum(len(layer.operators) for layer in profile.layers)
    show(
        f"{bold(profile.name)}, not measured: {len(profile.layers)} layers, {tensors} tensors, "
        f"{quantity(profile.parameter_bytes, 'bytes')} of gradients"
    )
    show(
        f"per sample: {flop:.4g} operations forward, {quantity(kept, 'bytes')} kept for backward; "
        f"{operators} shapes of operators"
    )
    for note in profile.source.text.split("; ")[1:]:
        show(f"note: {note}")


def as_values(recorded: RecordedProfile) -> dict[str, object]:
    """The complete record, as JSON-like values."""
    profile = recorded.profile
    return {
        "schema": SCHEMA,
        "name": profile.name,
        "parameter_bytes": profile.parameter_bytes,
        "measured": [
            {
                "device": batch.timing.device,
                "precision": batch.timing.precision,
                "batch_size": batch.timing.batch_size,
                "accumulation": batch.timing.accumulation,
                "steps": batch.average.steps,
                "step_s": batch.average.step_s,
                "step_std_s": batch.average.step_std_s,
                "forward_s": sum(batch.average.forward_s),
                "backward_s": sum(batch.average.backward_s),
                "optimizer_s": batch.average.optimizer_s,
                "data_loading_s": batch.average.loading_s,
                "copy_s": batch.average.copy_s,
                "other_s": batch.average.other_s,
                "overhead": None if batch.overhead is None else batch.overhead._asdict(),
                "notes": list(batch.notes),
                "layers": layers(recorded, batch),
            }
            for batch in recorded.measured
        ],
        "workload": msgspec.to_builtins(profile),
    }


class LayerRow(TypedDict):
    """Times of a layer (s), its part of the step, and the bytes of its gradients."""

    name: str
    kind: str
    bytes: float
    forward_s: float
    backward_s: float
    step_fraction: float


def layers(recorded: RecordedProfile, batch: MeasuredBatch) -> list[LayerRow]:
    """Seconds of each layer at one batch size, those that take longest first."""
    average = batch.average
    rows: list[LayerRow] = [
        {
            "name": layer.name,
            "kind": layer.kind,
            "bytes": sum(tensor.bytes for tensor in layer.tensors),
            "forward_s": forward,
            "backward_s": backward,
            "step_fraction": (forward + backward) / average.step_s if average.step_s else 0.0,
        }
        for layer, forward, backward in zip(
            recorded.profile.layers, average.forward_s, average.backward_s, strict=True
        )
    ]
    return sorted(rows, key=lambda row: -row["step_fraction"])


def _cells(batch: MeasuredBatch) -> list[str]:
    average = batch.average
    spread = average.step_std_s / average.step_s if average.step_s else 0.0
    seconds = (
        *(sum(average.forward_s), sum(average.backward_s), average.optimizer_s),
        *(average.loading_s, average.copy_s, average.all_other_s),
    )
    return [
        *(str(batch.timing.batch_size), quantity(average.step_s, "s"), f"±{spread:.1%}"),
        *(quantity(value, "s") for value in seconds),
        "" if batch.overhead is None else f"{batch.overhead.fraction:+.1%}",
    ]
