"""Advice as text: a paragraph for each change."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.prediction import workers_of
from perfmodel.cli.printing.text import bold, dim, show
from perfmodel.studies.advice import Advice, Recommendation


def advice(found: Advice) -> None:
    """Print what would make a job faster, what may, and the evidence."""
    p = found.prediction
    rate = quantity(p.throughput_samples_per_s, "samples/s")
    show(f"{bold(p.model)} on {workers_of(p)}, {p.architecture}: {rate}")
    if not found.recommended:
        show("\nNo change is sure to make it faster.")
    _list(found.recommended, "\nThis makes it faster:")
    _list(found.unsure, "\nThis may make it faster, but the prediction is not sure enough:")
    if found.hardware is not None:
        show(f"\nThe single change of the hardware that helps most: {found.hardware.change}")


def _list(some: Sequence[Recommendation], title: str) -> None:
    if some:
        show(title)
    for number, each in enumerate(some, 1):
        low, high = each.gain.interval
        gain = f"{each.gain.ratio:.2f} times as fast ({low:.2f} to {high:.2f})"
        show(f"\n{number:2}. {bold(each.change)}: {gain}")
        lines = {
            "why": each.why,
            "flags": each.flags,
            "price": each.price,
            "published": f"{each.observed} ({each.source})",
        }
        for name, text in lines.items():
            if text:
                show(f"    {dim(f'{name:11}')}{text}")
