"""Advice as text: a paragraph for each change."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.prediction import workers_of
from perfmodel.cli.printing.text import bold, dim, show
from perfmodel.studies.advice import Advice, Recommendation


def advice(result: Advice) -> None:
    """Print what would make a job faster, what may, and the evidence."""
    p = result.prediction
    rate = quantity(p.throughput_samples_per_s, "samples/s")
    show(f"{bold(p.model)} on {workers_of(p)}, {p.architecture}: {rate}")
    if not result.recommended:
        show("\nNo change is sure to make it faster.")
    _list(result.recommended, "\nThis makes it faster:")
    _list(result.unsure, "\nThis may make it faster, but the prediction is not sure enough:")
    if result.hardware is not None:
        show(f"\nThe single change of the hardware that helps most: {result.hardware.change}")


def _list(changes: Sequence[Recommendation], title: str) -> None:
    if changes:
        show(title)
    for number, change in enumerate(changes, 1):
        low, high = change.gain.interval
        gain = f"{change.gain.ratio:.2f} times as fast ({low:.2f} to {high:.2f})"
        show(f"\n{number:2}. {bold(change.change)}: {gain}")
        published = f"{change.observed} ({change.source})"
        texts = (change.why, change.flags, change.price, published)
        for name, text in zip(("why", "flags", "price", "published"), texts, strict=True):
            if text:
                show(f"    {dim(f'{name:11}')}{text}")
