"""Waiting of unequal workers under four synchronisation schemes, from their compute times.

Hu, Wang, Wu, "Distributed machine learning through heterogeneous edge systems", AAAI 2020 (ADSP,
also STrain): a CNN on CIFAR-10, a parameter server, and workers, one of which needs three times the
compute time of the others. ``waiting_time.csv`` has ``scheme``, ``wall_s``, ``total_steps`` of all
workers, and ``compute_w0_s``, ``compute_w1_s``, ... per worker.

A worker *waits* whenever it does not compute, also for its own messages. The only fitted value is
the link rate: a message with the whole model takes as long as the measured step of BSP implies.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import msgspec

import perfmodel as pm
from benchmarks.accuracy import fitted, rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel.base.errors import number

ABOUT = about("adsp")

TABLE = "waiting_time.csv"

STEPS_PER_PERIOD, CHECK_PERIOD_S = 40, 60.0
"""Steps of ADACOMM if not in its name; check period of ADSP, the default of its repository."""

EDGE = pm.Cluster(
    name="edge",
    nic=pm.Link(1.0),
    source=pm.Source("measured", "a step of BSP with the same workers"),
)
"""Models have one byte."""


def cases(folder: Path) -> list[Case]:
    """Return the waiting of each worker under each scheme except the fitted one."""
    cluster = fitted.read("adsp", pm.Cluster)["BSP"]
    found = [run for run in read(folder / TABLE, cluster) if run.name != "BSP"]
    if not found:
        raise pm.InputError(f"{folder}: no predictable run outside the fits")
    return predicted(found)


def fit(folder: Path) -> None:
    """Store the cluster on which a step of BSP takes as long as measured."""
    from scipy import optimize

    run = next((run for run in read(folder / TABLE, EDGE) if run.name == "BSP"), None)
    if run is None or run.step_s is None:
        raise pm.InputError(f"{TABLE}: no scheme BSP, to which the time of a message is fitted")
    least, most = 1.0 / run.step_s, 1e6 / run.step_s

    def missing_s(rate: float) -> float:
        return pm.predict(on(run.job, rate)).iteration_s - (run.step_s or 0.0)

    if missing_s(most) > 0.0:
        raise pm.InputError(f"{TABLE}: BSP: its step of {run.step_s:g} s is less than it computes")
    rate = optimize.brentq(missing_s, least, most, rtol=1e-5)
    fitted.write("adsp", {"BSP": on(run.job, fitted.rounded(float(rate))).cluster})


def on(job: pm.Job, bytes_per_s: float) -> pm.Job:
    """Return the job with links of this rate."""
    cluster = msgspec.structs.replace(job.cluster, nic=pm.Link(bytes_per_s))
    return msgspec.structs.replace(job, cluster=cluster)


def read(path: Path, cluster: pm.Cluster) -> list[Run]:
    """Return the rows of the table with a known scheme, as jobs on a cluster."""
    if not path.is_file():
        raise pm.InputError(f"{path}: no such file")
    found = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for row in reader:
            scheme = _scheme(row["scheme"])
            if scheme is None:
                rows.say_left_out("not known how it works", [row["scheme"]])
                continue
            try:
                found.append(_run(row, *scheme, cluster))
            except (pm.InputError, KeyError, TypeError, ValueError) as error:
                raise pm.InputError(f"{path}: line {reader.line_num}: {error}") from None
    return found


def _scheme(name: str) -> tuple[dict[str, Any], int] | None:
    """Return the options, and the steps per iteration (0: one check period)."""
    found = re.search(r"(?:s|tau)\s*=\s*(\d+)", name.lower())
    if name.lower().startswith("ssp") and found:
        return {"sync": "ssp", "staleness_bound": int(found[1])}, 1
    if "adacomm" in name.lower():
        return {"sync": "bsp"}, int(found[1]) if found else STEPS_PER_PERIOD
    return {"bsp": ({"sync": "bsp"}, 1), "adsp": ({"sync": "asp"}, 0)}.get(name.lower())


def _run(row: dict[str, str], options: dict[str, Any], period: int, cluster: pm.Cluster) -> Run:
    columns = [c for c in row if c and re.fullmatch(r"compute_w\d+_s", c) and row[c]]
    compute = [number(c, float(row[c]), above=0.0) for c in columns]
    if not compute:
        raise pm.InputError("no compute_w0_s")
    wall_s = number("wall_s", float(row["wall_s"]), above=0.0)
    steps = number("total_steps", float(row["total_steps"]), above=0.0) / len(compute)
    seconds = [x / steps * period if period else CHECK_PERIOD_S for x in compute]
    longest_s = max(seconds)
    layer = pm.WorkloadLayer("all", longest_s / 3, longest_s * 2 / 3, (1.0,))
    job = pm.make_job(
        workload=pm.Workload.of("cnn", [layer]),
        cluster=cluster,
        workers=len(seconds),
        options=options,
        stragglers=[pm.Straggler(k, x / longest_s) for k, x in enumerate(seconds)],
    )
    return Run(
        group=f"adsp/waiting/{row['scheme']}",
        name=row["scheme"],
        job=job,
        step_s=wall_s / steps if row["scheme"] == "BSP" else None,
        worker_idle=tuple(1.0 - x / wall_s for x in compute),
        pools=("adsp/waiting",),
        others={"no communication": 1.0 - sum(compute) / len(compute) / max(compute)},
    )
