"""Staleness of asynchronous updates: the first half of a log predicts the second.

Wu, Magnusson, Feyzmahdavian, Johansson, "Delay-adaptive step-sizes for asynchronous learning", ICML
2022: logs of real runs with eight workers on one machine. The folder holds ``*.csv.gz`` files:

- one column: shared memory (BCD), one row for each update, the delay of the update in updates,
- N columns: a master and N workers (PIAG), one row for each iteration of the master, the ages in
  iterations of the gradients in use. An age that does not grow tells that the worker reported.

A log is named ``METHOD_STEPSIZE_PROBLEM``. Step sizes are nothing to the clock: the logs of one
problem share a fit. That is the spread of the workers' times, found by simulation from the spread
of staleness in each window of eight updates a worker. It differs from window to window, as other
work on the machine comes and goes. Predicted is the mixture of what was simulated for each.

The fits are in ``fitted/staleness_delay.json``, by family and problem, and *all* for problems that
were never seen. A log is predicted from where its fit ends, a log without one from its middle.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.accuracy import fitted
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel import Cluster, Jitter, Link, Source, Workload, WorkloadLayer, make_job, predict
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import Job

ABOUT = About(
    title="Staleness of asynchronous workers",
    citation="X. Wu, S. Magnusson, H. R. Feyzmahdavian, M. Johansson, ICML 2022; logs on GitHub, "
    "xuyangwu/Delay-data",
    folder="staleness_delay_data",
    splits={
        name: Split("the first half of each log, those of one problem together", what)
        for name, what in {
            "mean": "mean staleness of the second half of each log",
            "p90": "90th percentile of staleness in the second half of each log",
            "p99": "99th percentile of staleness in the second half of each log",
        }.items()
    },
    remarks="""\
The mean is a conservation law, N - 1 updates, and nothing is fitted to it (of a master that takes k
gradients an iteration it is N/k - 1 iterations, and k is fitted). The percentiles are simulated:
`asp` without communication, workers whose times vary by one coefficient of variation; it is
about 0.2 for MNIST, and 0.05 for RCV1 except for stretches of 50 to 150 updates, once or twice in a
log, in which some workers run several times slower than others.

*Worst cases.* The 99th percentile of RCV1 depends on how many such stretches fall into a half. In
the halves at hand it is anything from 9 to 18 updates, with the same workers and the same work.
That the logs of one problem are pooled and that each window has a spread of its own was decided
within the first halves, of BCD: fitted to first quarters, this makes the second ones most likely
(-1.54 per update; -1.56 with one spread for all windows, or with each log alone). The 99th
percentiles of eight quarters, off by 0.6, 0.4 and 1.3 updates on average, are too few to tell.
Errors of second halves had been seen before that.

*Not covered*: when such a stretch comes; differences between the step sizes, which the clock does
not see.""",
)

WINDOW = 8
"""Updates of each worker in a window."""

SETTLED = 5
"""Updates of each worker that are left out at the start, while all of them begin."""

SPREADS = tuple(float(cv) for cv in np.geomspace(0.02, 1.5, 16))
"""Coefficients of variation of the workers' times that are simulated."""

NO_TIME_BYTES_PER_S = 1e15
"""Of a link over which messages take no time."""

PARTS = {"p90": 0.9, "p99": 0.99}
"""Part of the updates that a percentile is of, by name of the split."""

Floats = NDArray[np.float64]


class StalenessFit(msgspec.Struct, frozen=True):
    """Of the logs of one problem: ``logs`` has how many rows of each it was fitted to.

    ``arrivals`` gradients that the master takes in an iteration (1 with shared memory), ``spreads``
    coefficients of variation of the workers' times by window, in order; ``p90`` and ``p99`` of the
    staleness of each log.
    """

    rows: int
    logs: dict[str, int]
    arrivals: float
    spreads: list[float]
    p90: list[float]
    p99: list[float]


