"""``python -m benchmarks.accuracy.scaling PATH``: errors of estimated compute times.

PATH holds tables of step times against batch size on one device:

- ``pollux_osdi21/throughput.csv`` and ``sia_sosp23/throughput.csv``: Qiao et al., "Pollux", OSDI
  2021, and Jayaram Subramanya et al., "Sia", SOSP 2023; rows of one device, step minus waiting,
- ``mxnet_benchmarks/single_device.csv``: images/s of MXNet on one device,
- ``neusight/measured_latency.csv``: Lee et al., "NeuSight", ASPLOS 2025; language models, PyTorch.

The catalogue's own timings are included; they alone judge estimates for other devices. All figures
are for held-out steps. Errors are factors minus one. All series of a group have the same weight,
whatever their number of sizes. The constants of ``perfmodel.inputs.batch_scaling`` and of
``perfmodel.times.device_transfer`` come from this output. Only tables with two series or more
choose them. That of recent devices is chosen without Sia's table: its steps include AdaptDL's
gradient statistics, several operations for each parameter tensor. Its errors are counted. All
recent series are of models that were not compiled, so half of the best value is used
(``RECENT_LAUNCH_S``).
"""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import numpy as np

from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.batch_scaling import LAUNCH_S, RECENT_LAUNCH_S, at_batch_size
from perfmodel.inputs.profile import Gradients, Layer, Profile, Timing
from perfmodel.times.device_transfer import (
    COMMON_ERROR,
    FOREIGN_ERROR,
    FOREIGN_OPERATORS_ERROR,
    KIND_ERROR,
    KIND_OPERATORS_ERROR,
    OPERATORS_ERROR,
    SPEED_ERROR,
    TYPICAL_ERROR,
    estimate,
)

TENSORS = {
    "cifar10": 62,
    "imagenet": 161,
    "bert": 199,
    "yolov3": 222,
    "deepspeech2": 50,
    "ncf": 14,
    "Alexnet": 16,
    "Inception-v3": 284,
    "Resnet 50": 161,
    "bert_large": 391,
    "gpt2_large": 436,
    "opt_13": 388,
}
"""Approximate number of parameter tensors of the tables' models (ResNet-18, ResNet-50, BERT-base,
YOLOv3, DeepSpeech2 with five GRU layers, NeuMF; AlexNet, Inception v3, ResNet-50; BERT-large,
GPT-2 large, OPT 1.3B)."""

RECENT = {"dgx", "NVIDIA_A100_80GB_PCIe", "NVIDIA_H100_80GB_HBM3", "NVIDIA_L4"}
"""Devices of the tables with TF32, by the tables' names ("dgx" are A100), and those of AMD."""

ADAPTDL = {"pollux_osdi21", "sia_sosp23"}
"""Tables of steps that include AdaptDL's gradient statistics."""

LAUNCHES_S = (0.0, 0.05e-3, 0.1e-3, 0.15e-3, 0.2e-3, 0.25e-3, 0.3e-3, 0.4e-3, 0.5e-3)
MOST = (0.5, 0.6, 0.7, 0.8, 0.9)
RATIOS = (2.0, 4.0, 8.0, math.inf)
NEAR = 8.0
"""Largest ratio of batch sizes that is used to choose the launch part."""


class Series(NamedTuple):
    """Step times of a model on a device: source ``table``, and points (batch size, seconds).

    ``recent`` devices have TF32, or are not in the catalogue.
    """

    table: str
    name: str
    tensors: int
    points: list[tuple[int, float]]
    recent: bool = False


class Case(NamedTuple):
    """``group`` and ``series`` of an error, and the error, a factor minus one."""

    group: str
    series: str
    error: float


