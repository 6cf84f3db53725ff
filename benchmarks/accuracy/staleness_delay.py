"""Staleness of asynchronous updates: the first half of a log predicts the second.

Wu, Magnusson, Feyzmahdavian, Johansson, "Delay-adaptive step-sizes for asynchronous learning", ICML
2022: logs of real runs with eight workers and shared memory. The folder holds ``BCD_*.csv.gz``
files, named ``BCD_STEPSIZE_PROBLEM``: one row per update, with its delay in updates.

Step sizes do not affect the timing: the logs of one problem share a fit, which is the jitter of the
workers' times that makes the staleness of the first halves most likely. The fits are in
``fitted/staleness_delay.json``, by problem, and *all* for unseen problems.
"""

from __future__ import annotations

import functools
from pathlib import Path

import click
import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

import perfmodel as pm
from benchmarks.accuracy import fitted
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel.results.prediction import percentile

ABOUT = about("staleness_delay")

Delays = NDArray[np.int64]

WINDOW = 8
"""Minimum number of updates per worker in each half of a log."""

SPREADS = tuple(fitted.rounded(float(cv), 3) for cv in np.geomspace(0.02, 1.5, 16))
"""Candidates for the coefficient of variation of the workers' times."""

NO_NETWORK = pm.Cluster(
    name="shared memory",
    nic=pm.Link(1e15),
    source=pm.Source("measured", "communication is a part of the workers' times"),
)

PARTS = {"p90": 0.9, "p99": 0.99}
"""Fraction of the updates of each percentile, by name of the split."""


class StalenessFit(msgspec.Struct, frozen=True):
    """The fit to the logs of one problem: the number of rows of each log, and the jitter."""

    rows: int
    logs: dict[str, int]
    jitter: float


def cases(folder: Path) -> list[Case]:
    """Return mean and percentiles of staleness of the part of each log outside the fit."""
    fits = fitted.read("staleness_delay", StalenessFit)
    found: list[Case] = []
    for name, delays in read(folder).items():
        fit, workers = fits.get(_problem(name), fits["all"]), _workers(delays)
        first = fit.logs.get(name, len(delays) // 2)
        early, late = delays[:first], delays[first:]
        if len(late) < WINDOW * workers:
            click.echo(f"fitted to all of it, left out: {name}", err=True)
            continue
        job, mean = job_of(workers, fit.jitter), float(late.mean())
        pools: tuple[str, ...] = ("staleness_delay/mean-BCD",)
        group = f"staleness_delay/mean/{name}"
        found += predicted([Run(group, name, job, staleness=mean, pools=pools)])
        seen = _seen(workers, fit.jitter)
        for split, part in PARTS.items():
            group = f"staleness_delay/{split}/{name}:staleness"
            pools = (f"staleness_delay/{split}-BCD:staleness",)
            expected, measured = percentile(seen, part), _quantile(late, part)
            others = {"first half": _quantile(early, part), "no jitter": workers - 1.0}
            found.append(Case(group, name, expected, measured, False, None, pools, others))
    return found


def fit(folder: Path) -> None:
    """Store the fits to the first halves: of each problem, and of all."""
    halves = {name: delays[: len(delays) // 2] for name, delays in read(folder).items()}
    entries = {}
    for problem in (*dict.fromkeys(map(_problem, halves)), "all"):
        some = {n: half for n, half in halves.items() if problem in (_problem(n), "all")}
        likely = [sum(_likelihood(half, cv) for half in some.values()) for cv in SPREADS]
        rows = {name: len(half) for name, half in some.items()}
        jitter = SPREADS[int(np.argmax(likely))]
        entries[problem] = StalenessFit(sum(rows.values()), rows, jitter)
    fitted.write("staleness_delay", entries)


def read(folder: Path) -> dict[str, Delays]:
    """Return the delays in each log of a folder."""
    found = {}
    for path in sorted(folder.glob("BCD_*.csv.gz")):
        try:
            delays = pd.read_csv(path, header=None).to_numpy(np.int64)[:, 0]
        except (ValueError, OSError, EOFError) as error:
            raise pm.InputError(f"{path}: cannot read: {error}") from None
        if _workers(delays) < 2 or len(delays) < 4 * WINDOW * _workers(delays):
            click.echo(f"too short, or one worker, left out: {path.name}", err=True)
        else:
            found[path.name.removesuffix(".csv.gz")] = delays
    if not found:
        raise pm.InputError(f"{folder}: no log that is long enough (BCD_*.csv.gz)")
    return found


@functools.cache
def job_of(workers: int, jitter: float) -> pm.Job:
    """Return a job of asynchronous workers whose messages and updates take no time."""
    return pm.make_job(
        workload=pm.Workload.of("updates", [pm.WorkloadLayer("all", 0.0, 1.0, (1.0,))]),
        cluster=NO_NETWORK,
        workers=workers,
        arch="asp",
        jitter=pm.Jitter(jitter),
    )


@functools.cache
def _seen(workers: int, jitter: float) -> dict[int, int]:
    """Return a million updates by staleness: more precise than the throughput requires."""
    answer = pm.predict(job_of(workers, jitter), rel_ci=min(jitter / 100.0, 3e-3))
    shares = answer.staleness.histogram if answer.staleness else {}
    return {int(value): round(1e6 * part) for value, part in shares.items()}


def _likelihood(delays: Delays, jitter: float) -> float:
    """Return the log-likelihood of delays; one in a million may have any value."""
    seen = _seen(_workers(delays), jitter)
    return float(sum(np.log(max(seen.get(int(delay), 0), 1) / 1e6) for delay in delays))


def _workers(delays: Delays) -> int:
    return max(1, round(float(delays[: len(delays) // 2].mean())) + 1)


def _problem(name: str) -> str:
    return name.rpartition("_")[2]


def _quantile(delays: Delays, part: float) -> float:
    return float(np.quantile(delays, part, method="inverted_cdf"))
