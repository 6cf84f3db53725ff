"""Figures (extra ``plot``) of predictions, sweeps, comparisons, plans and trainings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import dimension_of, show
from perfmodel.reporting.colours import CAUSE_COLOURS, KIND_COLOURS, kind_colours
from perfmodel.results import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfmodel.base.arrays import Floats

Event = Mapping[str, Any]

MOST_ROWS = 30
"""Resources drawn in a timeline, at most."""

MOST_LINES = 12
"""Lines drawn of a sweep, at most; spread evenly over all of them if there are more."""

MOST_BANDS = 4
"""Most lines that are drawn with their intervals as bands: more bands would hide each other."""

MOST_BARS = 60
"""Bars drawn of a sweep, at most."""

UNITS = {"batch_size": "samples", "sequence_length": "tokens", "jitter": "fraction"}
"""Units of variables whose names do not end in one."""


def figure(values: Mapping[str, Any], trace: Mapping[str, Any]) -> Figure:
    """A figure of a prediction: iteration time by cause, above a timeline of two iterations.

    Parameters
    ----------
    values, trace : the prediction's ``to_dict()`` and its Chrome trace.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    names, count = _threads(trace["traceEvents"])
    drawing = style.empty(11, 2.6 + 0.24 * max(len(names), 4), headline(values))
    shares, timeline = drawing.subplots(2, 1, height_ratios=[1, max(len(names), 4) / 3.5])
    _shares(shares, values)
    _timeline(timeline, trace, names)
    if len(names) < count:
        timeline.set_title(f"{len(names)} of {count} resources", fontsize=9)
    return drawing


def headline(values: Mapping[str, Any]) -> str:
    """Title of a prediction's figure."""
    rate = values["throughput_samples_per_s"]
    shown = f"{rate:.4g}" if rate < 1e4 else f"{rate:.0f}"
    what = f"{values['model']} on {values['workers']} x {values['device']}"
    return f"{what}, {values['architecture']}: {shown} samples/s"


