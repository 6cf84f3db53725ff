"""The file of a training run, with its configuration and results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perfmodel.base import files
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.provenance import Source
from perfmodel.reporting.contents import (
    INK,
    INTERVAL,
    Axis,
    Bars,
    Figure,
    Mark,
    Panel,
    Series,
    Span,
)
from perfmodel.reporting.drawn import Drawn
from perfmodel.reporting.panels import colour, rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from perfmodel.results.prediction import Prediction

SCHEMA = "perfmodel.run/1"

Options = dict[str, str | int | float | bool]
"""Options of an architecture, by name."""


MOST_DIGITS = 9
"""Maximum number of digits in a staleness value."""


class RunResults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Results of a run, after its warm-up.

    Attributes
    ----------
    iterations : measured iterations of each worker.
    warmup : unmeasured iterations before them.
    iteration_s : workers / (iterations per second of all workers together).
    iteration_std_s : standard deviation of the iteration time, over all workers.
    worker_iteration_s : mean iteration time of each worker, (workers,).
    samples_per_s : throughput of all workers together.
    compute_s : mean computing time of a worker per iteration.
    idle_fraction : fraction of a worker's time in which it does not compute.
    staleness : number of updates by staleness; keys are staleness values as text. None if staleness
    is always zero.
    update_per_tensor_s, update_per_byte_s : server's cost of applying a pushed tensor, and per
    byte; None without a server, or if the two cannot be told apart.
    sent_bytes : bytes that a worker sent per iteration.
    """

    iterations: int
    warmup: int
    iteration_s: float
    iteration_std_s: float
    worker_iteration_s: tuple[float, ...]
    samples_per_s: float
    compute_s: float
    idle_fraction: float
    staleness: dict[str, int] | None = None
    update_per_tensor_s: float | None = None
    update_per_byte_s: float | None = None
    sent_bytes: float | None = None

    def __post_init__(self) -> None:
        whole_number("iterations", self.iterations)
        whole_number("warmup", self.warmup, at_least=0)
        for name in ("iteration_s", "samples_per_s"):
            number(name, getattr(self, name), above=0.0)
        for i, value in enumerate(self.worker_iteration_s):
            number(f"worker_iteration_s[{i}]", value, above=0.0)
        for name in ("iteration_std_s", "compute_s"):
            number(name, getattr(self, name))
        number("idle_fraction", self.idle_fraction, at_least=-1.0, at_most=1.0)
        for name in ("update_per_tensor_s", "update_per_byte_s", "sent_bytes"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name))
        for stale, count in (self.staleness or {}).items():
            if not (stale.isascii() and stale.isdigit() and len(stale) <= MOST_DIGITS):
                raise InputError(f"staleness: expected whole numbers as keys, got {stale!r}")
            whole_number(f"staleness[{stale}]", count, at_least=0)
        if self.staleness and not any(self.staleness.values()):
            raise InputError("staleness: all counts are zero")

    @property
    def mean_staleness(self) -> float | None:
        """Mean staleness over all updates; None if there is no staleness."""
        if not self.staleness:
            return None
        total = sum(self.staleness.values())
        return sum(int(stale) * count for stale, count in self.staleness.items()) / total


class MeasuredRun(Drawn, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training run (schema ``perfmodel.run/1``).

    Attributes
    ----------
    workload : name of the workload that was trained.
    batch_size : samples per worker and iteration.
    arch, options : the equivalent architecture and options for ``make_job``.
    jitter : jitter that the run added, as text for ``make_job``; empty if it added none.
    emulated : whether the accelerator was emulated by waiting for the workload's times.
    device : device of these times; empty for the workload's default.
    """

    schema: Literal["perfmodel.run/1"] = "perfmodel.run/1"
    name: str
    workload: str
    batch_size: int
    workers: int
    arch: str
    options: Options
    measured: RunResults
    source: Source
    jitter: str = ""
    emulated: bool = False
    device: str = ""

    def __post_init__(self) -> None:
        whole_number("batch_size", self.batch_size)
        whole_number("workers", self.workers)
        if len(self.measured.worker_iteration_s) != self.workers:
            raise InputError(
                f"measured.worker_iteration_s: {len(self.measured.worker_iteration_s)} values for "
                f"{self.workers} workers"
            )

    def figure(self, predicted: Prediction | None = None) -> Figure:
        """Iteration times by worker, and staleness; beside them those of a prediction."""
        measured = self.measured
        names = [f"worker {worker}" for worker in range(self.workers)]
        times = rows(names, measured.worker_iteration_s, "mean iteration time (s)")
        marks: list[Mark] = [
            *(msgspec.structs.replace(mark, name="measured") for mark in times.marks),
            Span("mean compute time", measured.compute_s, colour=INK, style="dashed"),
        ]
        if predicted is not None:
            marks.append(Span("predicted", predicted.iteration_s, colour=colour(1), width=1.5))
            if predicted.interval is not None:
                ends = predicted.interval.iteration_s
                marks.append(Span(INTERVAL, *ends, colour=colour(1), opacity=0.18))
        panels = [msgspec.structs.replace(times, marks=marks)]
        counts = {int(value): count for value, count in (measured.staleness or {}).items()}
        if counts and set(counts) != {0}:
            shares = {value: count / sum(counts.values()) for value, count in counts.items()}
            panels.append(_staleness(shares, predicted))
        return Figure([panels], f"{self.name}: {measured.samples_per_s:.4g} samples/s")

    def plot(self, predicted: Prediction | None = None) -> Drawing:
        """The figure, drawn with matplotlib (extra ``plot``).

        Raises
        ------
        InputError : matplotlib is not installed.
        """
        from perfmodel.reporting import images

        return images.draw(self.figure(predicted))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``make_job`` for the run, except its workload and cluster."""
        names = ("batch_size", "workers", "arch", "options", "jitter", "device")
        return {name: value for name in names if (value := getattr(self, name)) != ""}


def _staleness(measured: Mapping[int, float], predicted: Prediction | None) -> Panel:
    """Shares of the updates by their staleness."""
    at, shares = list(measured), list(measured.values())
    marks: list[Mark] = [Bars("", shares, colour(0), at=at, along="y")]
    if predicted is not None and predicted.staleness is not None:
        known = sorted((int(v), share) for v, share in predicted.staleness.histogram.items())
        x, y = zip(*known, strict=True)
        marks.append(Series("", x, y, colour(1), "points", "o"))
    return Panel(marks, Axis("staleness (updates)"), Axis("share of updates", low=0.0))


def read_run(path: str | Path) -> MeasuredRun:
    """Read the file of a training run.

    Raises
    ------
    InputError : see :func:`perfmodel.base.files.read`.
    """
    return files.read(path, MeasuredRun, SCHEMA)
