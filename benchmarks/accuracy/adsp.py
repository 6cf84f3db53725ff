"""Waiting of unequal workers under four ways to synchronise, from their compute times.

Hu, Wang, Wu, "Distributed machine learning through heterogeneous edge systems", AAAI 2020 (ADSP,
also STrain): a CNN on CIFAR-10, a parameter server, and workers one of which computes three times
as long as the others. The folder holds

- ``waiting_time.csv``: ``scheme``, ``wall_s``, ``total_steps`` of all workers, and
  ``compute_w0_s``, ``compute_w1_s``, ... of each,
- ``adsp_*_workers.csv``: logs of ADSP, where a series ``ps_cmp_time...`` has the seconds that each
  ``worker`` has computed by ``time_s``.

A worker *waits* while it does not compute, for messages of its own too. Fitted, to BSP alone, is
how long a message with the whole model takes over an idle link. Of a log half of the workers tell
how long the others wait. The fits are in ``fitted/adsp.json``.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.accuracy import fitted, rows
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel import (
    Cluster,
    Link,
    Prediction,
    Source,
    Straggler,
    Workload,
    WorkloadLayer,
    make_job,
    predict,
)
from perfmodel.base.errors import InputError

ABOUT = About(
    title="Waiting of unequal workers",
    citation="H. Hu, D. Wang, C. Wu, AAAI 2020; figures on GitHub, joapolarbear/adsp",
    folder="adsp_waiting",
    splits={
        "waiting": Split(
            "the length of a step of BSP (one number: the time of a message)",
            "part of the time that each worker waits, under all other schemes",
        ),
        "log": Split(
            "part of the time that one half of the workers of a log waits",
            "the same of the other half",
        ),
    },
    remarks="""\
Three workers, one of them three times slower, share one server's link. With compute seconds as
reported and one time of a message, BSP, SSP and local steps are jobs of `ps`: SSP with its bound,
ADACOMM as `bsp` with a period's steps as one, ADSP as `asp` with one commit in each check period of
60 s (the default of its program), whatever the worker's speed. The period of ADACOMM adapts and is
not in the data: 40 steps, that of its fixed variant, stand for it.

*Worst case*: the slow worker under SSP, predicted to wait 8 points more than it did. That is a step
1.7 times as long as measured: where nearly all is waiting, the waiting fraction forgives much. The
measured step is what the link to the server needs for the pushes of all three, so pushes and pulls
overlapped in full. In the model those held up at the bound go on together, and pushes and pulls
alternate.

