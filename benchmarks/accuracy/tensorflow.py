"""TensorFlow's benchmarks of 2017: servers and replicas inside a node, and servers between nodes.

``throughput.csv`` has images per second by ``platform``, ``gpu``, ``data`` (synthetic or real
images), ``model``, ``batch_per_gpu``, ``variable_update`` and ``local_parameter_device`` (where
variables are inside a node), ``num_gpus``, ``num_nodes`` and ``num_ps``.

The fits are in ``fitted/tensorflow.json``: *few* to the smallest number of GPUs above one of each
configuration, *all* to all runs. Both are a slowdown per configuration: how much slower GPUs
compute when others of the node work too (two GPUs of a K80 share a board and its power, all of them
share the host). A configuration that was not fitted has the median of its platform and method, or
of its kind of GPU and method, or of all.

Each step is two jobs of :func:`perfmodel.predict` on nominal links: the GPUs of a node, and the
nodes, each of which sums its gradients before it sends them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from scipy import optimize

from benchmarks.accuracy import dnns, fitted, rows, tables
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel import InputError, Link
from perfmodel.api import Fidelity
from perfmodel.base.uncertainty import Uncertainty
from perfmodel.inputs.profile import Profile

SOURCE, FILE = "tensorflow", "throughput.csv"

NIC = Link(10e9 / 8, 50e-6, tables.ETHERNET_EFFICIENCY)
"""10 Gbit/s between nodes of p2.8xlarge; the latency is an assumption."""

NVLINK = Link(40e9, 10e-6)
"""What a ring gets of the NVLinks of a P100, four of 20 GB/s each way, in practice."""

MOST = 10.0
"""Greatest slowdown that is sought."""

LOADS = 0.95
"""Real images below this part of what synthetic ones reach are taken for limited by loading."""

THREADS = {"DGX-1": 80, "p2.8xlarge": 32, "p2.16xlarge": 64, "n1-standard-32": 32}
"""Hardware threads of a node, which load images, by a part of the platform's name."""

ROUNDING = 1e-3
"""A step that is longer than loading by no more than this fraction is all loading."""

LOADING_SPREAD = 0.2
"""Standard deviation of the logarithm of a step that loading limits: an assumption, as the limit
shows in a single run."""


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of the table."""

    platform: str
    gpu: str
    variable_update: str
    data: str = "synthetic"
    local_parameter_device: str = "n/a"
    num_ps: int | None = None

    @property
    def method(self) -> str:
        """How gradients are exchanged, and where variables are."""
        return f"{self.variable_update} {self.local_parameter_device}"

    @property
    def configuration(self) -> str:
        """All but the number of GPUs."""
        return ", ".join(
            (self.platform, self.method, self.data, self.model, str(self.batch_per_gpu))
        )

    @property
    def threads(self) -> int:
        """Hardware threads of a node, 0 where that is not known."""
        return next((n for name, n in THREADS.items() if name in self.platform), 0)

    @property
    def groups(self) -> tuple[str, ...]:
        """Ever larger groups that configurations are pooled in."""
        return (f"{self.platform}, {self.method}", f"{self.gpu}, {self.method}", self.gpu, "all")


class Known(msgspec.Struct, frozen=True):
    """A configuration that was fitted: its slowdown, and the numbers of GPUs of its runs."""

    slowdown: float
    gpus: tuple[int, ...]


class Fit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was fitted.

    Attributes
    ----------
    known : by configuration.
    pooled : the median slowdown of each group of configurations.
    differ : root mean square of the logarithm of slowdowns over that of their first group.
    thread_images_per_s : most that a hardware thread loads, None where that limited no run.
    alone : a row of one GPU for each platform, DNN and batch, for folders without such rows; in
        *all*.
    """

    rows: int
    known: dict[str, Known]
    pooled: dict[str, float]
    differ: float
    thread_images_per_s: float | None = None
    alone: tuple[Row, ...] = ()

    def has(self, row: Row) -> bool:
        """Whether it was fitted to this row."""
        return (
            row.configuration in self.known and row.num_gpus in self.known[row.configuration].gpus
        )

    def slowdown_of(self, row: Row) -> float:
        """That of the configuration, or of the smallest group that was fitted, else 1."""
        if row.configuration in self.known:
            return self.known[row.configuration].slowdown
        return next((self.pooled[group] for group in row.groups if group in self.pooled), 1.0)

    def loading_s(self, row: Row) -> float:
        """Until a node has loaded the images of a step; 0 where that is not known to take time."""
        if self.thread_images_per_s is None or row.data != "real" or not row.threads:
            return 0.0
        return row.devices * row.batch_per_gpu / (self.thread_images_per_s * row.threads)


