"""Errors of the coarse model on the grid, with and without its heuristics."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.coarse.grid import Cell
from perfmodel import Job, __version__, coarse, predict

Progress = Callable[[int, int], None]


class Row(msgspec.Struct, frozen=True):
    """A job of the grid: iteration times (s) by simulation, by the coarse model, and by that
    without heuristics; whether it is declared exact."""

    name: str
    group: str
    fine_s: float
    coarse_s: float
    plain_s: float
    exact: bool
    p90: float

    @property
    def error(self) -> float:
        """Of the coarse model, as a fraction of the simulated iteration."""
        return self.coarse_s / self.fine_s - 1.0

    @property
    def plain_error(self) -> float:
        """Without heuristics."""
        return self.plain_s / self.fine_s - 1.0


def measured(cell: Cell, fine_s: float | None = None) -> Row:
    """Predict a job of the grid on both routes; simulate it unless that is known."""
    job = cell.job()
    if fine_s is None:
        fine_s = predict(job).iteration_s
    band = coarse.error_band(job)
    return Row(
        name=cell.name,
        group=cell.variant.group,
        fine_s=fine_s,
        coarse_s=float(coarse.phases(job).iteration_s),
        plain_s=float(coarse.phases(plain(job), corrected=False).iteration_s),
        exact=coarse.model_of(job).exact(job),
        p90=math.inf if band.p90 is None else band.p90,
    )


def plain(job: Job) -> Job:
    """A job as a coarse model without heuristics sees it.

    Nothing overlaps, nobody is slower than the mean, and queues are those of exponential times.
    """
    options = job.options
    if hasattr(options, "overlap"):
        changed = {"overlap": False}
        if getattr(options, "bucketing", None) == "mg_wfbp":
            changed["bucketing"] = "layer"
        options = msgspec.structs.replace(options, **changed)
    return msgspec.structs.replace(job, options=options, jitter=None)


class Store:
    """Simulated iteration times in a file, one JSON object a line, for runs to come."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.known: dict[str, float] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                if row["version"] == __version__:
                    self.known[row["name"]] = row["fine_s"]

    def add(self, row: Row) -> None:
        """Keep a row's time."""
        if self._path is not None and row.name not in self.known:
            with self._path.open("a") as file:
                kept = {"version": __version__, "name": row.name, "fine_s": row.fine_s}
                file.write(json.dumps(kept) + "\n")


def rows(
    cells: Iterable[Cell], store: Store, progress: Progress = lambda done, of: None
) -> list[Row]:
    """Measure jobs, one after the other."""
    wanted = list(cells)
    found = []
    for number, cell in enumerate(wanted):
        row = measured(cell, store.known.get(cell.name))
        store.add(row)
        found.append(row)
        progress(number + 1, len(wanted))
    return found


def summary(errors: Iterable[float]) -> dict[str, float]:
    """Signed distribution of errors: 10th, 50th and 90th percentile and mean; and of their size."""
    values = np.array(list(errors))
    size = np.abs(values)
    return {
        "n": len(values),
        "p10_signed": float(np.quantile(values, 0.1)),
        "median_signed": float(np.median(values)),
        "p90_signed": float(np.quantile(values, 0.9)),
        "bias": float(values.mean()),
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        "worst": float(size.max()),
    }


def by_group(found: Iterable[Row]) -> Mapping[str, dict[str, Any]]:
    """For each group: errors of the coarse model (``errors``), without heuristics (``plain``), how
    many jobs are declared exact, and the largest error of these."""
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(row.group, []).append(row)
    return {
        name: {
            "errors": summary(row.error for row in group),
            "inexact": summary(row.error for row in group if not row.exact)
            if any(not row.exact for row in group)
            else None,
            "plain": summary(row.plain_error for row in group),
            "exact": sum(row.exact for row in group),
            "exact_worst": max((abs(row.error) for row in group if row.exact), default=0.0),
        }
        for name, group in groups.items()
    }