*Not covered*: the commit rates that ADSP finds by its search, and pauses of all workers at once,
which make up most of the waiting in the log of 18 workers. So the log only tests that unequal
workers wait alike, as they should where they commit equally often.""",
)

TABLE = "waiting_time.csv"

STEPS_PER_PERIOD = 40
"""Of ADACOMM, where its name does not say."""

CHECK_PERIOD_S = 60.0
"""Between commits of ADSP: default of ``check_period`` in cifar10/client.py of its repository."""


class AdspFit(msgspec.Struct, frozen=True):
    """``of`` what: a scheme, and ``transfer_s`` of a message with the model; or workers of a log,
    and the part of the time that they wait."""

    rows: int
    of: list[str]
    transfer_s: float = 0.0
    waiting_fraction: float = 0.0


class Run(msgspec.Struct, frozen=True):
    """A row of ``waiting_time.csv``; ``compute_s`` of each worker."""

    scheme: str
    wall_s: float
    total_steps: float
    compute_s: tuple[float, ...]

    @property
    def steps(self) -> float:
        """Of each worker, where all make as many."""
        return self.total_steps / len(self.compute_s)

    @property
    def waiting(self) -> list[float]:
        """Part of the time that each worker waits."""
        return [1.0 - seconds / self.wall_s for seconds in self.compute_s]


class Logged(msgspec.Struct, frozen=True):
    """A row of a log."""

    series: str
    time_s: float
    worker: int
    value: float


def cases(folder: Path) -> list[Case]:
    """The waiting of each worker under each scheme, and in each log."""
    fits = fitted.read("adsp", AdspFit)
    found = []
    for run in read(folder / TABLE) if "BSP" in fits else ():
        if run.scheme in fits["BSP"].of:
            continue
        answer = predicted(run, fits["BSP"].transfer_s)
        if answer is None:
            rows.say_left_out("not known how it works", [run.scheme])
            continue
        alone = [1.0 - x / max(run.compute_s) for x in run.compute_s]
        group = f"adsp/waiting/{run.scheme}:idle"
        for k, (waiting, idle, ideal) in enumerate(
            zip(run.waiting, answer.idle_fraction.per_worker, alone, strict=True)
        ):
            others = {"no communication": ideal}
            found.append(_case(group, f"worker {k}", idle, waiting, others, "waiting"))
    for name, workers in logs(folder).items():
        if name not in fits:
            rows.say_left_out("no fit", [name])
            continue
        for worker, waiting in workers.items():
            if worker not in fits[name].of:
                expected = fits[name].waiting_fraction
                group = f"adsp/log/{name}:idle"
                found.append(_case(group, f"worker {worker}", expected, waiting, {}, "log"))
    if not found:
        raise InputError(f"{folder}: nothing that can be predicted and was not fitted to")
    return found


def fit(folder: Path) -> None:
    """Write down the time of a message, by BSP, and the waiting of half the workers of a log."""
    runs = read(folder / TABLE)
    entries = {"BSP": transfer(runs)} if runs else {}
    for name, workers in logs(folder).items():
        first = list(workers)[: len(workers) // 2]
        waiting = float(np.mean([workers[worker] for worker in first]))
        entries[name] = AdspFit(len(first), first, waiting_fraction=round(waiting, 4))
    fitted.write("adsp", entries)


def transfer(runs: list[Run]) -> AdspFit:
    """The time of a message with which a step of BSP takes as long as it did.

    Raises
    ------
    InputError : there is no BSP, or its steps are shorter than their computation.
    """
    from scipy import optimize

    run = next((run for run in runs if run.scheme == "BSP"), None)
    if run is None:
        raise InputError(f"{TABLE}: no scheme BSP, to which the time of a message is fitted")
    step_s = run.wall_s / run.steps

    def missing(transfer_s: float) -> float:
        answer = predicted(run, transfer_s)
        return (answer.iteration_s if answer else 0.0) - step_s

    least_s, most_s = 1e-6 * step_s, step_s
    if missing(least_s) > 0.0:
        raise InputError(f"{TABLE}: BSP: wall_s {run.wall_s:g} is less than it computes")
    found = optimize.brentq(missing, least_s, most_s, rtol=1e-5)
    return AdspFit(rows=1, of=[run.scheme], transfer_s=round(float(found), 4))


def predicted(run: Run, transfer_s: float) -> Prediction | None:
    """The run's job, predicted; None where it is not known how the scheme works.

    A message with the whole model takes ``transfer_s`` over an idle link. What local steps there
    are between two messages make one iteration.
    """
    seconds = [x / run.steps for x in run.compute_s]
    scheme = run.scheme.lower()
    number = re.search(r"(?:s|tau)\s*=\s*(\d+)", scheme)
    options: dict[str, object] = {"sync": "bsp"}
    if scheme.startswith("ssp") and number:
        options = {"sync": "ssp", "staleness_bound": int(number[1])}
    elif "adacomm" in scheme:
        period = int(number[1]) if number else STEPS_PER_PERIOD
        seconds = [x * period for x in seconds]
    elif scheme == "adsp":
        options = {"sync": "asp"}
        seconds = [CHECK_PERIOD_S] * len(seconds)
    elif scheme != "bsp":
        return None
    base_s = max(seconds)
    job = make_job(
        workload=Workload.of("cnn", [WorkloadLayer("all", base_s / 3, base_s * 2 / 3, (1.0,))]),
        cluster=Cluster(
            name="edge",
            nic=Link(1.0 / transfer_s),
            source=Source("measured", "a step of BSP with the same workers"),
        ),
        workers=len(seconds),
        arch="ps",
        options=options,
        stragglers=[Straggler(k, x / base_s) for k, x in enumerate(seconds)],
    )
    return predict(job)


def read(path: Path) -> list[Run]:
    """The rows of ``waiting_time.csv``; none where there is no such file.

    Raises
    ------
    InputError : a row lacks a number or has a wrong one.
    """
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = [c for c in reader.fieldnames or () if re.fullmatch(r"compute_w\d+_s", c)]
        columns.sort(key=lambda column: int(column[len("compute_w") : -len("_s")]))
        return [_run(row, columns, f"{path}: line {reader.line_num}") for row in reader]


def _run(row: Mapping[str, str], columns: list[str], where: str) -> Run:
    compute = [row[column] for column in columns if row.get(column)]
    try:
        run = msgspec.convert({**row, "compute_s": compute}, Run, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}") from None
    if not compute:
        raise InputError(f"{where}: no compute_w0_s")
    if not all(0.0 < x < math.inf for x in (run.wall_s, run.total_steps, *run.compute_s)):
        raise InputError(f"{where}: all numbers must be more than 0 and finite")
    return run


def logs(folder: Path) -> dict[str, dict[str, float]]:
    """Part of the time that each worker waits, by log and worker."""
    found: dict[str, dict[str, float]] = {}
    for path in sorted(folder.glob("adsp_*_workers.csv")):
        computed = [r for r in rows.read(path, Logged) if r.series.startswith("ps_cmp_time")]
        last = {r.worker: r for r in sorted(computed, key=lambda r: r.time_s)}
        found[path.stem] = {
            str(worker): 1.0 - last[worker].value / last[worker].time_s for worker in sorted(last)
        }
    return found


def _case(
    group: str,
    name: str,
    idle: float,
    waiting: float,
    others: Mapping[str, float],
    split: str,
) -> Case:
    pools = (f"adsp/{split}:idle",)
    return Case(group, name, idle, waiting, relative=False, pools=pools, others=others)
