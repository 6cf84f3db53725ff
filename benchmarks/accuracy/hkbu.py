"""Seven ways to communicate on three networks, predicted from runs on one and two nodes.

The benchmarks of arXiv 2005.13247, github.com/HKBU-HPML/ddl-benchmarks: PyTorch with Horovod (a
ring), MG-WFBP, ByteScheduler and BytePS (a parameter server). The folder holds

- ``throughput.csv``: samples of all GPUs per second, by ``dnn``, ``connection``, ``method`` and
  ``num_gpus``; one GPU stands for computing without communication,
- ``allreduce_alpha_beta_from_mgwfbp.csv``: start-up times of an all-reduce. It may be missing; a
  plain run needs it for a baseline only.

The fits are in ``fitted/hkbu.json``: *few* to 4 GPUs, and to 8 GPUs without overlap; *dnn/NAME* to
all runs of the other DNNs; *all* to all runs. Each predicts runs that it was not fitted to.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from benchmarks.accuracy import fitted, rows, tables
from benchmarks.accuracy.cases import About, Case, Split
from benchmarks.accuracy.hkbu_models import size_of
from benchmarks.accuracy.hkbu_runs import Row, Run, nominal_bytes_per_s
from perfmodel import InputError
from perfmodel.base.uncertainty import Uncertainty

Floats = NDArray[np.float64]

ABOUT = About(
    title="HKBU ddl-benchmarks",
    citation="HKBU-HPML, arXiv 2005.13247; github.com/HKBU-HPML/ddl-benchmarks, results of "
    "2020-05-29",
    folder="hkbu_ddl_benchmarks",
    splits={
        "few": Split("1 and 4 GPUs of all methods; BSP-A2A and BSP-PS on 8 GPUs", "all other runs"),
        "dnn": Split("all runs of the other DNNs", "each DNN, from its step on one GPU"),
        "all": Split("all runs at hand", "runs that are not"),
    },
    remarks="""\
**Mechanisms.** A flat ring over all GPUs at the pace of its slowest link: one bandwidth for each
network and one inside a node. 100 Gbit/s TCP lets it have 2.4 GB/s, PCI Express 4.5 GB/s, RDMA
4.9 GB/s, 10 Gbit/s Ethernet 1.16 GB/s. Every message starts with 2 (n - 1) steps of 7 us; WFBP
sends one for each tensor. A part of the step at its end, in proportion to the bytes of the
parameters, overlaps with nothing; it is at most half of the step, which BERT-Large reaches, and so
stands for imperfect overlap as well. ByteScheduler with all-reduce keeps the device 0.8 ms for each
tensor. A parameter server is a pipeline of parts of 4 MB, whose slowest stage counts: 0.63 GB/s
over TCP, on 10 as on 100 Gbit/s links, so that the wire is not what limits; 2.4 GB/s with RDMA.

**Chosen with predicted runs in sight.** That the stages of a parameter server count as one pipeline
with one bandwidth, that ByteScheduler's work delays the backward pass instead of the communication,
and that parameters belong to networks, not to DNNs. The latency of a ring's step is that of
MG-WFBP's table with RDMA, for all networks: the table's 30 to 37 us with TCP made per-tensor
messages on 10GbE up to 28 % too slow, and left free the latency was 15 us, with similar errors.
Intervals have the form of the third attempt: with the spread of runs of other DNNs for all splits
they held 98 % of *few* and 85 % of *dnn*, with that of other methods up to all of *dnn*.

**Worst cases.** ByteScheduler-PS with BERT-Large on 100GbE is 1.7 times as fast as WFBP-PS, while
both are equal on 4 GPUs and on 10GbE: nothing in the runs calibrated on tells (77 %). With RDMA
its five runs differ by 15 % (21 %). Per-tensor messages of ResNet-50 on 10GbE cost more than 7 us a
step (9 to 11 %). From ResNet-50 alone BERT-Large comes out a quarter too fast where messages
overlap: its ring gets 4.5 GB/s inside a node, that of ResNet-50 6.4 GB/s, and how much of a step
overlaps is not seen in runs whose communication is hidden. ByteScheduler's work for a tensor is not
seen in runs of BERT-Large, which wait for the network anyway.