@dataclass(frozen=True)
class Log:
    """A log, ``rows`` of it as in the file; one column for shared memory."""

    name: str
    rows: NDArray[np.int64]

    @property
    def family(self) -> str:
        """Name of what was logged."""
        return "BCD" if self.rows.shape[1] == 1 else "PIAG"

    @property
    def problem(self) -> str:
        """The last part of the name."""
        return self.name.rpartition("_")[2]

    @property
    def half(self) -> int:
        """Rows of the first half."""
        return len(self.rows) // 2

    @property
    def workers(self) -> int:
        """Of shared memory: from the mean of the first half, since nothing else tells."""
        if self.family == "PIAG":
            return int(self.rows.shape[1])
        return max(1, round(float(self.rows[: self.half].mean())) + 1)

    def delays(self, first: int, last: int) -> Floats:
        """Delay of each gradient that arrived in rows ``first`` to ``last``."""
        if self.family == "BCD":
            return self.rows[first:last, 0].astype(np.float64)
        first = max(first, 1)
        arrived = self.rows[first:last] <= self.rows[first - 1 : last - 1]
        return self.rows[first:last][arrived].astype(np.float64)

    def quantile(self, part: float, first: int, last: int) -> float:
        """Delay that ``part`` of the gradients do not exceed."""
        return float(np.quantile(self.delays(first, last), part, method="inverted_cdf"))


def read(folder: Path) -> list[Log]:
    """All logs of a folder.

    Raises
    ------
    InputError : there is none, or one cannot be read.
    """
    found = []
    for path in sorted(folder.glob("*.csv.gz")):
        try:
            rows = pd.read_csv(path, header=None).to_numpy(np.int64)
        except (ValueError, OSError, EOFError) as error:
            raise InputError(f"{path}: cannot read: {error}") from None
        log = Log(path.name.removesuffix(".csv.gz"), rows)
        if log.half < 2 * WINDOW * log.workers:
            click.echo(f"too short, left out: {log.name}", err=True)
            continue
        if log.workers < 2:
            click.echo(f"one worker, nothing is ever stale, left out: {log.name}", err=True)
            continue
        found.append(log)
    if not found:
        raise InputError(f"{folder}: no log that is long enough (*.csv.gz)")
    return found


def fit(folder: Path) -> None:
    """Write down the fits to the first halves."""
    logs = read(folder)
    keys = dict.fromkeys(key for log in logs for key in _keys(log))
    fitted.write(
        "staleness_delay",
        {key: calibrated([log for log in logs if key in _keys(log)]) for key in sorted(keys)},
    )


def calibrated(logs: Iterable[Log]) -> StalenessFit:
    """The fit to the first halves of logs of one family."""
    logs = list(logs)
    arrived = sum(len(log.delays(0, log.half)) for log in logs)
    arrivals = arrived / sum(log.half for log in logs)
    return StalenessFit(
        rows=sum(log.half for log in logs),
        logs={log.name: log.half for log in logs},
        arrivals=round(arrivals, 4),
        spreads=[round(cv, 3) for log in logs for cv in _spreads(log, arrivals)],
        p90=[log.quantile(PARTS["p90"], 0, log.half) for log in logs],
        p99=[log.quantile(PARTS["p99"], 0, log.half) for log in logs],
    )


def cases(folder: Path) -> list[Case]:
    """Mean and percentiles of staleness of what each log was not fitted to."""
    fits = fitted.read("staleness_delay", StalenessFit)
    found = []
    for log in read(folder):
        fit = next((fits[key] for key in _keys(log) if key in fits), None)
        if fit is None:
            click.echo(f"no fit to {log.family} logs, left out: {log.name}", err=True)
            continue
        first = fit.logs.get(log.name, log.half)
        if first + WINDOW * log.workers > len(log.rows):
            click.echo(f"fitted to all of it, left out: {log.name}", err=True)
            continue
        found += _cases(log, fit, first)
    if not found:
        raise InputError(f"{folder}: no log that can be predicted and was not fitted to")
    return found


