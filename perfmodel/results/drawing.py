"""Figures (extra ``plot``) of a prediction, a sweep, a comparison."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from perfmodel.base.errors import InputError
from perfmodel.base.units import dimension_of, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfmodel.base.arrays import Floats

Event = Mapping[str, Any]
T = TypeVar("T")

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

MOST_LINES = 12
"""Lines drawn of a sweep; spread evenly over all of them if there are more."""

MOST_BARS = 60
"""Bars drawn of a sweep, likewise."""

MOST_TICKS = 16
"""Largest number of values of an axis that are ticks themselves."""


def figure(values: Mapping[str, Any], events: Sequence[Event]) -> Figure:
    """A figure of a prediction: time of an iteration by cause, above a timeline of two.

    Parameters
    ----------
    values, events : the prediction's ``to_dict()`` and the events of its Chrome trace.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = _empty(11, 7)
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
    _known(drawing, ending)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=ending)
    return buffer.getvalue()


def lines(over: str, series: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> Figure:
    """A figure of a sweep: throughput and idle fraction over what was varied.

    Parameters
    ----------
    over : key of what was varied; "workers" also draws ideal scaling, dashed.
    series : rows of each line by its name, with ``throughput_samples_per_s`` and
        ``idle_fraction``; a horizontal line where the row has no value of ``over``.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = _empty(9, 7)
    drawing.suptitle(title)
    throughput, idle = drawing.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    drawn = spread(list(series), MOST_LINES)
    for number, name in enumerate(drawn):
        style = {"color": f"C{number % 10}", "marker": "o" if number < 10 else "s"}
        _line(throughput, over, "throughput_samples_per_s", series[name], style, name)
        _line(idle, over, "idle_fraction", series[name], style, name)
    if over == "workers":
        throughput.plot([], [], "--", color="grey", linewidth=1, label="ideal scaling")
    unit = dimension_of(over) or ""
    found = {float(row[over]) for rows in series.values() for row in rows if row[over] is not None}
    xs = sorted(found)
    if geometric(xs):
        idle.set_xscale("log", base=2)
    if len(xs) <= MOST_TICKS:
        idle.set_xticks(xs, [show(x, unit) if unit else f"{x:g}" for x in xs])
        idle.minorticks_off()
    ys = [row["throughput_samples_per_s"] for rows in series.values() for row in rows]
    if geometric(xs) and max(ys) > 4 * min(ys):
        throughput.set_yscale("log", base=2)
        throughput.yaxis.set_major_formatter("{x:g}")
    idle.set_xlabel(over.removesuffix(f"_{unit}").replace("_", " "))
    idle.set_ylim(0, 1.02)
    idle.set_ylabel("idle fraction")
    throughput.set_ylabel("throughput (samples/s)")
    if len(drawn) < len(series):
        throughput.set_title(f"{len(drawn)} of {len(series)} lines", fontsize=9)
    if over == "workers" or any(drawn):
        throughput.legend(fontsize=8)
    return drawing


def _line(
    axes: Axes,
    over: str,
    key: str,
    rows: Sequence[Mapping[str, Any]],
    style: Mapping[str, Any],
    name: str,
) -> None:
    """One line of a sweep, and with more workers what ideal scaling would be."""
    rising = sorted((row for row in rows if row[over] is not None), key=lambda row: row[over])
    x, y = [float(row[over]) for row in rising], [row[key] for row in rising]
    if not rising:
        axes.axhline(rows[0][key], color=style["color"], label=name)
        return
    axes.plot(x, y, label=name or None, **style)
    if over == "workers" and key == "throughput_samples_per_s":
        ideal = [y[0] * workers / x[0] for workers in x]
        axes.plot(x, ideal, "--", color=style["color"], alpha=0.5, linewidth=1)


def against(points: Mapping[str, Sequence[tuple[float, float]]], title: str) -> Figure:
    """A figure of predictions (upwards) over measured values, on logarithmic axes.

    The diagonal is where both are equal; a band around it is 10 % wide each way.

    Parameters
    ----------
    points : measured and predicted value of each case, by group.
    title : what the values are, with their unit.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = _empty(7, 7)
    axes = drawing.subplots()
    values = [value for pairs in points.values() for pair in pairs for value in pair]
    ends = [min(values) / 1.5, max(values) * 1.5]
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.fill_between(
        ends,
        [0.9 * x for x in ends],
        [1.1 * x for x in ends],
        color="grey",
        alpha=0.15,
        linewidth=0,
    )
    for number, (group, pairs) in enumerate(points.items()):
        if pairs:
            measured, predicted = zip(*pairs, strict=True)
            marker = "os^vD"[number // 10 % 5]
            axes.scatter(measured, predicted, color=f"C{number % 10}", marker=marker, label=group)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set_xlabel(f"measured {title}")
    axes.set_ylabel(f"predicted {title}")
    axes.legend(fontsize=8)
    return drawing


def curves(
    series: Mapping[str, Mapping[str, tuple[Floats, Floats]]], target: float, task: str
) -> Figure:
    """A figure of trainings: accuracy over predicted seconds, and over samples.

    Parameters
    ----------
    series : by the name of a job its means, and half-widths of their intervals (NaN: none), of
        ``time_s``, ``samples`` and ``accuracy``.
    target : accuracy that is marked.
    task : what the accuracy is of.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = _empty(9, 4.5)
    axes = drawing.subplots(1, 2, sharey=True)
    names = {"time_s": "predicted time of the job (s)", "samples": f"samples of {task}"}
    for place, (over, words) in zip(axes, names.items(), strict=True):
        for number, (name, columns) in enumerate(series.items()):
            (xs, _), (ys, half) = columns[over], columns["accuracy"]
            colour = f"C{number % 10}"
            place.plot(xs, ys, color=colour, label=name)
            place.fill_between(xs, ys - half, ys + half, color=colour, alpha=0.2, linewidth=0)
        place.axhline(target, color="grey", linestyle="--", linewidth=1)
        place.set_xlabel(words)
    axes[0].set_ylabel(f"accuracy of {task}")
    axes[1].legend(fontsize=8, loc="lower right")
    return drawing


def trade(
    front: Sequence[tuple[float, float, str]], ranked: Sequence[tuple[float, float]], title: str
) -> Figure:
    """A figure of cost over time, on logarithmic axes.

    Parameters
    ----------
    front : hours, USD and instance type of each candidate that none beats in both.
    ranked : hours and USD of the ranked candidates, the choice first.
    title : the choice in words.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = _empty(8, 6)
    axes = drawing.subplots()
    hours, usd = [each[0] for each in front], [each[1] for each in front]
    axes.step(hours, usd, where="post", color="grey", linewidth=1)
    for number, name in enumerate(dict.fromkeys(each[2] for each in front)):
        of_type = [(x, y) for x, y, instance in front if instance == name]
        axes.scatter(*zip(*of_type, strict=True), color=f"C{number % 10}", label=name, zorder=2)
    axes.scatter(*zip(*ranked, strict=True), marker="x", color="black", label="ranked", zorder=3)
    x, y = ranked[0]
    axes.scatter([x], [y], s=150, facecolors="none", edgecolors="black", label="choice", zorder=4)
    axes.set(xscale="log", yscale="log", xlabel="time (h)", ylabel="cost (USD)")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=8)
    return drawing


def geometric(values: Sequence[float]) -> bool:
    """Whether rising numbers are spread more evenly by factors than by steps.

    >>> geometric([1, 2, 4, 8]), geometric([1, 2, 5, 10]), geometric([2, 4, 6, 8])
    (True, True, False)
    """
    if len(values) < 3 or values[0] <= 0:
        return False
    pairs = list(itertools.pairwise(values))
    ratios, steps = [b / a for a, b in pairs], [b - a for a, b in pairs]
    return max(ratios) / min(ratios) < max(steps) / min(steps)


def bars(names: Sequence[str], rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """A figure of a sweep over words: a bar of throughput and one of idle fraction per row.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawn = spread(list(zip(names, rows, strict=True)), MOST_BARS)
    drawing = _empty(10, 1.5 + 0.35 * len(drawn))
    drawing.suptitle(title)
    throughput, idle = drawing.subplots(1, 2, sharey=True, width_ratios=[2, 1])
    places = range(len(drawn))
    throughput.barh(places, [row["throughput_samples_per_s"] for _, row in drawn])
    idle.barh(places, [row["idle_fraction"] for _, row in drawn], color=COLOURS["network"])
    throughput.set_yticks(places, [name for name, _ in drawn])
    if len(drawn) < len(rows):
        throughput.set_title(f"{len(drawn)} of {len(rows)} jobs", fontsize=9)
    throughput.invert_yaxis()
    throughput.set_xlabel("throughput (samples/s)")
    idle.set_xlabel("idle fraction")
    idle.set_xlim(0, 1)
    return drawing


def stacks(names: Sequence[str], parts: Sequence[Mapping[str, float]], unit: str) -> Figure:
    """A figure of a comparison: computing and waiting of each job as one bar.

    Parameters
    ----------
    parts : seconds of each job by ``compute`` and causes of waiting, as in ``COLOURS``.
    unit : of work that takes these seconds.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = _empty(10, 1.8 + 0.5 * len(parts))
    axes = drawing.subplots()
    left = [0.0] * len(parts)
    kinds = [kind for kind in COLOURS if any(kind in part for part in parts)]
    for kind in kinds:
        widths = [part.get(kind, 0.0) for part in parts]
        label = kind.replace("_", " ")
        axes.barh(range(len(parts)), widths, left=left, color=COLOURS[kind], label=label)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(parts)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} (s)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(kinds), frameon=False)
    return drawing


def spread(items: Sequence[T], most: int) -> list[T]:
    """All items, or as many spread evenly over them.

    >>> spread("abcdef", 3), spread("ab", 3)
    (['a', 'c', 'e'], ['a', 'b'])
    """
    few = min(len(items), most)
    return [items[k * len(items) // few] for k in range(few)]


def check(ending: str) -> None:
    """Validate a file name's ending before drawing.

    Raises
    ------
    InputError : matplotlib is not installed, or does not write that format.
    """
    _known(_empty(1, 1), ending)


def _empty(width: float, height: float) -> Figure:
    """A figure of that size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'perfmodel[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _known(drawing: Figure, ending: str) -> None:
    formats = drawing.canvas.get_supported_filetypes()
    if ending not in formats:
        raise InputError(
            f"plot: cannot write {ending!r} files (known: {', '.join(sorted(formats))})"
        )


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
