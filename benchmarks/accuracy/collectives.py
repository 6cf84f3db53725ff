"""Published measurements of collectives: one half of each set predicts the other.

The folder holds ``comm_microbench`` (DeepBench; NCCL and gloo on cloud machines with shaped links;
NCCL inside one machine) and ``hkbu_bcaffe_layerwise`` (the OSU benchmark on 2 and 4 nodes with 10
Gbit/s). An all-reduce is a job: workers with one tensor and no computation, on a cluster whose
collectives were fitted to half of the set, as by ``perfmodel calibrate network``. Each set is split
in up to two ways:

- *ranks*: the lower half of the numbers of ranks predicts the others,
- *sizes*: the smaller half of the sizes predicts the others.

*Fitted alpha-beta* is one alpha and one beta of a ring, fitted to the same half by least squares of
relative errors.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

import perfmodel as pm
from benchmarks.accuracy import fitted, residuals
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel.calibration.network.collectives import Point, alone, fit_collective
from perfmodel.inputs.calibration import Calibration

ABOUT = about("collectives")

MICROSECOND, MILLISECOND, MEGABYTE = 1e-6, 1e-3, 1e6
NO_TIME_S = 1e-12
PLAIN = "fitted alpha-beta"

ALL_REDUCES = ("allreduce", "allreduce_micro", "central_ps", "sharded_ps")
"""Operations of the shaped cluster; a parameter server that sums and sends back is another way to
perform an all-reduce."""

Series = Mapping[str, list[Point]]
"""Points of one machine, library and setting, by name."""


def cases(folder: Path) -> list[Case]:
    """Return every held-out point of every set."""
    fits = fitted.read("collectives", Calibration)
    return predicted(residuals.calibrated(run, fits) for run in runs(folder))


def fit(folder: Path) -> None:
    """Learn the errors of predictions for both splits, with each set held out in turn."""
    fitted.write("collectives", residuals.learnt(runs(folder)))


def runs(folder: Path) -> Iterator[Run]:
    """Return the jobs of all held-out points."""
    micro, osu = folder / "comm_microbench", folder / "hkbu_bcaffe_layerwise"
    sets = {
        "osu": _series(_us(osu / "osu_allreduce.csv", "", "num_nodes")),
        "deepbench": _series(_us(micro / "deepbench_allreduce.csv", "device", "num_devices")),
        "vtrain": _series(_us(micro / "vtrain_nccl_allreduce.csv", "gpu", "num_gpus")),
        **{f"tc {kind}": _series(_shaped(micro, kind)) for kind in ALL_REDUCES},
    }
    for name, series in sets.items():
        for what, field in (("ranks", "ranks"), ("sizes", "bytes")):
            yield from _halves(what, name, series, field)


def _us(path: Path, name: str, ranks: str) -> Iterator[tuple[str, Point]]:
    for row in _rows(path):
        seconds = float(row["allreduce_us"]) * MICROSECOND
        yield row.get(name, "osu"), Point(int(row[ranks]), float(row["bytes"]), seconds)


def _shaped(folder: Path, operation: str) -> Iterator[tuple[str, Point]]:
    for row in _rows(folder / "tc_cluster_collectives.csv"):
        if row["operation"] == operation:
            size, seconds = float(row["megabytes"]) * MEGABYTE, float(row["time_ms"]) * MILLISECOND
            yield f"{row['library']}, {row['setting']}", Point(int(row["num_nodes"]), size, seconds)


def _series(points: Iterable[tuple[str, Point]]) -> Series:
    found: dict[str, list[Point]] = {}
    for name, point in points:
        found.setdefault(name, []).append(point)
    return found


def _halves(split: str, of: str, series: Series, field: str) -> Iterator[Run]:
    """Return the upper half of the ranks or sizes of each series, on clusters fitted to the lower
    half."""
    for name, points in series.items():
        values = sorted({getattr(point, field) for point in points})
        last = values[(len(values) - 1) // 2]
        known = [point for point in points if getattr(point, field) <= last]
        held_out = [point for point in points if getattr(point, field) > last]
        if not held_out:
            continue
        plain_s = plain_alpha_beta(known)
        cluster = pm.Cluster(
            name=name,
            nic=pm.Link(1e9),
            collectives=(fit_collective("all_reduce", known).collective,),
            source=pm.Source("measured", "half of the measurements"),
        )
        for point in held_out:
            fitted_s = plain_s(point.ranks, point.bytes)
            yield Run(
                group=f"collectives/{split}/{of}",
                name=f"{name}, {point.ranks} ranks, {point.bytes:g} bytes",
                job=job_of(of, point, cluster),
                step_s=point.seconds,
                pools=(f"collectives/{split}/cloud",) if of.startswith("tc ") else (),
                others={PLAIN: fitted_s},
            )


def plain_alpha_beta(points: Sequence[Point]) -> Callable[[float, float], float]:
    """Return the seconds of an all-reduce by ranks and bytes, in the usual model of a ring with one
    alpha and one beta, fitted to points by least squares of relative errors."""
    ranks, sizes, seconds = alone(points)
    design = np.stack([2.0 * (ranks - 1.0), 2.0 * (ranks - 1.0) / ranks * sizes], axis=1)
    if (sizes == sizes[0]).all() and sizes[0] > 0.0:  # confounded: all counts as bytes
        design[:, 0] = 0.0
    design /= seconds[:, None]
    scale = np.abs(design).max(axis=0)
    scale[scale == 0.0] = 1.0
    alpha, beta = (nnls(design / scale, np.ones(len(seconds)))[0] / scale).tolist()
    return lambda p, size: 2.0 * (p - 1.0) * (alpha + size / p * beta)


def job_of(name: str, point: Point, cluster: pm.Cluster) -> pm.Job:
    """Return a job of workers that sum one tensor without computation."""
    layer = pm.WorkloadLayer("all", 0.0, NO_TIME_S, (max(point.bytes, 1.0),))
    return pm.make_job(
        workload=pm.Workload.of(name, [layer]),
        cluster=cluster,
        workers=point.ranks,
        arch="allreduce",
        options={"bucketing": "one"},
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
