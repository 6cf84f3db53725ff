"""Recorded profiles, as tables and as JSON-like values."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.markup import escape

from perfmodel.base.units import show
from perfmodel.cli.printing.console import new_console, new_table
from perfmodel.profiler.record import MeasuredBatch, RecordedProfile

TOP = 8
"""Number of layers in the table."""


def show_recorded(recorded: RecordedProfile) -> None:
    """Print a line for each batch size, and the layers that took longest at the last one."""
    profile = recorded.profile
    out = new_console()
    timing = recorded.measured[0].timing
    gradients = show(profile.parameter_bytes, "bytes")
    out.print(
        f"[bold]{escape(profile.name)}[/] on {escape(timing.device)}, {timing.precision}: "
        f"{len(profile.layers)} layers, {sum(len(l.tensors) for l in profile.layers)} tensors, "  # noqa: E741
        f"{gradients} of gradients"
    )
    columns = ("batch", "step", "std", "forward", "backward", "optimizer")
    table = new_table(*columns, "loading", "copies", "other", "overhead")
    for one in recorded.measured:
        table.add_row(*_cells(one))
    out.print(table)
    for one in recorded.measured:
        size = one.timing.batch_size
        if one.average.other_s:
            out.print(f"other at batch size {size}: {one.average.places}")
        if one.overhead is not None:
            out.print(f"at batch size {size}, {one.overhead}")
    out.print(
        f"\nlayers that take longest at batch size {recorded.measured[-1].timing.batch_size}:"
    )
    table = new_table("layer", "kind", "forward", "backward", "of step", "gradients")
    for row in layers(recorded, recorded.measured[-1])[:TOP]:
        table.add_row(
            escape(row["name"]),
            row["kind"],
            show(row["forward_s"], "s"),
            show(row["backward_s"], "s"),
            f"{row['step_fraction']:.1%}",
            show(row["bytes"], "bytes"),
        )
    out.print(table)
    if profile.noise_scale is not None:
        out.print(str(profile.noise_scale))
    for note in dict.fromkeys(note for one in recorded.measured for note in one.notes):
        out.print(f"note: {escape(note)}")


def as_values(recorded: RecordedProfile) -> dict[str, Any]:
    """The complete record, as JSON-like values."""
    profile = recorded.profile
    return {
        "name": profile.name,
        "parameter_bytes": profile.parameter_bytes,
        "measured": [
            {
                "device": one.timing.device,
                "precision": one.timing.precision,
                "batch_size": one.timing.batch_size,
                "accumulation": one.timing.accumulation,
                "steps": one.average.steps,
                "step_s": one.average.step_s,
                "step_std_s": one.average.step_std_s,
                "forward_s": sum(one.average.forward_s),
                "backward_s": sum(one.average.backward_s),
                "optimizer_s": one.average.optimizer_s,
                "data_loading_s": one.average.loading_s,
                "copy_s": one.average.copy_s,
                "other_s": one.average.other_s,
                "overhead": None if one.overhead is None else one.overhead._asdict(),
                "notes": list(one.notes),
                "layers": layers(recorded, one),
            }
            for one in recorded.measured
        ],
        "workload": msgspec.to_builtins(profile),
    }


def layers(recorded: RecordedProfile, one: MeasuredBatch) -> list[dict[str, Any]]:
    """Seconds of each layer at one batch size, those that take longest first."""
    average = one.average
    rows = [
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


def _cells(one: MeasuredBatch) -> list[str]:
    average = one.average
    spread = average.step_std_s / average.step_s if average.step_s else 0.0
    seconds = (
        *(sum(average.forward_s), sum(average.backward_s), average.optimizer_s),
        *(average.loading_s, average.copy_s, average.all_other_s),
    )
    overhead = "" if one.overhead is None else f"{one.overhead.fraction:+.1%}"
    step = show(average.step_s, "s")
    return [
        *(str(one.timing.batch_size), step, f"±{spread:.1%}"),
        *(show(value, "s") for value in seconds),
        overhead,
    ]