**Not covered.** Servers on a network among more than 4 nodes, incast, and what other jobs do to the
network. A DNN must be a BERT or one of the catalogue, and its step on one GPU be known. Intervals
of *dnn* are too wide: they hold 99 % of the runs.""",
)

FILE = "throughput.csv"

SCHEDULES = ("no_overlap", "wfbp_per_tensor", "wfbp_merged", "bytescheduler")

FEW, FEW_WITHOUT_OVERLAP = 4, 8
"""GPUs, one and two nodes of them, up to which *few* is fitted to runs."""

VAGUE = 1.0
"""Standard deviation of the logarithm of what is hardly known before any run: a factor e."""

BEFORE = {
    "ring latency_s": (7.3e-6, 0.1),
    "update_s_per_byte": (20 / 616e9, 0.35),
    "scheduler_s": (3e-4, VAGUE),
}
"""What is known before any run: a value, and the standard deviation of its logarithm.

The latency of a step of a ring is the start-up time of an all-reduce over its 2 (n - 1) steps: 7.0,
7.0 and 7.9 us among 4, 8 and 16 GPUs with RDMA, says MG-WFBP's table. An Adam of single operations
passes some 20 times over memory, at the 616 GB/s of an RTX 2080 Ti, which the throughput of one GPU
fits. For each tensor ByteScheduler makes some calls in Python, and takes a lock."""

SPREAD = 0.03
"""Standard deviation of the logarithm of a step around the model, as far as the fit weighs runs
against what is taken for granted."""

DIFFERENCE = 1e-3
"""Of the logarithm of a parameter, for slopes."""

LEAST_SPREAD = 0.01
"""Of the model, lest few runs that fit well promise too much."""


class Startup(msgspec.Struct, frozen=True):
    """A row of the table of start-up times."""

    network: str
    num_workers: int
    alpha_s: float


class Fit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was fitted to some runs.

    Attributes
    ----------
    rows : number of runs.
    values : parameters by name, in SI units.
    covariance : of their logarithms, in the same order.
    model : by family, standard deviation of the logarithm of a step around its prediction from
        runs of other series.
    size : by family, what is to be added for each doubling of a DNN's bytes, from the next one
        that it was fitted to.
    measurement : by method, that of equal runs.
    sizes_bytes : of the DNNs that it was fitted to.
    runs : numbers of GPUs it was fitted to, by series.
    alone_s : seconds of a step on one GPU, for folders without such runs; in *all*.
    """

    rows: int
    values: dict[str, float]
    covariance: list[list[float]]
    model: dict[str, float]
    size: dict[str, float]
    measurement: dict[str, float]
    sizes_bytes: list[float]
    runs: dict[str, list[int]]
    alone_s: dict[str, float] = {}

    def knows(self, run: Run) -> bool:
        """Whether it has all that a run depends on."""
        return self.values.keys() >= set(run.parameters)

    def was_fitted_to(self, run: Run) -> bool:
        """Whether a run is one of those it was fitted to."""
        return run.row.num_gpus in self.runs.get(run.row.series, ())

    def uncertainty(self, run: Run) -> Uncertainty:
        """How far the step of a run may be off; wider beyond the GPUs that its method was fitted
        to, by as much as the model is off for each doubling."""
        slopes = np.zeros(len(self.values))
        base = run.step_s(self.values, "coarse")
        for i, name in enumerate(self.values):
            if name in run.parameters:
                moved = {**self.values, name: self.values[name] * math.exp(DIFFERENCE)}
                slopes[i] = math.log(run.step_s(moved, "coarse") / base) / DIFFERENCE
        row = run.row
        same = [found for key, found in self.runs.items() if key.endswith(f", {row.method}")]
        most = max((gpus for found in same for gpus in found), default=1)
        model = self.model.get(row.family, max(self.model.values()))
        size = self.size.get(row.family, max(self.size.values()))
        away = min(abs(math.log2(size_of(row.dnn) / known)) for known in self.sizes_bytes)
        return Uncertainty(
            measurement=self.measurement.get(row.method, max(self.measurement.values())),
            calibration=math.sqrt(max(slopes @ np.array(self.covariance) @ slopes, 0.0)),
            model=model,
            extrapolation=math.hypot(model * max(math.log2(row.num_gpus / most), 0.0), size * away),
        )


