"""Collectives that others measured: one half of each set predicts the other.

The folder holds ``comm_microbench`` (DeepBench; NCCL and gloo on cloud machines with shaped links;
NCCL inside one machine; several all-reduces sharing a link) and ``hkbu_bcaffe_layerwise`` (the OSU
benchmark on 2 and 4 nodes with 10 Gbit/s). Each set is split three ways, where it can be:

- *ranks*: the fewer half of the numbers of ranks predicts the others,
- *sizes*: the smaller half of the sizes predicts the others,
- *at once*: up to four collectives at the same time predict five to eight.

*Plain* is one alpha and one beta of a ring, fitted to the same half by least squares of relative
errors; of several at once, as many times the time of one.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.accuracy.cases import About, Case, Split
from perfmodel.calibration.network.collectives import (
    CollectiveFit,
    Operation,
    Point,
    fit_collective,
    plain_alpha_beta,
)

ABOUT = About(
    title="Collectives: one half of each set predicts the other",
    citation=(
        "DeepBench; NCCL and gloo on cloud nodes with shaped links; vTrain; Shi and others, "
        "concurrent all-reduces and the OSU benchmark"
    ),
    folder=".",
    splits={
        "ranks": Split("the fewer half of the numbers of ranks", "the other half"),
        "sizes": Split("the smaller half of the sizes", "the other half"),
        "at once": Split("up to four collectives at the same time", "five to eight"),
    },
    remarks="""\
The folder holds `comm_microbench` and `hkbu_bcaffe_layerwise`. The piecewise fit is that of
`perfmodel calibrate network`; the plain one has one alpha and one beta of a ring, fitted to the
same half. Where NCCL's machine is wired unevenly, nothing predicts five devices from four, and a
plain line does better. What was seen of the held-out halves while the form was chosen is in
[decision 0014](decisions/0014-measured-collectives.md).""",
)

PLAIN = "plain alpha-beta"

MICROSECOND, MILLISECOND, MEGABYTE = 1e-6, 1e-3, 1e6

FEW_AT_ONCE = 4

Series = Mapping[str, list[Point]]
"""Points of one machine, library and setting, by name."""

TC_OPERATIONS: Mapping[str, Operation] = {
    "allreduce": "all_reduce",
    "allreduce_micro": "all_reduce",
    "central_ps": "all_reduce",
    "sharded_ps": "all_reduce",
    "broadcast_micro": "broadcast",
}
"""Operations of the shaped cluster; a parameter server that sums and sends back is an all-reduce
made in another way."""


def cases(folder: Path) -> list[Case]:
    """Every held-out point of every set, predicted by both models."""
    micro = folder / "comm_microbench"
    found: list[Case] = []
    sets: list[tuple[str, Operation, Series]] = [
        ("osu", "all_reduce", osu(folder / "hkbu_bcaffe_layerwise")),
        ("deepbench", "all_reduce", deepbench(micro)),
        ("vtrain", "all_reduce", vtrain(micro)),
        *((f"tc {kind}", operation, tc(micro, kind)) for kind, operation in TC_OPERATIONS.items()),
        ("tc messages", "broadcast", messages(micro)),
    ]
    for name, operation, series in sets:
        for what, field in (("ranks", "ranks"), ("sizes", "bytes")):
            found += _halves(what, name, operation, series, field)
    return found + _at_once(contention(micro))


def osu(folder: Path) -> Series:
    """The OSU all-reduce, Open MPI."""
    return _series(
        ("osu", row["num_nodes"], float(row["bytes"]), float(row["allreduce_us"]) * MICROSECOND)
        for row in _rows(folder / "osu_allreduce.csv")
    )


def deepbench(folder: Path) -> Series:
    """The all-reduce of DeepBench, by machine."""
    return _series(
        (row["device"], row["num_devices"], float(row["bytes"]),
         float(row["allreduce_us"]) * MICROSECOND)
        for row in _rows(folder / "deepbench_allreduce.csv")
    )  # fmt: skip


def vtrain(folder: Path) -> Series:
    """The all-reduce of NCCL inside a machine, by device."""
    return _series(
        (row["gpu"], row["num_gpus"], float(row["bytes"]),
         float(row["allreduce_us"]) * MICROSECOND)
        for row in _rows(folder / "vtrain_nccl_allreduce.csv")
    )  # fmt: skip


def tc(folder: Path, operation: str) -> Series:
    """An operation on the shaped cluster, by library and setting."""
    rows = _rows(folder / "tc_cluster_collectives.csv")
    return _shaped([row for row in rows if row["operation"] == operation])


def messages(folder: Path) -> Series:
    """Messages between two nodes of the shaped cluster."""
    return _shaped(_rows(folder / "tc_cluster_p2p.csv"))


def contention(folder: Path) -> list[Point]:
    """Equal all-reduces at the same time. Of how many nodes is not said: all have the same."""
    return [
        Point(2, float(row["bytes"]), float(row["allreduce_us"]) * MICROSECOND,
              int(row["concurrent_jobs"]))
        for row in _rows(folder / "hkbu_contention.csv")
        if row["file"] in ("alpha-beta", "results")
    ]  # fmt: skip


def _shaped(rows: Iterable[Mapping[str, str]]) -> Series:
    return _series(
        (f"{row['library']}, {row['setting']}", row["num_nodes"],
         float(row["megabytes"]) * MEGABYTE, float(row["time_ms"]) * MILLISECOND)
        for row in rows
    )  # fmt: skip


def _series(rows: Iterable[tuple[str, str, float, float]]) -> Series:
    found: dict[str, list[Point]] = {}
    for name, ranks, size, seconds in rows:
        found.setdefault(name, []).append(Point(int(ranks), size, seconds))
    return found


def _halves(split: str, of: str, operation: Operation, series: Series, field: str) -> list[Case]:
    """The upper half of the ranks or sizes of each series, predicted by the lower one."""
    found = []
    for name, points in series.items():
        values = sorted({getattr(point, field) for point in points})
        if len(values) < 2:
            continue
        last = values[(len(values) - 1) // 2]
        known = [point for point in points if getattr(point, field) <= last]
        held_out = [point for point in points if getattr(point, field) > last]
        fit, plain = fit_collective(operation, known), plain_alpha_beta(operation, known)
        pools = (f"collectives/{split}/cloud",) if of.startswith("tc ") else ()
        for point in held_out:
            others = {PLAIN: plain.predict(point.ranks, point.bytes, extrapolate=True)}
            found.append(_case(f"collectives/{split}/{of}", name, fit, point, others, pools))
    return found


def _at_once(points: list[Point]) -> list[Case]:
    fit = fit_collective("all_reduce", [p for p in points if p.at_once <= FEW_AT_ONCE])
    found = []
    for point in points:
        if point.at_once > FEW_AT_ONCE:
            alone = fit.predict(point.ranks, point.bytes, extrapolate=True)
            others = {PLAIN: alone * point.at_once}
            found.append(_case("collectives/at once/contention", "", fit, point, others))
    return found


def _case(
    group: str,
    series: str,
    fit: CollectiveFit,
    point: Point,
    others: Mapping[str, float],
    pools: tuple[str, ...] = (),
) -> Case:
    seconds = fit.predict(point.ranks, point.bytes, at_once=point.at_once, extrapolate=True)
    name = f"{series}, {point.ranks} ranks, {point.bytes:g} bytes, {point.at_once} at once"
    return Case(group, name, seconds, point.seconds, pools=pools, others=others)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
