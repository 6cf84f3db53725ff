"""Reads tables of data-parallel steps by placement."""

from __future__ import annotations

import re
from pathlib import Path

from perfmodel.base import tables
from perfmodel.base.errors import InputError
from perfmodel.base.tables import Table, TableRow
from perfmodel.calibration.placements.table import Step, Training

DEVICES = re.compile("[0-9]{1,6}")
MOST_SHOWN = 40
"""Maximum characters of a wrong text that an error shows."""

NEEDED = ("model", "placement", "batch_size", "step_s", "gradient_bytes")


def has_placements(table: Table) -> bool:
    """Return whether a table has DNNs and placements, rather than jobs with architectures."""
    return "arch" not in table.columns and {"placement", "gradient_bytes"} <= set(table.columns)


def read_trainings(path: str | Path) -> list[Training]:
    """Read a table of steps: ``model``, ``placement`` (devices on each node, such as ``4+2``),
    ``batch_size`` (samples per device), ``step_s``, ``gradient_bytes``.

    ``waiting_s`` is the time in which the first device waits for gradients, ``overlap_fraction``
    the fraction of backward that remains once the first gradients are ready; both are optional.

    Raises
    ------
    InputError : as :func:`perfmodel.base.tables.read`; a row lacks a required value; a DNN has two
        sizes, or no step on a single device.
    """
    table = tables.read(path)
    table.need(*NEEDED)
    steps: dict[str, list[Step]] = {}
    sizes: dict[str, tuple[float, float]] = {}
    for line in table:
        name = line.text("model")
        size = line.number("gradient_bytes", above=0.0)
        left = line.number("overlap_fraction", at_most=1.0) if line.has("overlap_fraction") else 1.0
        if sizes.setdefault(name, (size, left)) != (size, left):
            raise InputError(f"{line.place}: {name}: gradient_bytes or overlap_fraction changed")
        steps.setdefault(name, []).append(_step(line))
    try:
        return [
            Training(name=name, gradient_bytes=size, overlap_fraction=left, steps=tuple(own))
            for (name, (size, left)), own in zip(sizes.items(), steps.values(), strict=True)
        ]
    except InputError as error:
        raise InputError(f"{table.name}: {error}") from None


def _step(line: TableRow) -> Step:
    try:
        return Step(
            placement(line.text("placement")),
            line.whole("batch_size"),
            line.number("step_s", above=0.0),
            line.number("waiting_s") if line.has("waiting_s") else 0.0,
        )
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(line.table) else f"{line.place}: {text}") from None


def placement(text: str) -> tuple[int, ...]:
    """Devices on each node, from text such as ``4+2``.

    >>> placement("4+2")
    (4, 2)

    Raises
    ------
    InputError : the text does not have this form.
    """
    parts = [part.strip() for part in text.split("+")]
    if not all(DEVICES.fullmatch(part) for part in parts):
        shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
        raise InputError(f"placement: {shown!r}: expected devices on each node, such as 4+2")
    return tuple(map(int, parts))
