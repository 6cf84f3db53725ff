"""The sections of a page that need only the prediction itself."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.base.units import HOUR_S
from perfmodel.reporting.contents import (
    Column,
    PageTable,
    Panel,
    Section,
    UnitValue,
    columns,
    shown,
)
from perfmodel.reporting.panels import shares, stacks
from perfmodel.results import timeline_figure

Predicted = Any
"""A :class:`perfmodel.results.prediction.Prediction`; Any avoids a circular import."""

MOST_ROWS = 30
"""Resources in the timeline of a file, at most; a page has all of them."""

GB = 1e9

MOST_BARS = 64
"""Largest number of staleness bars; larger staleness values share the last bar."""


def _measures(p: Predicted) -> list[tuple[str, UnitValue, tuple[float, float] | None]]:
    """What a prediction is about, with the ends of the intervals."""
    measures = [
        ("throughput", UnitValue(p.throughput_samples_per_s), "throughput_samples_per_s"),
        ("iteration", UnitValue(p.iteration_s, "s"), "iteration_s"),
        ("idle fraction", UnitValue(p.idle_fraction.mean, "fraction"), "idle_fraction"),
    ]
    if p.staleness is not None:
        measures.append(("staleness", UnitValue(p.staleness.mean), "staleness"))
    return [(name, value, getattr(p.interval, field, None)) for name, value, field in measures]


def answer(p: Predicted) -> list[tuple[str, str, str]]:
    """The key figures at the top of a page: name, value, and interval or remark."""
    names = {"idle fraction": "Idle time"}
    units = {"throughput": " samples/s", "staleness": " updates"}
    rows = []
    for name, value, ends in _measures(p):
        text = f"{value.value:.3g}" if name == "staleness" else shown(value)
        low, high = (shown(end, value.unit) for end in ends or (0.0, 0.0))
        remark = f"{low} to {high} in 9 of 10 runs" if ends and ends[1] else ""
        text += units.get(name, "")
        text = "1 update" if text == "1 updates" else text
        rows.append((names.get(name, name.capitalize()), text, remark))
    if p.training is not None:
        run = p.training.with_failures
        if run is None:
            rows.append(("Training", f"{p.training.training_s / HOUR_S:.4g} h", ""))
        else:
            low, high = (f"{end / HOUR_S:.4g} h" for end in run.interval_s)
            remark = f"{low} to {high} in 9 of 10 runs, with {run.failures:.3g} failures"
            rows.append(("Training", f"{run.median_s / HOUR_S:.4g} h", remark))
    longest = re.split(" takes? ", p.bottleneck.text)[0]
    return [*rows, ("Bottleneck", shown(p.bottleneck.share, "fraction"), longest)]


def sections(p: Predicted, *, assumptions: bool = True) -> list[Section]:
    """The sections of a prediction; that of its assumptions is optional."""
    all_sections = [_answer(p)]
    if assumptions:
        all_sections.append(_assumptions(p))
    all_sections += [_time(p), _timeline(p), _idle(p)]
    if p.staleness is not None:
        all_sections.append(_staleness(p.staleness))
    return [*all_sections, _utilisation(p), _memory(p)]


def reproduce(p: Predicted, code: tuple[tuple[str, str], ...] = ()) -> Section:
    """The section on how to reproduce the prediction."""
    made = p.provenance
    inputs = json.dumps(made.inputs, indent=2)
    return Section(
        name="reproduce",
        title="How to reproduce this",
        text=[
            f"perfmodel {made.perfmodel}, Python {made.python}, NumPy {made.numpy}, seed "
            f"{made.seed}. The same inputs give the same numbers."
        ],
        code=(*code, ("Inputs, with all defaults filled in", inputs)),
    )


def _answer(p: Predicted) -> Section:
    names = {"throughput": "throughput (samples/s)", "staleness": "staleness (updates)"}
    rows: list[tuple[object, ...]] = [
        (
            names.get(name, name),
            value,
            *(UnitValue(end, value.unit) for end in ends or (None, None)),
        )
        for name, value, ends in _measures(p)
    ]
    process = "device" if p.memory.stages else "worker"
    rows.append((f"memory per {process}", UnitValue(p.memory.worker_bytes, "bytes"), None, None))
    text = [f"Bottleneck: {p.bottleneck.text}."]
    if p.interval is not None:
        text.append(f"Interval: {p.interval.text}.")
    how = "simulated" if p.fidelity == "fine" else "predicted by formulas"
    text.append(f"The job was {how}. Compute times are {p.quality}.")
    if p.error_band is not None:
        text.append(f"Error of the formulas relative to the simulation: {p.error_band.text}.")
    heads = columns("quantity", "predicted", "low", "high")
    table = PageTable("Prediction and 90 % interval", heads, rows)
    return Section(name="answer", title="Prediction", text=[*text, *p.notes], tables=[table])


def _assumptions(p: Predicted) -> Section:
    rows = [(a.name, UnitValue(a.value, a.unit), a.source) for a in p.assumptions]
    heads = columns("assumption", "value", "source")
    table = PageTable("Assumptions", heads, rows)
    return Section(name="assumptions", title="Assumptions", tables=[table])


def parts_s(p: Predicted) -> dict[str, float]:
    """Seconds of a worker's mean iteration: ``compute``, and waiting by cause."""
    waiting = {cause: share * p.iteration_s for cause, share in p.idle_fraction.by_cause.items()}
    return {"compute": p.compute_s, **waiting}