ABOUT = About(
    title="TensorFlow on P100 and K80",
    citation=(
        "TensorFlow, docs_src/performance/benchmarks.md at commit 5984ffe, May 2017 "
        "(tf_cnn_benchmarks)"
    ),
    folder="tensorflow_benchmarks",
    splits={
        "few": Split(
            "1 GPU and the smallest larger number of each configuration; links are nominal (for "
            "runs that are not at hand here: all runs)",
            "more GPUs: 4 in a node, 16 on two nodes",
        )
    },
    remarks="""\
GPUs compute some per cent slower as soon as a second one works in the node (3 to 10 % with two
K80, which share a board), and no slower with four than with two. That slowdown is all that is
fitted, one for each configuration. What is exchanged inside a node, and between two nodes by way
of 10 Gbit/s, hides behind computation in all these runs, in the model as well. That the slowdown
does not grow with the GPUs was chosen having seen predicted rows.

Worst is AlexNet with real images on four K80: the 32 threads of that node load no more than 2200
images per second, of which one and two GPUs say nothing. The fit to all runs has that limit, for
each thread of a node. Of one GPU a configuration needs a run, of the same data or the other. What
real servers take per byte does not show in these runs, and is left out.
""",
)


def cases(folder: Path) -> list[Case]:
    """Every run with more than one GPU, by the fit of few rows, or that of all if it is unseen."""
    fits = fitted.read(SOURCE, Fit)
    table = rows.read(folder / FILE, Row)
    found: list[Case] = []
    left_out: set[str] = set()
    from_fits: set[str] = set()
    for row in table:
        fit = fits["few"] if fits["all"].has(row) else fits["all"]
        if row.num_gpus == 1 or fit.has(row):
            continue
        profile = _alone(row, table)
        if profile is None:
            profile = _alone(row, fits["all"].alone)
            (left_out if profile is None else from_fits).add(f"{row.model} on {row.platform}")
        if profile is not None:
            found.append(_case(row, profile, fit))
    rows.say_from_fits(from_fits)
    rows.say_left_out("no run with one GPU, or layers not known", left_out)
    return found


def _case(row: Row, profile: Profile, fit: Fit) -> Case:
    slowdown, loading_s = fit.slowdown_of(row), fit.loading_s(row)
    predicted = predicted_s(row, profile, slowdown, loading_s)
    limited = predicted < loading_s * (1.0 + ROUNDING)
    alone_s = profile.timings[0].total_s
    link = NIC if row.num_nodes > 1 else tables.PCIE
    return Case(
        f"{SOURCE}/few/{row.model}",
        f"{row.configuration}, {row.num_gpus} GPUs",
        predicted,
        row.step_s,
        interval=_uncertainty(row, fit, limited).interval(predicted),
        pools=(f"{SOURCE}/few",),
        others={
            **tables.baselines(alone_s, profile.parameter_bytes, row.num_gpus, link),
            "coarse": predicted_s(row, profile, slowdown, loading_s, "coarse"),
        },
        setting=f"{row.model}, {row.platform}",
        samples=row.samples,
    )


def _uncertainty(row: Row, fit: Fit, limited: bool) -> Uncertainty:
    """Slowdowns change from one number of GPUs to the next as they do between configurations."""
    model = LOADING_SPREAD if limited else 0.0
    known = fit.known.get(row.configuration)
    if known is None:
        model = math.hypot(model, fit.differ)
    beyond = max(0.0, math.log2(row.num_gpus / (max(known.gpus) if known else 2)))
    return Uncertainty(
        measurement=tables.RUNS_SPREAD, model=model, extrapolation=fit.differ * beyond
    )


def _alone(row: Row, table: Iterable[Row]) -> Profile | None:
    """The DNN with the throughput of one GPU: with the same data, or the other, or elsewhere."""
    alike = [
        one
        for one in table
        if one.num_gpus == 1
        and (one.gpu, one.model, one.batch_per_gpu) == (row.gpu, row.model, row.batch_per_gpu)
    ]
    if not alike:
        return None
    near = max(
        alike,
        key=lambda one: (
            one.platform == row.platform,
            one.data == row.data,
            one.method == row.method,
        ),
    )
    return dnns.profile(row.model, row.gpu, row.batch_per_gpu, near.images_per_s)


def predicted_s(
    row: Row,
    profile: Profile,
    slowdown: float,
    loading_s: float = 0.0,
    fidelity: Fidelity = "fine",
) -> float:
    """Seconds of a step whose GPUs compute ``slowdown`` times as long as one alone.

    ``loading_s``: of the images of a step, beside everything else.
    """
    timing = profile.timings[0]
    slower = msgspec.structs.replace(
        timing,
        samples_per_s=row.batch_per_gpu / (timing.total_s * slowdown),
        data_loading_s=loading_s,
    )
    profile = msgspec.structs.replace(profile, timings=(slower,))
    seconds = _inside_s(row, profile, fidelity)
    if row.num_nodes == 1:
        return seconds
    node = tables.as_one(profile, row.devices, seconds)
    options = {"servers": row.num_ps or row.num_nodes, "split_above_bytes": math.inf}
    return tables.step_s(node, row.num_nodes, tables.cluster(NIC), "bsp", options, fidelity)