def _cases(log: Log, fit: StalenessFit, first: int) -> list[Case]:
    workers, end = log.workers, len(log.rows)
    delays = log.delays(first, end)
    mean = workers / fit.arrivals - 1.0
    # an update that was under way at either end has a part of its window outside
    outside = workers**2 / len(delays) / 2
    early = float(log.delays(0, first).mean())
    pool = f"mean-{log.family}"
    found = [
        Case(
            f"staleness_delay/mean/{log.name}:staleness",
            log.name,
            mean,
            float(delays.mean()),
            interval=(mean - outside, mean + outside) if log.family == "BCD" else None,
            pools=("staleness_delay/mean:staleness", f"staleness_delay/{pool}:staleness"),
            others={"first half": early},
        )
    ]
    shares = mixture(workers, fit.spreads)
    for name, part in PARTS.items():
        updates = int(np.searchsorted(np.cumsum(shares), part - 1e-9))
        predicted = float(round((updates + 1.0) / fit.arrivals - 1.0))
        half_width = _half_width(getattr(fit, name))
        found.append(
            Case(
                f"staleness_delay/{name}/{log.name}:staleness",
                log.name,
                predicted,
                log.quantile(part, first, end),
                relative=False,
                interval=(predicted - half_width, predicted + half_width),
                pools=(
                    f"staleness_delay/{name}:staleness",
                    f"staleness_delay/{name}-{log.family}:staleness",
                ),
                others={"first half": log.quantile(part, 0, first), "no jitter": mean},
            )
        )
    return found


def mixture(workers: int, spreads: Iterable[float]) -> Floats:
    """Share of updates by staleness, where each of these spreads of times is as frequent."""
    simulated = _simulated(workers)
    found = np.zeros(simulated.shape[1])
    places = np.interp(list(spreads), SPREADS, np.arange(len(SPREADS)))
    for place in places:
        lower = min(int(place), len(SPREADS) - 2)
        above = place - lower
        found += (1.0 - above) * simulated[lower] + above * simulated[lower + 1]
    return found / len(places)


@functools.cache
def _simulated(workers: int) -> Floats:
    """(spreads, values) shares of updates by staleness, for each of :data:`SPREADS`."""
    histograms = []
    for cv in SPREADS:
        # throughput hardly varies where times vary little, but staleness does
        answer = predict(_job(workers, cv), rel_ci=min(cv / 100.0, 3e-3))
        seen = answer.staleness.histogram if answer.staleness else {}
        histograms.append({int(value): part for value, part in seen.items()})
    found = np.zeros((len(SPREADS), max(max(h) for h in histograms) + 1))
    for row, histogram in zip(found, histograms, strict=True):
        row[list(histogram)] = list(histogram.values())
    found /= found.sum(axis=1, keepdims=True)
    return found


def _job(workers: int, cv: float) -> Job:
    """Asynchronous workers whose messages and updates take no time."""
    return make_job(
        workload=Workload.of("updates", [WorkloadLayer("all", 0.0, 1.0, (1.0,))]),
        cluster=Cluster(
            name="shared memory",
            nic=Link(NO_TIME_BYTES_PER_S),
            source=Source("estimated", "communication is a part of the workers' times"),
        ),
        workers=workers,
        arch="asp",
        jitter=Jitter(cv),
    )


def _spreads(log: Log, arrivals: float) -> list[float]:
    """Coefficient of variation of the workers' times in each window of the first half.

    It is the one for which the simulated staleness is as far from its mean, on average.
    """
    workers = log.workers
    simulated = _simulated(workers)
    away = simulated @ np.abs(np.arange(simulated.shape[1]) - (workers - 1.0))
    updates = (log.delays(0, log.half)[SETTLED * workers :] + 1.0) * arrivals - 1.0
    windows = np.array_split(updates, max(1, len(updates) // (WINDOW * workers)))
    found = [float(np.mean(np.abs(window - (workers - 1.0)))) for window in windows]
    return [float(cv) for cv in np.interp(found, np.maximum.accumulate(away), SPREADS)]


def _half_width(seen: list[float]) -> float:
    """Of the interval for a percentile: how far those of the halves seen are apart, at least 1.

    Few halves were seen, hence Student's distribution. A percentile of whole numbers may be one
    off for no reason.
    """
    from scipy import stats

    count = len(seen)
    if count < 2:
        return max(1.0, seen[0] / 4.0)
    beyond = float(stats.t.ppf(0.95, count - 1)) * np.sqrt(1.0 + 1.0 / count)
    return max(1.0, float(beyond * np.std(seen, ddof=1)))


def _keys(log: Log) -> tuple[str, str]:
    """Names of the fits that a log belongs to, the best first."""
    return f"{log.family}/{log.problem}", f"{log.family}/all"