def time_panel(p: Predicted) -> Panel:
    """A bar as long as an iteration: computing, then waiting by cause."""
    label = "mean iteration time of a worker (s)"
    ends = None if p.interval is None else p.interval.iteration_s
    panel = stacks(["iteration"], [parts_s(p)], label, [ends])
    percent = {k.replace("_", " "): f" {s / p.iteration_s:.1%}" for k, s in parts_s(p).items()}
    marks = [
        msgspec.structs.replace(mark, name=mark.name + percent.get(mark.name, ""))
        for mark in panel.marks
    ]
    return msgspec.structs.replace(panel, marks=marks, legend=True)


def _time(p: Predicted) -> Section:
    parts = parts_s(p)
    rows = [(kind.replace("_", " "), s, s / p.iteration_s) for kind, s in parts.items()]
    heads = columns("kind", time="s", share="fraction")
    tables = [PageTable("Time of an iteration", heads, rows)]
    for name, title_, seconds in (
        ("Phases", "phase", p.phases_s),
        ("Operations, including queueing", "operation", p.operation_s),
    ):
        if seconds:
            heads = [Column(title_), Column("mean duration", "s")]
            tables.append(PageTable(name, heads, list(seconds.items())))
    return Section(
        name="time",
        title="Where the time goes",
        text=["Mean over all workers: computing, and waiting by cause."],
        figure=time_panel(p),
        tables=tables,
    )


def _timeline(p: Predicted) -> Section:
    name, heading = "timeline", "Timeline of two iterations"
    try:
        timeline = p.timeline()
    except InputError as error:
        return Section(name=name, title=heading, text=[f"No timeline: {error}."])
    heads = [Column("resource"), Column("operation"), Column("busy", "s"), Column("operations")]
    return Section(
        name=name,
        title=heading,
        text=[
            "Zoom with the mouse wheel, drag to move along the time axis and down to servers and "
            "links, and hover over a block for details. Click a legend entry to hide or show a "
            "kind of operation."
        ],
        figure=timeline_figure.panel(timeline),
        tables=[PageTable("Busy time of each resource", heads, timeline_figure.busy_s(timeline))],
    )