def lines(over: str, series: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> Figure:
    """A figure of a sweep: throughput and idle fraction over a variable.

    Parameters
    ----------
    over : key of the variable; "workers" also draws ideal scaling, dashed.
    series : rows of each line by its name, with ``throughput_samples_per_s`` and
        ``idle_fraction``; a horizontal line where the row has no value of ``over``. ``interval``
        of a row has the ends of both, or is None; it is drawn as a band.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = style.empty(9, 6.5, title)
    throughput, idle = drawing.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    drawn = style.spread(list(series), MOST_LINES)
    for number, name in enumerate(drawn):
        look = {
            "color": style.colour(number),
            "marker": style.marker(number),
            "markersize": 4,
            "zorder": 3,
        }
        bands = len(drawn) <= MOST_BANDS
        _line(throughput, over, "throughput_samples_per_s", series[name], look, name, bands)
        _line(idle, over, "idle_fraction", series[name], look, name, bands)
    if over == "workers":
        throughput.plot([], [], "--", color=style.REFERENCE, linewidth=1, label="ideal scaling")
    unit = dimension_of(over) or ""
    found = {float(row[over]) for rows in series.values() for row in rows if row[over] is not None}
    xs = sorted(found)
    if geometric(xs):
        idle.set_xscale("log", base=2)
    if len(xs) <= style.MOST_TICKS:
        idle.set_xticks(xs, [show(x, unit) if unit else f"{x:g}" for x in xs])
        idle.minorticks_off()
    elif unit:
        idle.xaxis.set_major_formatter(lambda x, _: show(x, unit))
    ys = [row["throughput_samples_per_s"] for rows in series.values() for row in rows]
    if geometric(xs) and max(ys) > 4 * min(ys):
        throughput.set_yscale("log")
        style.logarithmic(throughput, "y", "")
    else:
        throughput.set_ylim(bottom=0)
    idle.set_xlabel(_label(over, unit))
    idle.set_ylim(0, 1.02)
    idle.set_ylabel("idle fraction")
    throughput.set_ylabel("throughput (samples/s)")
    if len(drawn) < len(series):
        throughput.set_title(f"{len(drawn)} of {len(series)} lines", fontsize=9)
    for axes in (throughput, idle):
        style.tidy(axes)
    if over == "workers" or any(drawn):
        style.legend(drawing, throughput)
    return drawing


def _label(over: str, unit: str) -> str:
    """Name of the variable; ticks show the units of quantities that have them."""
    words = over.removesuffix(f"_{unit}").replace("_", " ")
    return f"{words} ({UNITS[over]})" if over in UNITS else words


def _line(
    axes: Axes,
    over: str,
    key: str,
    rows: Sequence[Mapping[str, Any]],
    look: Mapping[str, Any],
    name: str,
    bands: bool,
) -> None:
    """One line of a sweep with its interval and, over workers, its ideal scaling."""
    rising = sorted((row for row in rows if row[over] is not None), key=lambda row: row[over])
    x, y = [float(row[over]) for row in rising], [row[key] for row in rising]
    if not rising:
        axes.axhline(rows[0][key], color=look["color"], label=name)
        return
    axes.plot(x, y, label=name or None, **look)
    intervals = [row.get("interval") for row in rising]
    if bands and all(intervals):
        low, high = zip(*(each[key] for each in intervals if each), strict=True)
        axes.fill_between(x, low, high, color=look["color"], alpha=style.BAND, linewidth=0)
        axes.fill_between([], [], color=style.REFERENCE, alpha=style.BAND, label=style.INTERVAL)
    if over == "workers" and key == "throughput_samples_per_s":
        ideal = [y[0] * workers / x[0] for workers in x]
        axes.plot(x, ideal, "--", color=look["color"], alpha=0.5, linewidth=1)


def against(points: Mapping[str, Sequence[Mapping[str, Any]]], title: str, unit: str) -> Figure:
    """A figure of predictions (upwards) over measured values, on logarithmic axes.

    Both are equal on the diagonal; the band around it reaches 10 % to either side.

    Parameters
    ----------
    points : ``measured``, ``predicted`` and ``interval`` (its ends, or None) of each case, by
        group.
    title, unit : name of the values and their SI unit.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = style.empty(8.5, 6)
    drawing.set_layout_engine("compressed")  # as the axes are square
    axes = drawing.subplots()
    every = [point for group in points.values() for point in group]
    values = [point[key] for point in every for key in ("measured", "predicted")]
    ends = [min(values) / 1.5, max(values) * 1.5]
    axes.plot(ends, ends, color=style.REFERENCE, linewidth=1, label="equal")
    low, high = ([factor * x for x in ends] for factor in (0.9, 1.1))
    axes.fill_between(
        ends, low, high, color=style.REFERENCE, alpha=style.BAND, linewidth=0, label="within 10 %"
    )
    for number, (group, of_group) in enumerate(points.items()):
        if of_group:
            measured, predicted = ([p[key] for p in of_group] for key in ("measured", "predicted"))
            colour, marker = style.colour(number), style.marker(number)
            for point in of_group:
                if point["interval"] is not None:
                    axes.plot([point["measured"]] * 2, point["interval"], color=colour, alpha=0.4)
            axes.scatter(measured, predicted, s=22, color=colour, marker=marker, label=group)
    if any(point["interval"] is not None for point in every):
        axes.plot([], [], color=style.REFERENCE, alpha=0.4, label=style.INTERVAL)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_box_aspect(1)
    for which in ("x", "y"):
        style.logarithmic(axes, which, unit)
    axes.set_xlabel(f"measured {title} ({unit})")
    axes.set_ylabel(f"predicted {title} ({unit})")
    style.tidy(axes, "both")
    style.legend(drawing, axes)
    return drawing


def curves(
    series: Mapping[str, Mapping[str, tuple[Floats, Floats]]], target: float | None, task: str
) -> Figure:
    """A figure of trainings: accuracy over predicted seconds, and over samples.

    Parameters
    ----------
    series : by the name of a job its means, and half-widths of their intervals (NaN: none), of
        ``time_s``, ``samples`` and ``accuracy``.
    target : accuracy that is marked, if any.
    task : name of the task that is trained.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = style.empty(11, 4.5)
    axes = drawing.subplots(1, 2, sharey=True)
    names = {"time_s": "predicted training time (s)", "samples": f"training samples of {task}"}
    for place, (over, words) in zip(axes, names.items(), strict=True):
        for number, (name, columns) in enumerate(series.items()):
            (xs, _), (ys, half) = columns[over], columns["accuracy"]
            colour = style.colour(number)
            place.plot(xs, ys, color=colour, label=name)
            place.fill_between(
                xs, ys - half, ys + half, color=colour, alpha=style.BAND, linewidth=0
            )
        if target is not None:
            place.axhline(
                target, color=style.REFERENCE, linestyle="--", linewidth=1, label="target"
            )
        place.set_xlabel(words)
        style.tidy(place)
    axes[0].set_ylabel(f"accuracy on {task}")
    style.legend(drawing, axes[1])
    return drawing


def trade(
    front: Sequence[tuple[float, float, str]], ranked: Sequence[tuple[float, float]], title: str
) -> Figure:
    """A figure of cost over time, on logarithmic axes.

    Parameters
    ----------
    front : hours, USD and instance type of each candidate on the Pareto front.
    ranked : hours and USD of the ranked candidates, the choice first.
    title : the choice in words.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = style.empty(9, 5.5, title)
    axes = drawing.subplots()
    hours, usd = [each[0] for each in front], [each[1] for each in front]
    axes.step(hours, usd, where="post", color=style.REFERENCE, linewidth=1, label="Pareto front")
    for number, name in enumerate(dict.fromkeys(each[2] for each in front)):
        of_type = [(x, y) for x, y, instance in front if instance == name]
        axes.scatter(*zip(*of_type, strict=True), color=style.colour(number), label=name, zorder=2)
    axes.scatter(
        *zip(*ranked, strict=True), marker="x", color=style.MEASURED, label="ranked", zorder=3
    )
    x, y = ranked[0]
    axes.scatter([x], [y], s=150, facecolors="none", edgecolors="black", label="choice", zorder=4)
    axes.set(xscale="log", yscale="log")
    for which in ("x", "y"):
        style.logarithmic(axes, which, "")
    axes.set(xlabel="time (h)", ylabel="cost (USD)")
    style.tidy(axes, "both")
    style.legend(drawing, axes)
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

    ``interval`` of a row has the ends of both, or is None.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawn = style.spread(list(zip(names, rows, strict=True)), MOST_BARS)
    drawing = style.empty(10, 1.5 + 0.3 * len(drawn), title)
    throughput, idle = drawing.subplots(1, 2, sharey=True, width_ratios=[2, 1])
    for number, (axes, key) in enumerate(
        [(throughput, "throughput_samples_per_s"), (idle, "idle_fraction")]
    ):
        ends = [row[key] for _, row in drawn]
        axes.barh(range(len(drawn)), ends, height=0.7, color=style.colour(number))
        for place, (_, row) in enumerate(drawn):
            if row.get("interval"):
                style.whisker(axes, place, row["interval"][key])
        if any(row.get("interval") for _, row in drawn):
            axes.plot([], [], color=style.MEASURED, linewidth=1, label=style.INTERVAL)
        style.tidy(axes, "x")
    style.rows(throughput, [name for name, _ in drawn])
    idle.tick_params(axis="y", length=0)
    if len(drawn) < len(rows):
        throughput.set_title(f"{len(drawn)} of {len(rows)} jobs", fontsize=9)
    throughput.set_xlabel("throughput (samples/s)")
    idle.set_xlabel("idle fraction")
    idle.set_xlim(0, 1)
    style.legend(drawing, throughput)
    return drawing


def stacks(
    names: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    unit: str,
    intervals: Sequence[Sequence[float] | None] = (),
    title: str = "",
) -> Figure:
    """A figure of a comparison: one bar of compute and waiting time for each job.

    Parameters
    ----------
    parts : seconds of each job by ``compute`` and causes of waiting, as in ``CAUSE_COLOURS``.
    unit : what takes these seconds.
    intervals : ends of the interval of each job's sum (s), None for those without.

    Raises
    ------
    InputError : matplotlib is not installed.
    """
    drawing = style.empty(10, 1.2 + 0.5 * len(parts), title)
    axes = drawing.subplots()
    left = [0.0] * len(parts)
    kinds = [kind for kind in CAUSE_COLOURS if any(kind in part for part in parts)]
    for kind in kinds:
        widths = [part.get(kind, 0.0) for part in parts]
        label = kind.replace("_", " ")
        axes.barh(
            range(len(parts)),
            widths,
            height=0.6,
            left=left,
            color=CAUSE_COLOURS[kind],
            label=label,
        )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for place, ends in enumerate(intervals):
        if ends is not None:
            style.whisker(axes, place, ends)
    if any(ends is not None for ends in intervals):
        axes.plot([], [], color=style.MEASURED, linewidth=1, label=style.INTERVAL)
    style.rows(axes, names)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{unit} (s)")
    style.tidy(axes, "x")
    style.legend(drawing, axes)
    return drawing


def _shares(axes: Axes, values: Mapping[str, Any]) -> None:
    """One bar as long as an iteration: computing, then waiting by cause."""
    idle, iteration_s = values["idle_fraction"], values["iteration_s"]
    parts = {"compute": 1.0 - idle["mean"], **idle["by_cause"]}
    left = 0.0
    for name, part in parts.items():
        width = part * iteration_s
        label = f"{name.replace('_', ' ')} {part:.1%}"
        axes.barh(0, width, left=left, color=CAUSE_COLOURS[name], label=label)
        left += width
    if values["interval"] is not None:
        ends = values["interval"]["iteration_s"]
        style.whisker(axes, 0.0, ends, style.INTERVAL)
        left = max(left, ends[1])
    style.rows(axes, ["iteration"])
    axes.set_xlim(0, 1.02 * left)
    axes.set_xlabel("mean iteration time of a worker (s)")
    style.tidy(axes, "x")
    style.legend_beside(axes)


def _threads(events: Sequence[Event]) -> tuple[dict[tuple[int, int], str], int]:
    """Names of the threads that a timeline draws, by process and thread, in their order; and how
    many there are in all.

    If there are too many, the first nodes with workers fill two thirds of the rows, and the busiest
    threads of other nodes, such as servers, the rest.
    """
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    ranks = {
        (e["pid"], e["tid"]): e["args"]["sort_index"]
        for e in events
        if e["name"] == "thread_sort_index"
    }
    training = {e["pid"] for e in events if e["ph"] == "X" and e["cat"] == "iteration"}
    busy: dict[tuple[int, int], float] = dict.fromkeys(named, 0.0)
    for e in events:
        if e["ph"] == "X" and e["cat"] != "iteration":
            busy[e["pid"], e["tid"]] += e["dur"]
    every = sorted((key for key in busy if busy[key] > 0.0), key=lambda k: (k[0], ranks[k]))
    drawn = every
    if len(every) > MOST_ROWS:
        others = [key for key in every if key[0] not in training]
        others = sorted(others, key=lambda key: -busy[key])[: MOST_ROWS // 3]
        first = [key for key in every if key[0] in training][: MOST_ROWS - len(others)]
        drawn = [key for key in every if key in {*others, *first}]
    return {key: named[key] for key in drawn}, len(every)


def _timeline(axes: Axes, trace: Mapping[str, Any], names: Mapping[tuple[int, int], str]) -> None:
    """Every op as a bar on the row of its resource, coloured by kind of op."""
    from matplotlib.collections import PolyCollection

    shown = trace["otherData"]
    begin_us = 1e6 * shown["begin_s"]
    at = {key: row for row, key in enumerate(names)}
    spans = [
        e
        for e in trace["traceEvents"]
        if e["ph"] == "X" and e["dur"] > 0.0 and (e["pid"], e["tid"]) in at
    ]
    order = list(KIND_COLOURS)
    kinds = sorted(
        dict.fromkeys(e["cat"] for e in spans),
        key=lambda kind: order.index(kind) if kind in order else len(order),
    )
    colours = kind_colours(kinds)
    for kind in kinds:
        mine = [e for e in spans if e["cat"] == kind]
        corners = []
        for e in mine:
            row, start_s = at[e["pid"], e["tid"]], (e["ts"] - begin_us) / 1e6
            left, right, top, bottom = start_s, start_s + e["dur"] / 1e6, row - 0.4, row + 0.4
            corners.append([(left, top), (right, top), (right, bottom), (left, bottom)])
        bars = PolyCollection(corners, facecolors=colours[kind], linewidths=0, label=kind)
        axes.add_collection(bars)
    style.rows(axes, list(names.values()))
    length_s = shown["end_s"] - shown["begin_s"]
    if length_s > 0.0:
        axes.set_xlim(0.0, length_s)
    axes.set_xlabel(f"time (s), {shown['iterations']}")
    style.tidy(axes, "x")
    if spans:
        style.legend_beside(axes)