# -- fitting ---------------------------------------------------------------------------------------


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and write the fits that :func:`cases` predicts with."""
    found, _ = read(folder)
    dnns = list(dict.fromkeys(run.row.dnn for run in found))
    chosen = {"few": [run for run in found if is_few(run.row)]}
    for dnn in dnns:
        others = [run for run in found if run.row.dnn != dnn]
        if others:
            chosen[f"dnn/{dnn}"] = others
    chosen["all"] = found
    for name, some in chosen.items():
        if not some:
            raise InputError(f"{folder}: no run on several GPUs to fit {name!r} to")
    fits = {name: calibrated(some) for name, some in chosen.items()}
    alone_s = {setup: _rounded(step_s) for setup, step_s in alone(folder).items()}
    fitted.write("hkbu", fits | {"all": msgspec.structs.replace(fits["all"], alone_s=alone_s)})


def is_few(row: Row) -> bool:
    """Whether a row is one that the split *few* calibrates on."""
    most = FEW_WITHOUT_OVERLAP if row.schedule == "no_overlap" else FEW
    return row.num_gpus <= most


def calibrated(runs: Sequence[Run]) -> Fit:
    """A fit to runs on several GPUs."""
    found = _fitted(tuple(runs))
    model = _by(runs, lambda run: run.row.family, found.left_out)
    noise = [run.row.std / run.row.samples_per_s for run in runs]
    series: dict[str, list[int]] = {}
    for run in runs:
        series.setdefault(run.row.series, []).append(run.row.num_gpus)
    return Fit(
        rows=len(runs),
        values={name: _rounded(value) for name, value in found.values.items()},
        covariance=[[_rounded(x) for x in line] for line in found.covariance.tolist()],
        model=model,
        size=_by_size(runs) or model,
        measurement=_by(runs, lambda run: run.row.method, noise),
        sizes_bytes=sorted({size_of(run.row.dnn) for run in runs}),
        runs={key: sorted(some) for key, some in series.items()},
    )


def _by(
    runs: Sequence[Run], key: Callable[[Run], str], misses: Sequence[float]
) -> dict[str, float]:
    """Standard deviation of what was missed, by a property of runs, from nine in ten of them."""
    found: dict[str, list[float]] = {}
    for run, miss in zip(runs, misses, strict=True):
        found.setdefault(key(run), []).append(abs(miss) if math.isfinite(miss) else 0.0)
    return {
        name: _rounded(max(tables.robust_spread(found[name]), LEAST_SPREAD))
        for name in sorted(found)
    }


def _by_size(runs: Sequence[Run]) -> dict[str, float]:
    """By family, what predictions from other DNNs miss for each doubling between their sizes."""
    tried, misses = [], []
    for dnn in dict.fromkeys(run.row.dnn for run in runs):
        others = tuple(run for run in runs if run.row.dnn != dnn)
        if not others:
            continue
        known = _fitted(others).values
        sizes = {size_of(run.row.dnn) for run in others}
        away = min(abs(math.log2(size_of(dnn) / size)) for size in sizes)
        for run in runs:
            if run.row.dnn == dnn and known.keys() >= set(run.parameters):
                tried.append(run)
                misses.append(_miss(run, known) / max(away, 1.0))
    return _by(tried, lambda run: run.row.family, misses)


class Fitted(NamedTuple):
    """Values of parameters, the covariance of their logarithms, and by run the logarithm of its
    prediction over what was measured, by a fit without any run of its series."""

    values: dict[str, float]
    covariance: Floats
    left_out: list[float]


@functools.cache
def _fitted(runs: tuple[Run, ...]) -> Fitted:
    """The most likely values of the parameters."""
    names = sorted({name for run in runs for name in run.parameters})
    expected, spread = np.array([_before(name) for name in names]).T
    before = np.log(expected)

    def values(logs: Floats) -> dict[str, float]:
        return dict(zip(names, np.exp(logs).tolist(), strict=True))

    def misses(logs: Floats) -> Floats:
        known = values(logs)
        left = np.array([_miss(run, known) for run in runs])
        return np.concatenate([left / SPREAD, (logs - before) / spread])

    found = optimize.least_squares(
        misses, before, loss="soft_l1", diff_step=DIFFERENCE, xtol=1e-4, ftol=1e-4
    )
    slopes = found.jac[: len(runs)]
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    return Fitted(values(found.x), covariance, _left_out(runs, found.fun, slopes, covariance))


def _left_out(
    runs: Sequence[Run], misses: Floats, slopes: Floats, covariance: Floats
) -> list[float]:
    """Misses of runs by fits without those of their series, as if all were linear.

    Without some rows of a linear least-squares fit these are missed by (1 - H)^-1 times what they
    are missed by with them, with H the part of the hat matrix that is theirs.
    """
    found = np.zeros(len(runs))
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(run.row.series, []).append(i)
    for some in groups.values():
        hat = slopes[some] @ covariance @ slopes[some].T
        found[some] = np.linalg.solve(np.eye(len(some)) - hat, misses[some]) * SPREAD
    return [float(miss) for miss in found]


def _before(name: str) -> tuple[float, float]:
    """What is known of a parameter before any run; of a network, that it is slower than its name
    says."""
    if name in BEFORE:
        return BEFORE[name]
    return nominal_bytes_per_s(name.partition("bytes_per_s ")[2]) / 2, VAGUE


def _miss(run: Run, values: Mapping[str, float]) -> float:
    return math.log(run.step_s(values, "coarse") / run.row.step_s)


def _rounded(value: float) -> float:
    return fitted.rounded(value, digits=5)


# -- predicting ------------------------------------------------------------------------------------


def cases(folder: Path) -> list[Case]:
    """Every run as each fit predicts it that was not fitted to it; step times in seconds."""
    fits = fitted.read("hkbu", Fit)
    known = fits["all"].alone_s
    found, left_out = read(folder, known)
    rows.say_from_fits({run.row.setup for run in found} & (known.keys() - alone(folder).keys()))
    startups = _startups(folder)
    listed = []
    for run in found:
        for split, one in _fits_for(run.row.dnn, fits).items():
            if not one.knows(run):
                left_out.append(f"{run.row.connection}: nothing was fitted to it")
            elif not one.was_fitted_to(run):
                listed.append(_case(split, run, one, startups))
    for reason in dict.fromkeys(left_out):
        click.echo(f"left out: {reason}", err=True)
    if not listed:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return listed


def _fits_for(dnn: str, fits: Mapping[str, Fit]) -> dict[str, Fit]:
    """By split, the fit that predicts a DNN; to those that are new no fit was ever made."""
    known = fits.get(f"dnn/{dnn}")
    if known is None:
        return {"few": fits["few"], "dnn": fits["all"]}
    return {"few": fits["few"], "dnn": known, "all": fits["all"]}


def _case(split: str, run: Run, one: Fit, startups: Sequence[Startup]) -> Case:
    row = run.row
    predicted = run.step_s(one.values, "fine")
    return Case(
        f"hkbu/{split}/{row.dnn}",
        f"{row.dnn} {row.method} {row.num_gpus} GPUs {row.connection}",
        predicted,
        row.step_s,
        interval=one.uncertainty(run).interval(predicted),
        pools=(f"hkbu/{split}",),
        others={
            "coarse": run.step_s(one.values, "coarse"),
            "ideal scaling": run.alone_s,
            "plain alpha-beta": _plain_s(run, startups),
        },
        setting=f"{row.dnn} {row.connection}",
        samples=float(row.batch_per_gpu * row.num_gpus),
    )


def _plain_s(run: Run, startups: Iterable[Startup]) -> float:
    """Alpha and nominal beta: all-reduce or push and pull, after computing or wholly beside it."""
    row = run.row
    network = nominal_bytes_per_s(row.connection if row.num_nodes > 1 else "")
    times = 2.0 if row.architecture == "ps" else 2.0 * (row.num_gpus - 1) / row.num_gpus
    kind = "IB" if "IB" in row.connection else "GbE"
    known = [s for s in startups if kind in s.network and s.num_workers == row.num_gpus]
    sending_s = times * size_of(row.dnn) / network + (known[0].alpha_s if known else 0.0)
    if row.schedule == "no_overlap":
        return run.alone_s + sending_s
    return max(run.alone_s, sending_s)


def alone(folder: Path) -> dict[str, float]:
    """Seconds of a step on one GPU, by :attr:`Row.setup`."""
    steps: dict[str, list[float]] = {}
    for row in rows.read(folder / FILE, Row):
        if row.num_gpus == 1:
            steps.setdefault(row.setup, []).append(row.step_s)
    return {setup: median(some) for setup, some in steps.items()}


def read(folder: Path, known: Mapping[str, float] | None = None) -> tuple[list[Run], list[str]]:
    """Runs on several GPUs, and which rows cannot be used and why.

    ``known``: steps on one GPU that the folder need not have, as :func:`alone` has them.
    """
    alone_s = {**(known or {}), **alone(folder)}
    found, left_out = [], []
    for row in rows.read(folder / FILE, Row):
        if row.num_gpus == 1:
            continue
        if row.architecture not in ("allreduce", "ps") or row.schedule not in SCHEDULES:
            left_out.append(f"{row.method}: not one of the known schedules")
        elif size_of(row.dnn) == 0.0:
            left_out.append(f"{row.dnn}: its layers are not known")
        elif row.setup not in alone_s:
            left_out.append(f"{row.dnn}: no run on one GPU with batch size {row.batch_per_gpu}")
        elif row.num_gpus % row.num_nodes:
            left_out.append(f"{row.series}: {row.num_gpus} GPUs on {row.num_nodes} nodes")
        else:
            found.append(Run(row, alone_s[row.setup]))
    return found, left_out


def _startups(folder: Path) -> list[Startup]:
    path = folder / "allreduce_alpha_beta_from_mgwfbp.csv"
    return rows.read(path, Startup) if path.is_file() else []
