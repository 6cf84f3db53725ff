"""ResNet-32 with asynchronous servers in the cloud, predicted by the fit to another campaign.

Li, Walls, Xu, Guo, "Speeding up Deep Learning with Transient Servers", ICAC 2019: software, cloud
and model are those of :mod:`benchmarks.accuracy.cmdare`, and what is fitted there predicts these
runs. The folder holds ``train_data.csv``, or another CSV file: steps of all workers per second by
``experiment`` and ``config``. A configuration such as ``1ps4k`` counts servers and workers, on K80
(k), P100 (p) or V100 (v); mixed ones are ``1v1p2k``.

A device that no run there had is told by the fewest workers here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import numpy as np

from benchmarks.accuracy import cmdare, fitted, rows
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel.base.errors import InputError, number
from perfmodel.calibration import Run, Series, ServerFit

MODEL = "resnet32"
BATCH = 128
CMDARE_SPLIT = "all"
DEVICES = {"k": "k80", "p": "p100", "v": "v100"}

COUNT = r"[1-9]\d*(?:k80|p100|v100|k|p|v)"
"""How a configuration counts workers on one kind of device."""

ABOUT = About(
    title="Transient servers: asynchronous parameter server, up to seven workers",
    citation="S. Li, R. J. Walls, L. Xu, T. Guo, ICAC 2019, arXiv 1903.00045; data on GitHub, "
    "cake-lab/transient-deep-learning",
    folder="transient_ps_async",
    splits={
        "few": Split(
            "the server and K80 and P100 in the other campaign, cmdare; V100 in the runs of two",
            "all other runs: more workers, mixed devices, two servers",
        ),
    },
    remarks="""\
Reported only. Server, K80 and P100 are those of cmdare, measured by the same group in another
campaign; of these runs only two V100 workers tell how fast a V100 is. One figure of this source was
known to the cmdare fit, though: 46.2 steps/s of seven V100 workers, as published. Runs on spot
instances include pauses after revocations, and are no steady speed; runs across regions wait for
links between regions that nobody measured. Both are left out. A case is the median of repeated
runs, and its step is that of one worker.
""",
)


class Row(msgspec.Struct, frozen=True):
    """A row of the table: one run."""

    experiment: str
    config: str
    steps_per_s: float

    def __post_init__(self) -> None:
        number("steps_per_s", self.steps_per_s)


class Setup(NamedTuple):
    """Servers, and workers by device."""

    servers: int
    workers: Mapping[str, int]

    @property
    def total(self) -> int:
        """Workers of all devices."""
        return sum(self.workers.values())


class Fit(msgspec.Struct, frozen=True):
    """Devices that the other campaign did not have.

    Attributes
    ----------
    rows : runs that it was fitted to.
    alone : steps per second of one worker, by device.
    workers : of the runs that it was fitted to, by device.
    """

    rows: int
    alone: dict[str, float]
    workers: dict[str, int]


def cases(folder: Path) -> list[Case]:
    """Every configuration that nothing was fitted to; seconds of a worker's step."""
    told = fitted.read("transient", Fit)["few"]
    server = _server(told.alone)
    left_out: list[str] = []
    found = []
    for (experiment, config), rates in _runs(folder).items():
        setup = _setup(experiment, config)
        if isinstance(setup, str):
            left_out.append(f"{config} of {experiment} ({setup})")
        elif not setup.workers.keys() <= {_device(one.name) for one in server.series}:
            left_out.append(f"{config} of {experiment} (a device that nobody measured)")
        elif any(setup == Setup(1, {name: count}) for name, count in told.workers.items()):
            continue
        else:
            name = f"{experiment} {config}, {len(rates)} runs"
            found.append(_case(name, setup, server, float(np.median(rates))))
    if left_out:
        click.echo(f"left out: {', '.join(left_out)}", err=True)
    if not found:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return found


def _case(name: str, setup: Setup, server: ServerFit, rate: float) -> Case:
    mix = {f"{device}/{MODEL}": count for device, count in setup.workers.items()}
    predicted = server.predict_mixed(mix, setup.servers)
    alone = sum(count * server.predict(one, 1).steps_per_s for one, count in mix.items())
    count = setup.total
    return Case(
        f"transient/few/{MODEL}",
        name,
        count / predicted.steps_per_s,
        count / rate,
        interval=(count / predicted.high_steps_per_s, count / predicted.low_steps_per_s),
        pools=("transient/few",),
        others={"ideal scaling": count / alone},
        setting=MODEL,
        samples=float(BATCH * count),
    )


def fit(folder: Path) -> None:
    """Fit what the other campaign does not tell and write it down for :func:`cases`."""
    known = {_device(one.name) for one in _server({}).series}
    fewest: dict[str, tuple[int, list[float]]] = {}
    for (experiment, config), rates in _runs(folder).items():
        setup = _setup(experiment, config)
        if isinstance(setup, str) or setup.servers != 1 or len(setup.workers) != 1:
            continue
        device, count = next(iter(setup.workers.items()))
        if device not in known and count < fewest.get(device, (np.inf, []))[0]:
            fewest[device] = (count, rates)
    told = Fit(
        rows=sum(len(rates) for _, rates in fewest.values()),
        alone={name: _alone(name, *one) for name, one in sorted(fewest.items())},
        workers={name: count for name, (count, _) in sorted(fewest.items())},
    )
    fitted.write("transient", {"few": told})


def _alone(device: str, workers: int, rates: list[float]) -> float:
    """Steps per second of one worker, if so many have the median of ``rates``."""
    from scipy.optimize import brentq

    rate = float(np.median(rates))

    def miss(alone: float) -> float:
        return _server({device: alone}).predict(f"{device}/{MODEL}", workers).steps_per_s - rate

    most = 2.0 * rate
    if workers == 1 or miss(most) < 0.0:  # the server alone would be slower than what was measured
        return fitted.rounded(rate / workers)
    return fitted.rounded(brentq(miss, rate / workers / 2.0, most, rtol=1e-4))


def _server(alone: Mapping[str, float]) -> ServerFit:
    """The other campaign's fit, with ResNet-32 on more devices."""
    server = cmdare.read_fits()[CMDARE_SPLIT]
    series = [one for one in server.series if one.model == MODEL]
    if not series:
        raise InputError(f"cmdare: nothing is fitted to {MODEL}")
    for device, rate in alone.items():
        load = series[0]
        server = server.with_series(
            Series(
                name=f"{device}/{MODEL}",
                model=MODEL,
                tensors=load.tensors,
                parameter_bytes=load.parameter_bytes,
                runs=(Run(1, rate),),
            )
        )
    return msgspec.structs.replace(
        server, series=tuple(one for one in server.series if one.model == MODEL)
    )


def _runs(folder: Path) -> dict[tuple[str, str], list[float]]:
    """Steps per second of each run, by experiment and configuration."""
    tables = sorted(folder.glob("*.csv"))
    if not tables:
        raise InputError(f"{folder}: no CSV file")
    found: dict[tuple[str, str], list[float]] = {}
    for table in tables:
        for row in rows.read(table, Row):
            if row.steps_per_s > 0.0:
                found.setdefault((row.experiment, row.config), []).append(row.steps_per_s)
    return found


def _setup(experiment: str, config: str) -> Setup | str:
    """Servers and workers of a configuration, or why it is left out."""
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


def _device(series: str) -> str:
    return series.split("/", maxsplit=1)[0]