def _inside_s(row: Row, profile: Profile, fidelity: Fidelity) -> float:
    """A step of the GPUs of one node.

    Variables on the CPU share one link with all GPUs; those on GPUs are spread over them; replicas
    exchange round a ring.
    """
    if row.devices == 1:
        return profile.timings[0].total_s
    link = NVLINK if "DGX" in row.platform else tables.PCIE
    if row.variable_update != "parameter_server":
        cluster, arch = tables.cluster(link), "ring"
        return tables.step_s(profile, row.devices, cluster, arch, {"bucketing": "layer"}, fidelity)
    options = {"split_above_bytes": math.inf}
    if row.local_parameter_device == "gpu":
        options["servers"] = row.devices
        cluster = tables.cluster(link)
    else:
        cluster = tables.cluster(NIC, devices_per_node=row.devices, inside=tables.PCIE)
        fidelity = "fine"  # the coarse one knows no link inside a node
    return tables.step_s(profile, row.devices, cluster, "bsp", options, fidelity)


def fit(folder: Path) -> None:
    """Fit to all runs, and to the smallest number of GPUs above one of each configuration."""
    table = rows.read(folder / FILE, Row)
    many = [row for row in table if row.num_gpus > 1]
    fewest = {
        name: min(row.num_gpus for row in many if row.configuration == name)
        for name in {row.configuration for row in many}
    }
    few = [row for row in many if row.num_gpus == fewest[row.configuration]]
    alone = {
        (row.platform, row.gpu, row.model, row.batch_per_gpu): row
        for row in reversed(table)
        if row.num_gpus == 1
    }
    every = msgspec.structs.replace(_fit(many, table), alone=tuple(alone.values()))
    fitted.write(SOURCE, {"few": _fit(few, table), "all": every})


def _fit(some: Sequence[Row], table: Sequence[Row]) -> Fit:
    limited = limited_by_loading(some, table)
    rates = [row.images_per_s / row.num_nodes / row.threads for row in limited]
    each: dict[str, list[float]] = {}
    groups: dict[str, list[float]] = {}
    gpus: dict[str, list[int]] = {}
    first: dict[str, str] = {}
    for row in some:
        profile = _alone(row, table)
        if profile is None:
            continue
        gpus.setdefault(row.configuration, []).append(row.num_gpus)
        if row not in limited:
            found = math.log(slowdown(row, profile))
            each.setdefault(row.configuration, []).append(found)
            first[row.configuration] = row.groups[0]
            for group in row.groups:
                groups.setdefault(group, []).append(found)
    if not each:
        raise InputError(f"{FILE}: no run with two GPUs or more, and one with one GPU")
    pooled = {name: float(np.median(of)) for name, of in groups.items()}
    logs = {name: float(np.mean(of)) for name, of in each.items()}
    differ = [log - pooled[first[name]] for name, log in logs.items()]
    return Fit(
        rows=len(gpus) + sum(len(of) for of in gpus.values()),
        known={
            name: Known(round(math.exp(logs.get(name, pooled["all"])), 4), tuple(sorted(of)))
            for name, of in gpus.items()
        },
        pooled={name: round(math.exp(log), 4) for name, log in pooled.items()},
        differ=round(tables.rms(differ), 4),
        thread_images_per_s=round(max(rates), 2) if rates else None,
    )


def slowdown(row: Row, profile: Profile) -> float:
    """How much slower GPUs compute if the step takes as long as it was measured to; at least 1."""

    def miss(guess: float) -> float:
        return predicted_s(row, profile, guess) - row.step_s

    if miss(1.0) >= 0.0:
        return 1.0
    if miss(MOST) <= 0.0:
        return MOST
    return float(optimize.brentq(miss, 1.0, MOST, xtol=1e-4))


def limited_by_loading(some: Iterable[Row], table: Iterable[Row]) -> list[Row]:
    """Runs of real images that are well behind the same with synthetic ones."""

    def but_data(row: Row) -> tuple[object, ...]:
        return (row.platform, row.method, row.model, row.batch_per_gpu, row.num_gpus)

    synthetic = {but_data(row): row.images_per_s for row in table if row.data == "synthetic"}
    return [
        row
        for row in some
        if row.data == "real"
        and row.threads
        and row.images_per_s < LOADS * synthetic.get(but_data(row), 0.0)
    ]