def read(folder: Path) -> list[Series]:
    """Return all series with at least two sizes, those of the catalogue last."""
    found: dict[tuple[str, str, int, bool], dict[int, float]] = defaultdict(dict)
    for table in ("pollux_osdi21", "sia_sosp23"):
        for row in _rows(folder / table / "throughput.csv"):
            if row["num_replicas"] == "1":
                where = row["cluster"]
                key = (table, f"{row['model']} on {where}", TENSORS[row["model"]], where in RECENT)
                computing_s = float(row["step_time_s"]) - float(row["sync_time_s"])
                found[key][int(row["local_bsz"])] = computing_s
    for row in _rows(folder / "mxnet_benchmarks" / "single_device.csv"):
        if row["section"] == "Training results":
            key = ("mxnet", f"{row['model']} on {row['device']}", TENSORS[row["model"]], False)
            found[key][int(row["batch"])] = int(row["batch"]) / float(row["images_per_s"])
    for row in _rows(folder / "neusight" / "measured_latency.csv"):
        model, where = row["model"], row["gpu"]
        if row["mode"] == "train" and not row["parallel"] and model in TENSORS:
            recent = where in RECENT or where.startswith("AMD")
            key = ("neusight", f"{model} on {where}", TENSORS[model], recent)
            found[key][int(row["global_batch"])] = float(row["e2e_latency_ms"]) / 1e3
    for one in (catalogue.model(name) for name in catalogue.model_names()):
        tensors = sum(len(layer.tensors) for layer in one.layers)
        for t in one.timings:
            place = catalogue.device(t.device)
            table, name = f"catalogue, {place.kind}", f"{one.name} on {t.device} {t.precision}"
            recent = place.launch_s == RECENT_LAUNCH_S
            found[table, name, tensors, recent][t.batch_size] = t.total_s
    return [
        Series(table, name, tensors, sorted(of.items()), recent)
        for (table, name, tensors, recent), of in found.items()
        if len(of) > 1
    ]


def between(series: Sequence[Series]) -> Iterator[Case]:
    """Estimate every size from every pair of sizes around it."""
    for one in series:
        points = one.points
        for k in range(1, len(points) - 1):
            for low in points[:k]:
                for high in points[k + 1 :]:
                    error = _error(one, [low, high], points[k])
                    yield Case("batch size, between two", one.name, error)


def beyond(series: Sequence[Series]) -> Iterator[Case]:
    """Estimate every size from every two or more neighbours that are all smaller or all larger."""
    for one in series:
        points = one.points
        for i in range(len(points)):
            for j in range(i + 2, len(points) + 1):
                for point in points[:i] + points[j:]:
                    ratio = max(points[i][0] / point[0], point[0] / points[j - 1][0])
                    group = f"batch size, beyond several, {_up_to(ratio)}"
                    yield Case(group, one.name, _error(one, points[i:j], point))


def single(series: Sequence[Series]) -> Iterator[Case]:
    """Estimate every size from every other one, with constants chosen by the other tables."""
    scores = {recent: launching_scores(series, recent=recent) for recent in (False, True)}
    for one in series:
        launch_s, most = _best({k: v for k, v in scores[one.recent].items() if k[0] != one.table})
        launch_s *= 0.5 if one.recent else 1.0
        for start in one.points:
            for point in one.points:
                if point is not start:
                    ratio = max(start[0] / point[0], point[0] / start[0])
                    error = _launching_error(one, start, point, launch_s, most)
                    kind = "recent" if one.recent else "older"
                    yield Case(f"batch size, from one, {kind}, {_up_to(ratio)}", one.name, error)


def launching_scores(
    series: Sequence[Series], *, recent: bool
) -> dict[tuple[str, float, float], float]:
    """Return the mean absolute log error from one size to near ones, by table and constants.

    The series are those of ``recent`` or of other devices.
    """
    series = [one for one in series if one.recent == recent]
    if recent:
        series = [one for one in series if one.table not in ADAPTDL] or series
    found = {}
    several = [table for table, count in Counter(one.table for one in series).items() if count > 1]
    for table in several:
        for launch_s in LAUNCHES_S:
            for most in MOST:
                means = []
                for one in (s for s in series if s.table == table):
                    errors = [
                        math.log1p(_launching_error(one, start, point, launch_s, most))
                        for start in one.points
                        for point in one.points
                        if point is not start and 1 / NEAR <= point[0] / start[0] <= NEAR
                    ]
                    means += [float(np.mean(errors))] if errors else []
                found[table, launch_s, most] = float(np.mean(means))
    return found


