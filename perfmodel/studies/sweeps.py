"""Many jobs in one call: :func:`sweep` predicts every combination of values."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perfmodel import api
from perfmodel.base import files
from perfmodel.base.errors import number
from perfmodel.base.tables import csv_text, parquet
from perfmodel.inputs.job import Job
from perfmodel.predicting.answer import with_timeline
from perfmodel.results.drawn import Drawn
from perfmodel.results.prediction import Prediction
from perfmodel.studies import shards
from perfmodel.studies.executors import InLine
from perfmodel.studies.grids import Axis, Row, Skipped, grid, impossible, label
from perfmodel.theory import statistical_efficiency

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd
    from matplotlib.figure import Figure

    from perfmodel.reporting.contents import Figure as Drawing

SCHEMA = "perfmodel.sweep/1"

NATURAL = ("workers", "bandwidth_bytes_per_s", "batch_size", "global_batch_size", "latency_s")
"""Preferred x axes of a figure, where they vary; after these, any other number."""

MOST_BANDS = 3
"""Lines of a page up to which each has the band of its interval."""

Progress = shards.Progress


class Sweep(Drawn, frozen=True, kw_only=True):
    """Predictions of many jobs.

    ``points`` has for each of the ``predictions`` the value of each axis by name, in SI units;
    None where an option does not apply to an architecture.
    """

    axes: tuple[Axis, ...]
    points: tuple[Row, ...]
    predictions: tuple[Prediction, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()
    noise_scale_samples: float | None = None

    def __repr__(self) -> str:
        over = ", ".join(f"{len(axis.values)} x {axis.name}" for axis in self.axes)
        return f"Sweep({over}: {len(self.predictions)} jobs, {len(self.skipped)} skipped)"

    @property
    def title(self) -> str:
        """Inputs that all jobs have in common."""
        return common(self.predictions)

    def rows(self) -> list[Row]:
        """A row per job: varied inputs, then predictions, in SI units.

        Device and batch size are included if they depend on the varied inputs.
        ``scaling_efficiency`` is included if workers were varied: throughput over workers, as a
        fraction of the same with the fewest workers, all else being equal. With a gradient noise
        scale, ``statistical_efficiency`` is the progress per sample relative to the smallest update
        among the jobs, and ``goodput_samples_per_s`` its product with the throughput: the time to a
        target is in inverse proportion to it (Qiao et al., "Pollux", OSDI 2021). Staleness is not
        counted.
        """
        efficiency = self._scaling_efficiency()
        statistical = self._statistical_efficiency()
        varied = {axis.name for axis in self.axes}
        follows = [
            name
            for name in ("device", "batch_size")
            if name not in varied and len({getattr(p, name) for p in self.predictions}) > 1
        ]
        rows = []
        for i, (point, p) in enumerate(zip(self.points, self.predictions, strict=True)):
            row = {**point, **{name: getattr(p, name) for name in follows}, **figures(p)}
            if efficiency:
                row["scaling_efficiency"] = efficiency[i]
            if statistical:
                row["statistical_efficiency"] = statistical[i]
                row["goodput_samples_per_s"] = statistical[i] * p.throughput_samples_per_s
            rows.append({**row, **how(p)})
        return rows

    def to_frame(self) -> pd.DataFrame:
        """The rows as a frame, one per job."""
        return frame(self.rows())

    def to_csv(self, path: str | Path | None = None) -> str:
        """The frame as CSV text, also written to ``path`` if there is one.

        Raises
        ------
        InputError : the place cannot be written.
        """
        return csv_text(self.to_frame(), path)

    def to_parquet(self, path: str | Path | None = None) -> bytes:
        """The frame as a Parquet file (extra ``parquet``), also written to a ``path``.

        A column of both text and numbers becomes text.

        Raises
        ------
        InputError : pyarrow is not installed, or the place cannot be written.
        """
        return parquet(self.to_frame(), path)

    def to_dict(self) -> dict[str, Any]:
        """Axes, rows and skipped combinations, as JSON-like values."""
        return {
            "schema": SCHEMA,
            "axes": files.finite({axis.name: axis.shown for axis in self.axes}, "inf"),
            "rows": files.finite(self.rows(), "inf"),
            "skipped": [
                {"point": files.finite(s.point, "inf"), "reason": s.reason} for s in self.skipped
            ],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def plot(self) -> Figure:
        """A matplotlib figure: throughput and idle fraction over a varied input (extra ``plot``).

        Over workers if these were varied, else bandwidth, batch size, latency, or another number;
        a line for each combination of the rest. Without any number: bars.

        Raises
        ------
        InputError : matplotlib is not installed.
        """
        from perfmodel.results.drawing import bars, lines

        over = self._drawn_over()
        rows = [
            row | {"interval": None if p.interval is None else msgspec.to_builtins(p.interval)}
            for row, p in zip(self.rows(), self.predictions, strict=True)
        ]
        if over is None:
            return bars([label(point) or "job" for point in self.points], rows, self.title)
        series: dict[str, list[Row]] = {}
        for point, row in zip(self.points, rows, strict=True):
            rest = {name: value for name, value in point.items() if name != over}
            series.setdefault(label(rest), []).append(row)
        return lines(over, series, self.title)

    def report(self, path: str | Path | None = None) -> str:
        """A page of HTML that needs no network, also written to ``path`` (extra ``report``).

        Raises
        ------
        InputError : Bokeh is not installed; the place cannot be written.
        """
        from perfmodel.reporting import page
        from perfmodel.reporting.contents import Page, Section, shown
        from perfmodel.reporting.rows import table

        rows, names = self.rows(), [label(point) or "job" for point in self.points]
        best = max(range(len(rows)), key=lambda i: rows[i]["throughput_samples_per_s"])
        answer = [
            ("Jobs", str(len(rows)), f"{len(self.skipped)} impossible" if self.skipped else ""),
            ("Fastest", shown(rows[best]["throughput_samples_per_s"], "samples/s"), names[best]),
        ]
        parts = [
            Section(name="throughput", title="Throughput", figure=self._drawn("throughput")),
            Section(name="idle", title="Idle devices", figure=self._drawn("idle")),
            Section(
                name="jobs", title="All jobs", text=self.notes, tables=[table("Jobs", rows)]
            ),
        ]
        if self.skipped:
            skipped = [{"job": label(s.point), "reason": s.reason} for s in self.skipped]
            left_out = table("Impossible jobs", skipped)
            parts.append(Section(name="skipped", title="Left out", tables=[left_out]))
        title = f"Sweep: {self.title}" if self.title else "Sweep"
        return page.html(Page(title=title, answer=answer, sections=parts), path)

    def _drawn(self, what: Literal["throughput", "idle"]) -> Drawing:
        """The figure of a page: lines over a number, or bars."""
        from perfmodel.reporting.contents import Lines, Series, Stacks
        from perfmodel.results.drawing import MOST_BARS, MOST_LINES, geometric
        from perfmodel.results.style import spread

        key, words = {
            "throughput": ("throughput_samples_per_s", "throughput (samples/s)"),
            "idle": ("idle_fraction", "fraction of the time"),
        }[what]
        over, rows = self._drawn_over(), self.rows()
        if over is None:
            bars = spread(list(zip(self.points, rows, strict=True)), MOST_BARS)
            names = [label(point) or "job" for point, _ in bars]
            return Stacks(names, {what: [row[key] for _, row in bars]}, words)
        found: dict[str, list[Row]] = {}
        for point, row in zip(self.points, rows, strict=True):
            rest = {name: value for name, value in point.items() if name != over}
            if row[over] is not None:
                found.setdefault(label(rest) or what, []).append(row)
        series = []
        for name in spread(list(found), MOST_LINES):
            line = sorted(found[name], key=lambda row: row[over])
            ends = [(r["low_samples_per_s"], r["high_samples_per_s"]) for r in line]
            band = what == "throughput" and len(found) <= MOST_BANDS
            whole = band and all(low is not None for low, _ in ends)
            series.append(
                Series(
                    name=name,
                    x=[row[over] for row in line],
                    y=[row[key] for row in line],
                    low=[low for low, _ in ends] if whole else (),
                    high=[high for _, high in ends] if whole else (),
                )
            )
        log = geometric(sorted({x for each in series for x in each.x}))
        return Lines(
            series=series, over=over, title=words, log_x=log, log_y=log and what == "throughput"
        )

    def _drawn_over(self) -> str | None:
        def is_number(name: str) -> bool:
            values = {point[name] for point in self.points} - {None}
            return len(values) > 1 and all(
                isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)
                for v in values
            )

        names = [axis.name for axis in self.axes]
        return next((n for n in [*NATURAL, *names] if n in names and is_number(n)), None)

    def _statistical_efficiency(self) -> list[float]:
        noise = self.noise_scale_samples
        if noise is None:
            return []
        sizes = [samples_per_update(p) for p in self.predictions]
        return [statistical_efficiency.efficiency(noise, size, min(sizes)) for size in sizes]

    def _scaling_efficiency(self) -> list[float]:
        if "workers" not in [axis.name for axis in self.axes]:
            return []
        first: dict[str, tuple[float, float]] = {}
        series = []
        for point, p in zip(self.points, self.predictions, strict=True):
            key = repr({name: value for name, value in point.items() if name != "workers"})
            series.append(key)
            first[key] = min(
                (p.workers, p.throughput_samples_per_s), first.get(key, (math.inf, 0.0))
            )
        return [
            p.throughput_samples_per_s / first[key][1] / (p.workers / first[key][0])
            for key, p in zip(series, self.predictions, strict=True)
        ]


def sweep(
    *,
    fidelity: api.Fidelity = "auto",
    tolerance: float = api.TOLERANCE,
    rel_ci: float = api.REL_CI,
    max_ops: float = api.MOST_OPS,
    noise_scale_samples: float | None = None,
    executor: Executor | None = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
    **arguments: Any,
) -> Sweep:
    """Predict every combination of the values that are given.

    It has so many parameters because each is a question of its own; all have a default. The result
    does not depend on ``executor`` and ``resume``.

    Parameters
    ----------
    fidelity, tolerance, rel_ci, max_ops : see :func:`perfmodel.predict`.
    noise_scale_samples : gradient noise scale of the training, for the efficiency of each job's
        batch (:mod:`perfmodel.theory.statistical_efficiency`); :func:`perfmodel.converge` measures
        that of its task. None: that of the workload, if it has one and all jobs the same, which a
        note says.
    executor : predicts the jobs: processes, threads, or a cluster's such as that of Dask's
        ``Client.get_executor()``. None: this thread. It is not shut down.
    resume : a folder that gets a shard for each chunk of jobs as it is done, see
        :class:`perfmodel.studies.shards.Shards`; jobs that it has already are not predicted again.
    progress : called with (done, all) after each job, or each chunk of jobs.
    arguments : those of :func:`perfmodel.make_job`, and ``global_batch_size`` in the place of
        ``batch_size``; each, and each of the ``options``, may be a list of values (``stragglers``:
        a list of lists). Workers vary fastest; the order does not depend on that of the arguments.

    Raises
    ------
    InputError : no combination is a job, or a name that fits in none; a value is given twice; more
        than 100000 jobs; ``resume`` holds another sweep, or cannot be written; what predicts the
        jobs has broken down, or has another version.

    >>> found = sweep(model="resnet18", arch=["ring", "ps"], workers=[1, 2])
    >>> [list(point.values()) for point in found.points]
    [['ring', 1], ['ring', 2], ['ps', 1], ['ps', 2]]
    """
    if noise_scale_samples is not None and noise_scale_samples != math.inf:
        number("noise_scale_samples", noise_scale_samples)
    found = grid(arguments)
    notes = found.notes
    if noise_scale_samples is None:
        noise_scale_samples, said = _noise_scale(found.jobs)
        notes += said
    points, predictions, skipped = [], [], list(found.skipped)
    how: dict[str, Any] = {
        "fidelity": fidelity,
        "tolerance": tolerance,
        "rel_ci": rel_ci,
        "max_ops": max_ops,
    }
    answers = shards.answers(found, how, executor or InLine(), resume, progress)
    for point, job, answer in zip(found.points, found.jobs, answers, strict=True):
        if isinstance(answer, Prediction):
            predictions.append(with_timeline(answer, job, max_ops))
            points.append(point)
        else:
            skipped.append(Skipped(point, str(answer)))
    if not predictions:
        raise impossible(skipped)
    return Sweep(
        axes=found.axes,
        points=tuple(points),
        predictions=tuple(predictions),
        skipped=tuple(skipped),
        notes=notes,
        noise_scale_samples=noise_scale_samples,
    )


def _noise_scale(jobs: Sequence[Job]) -> tuple[float | None, tuple[str, ...]]:
    """The noise scale that all workloads have, and a note; None where there is none, or several."""
    scales = {job.workload.noise_scale_samples for job in jobs}
    if scales == {None}:
        return None, ()
    if len(scales) > 1:
        why = "workloads have different ones, or none: no statistical efficiency"
        return None, (f"noise scale: {why}",)
    scale = scales.pop()
    return scale, (f"noise scale: {scale:.4g} samples, measured with the workload",)


def samples_per_update(p: Prediction) -> float:
    """Samples whose gradients one update has; without servers, those of a step of all workers.

    >>> found = sweep(model="resnet18", arch=["bsp", "asp", "gosgd"], workers=4, batch_size=16)
    >>> [round(samples_per_update(p)) for p in found.predictions]
    [64, 16, 64]
    """
    servers = p.architecture == "ps"
    return p.throughput_samples_per_s / p.updates_per_s if servers else float(p.global_batch_size)


def how(p: Prediction) -> Row:
    """Bottleneck, fidelity, and the 90 % interval: the last columns of a sweep."""
    interval = p.interval
    return {
        "bottleneck": p.bottleneck.resource,
        "fidelity": p.fidelity,
        "error_p90_fraction": p.error_band.p90 if p.error_band is not None else None,
        "low_samples_per_s": interval.throughput_samples_per_s[0] if interval else None,
        "high_samples_per_s": interval.throughput_samples_per_s[1] if interval else None,
    }


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a frame; columns of integers and booleans keep their type beside missing values."""
    import pandas as pd

    columns = {name: [row[name] for row in rows] for name in rows[0]}
    whole, truth = {int, type(None)}, {bool, type(None)}
    dtypes = {
        name: "Int64" if whole <= set(map(type, column)) else "boolean"
        for name, column in columns.items()
        if set(map(type, column)) in (whole, truth)
    }
    return pd.DataFrame(columns).astype(dtypes)


def common(predictions: Sequence[Prediction]) -> str:
    """Inputs that predictions have in common, as a title."""
    same: Row = {}
    for name in ("model", "device", "architecture", "batch_size", "workers"):
        found = {getattr(p, name) for p in predictions}
        same |= {name: found.pop()} if len(found) == 1 else {}
    return label(same)


def figures(p: Prediction) -> Row:
    """Predicted figures, in SI units, by the names of the columns of a sweep."""
    return {
        "throughput_samples_per_s": p.throughput_samples_per_s,
        "throughput_ci_fraction": p.throughput_ci_fraction,
        "iteration_s": p.iteration_s,
        "idle_fraction": p.idle_fraction.mean,
        "staleness_mean": p.staleness.mean if p.staleness is not None else None,
    }
