"""Parameter sweeps: :func:`sweep` predicts every combination of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import msgspec

from perfmodel import api
from perfmodel.base import files
from perfmodel.base.errors import number
from perfmodel.inputs.job import Job
from perfmodel.predicting.answer import with_job
from perfmodel.reporting.contents import Figure, Page, Panel, Section, shown
from perfmodel.reporting.drawn import Paged
from perfmodel.reporting.rows import table
from perfmodel.results.prediction import Prediction
from perfmodel.sweeping import shards
from perfmodel.sweeping.arguments import merged
from perfmodel.sweeping.chunks import Progress
from perfmodel.sweeping.grids import GridArguments, GridAxis, Skipped, grid, impossible
from perfmodel.sweeping.labels import Row, label
from perfmodel.sweeping.processes import InLine
from perfmodel.sweeping.tables import (
    Tabular,
    basis_columns,
    best_of,
    common,
    memory_columns,
    quantity_columns,
)
from perfmodel.theory import statistical_efficiency

if TYPE_CHECKING:
    from concurrent.futures import Executor

SCHEMA = "perfmodel.sweep/1"

NATURAL = ("workers", "bandwidth_bytes_per_s", "batch_size", "global_batch_size", "latency_s")
"""Preferred x axes of a figure, if they vary; otherwise any other numeric axis is used."""


class Sweep(Paged, Tabular, frozen=True, kw_only=True):
    """Predictions of many jobs.

    ``points`` holds, for each of the ``predictions``, the value of each axis by name in SI units;
    None where an option does not apply to the architecture. ``fastest`` is the job with the highest
    throughput.
    """

    axes: tuple[GridAxis, ...]
    points: tuple[Row, ...]
    predictions: tuple[Prediction, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()
    noise_scale_samples: float | None = None
    fastest: Job | None = None

    def __repr__(self) -> str:
        over = ", ".join(f"{len(axis.values)} x {axis.name}" for axis in self.axes)
        return f"Sweep({over}: {len(self.predictions)} jobs, {len(self.skipped)} skipped)"

    @property
    def title(self) -> str:
        """Inputs that all jobs have in common."""
        return common(self.predictions)

    def rows(self) -> list[Row]:
        """One row per job: varied inputs, then predictions, in SI units.

        Device and batch size are included if they depend on the varied inputs.
        ``scaling_efficiency`` is included if workers vary: throughput per worker relative to that
        with the fewest workers, all else being equal. With a gradient noise scale,
        ``statistical_efficiency`` is the progress per sample relative to the smallest update among
        the jobs, and ``goodput_samples_per_s`` is its product with the throughput. Time to a target
        accuracy is inversely proportional to goodput (Qiao et al., "Pollux", OSDI 2021). The effect
        of staleness is not included. ``memory_fits`` is included if a job may not fit into its
        devices.
        """
        varied = {axis.name for axis in self.axes}
        follows = [
            name
            for name in ("device", "batch_size")
            if name not in varied and len({getattr(p, name) for p in self.predictions}) > 1
        ]
        efficiency, statistical = self._scaling_efficiency(), self._statistical_efficiency()
        rows = []
        memory = memory_columns(self.predictions)
        for i, (point, p) in enumerate(zip(self.points, self.predictions, strict=True)):
            row = {**point, **{name: getattr(p, name) for name in follows}, **quantity_columns(p)}
            if efficiency:
                row["scaling_efficiency"] = efficiency[i]
            if statistical:
                row["statistical_efficiency"] = statistical[i]
                row["goodput_samples_per_s"] = statistical[i] * p.throughput_samples_per_s
            rows.append({**row, **memory[i], **basis_columns(p)})
        return rows

    def to_dict(self) -> Row:
        """Axes, rows and skipped combinations as JSON-like values."""
        values = {
            "schema": SCHEMA,
            "axes": {axis.name: axis.shown for axis in self.axes},
            "rows": self.rows(),
            "skipped": [{"point": s.point, "reason": s.reason} for s in self.skipped],
            "notes": list(self.notes),
        }
        return {name: files.finite(value, "inf") for name, value in values.items()}

    def figure(self) -> Figure:
        """Throughput and idle fraction over a varied input.

        The x axis is the number of workers if it varies, else bandwidth, batch size, latency, or
        another number, with one line per combination of the other axes. Without a numeric axis,
        bars are drawn.
        """
        throughput, idle = self._panels()
        rows = [[throughput, idle]] if throughput.y.names else [[throughput], [idle]]
        return Figure(rows, self.title)

    def page(self) -> Page:
        """The contents of the page."""
        rows, names = self.rows(), [label(point) or "job" for point in self.points]
        best = max(range(len(rows)), key=lambda i: rows[i]["throughput_samples_per_s"])
        answer = [
            ("Jobs", str(len(rows)), f"{len(self.skipped)} impossible" if self.skipped else ""),
            ("Fastest", shown(rows[best]["throughput_samples_per_s"], "samples/s"), names[best]),
        ]
        throughput, idle = self._panels()
        parts = [
            Section(name="throughput", title="Throughput", figure=throughput),
            Section(name="idle", title="Idle time", figure=idle),
            Section(name="jobs", title="All jobs", text=self.notes, tables=[table("Jobs", rows)]),
        ]
        if self.skipped:
            skipped = [{"job": label(s.point), "reason": s.reason} for s in self.skipped]
            left_out = table("Impossible jobs", skipped)
            parts.append(Section(name="skipped", title="Left out", tables=[left_out]))
        title = f"Sweep: {self.title}" if self.title else "Sweep"
        return Page(title=title, answer=answer, sections=parts)

    def _panels(self) -> tuple[Panel, Panel]:
        """Panels of the throughput and of the idle fraction."""
        from perfmodel.sweeping.figures import bars_of, lines_over

        over = next(iter(self._numeric()), None)
        rows = [
            row | {"interval": None if p.interval is None else msgspec.to_builtins(p.interval)}
            for row, p in zip(self.rows(), self.predictions, strict=True)
        ]
        if over is None:
            return bars_of([label(point) or "job" for point in self.points], rows)
        series: dict[str, list[Row]] = {}
        for point, row in zip(self.points, rows, strict=True):
            others = {name: value for name, value in point.items() if name != over}
            series.setdefault(label(others), []).append(row)
        return lines_over(over, series)

    def _numeric(self) -> list[str]:
        """Names of the axes with several numbers, those that are preferred first."""

        def is_number(name: str) -> bool:
            values = {point[name] for point in self.points} - {None}
            return len(values) > 1 and all(
                isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)
                for v in values
            )

        names = [axis.name for axis in self.axes]
        return [n for n in dict.fromkeys([*NATURAL, *names]) if n in names and is_number(n)]

    def _statistical_efficiency(self) -> list[float]:
        noise = self.noise_scale_samples
        if noise is None:
            return []
        sizes = [samples_per_update(p) for p in self.predictions]
        return [statistical_efficiency.efficiency(noise, size, min(sizes)) for size in sizes]

    def _scaling_efficiency(self) -> list[float]:
        if "workers" not in [axis.name for axis in self.axes]:
            return []
        least: dict[str, tuple[int, float]] = {}
        series = []
        for point, p in zip(self.points, self.predictions, strict=True):
            series.append(repr({name: v for name, v in point.items() if name != "workers"}))
            now = p.workers, p.throughput_samples_per_s
            least[series[-1]] = min(now, least.get(series[-1], now))
        return [
            p.throughput_samples_per_s / least[key][1] / (p.workers / least[key][0])
            for key, p in zip(series, self.predictions, strict=True)
        ]


def sweep(
    job: Job | None = None,
    *,
    fidelity: api.Fidelity = "auto",
    tolerance: float = api.TOLERANCE,
    rel_ci: float = api.REL_CI,
    max_ops: float = api.MOST_OPS,
    noise_scale_samples: float | None = None,
    executor: Executor | None = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
    **arguments: Unpack[GridArguments],
) -> Sweep:
    """Predict every combination of the given values.

    There are this many parameters because they are independent; all have a default. The result does
    not depend on ``executor`` and ``resume``.

    Parameters
    ----------
    fidelity, tolerance, rel_ci, max_ops : see :func:`perfmodel.predict`.
    noise_scale_samples : gradient noise scale of the training, which gives the statistical
        efficiency of each job's batch (:mod:`perfmodel.theory.statistical_efficiency`);
        :func:`perfmodel.converge` measures it for its task. None uses the workloads' noise scale if
        all jobs have the same one; a note says so.
    executor : runs the predictions: processes, threads, or a cluster such as Dask's
        ``Client.get_executor()``; None for this thread. It is not shut down.
    resume : folder in which each chunk of jobs is saved when it is done, see
        :class:`perfmodel.sweeping.shards.Shards`; jobs saved there are not predicted again.
    progress : called with (done, all) after each job, or each chunk of jobs.
    job : the job to start from, if there is one.
    arguments : changes of it (:meth:`perfmodel.Job.with_`), else those of
        :func:`perfmodel.make_job`; ``global_batch_size`` may replace ``batch_size``. Each argument,
        and each of the ``options``, may be a list of values (``stragglers``: a list of lists).
        Workers vary fastest, whatever the order of arguments.

    Raises
    ------
    InputError : no combination is possible, a name fits no combination, a value is given twice,
        there are more than 100000 jobs, ``resume`` holds another sweep or cannot be written, or the
        executor broke down or has a different installation.

    >>> result = sweep(model="resnet18", arch=["ring", "ps"], workers=[1, 2])
    >>> [list(point.values()) for point in result.points]
    [['ring', 1], ['ring', 2], ['ps', 1], ['ps', 2]]
    """
    if noise_scale_samples is not None and noise_scale_samples != math.inf:
        number("noise_scale_samples", noise_scale_samples)
    jobs = grid(arguments if job is None else merged(job, arguments))
    notes = jobs.notes
    if noise_scale_samples is None:
        noise_scale_samples, more = _noise_scale(jobs.jobs)
        notes += more
    how = api.PredictOptions(fidelity=fidelity, tolerance=tolerance, rel_ci=rel_ci, max_ops=max_ops)
    kept, predictions, skipped = [], [], list(jobs.skipped)
    answers = shards.answers(jobs, how, executor or InLine(), resume, progress)
    for i, answer in enumerate(answers):
        if isinstance(answer, Prediction):
            predictions.append(with_job(answer, jobs.jobs[i], max_ops))
            kept.append(i)
        else:
            skipped.append(Skipped(jobs.points[i], str(answer)))
    if not predictions:
        raise impossible(skipped)
    return Sweep(
        axes=jobs.axes,
        points=tuple(jobs.points[i] for i in kept),
        predictions=tuple(predictions),
        skipped=tuple(skipped),
        notes=notes,
        noise_scale_samples=noise_scale_samples,
        fastest=jobs.jobs[kept[best_of(predictions)]],
    )


def _noise_scale(jobs: Sequence[Job]) -> tuple[float | None, tuple[str, ...]]:
    """The noise scale common to all workloads, and a note; None if there is none or they differ."""
    scales = {job.workload.noise_scale_samples for job in jobs}
    if scales == {None}:
        return None, ()
    if len(scales) > 1:
        why = "not the same for all workloads, so no statistical efficiency is given"
        return None, (f"noise scale: {why}",)
    scale = scales.pop()
    return scale, (f"noise scale: {scale:.4g} samples, measured with the workload",)


def samples_per_update(p: Prediction) -> float:
    """Number of samples per model update; without servers, the global batch size.

    >>> result = sweep(model="resnet18", arch=["bsp", "asp", "gosgd"], workers=4, batch_size=16)
    >>> [round(samples_per_update(p)) for p in result.predictions]
    [64, 16, 64]
    """
    servers = p.architecture == "ps"
    return p.throughput_samples_per_s / p.updates_per_s if servers else float(p.global_batch_size)
