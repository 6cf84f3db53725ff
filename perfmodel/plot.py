"""Pictures of a prediction (extra ``plot``): where its time goes, and a timeline."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Event = Mapping[str, Any]

COLOURS = {
    "compute": "#4c78a8",
    "network": "#f58518",
    "server": "#e45756",
    "straggler": "#b279a2",
    "staleness_bound": "#9d755d",
    "data": "#72b7b2",
    "cpu": "#bab0ac",
}
"""Colour of computing, and of waiting for each cause."""

MOST_ROWS = 30
"""Resources drawn in a timeline; the busiest ones if there are more."""


def figure(values: Mapping[str, Any], events: Sequence[Event]) -> Figure:
    """A figure of a prediction: time of an iteration by cause, above a timeline of two.

    Parameters
    ----------
    values, events : the prediction's ``to_dict()`` and the events of its Chrome trace.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'perfmodel[plot]'") from None
    drawing = Figure(figsize=(11, 7), layout="constrained")
    shares, timeline = drawing.subplots(2, 1, height_ratios=[1, 6])
    _shares(shares, values)
    _timeline(timeline, events)
    drawing.suptitle(
        f"{values['model']} on {values['workers']} x {values['device']}, "
        f"{values['architecture']}: {values['throughput_samples_per_s']:.4g} samples/s"
    )
    return drawing


def image(drawing: Figure, ending: str) -> bytes:
    """A figure in the format a file name's ending asks for (png, svg, pdf).

    Raises
    ------
    InputError : matplotlib does not write that format.
    """
    formats = drawing.canvas.get_supported_filetypes()
    if ending not in formats:
        raise InputError(
            f"plot: cannot write {ending!r} files (known: {', '.join(sorted(formats))})"
        )
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=ending)
    return buffer.getvalue()


def _shares(axes: Axes, values: Mapping[str, Any]) -> None:
    """One bar as long as an iteration: computing, then idle by cause."""
    idle, iteration_s = values["idle_fraction"], values["iteration_s"]
    parts = {"compute": 1.0 - idle["mean"], **idle["by_cause"]}
    left = 0.0
    for name, part in parts.items():
        width = part * iteration_s
        label = f"{name.replace('_', ' ')} {part:.1%}"
        axes.barh(0, width, left=left, color=COLOURS[name], label=label)
        left += width
    axes.set_yticks([])
    axes.set_xlim(0, iteration_s)
    axes.set_xlabel("mean iteration of a worker (s)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(parts), frameon=False)


def _timeline(axes: Axes, events: Sequence[Event]) -> None:
    """Every op as a bar on the row of its resource, coloured by kind of op."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X" and e["dur"] > 0.0]
    busy: dict[tuple[int, int], float] = {}
    for event in spans:
        key = (event["pid"], event["tid"])
        busy[key] = busy.get(key, 0.0) + event["dur"]
    rows = sorted(sorted(busy, key=lambda key: -busy[key])[:MOST_ROWS])
    at = {key: row for row, key in enumerate(rows)}
    begin = min((e["ts"] for e in spans), default=0.0)
    kinds = list(dict.fromkeys(e["cat"] for e in spans))
    for number, kind in enumerate(kinds):
        mine = [e for e in spans if e["cat"] == kind and (e["pid"], e["tid"]) in at]
        axes.barh(
            [at[e["pid"], e["tid"]] for e in mine],
            [e["dur"] / 1e6 for e in mine],
            left=[(e["ts"] - begin) / 1e6 for e in mine],
            height=0.8,
            color=f"C{number}",
            label=kind,
        )
    axes.set_yticks(range(len(rows)), [names[key] for key in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("two iterations (s)")
    if kinds:
        axes.legend(loc="upper right", fontsize=8)