OF_OPERATORS = {
    "models on both": COMMON_ERROR,
    "no other model": KIND_OPERATORS_ERROR,
    "that others ran on": OPERATORS_ERROR,
    "that none ran on": FOREIGN_OPERATORS_ERROR,
}
"""Errors by what is known, for models with operators on GPUs."""

OF_ROOFLINES = {
    "no operations": SPEED_ERROR,
    "no other model": KIND_ERROR,
    "that others ran on": TYPICAL_ERROR,
    "that none ran on": FOREIGN_ERROR,
}
"""The same for models without operators, and on CPUs."""


def devices() -> Iterator[Case]:
    """Estimate every timing of the catalogue as if the profile had no timing on its device.

    GPUs are estimated with and without operators. Estimates whose error includes a different batch
    size are not counted.
    """
    models = [catalogue.model(name) for name in catalogue.model_names()]
    yield from _held_out(models, OF_OPERATORS, "gpu", "")
    plain = [msgspec.structs.replace(m, layers=_plain(m)) for m in models]
    yield from _held_out(plain, OF_ROOFLINES, "gpu", ", no operators")
    yield from _held_out(plain, OF_ROOFLINES, "cpu", "")


def _plain(profile: Profile) -> tuple[Layer, ...]:
    return tuple(msgspec.structs.replace(layer, operators=()) for layer in profile.layers)


def _held_out(
    models: Sequence[Profile], errors: Mapping[str, float], kind: str, remark: str
) -> Iterator[Case]:
    """Estimate the timings on devices of a kind, where ``errors`` are those by what is known."""
    known = {name: catalogue.device(name) for name in catalogue.device_names()}
    for one in models:
        others = [m for m in models if m is not one]
        for timing in one.timings:
            if known[timing.device].kind != kind:
                continue
            left = [t for t in one.timings if t.device != timing.device]
            alike = [t for t in left if known[t.device].kind == kind]
            unlike = [t for t in left if known[t.device].kind != kind]
            elsewhere = [m for m in others if set(m.devices) != {timing.device}]
            away = [_without(m, timing.device) for m in elsewhere]
            scenarios = {
                f"other {kind}, models on both": (_with(one, alike), others),
                f"other {kind}, no other model": (_with(one, alike), []),
                f"other {kind}, no operations": (_coarse(one, alike), []),
                f"other kind, {kind} that others ran on": (_with(one, unlike), others),
                f"other kind, {kind} that none ran on": (_with(one, unlike), away),
            }
            for group, (profile, who) in scenarios.items():
                error = next((e for name, e in errors.items() if name in group), None)
                if profile is None or error is None:
                    continue
                try:
                    found = estimate(
                        profile,
                        timing.device,
                        timing.precision,
                        timing.batch_size,
                        devices=known,
                        others=who,
                    )
                except InputError:  # nothing to estimate from
                    continue
                if found.error_fraction != error:
                    continue
                how = " ".join(a.source for a in found.assumptions)
                if "that others ran on" in group and f"other models on {timing.device}" not in how:
                    continue
                series = f"{one.name} on {timing.device} {timing.precision}"
                named = group + remark * ("no operations" not in group)
                yield Case(named, series, _factor(found.compute_s, timing.total_s))


def _with(profile: Profile, timings: Sequence[Timing]) -> Profile | None:
    """Return the profile with only these timings; None if there are none."""
    return msgspec.structs.replace(profile, timings=tuple(timings)) if timings else None


