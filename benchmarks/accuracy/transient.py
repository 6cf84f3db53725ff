"""ResNet-32 with asynchronous servers in the cloud, predicted by the fit to another campaign.

Li, Walls, Xu, Guo, "Speeding up Deep Learning with Transient Servers", ICAC 2019: software, cloud
and model are those of :mod:`benchmarks.accuracy.cmdare`, and the fit of that source predicts these
runs. The folder holds ``train_data.csv``, or another CSV file: steps of all workers per second by
``experiment`` and ``config``. A configuration such as ``1ps4k`` counts servers and workers, on K80
(k), P100 (p) or V100 (v); mixed ones are ``1v1p2k``.

A device that is missing there is calibrated on the runs with the fewest workers here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.accuracy import cloud, fitted, rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel.base.errors import InputError, number
from perfmodel.calibration import Observation, ServersFit

MODEL = "resnet32"
DEVICES = {"k": "k80", "p": "p100", "v": "v100"}

COUNT = r"[1-9]\d*(?:k80|p100|v100|k|p|v)"
"""Pattern of the number of workers on one kind of device in a configuration."""

ABOUT = about("transient")


class Row(msgspec.Struct, frozen=True):
    """A row of the table: one run."""

    experiment: str
    config: str
    steps_per_s: float

    def __post_init__(self) -> None:
        number("steps_per_s", self.steps_per_s)


class Setup(NamedTuple):
    """Number of servers, and of workers by device."""

    servers: int
    workers: Mapping[str, int]


class Fit(msgspec.Struct, frozen=True):
    """The fit of devices that are missing in the other campaign.

    ``rows`` are the fitted runs, ``workers`` their numbers of workers by device.
    """

    rows: int
    workers: dict[str, int]
    fit: ServersFit


def cases(folder: Path) -> list[Case]:
    """Return every configuration outside the fit; step times of a worker (s)."""
    told, found = fitted.read("transient", Fit)["few"], []
    left_out: list[str] = []
    for (experiment, config), rates in _runs(folder).items():
        setup = _setup(experiment, config)
        if isinstance(setup, str):
            left_out.append(f"{config} of {experiment} ({setup})")
        elif not {f"{device}/{MODEL}" for device in setup.workers} <= told.fit.workloads.keys():
            left_out.append(f"{config} of {experiment} (no run on such a device)")
        elif not any(setup == Setup(1, {name: count}) for name, count in told.workers.items()):
            found.append(
                Run(
                    f"transient/few/{MODEL}",
                    f"{experiment} {config}, {len(rates)} runs",
                    cloud.job_of(told.fit, MODEL, setup.workers, setup.servers),
                    step_s=sum(setup.workers.values()) / float(np.median(rates)),
                    pools=("transient/few",),
                    setting=MODEL,
                )
            )
    rows.say_left_out("not predicted", left_out)
    if not found:
        raise InputError(f"{folder}: no predictable run outside the fits")
    return predicted(found)


def fit(folder: Path) -> None:
    """Fit the devices that are missing in the other campaign, and store the fit for
    :func:`cases`."""
    fitted.write("transient", {"few": calibrated(folder)})


def calibrated(folder: Path) -> Fit:
    """Return the other campaign's fit, extended by the devices of this campaign."""
    server = fitted.read("cmdare", ServersFit)["all"]
    fewest: dict[str, tuple[int, list[float]]] = {}
    for (experiment, config), rates in _runs(folder).items():
        setup = _setup(experiment, config)
        if not isinstance(setup, str) and setup.servers == len(setup.workers) == 1:
            ((device, count),) = setup.workers.items()
            known = f"{device}/{MODEL}" in server.workloads
            if not known and count < fewest.get(device, (np.inf, []))[0]:
                fewest[device] = (count, rates)
    further: list[list[Observation]] = []
    for name, (count, rates) in sorted(fewest.items()):
        run = (count, count / float(np.median(rates)), cloud.SPREAD)
        further.append(cloud.observations(f"{name}/{MODEL}", [run]))
    return Fit(
        rows=sum(len(rates) for _, rates in fewest.values()),
        workers={name: count for name, (count, _) in sorted(fewest.items())},
        fit=cloud.extended(server, further),
    )


def _runs(folder: Path) -> dict[tuple[str, str], list[float]]:
    """Return steps per second of each run, by experiment and configuration."""
    found: dict[tuple[str, str], list[float]] = {}
    if not (tables := sorted(folder.glob("*.csv"))):
        raise InputError(f"{folder}: no CSV file")
    for table in tables:
        for row in rows.read(table, Row):
            if row.steps_per_s > 0.0:
                found.setdefault((row.experiment, row.config), []).append(row.steps_per_s)
    return found


def _setup(experiment: str, config: str) -> Setup | str:
    """Return servers and workers of a configuration, or why it is left out."""
    name, where = config.lower().replace(" ", ""), experiment.lower()
    if "spot" in where or "spot" in name:
        return "pauses after revocations"
    if demand := re.fullmatch(r"(\d+)-?demand", name):
        device = next((full for full in DEVICES.values() if full in where), None)
        return Setup(1, {device: int(demand[1])}) if device else "no device is named"
    if "region" in where or re.fullmatch(r"(\d+[ecw])+", name):
        return "links between regions"
    parsed = re.fullmatch(rf"(?:([1-9]\d*)ps)?((?:{COUNT})(?:\+?{COUNT})*)", name)
    if parsed is None:
        return "not a number of servers and workers"
    workers: dict[str, int] = {}
    for count, device in re.findall(r"(\d+)(k80|p100|v100|k|p|v)", parsed[2]):
        full = DEVICES[device[0]]
        workers[full] = workers.get(full, 0) + int(count)
    return Setup(int(parsed[1] or 1), workers)
