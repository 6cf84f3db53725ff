"""The colours of all figures, on pages and in files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

PALETTE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#8833ff",
    "#773300",
)
"""Colours that people with any kind of colour blindness can tell apart, on white and on black:
those of Okabe and Ito ("Color Universal Design", 2008). Violet and brown replace black and yellow,
each of which is invisible on one of the two."""

CAUSE_COLOURS = dict(
    zip(
        (
            *("compute", "network", "server", "straggler", "staleness_bound", "data", "cpu"),
            *("pipeline", "expert_imbalance", "unequal_sequences"),
        ),
        (*PALETTE, "#999999", "#990066"),
        strict=False,
    )
)
"""Colour of computing, and of waiting for each cause."""

KIND_COLOURS = {
    "compute": "#0072b2",
    "forward": "#0072b2",
    "backward": "#56b4e9",
    "push": "#e69f00",
    "send": "#e69f00",
    "request": "#e69f00",
    "average": "#e69f00",
    "all-reduce": "#e69f00",
    "reduce-scatter": "#e69f00",
    "pull": "#cc79a7",
    "reply": "#cc79a7",
    "all-gather": "#cc79a7",
    "all-gather again": "#773300",
    "update": "#d55e00",
    "optimizer": "#d55e00",
    "apply": "#d55e00",
    "update on host": "#d55e00",
}
"""Colour of kinds of operations, unless another kind in the same figure has it already."""


def kind_colours(kinds: Iterable[str]) -> dict[str, str]:
    """A colour for each kind of operation in a figure, no two alike while there are enough.

    >>> kind_colours(["push", "send", "magic"])
    {'push': '#e69f00', 'send': '#0072b2', 'magic': '#009e73'}
    """
    colours: dict[str, str] = {}
    for kind in kinds:
        usual = KIND_COLOURS.get(kind, "")
        colours[kind] = "" if usual in colours.values() else usual
    free = [colour for colour in PALETTE if colour not in colours.values()] or PALETTE
    replacements = itertools.cycle(free)
    return {kind: colour or next(replacements) for kind, colour in colours.items()}