def _coarse(profile: Profile, timings: Sequence[Timing]) -> Profile | None:
    """Return the profile without layers."""
    tensors = sum(len(layer.tensors) for layer in profile.layers)
    if not timings:
        return None
    return msgspec.structs.replace(
        profile,
        layers=(),
        gradients=Gradients(profile.parameter_bytes, tensors),
        timings=tuple(_whole(t) for t in timings),
    )


def _whole(timing: Timing) -> Timing:
    """Return the timing as if only the step had been measured."""
    return Timing(
        device=timing.device,
        batch_size=timing.batch_size,
        precision=timing.precision,
        step_s=timing.total_s,
        source=timing.source,
    )


def _without(profile: Profile, device: str) -> Profile:
    kept = tuple(t for t in profile.timings if t.device != device)
    return msgspec.structs.replace(profile, timings=kept)


def _error(one: Series, given: Sequence[tuple[int, float]], point: tuple[int, float]) -> float:
    """Return the error at a point that is predicted from the given ones."""
    sizes = [size for size, _ in given]
    seconds = [[time] for _, time in given]
    launch_s = RECENT_LAUNCH_S if one.recent else LAUNCH_S
    found = at_batch_size(sizes, seconds, point[0], tensors=one.tensors, launch_s=launch_s)
    return _factor(float(found[0]), point[1])


def _launching_error(
    one: Series, start: tuple[int, float], point: tuple[int, float], launch_s: float, most: float
) -> float:
    fixed = min(most, launch_s * one.tensors / start[1])
    return _factor(start[1] * (fixed + (1.0 - fixed) * point[0] / start[0]), point[1])


def _factor(predicted: float, measured: float) -> float:
    return max(predicted / measured, measured / predicted) - 1.0


def _best(scores: dict[tuple[str, float, float], float]) -> tuple[float, float]:
    """Return the constants with the least mean error; all tables have the same weight."""
    sums: dict[tuple[float, float], float] = defaultdict(float)
    for (_, launch_s, most), score in scores.items():
        sums[launch_s, most] += score
    return min(sums, key=lambda key: sums[key])


def _up_to(ratio: float) -> str:
    return next(f"up to x{most:g}" for most in RATIOS if ratio <= most)


def grouped(series: Sequence[Series]) -> dict[str, list[Case]]:
    """Return all errors by group."""
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in [*between(series), *beyond(series), *single(series), *devices()]:
        groups[case.group].append(case)
    return groups


def quantile(cases: Sequence[Case], q: float) -> float:
    """Return the least error that a fraction ``q`` of the cases does not exceed; all series have
    the same weight."""
    count = Counter(case.series for case in cases)
    ordered = sorted(cases, key=lambda case: case.error)
    weights = np.cumsum([1.0 / count[case.series] for case in ordered])
    # rounding errors in q must not select the next case
    place = int(np.searchsorted(weights, q * weights[-1] * (1.0 - 1e-9)))
    return ordered[place].error


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@click.command()
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--worst", "count", default=0, help="Print this many of the worst cases too.")
def main(path: Path, count: int) -> None:
    """Hold out measured steps, estimate them, and print the errors by group."""
    series = read(path)
    for recent, devices in ((False, "older devices"), (True, "recent devices")):
        launch_s, most = _best(launching_scores(series, recent=recent))
        number = sum(one.recent == recent for one in series)
        text = f"launching: {launch_s * 1e3:g} ms per tensor, at most {most:g}"
        click.echo(f"{number} series of {devices}; {text}")
    groups = grouped(series)
    click.echo(f"{'group':42} {'series':>6} {'n':>5} {'median':>7} {'p90':>7} {'worst':>7}")
    for group, cases in sorted(groups.items()):
        number = len({case.series for case in cases})
        figures = [quantile(cases, q) for q in (0.5, 0.9, 1.0)]
        text = " ".join(f"{x:7.2f}" for x in figures)
        click.echo(f"{group:42} {number:6} {len(cases):5} {text}")
        for case in sorted(cases, key=lambda case: -case.error)[:count]:
            click.echo(f"    {case.error:7.2f}  {case.series}")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