def _idle(p: Predicted) -> Section:
    idle = p.idle_fraction
    causes = {cause.replace("_", " "): share for cause, share in idle.by_cause.items()}
    parts: dict[str, list[tuple[str | int, float]]] = {
        "cause": [*causes.items()],
        "stage": [*enumerate(idle.by_stage)],
        "worker": [*enumerate(idle.per_worker)],
    }
    tables = [
        PageTable(f"Idle time by {name}", columns(name, idle="fraction"), rows)
        for name, rows in parts.items()
        if rows or name != "stage"
    ]
    named = {cause: share for cause, share in causes.items() if share}
    return Section(
        name="idle",
        title="Idle time by cause",
        text=[f"Devices are idle {shown(idle.mean, 'fraction')} of the time."],
        figure=shares(named, "cause", "fraction of the time") if named else None,
        tables=tables,
    )


def _staleness(stale: Predicted) -> Section:
    rows = sorted((int(value), share) for value, share in stale.histogram.items())
    bars = [(str(value), share) for value, share in rows[:MOST_BARS]]
    if len(rows) > MOST_BARS:
        bars.append((f"{rows[MOST_BARS][0]}+", sum(share for _, share in rows[MOST_BARS:])))
    heads = [Column("staleness"), Column("share of updates", "fraction")]
    tables = [PageTable("Staleness histogram", heads, rows)]
    if stale.by_stage:
        stages = list(enumerate(stale.by_stage))
        tables.append(PageTable("Staleness by stage", columns("stage", "staleness"), stages))
    return Section(
        name="staleness",
        title="Gradient staleness",
        text=[
            "Updates to a parameter between a worker's read and its own update: "
            f"{stale.mean:.3g} on average."
        ],
        figure=shares(dict(bars), "staleness (updates)", "share of updates")
        if len(bars) > 1
        else None,
        tables=tables,
    )


def _utilisation(p: Predicted) -> Section:
    use = p.utilisation
    rows = [
        (name, share)
        for group in (use.workers, use.servers, use.links, use.cores)
        for name, share in group.items()
    ]
    rows.sort(key=lambda row: -row[1])
    return Section(
        name="utilisation",
        title="Utilisation",
        text=["Busiest resources first."],
        tables=[PageTable("Utilisation", [Column("resource"), Column("in use", "fraction")], rows)],
    )


def memory_panel(p: Predicted) -> Panel:
    """Components of a worker's memory and of a server's when it is largest, with the interval of
    what the worker reserves; and the memory of its device. Of replicas, a bar for a device of each
    stage."""
    server = p.memory.server
    named = {f"stage {number}": stage for number, stage in enumerate(p.memory.stages)}
    named = named or {"worker": p.memory.worker}
    bars = {name: footprint.at_peak for name, footprint in named.items()}
    reserved = [footprint.reserved_bytes for footprint in named.values()]
    ends = [None if size is None else (size.p5 / GB, size.p95 / GB) for size in reserved]
    if server is not None:
        bars["fullest server"] = server.at_peak
    if p.memory.device_bytes is not None:
        bars[p.device] = {"device": p.memory.device_bytes}
    in_gb = [{name: size / GB for name, size in parts.items()} for parts in bars.values()]
    return stacks(list(bars), in_gb, "memory (GB)", ends)


def _memory(p: Predicted) -> Section:
    stage = p.memory.fullest_stage
    processes = {"worker" if stage is None else f"stage {stage}": p.memory.worker.tensors}
    if p.memory.server is not None:
        processes["fullest server"] = p.memory.server.tensors
    heads = [Column("component"), *(Column(process, "bytes") for process in processes)]
    sizes = zip(p.memory.worker.tensors, *(t.values() for t in processes.values()), strict=True)
    rows = [row for row in sizes if any(row[1:])]
    return Section(
        name="memory",
        title="Memory",
        text=["What exists when memory is largest; the line is the interval of what is reserved."],
        figure=memory_panel(p),
        tables=[PageTable("Memory by component", heads, rows)],
    )
