r"""All-reduce on 8 to 32 V100 in several frameworks, predicted from one GPU and from one node.

DLPerf report v1: four nodes of eight V100 on NVLink, joined by 100 Gbit/s. The folder holds
``throughput.csv``: samples per second by ``model``, ``precision``, ``framework``,
``batch_per_gpu``, ``num_nodes`` and ``num_gpus``.

A *configuration* is a DNN, a precision, a framework and a batch size. Its step lasts

.. math:: T = T_1 + L + a\, w(m) / w(2) + x\, 2 \frac{m-1}{m} n \beta

with :math:`T_1` on one GPU, L what one whole node adds, and for m nodes: a time a that nodes wait
for the slowest of two, growing as the expected largest w of m normal times; and the part x, not
hidden, of a ring among the nodes over :math:`n` bytes at the nominal rate :math:`1/\beta`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import dnns, fitted, rows, tables
from benchmarks.accuracy.cases import About, Case, Split
from perfmodel import Source
from perfmodel.api import make_job, predict
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.base.uncertainty import Uncertainty
from perfmodel.inputs import catalogue
from perfmodel.inputs.cluster import Cluster, IntraNode, Link
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import Profile, Timing
from perfmodel.theory import collective_times
from perfmodel.theory.order_statistics import expected_maximum

Floats = NDArray[np.float64]

NODE_GPUS = 8
LINK_BYTES_PER_S = 12.5e9
"""Nominal: 100 Gbit/s."""

PUBLISHED = Source("published", "github.com/Oneflow-Inc/DLPerf, report v1")
CLUSTER = Cluster(
    name="v100-100g",
    devices_per_node=NODE_GPUS,
    nic=Link(LINK_BYTES_PER_S, latency_s=2e-6, efficiency=0.97),
    intra_node=IntraNode(130e9, latency_s=5e-6, kind="per_device"),
    source=Source("estimated", "nominal rates; RDMA leaves 0.97, a ring on NVLink 130 GB/s"),
)
"""That of the shipped cases of this source; nothing in it was fitted."""

RUN_SPREAD = 0.01
"""Of medians of seven runs: an assumption."""

GROWTH_SPREAD = 0.3
"""Standard deviation, for each doubling of the nodes, of what the network adds. An assumption: from
two to four nodes bytes of a ring grow 1.5 times, steps of a tree twice."""

SMALL = 1e-3
"""A coefficient of variation at which times are as good as normal, for w."""

ABOUT = About(
    title="DLPerf: ResNet-50 and BERT-base in eight frameworks on V100",
    citation="Oneflow-Inc, DLPerf, benchmark test report v1, 2020, github.com/Oneflow-Inc/DLPerf",
    folder="dlperf_oneflow",
    splits={
        "few": Split(
            "1 and 8 GPUs (one node) of each configuration; what two nodes add, two parameters, "
            "from those of other frameworks and DNNs",
            "16 GPUs and more",
        ),
        "few-strict": Split(
            "1 and 8 GPUs of each configuration; the network is nominal",
            "16 GPUs and more",
        ),
        "all": Split(
            "all rows at hand",
            "other rows: more GPUs, configurations of which only one GPU is known",
        ),
    },
    remarks="""\
Nothing on one node tells what the network does. *few* learns it from other configurations on the
same cluster, never from one of the same framework (with XLA or without clipping included) and DNN:
a wait for the slowest node, which grows with the nodes as the expected largest of so many normal
times, and the part of a ring among the nodes that backward does not hide. *few-strict* has nominal
links and DDP's buckets instead, and adds what one node took longer than that says: with such links
all-reduce hides behind backward nearly everywhere, and measured steps are longer.

Worst are ResNet-50 with AMP in PaddlePaddle (its step doubles from one node to two) and TensorFlow
2: no other row tells of that. Without these two the 90th percentile of ResNet-50 is half of what it
is. From four nodes on, growth is a matter of theory: one doubling is all that was seen. Of a
configuration without a row of 8 GPUs, what a node adds is half that of the same framework and DNN
in other precisions, half the median of all. Bytes are counted as float32 under AMP too. Having seen
predicted rows, the form was compared with others (only bytes, only a wait, a part of the step,
seconds per image): all have a median of 3 to 5 %. Seconds per image would meet ResNet-50 better
(2 %), but no mechanism says so, and the physical form was kept.
""",
)


class Row(msgspec.Struct, frozen=True):
    """A row of ``throughput.csv``."""

    model: str
    precision: str
    framework: str
    batch_per_gpu: int
    num_nodes: int
    num_gpus: int
    samples_per_s: float

    def __post_init__(self) -> None:
        number("samples_per_s", self.samples_per_s, above=0.0)
        for name in ("batch_per_gpu", "num_nodes", "num_gpus"):
            whole_number(name, getattr(self, name))

    @property
    def dnn(self) -> str:
        """The model of the catalogue, or the name as it is."""
        name = dnns.plain(self.model)
        known = [one for one in catalogue.model_names() if name.startswith(dnns.plain(one))]
        return max(known, key=len, default=self.model)

    @property
    def key(self) -> str:
        """Its configuration."""
        return f"{self.dnn}|{self.framework}|{self.precision}|{self.batch_per_gpu}"

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.num_gpus * self.batch_per_gpu / self.samples_per_s


class Configuration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was fitted to the rows of a configuration on ``gpus`` GPUs.

    Attributes
    ----------
    alone_s : a step on one GPU.
    node_s : what a whole node adds.
    between_s : what two nodes add to that.
    """

    gpus: tuple[int, ...]
    alone_s: float
    node_s: float | None = None
    between_s: float | None = None


class Fit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What configurations have in common, and each of them.

    Attributes
    ----------
    rows : rows that it was fitted to.
    wait_s, exposed : a and x of the formula of this module.
    node_s : median of what a whole node adds.
    between_spread, node_spread : standard deviations of the logarithm of a step, if ``between_s``
        or ``node_s`` of its configuration are those of others; learnt by leaving out.
    """

    rows: int
    wait_s: float
    exposed: float
    node_s: float
    between_spread: float
    node_spread: float
    configurations: dict[str, Configuration] = {}

    def between(self, dnn: str, nodes: int) -> float:
        """Seconds that ``nodes`` nodes add to one."""
        waits, bytes_s = _between(dnn, nodes)
        return self.wait_s * waits + self.exposed * bytes_s

    def growth(self, dnn: str, nodes: int) -> float:
        """What ``nodes`` nodes add, as a multiple of what two add."""
        pair_s = self.between(dnn, 2)
        return self.between(dnn, nodes) / pair_s if pair_s > 0.0 else 1.0

    def node(self, key: str) -> float:
        """Seconds that a whole node adds, if no row of the configuration tells."""
        own = _of_relatives(key, self.configurations, lambda one: one.node_s)
        return self.node_s if own is None else 0.5 * (own + self.node_s)

    def pair(self, key: str) -> float:
        """Seconds that two nodes add to one, if no row of the configuration tells."""
        pooled = self.between(_dnn(key), 2)
        own = _of_relatives(key, self.configurations, lambda one: one.between_s)
        return pooled if own is None else 0.5 * (own + pooled)


def cases(folder: Path) -> list[Case]:
    """Every row that a split was not fitted to; step times in seconds."""
    fits = fitted.read("dlperf", Fit)
    table = rows.read(folder / "throughput.csv", Row)
    alone = {row.key: row.step_s for row in table if row.num_gpus == 1}
    left_out: set[str] = set()
    found = []
    for row in table:
        for split in ABOUT.splits:
            fit = fits[split]
            known = fit.configurations.get(row.key)
            if row.num_gpus in (known.gpus if known is not None else (1,)):
                continue
            if known is None and row.key in alone:
                known = Configuration((1,), alone[row.key])
            if known is None or row.dnn not in catalogue.model_names():
                left_out.add(f"{row.model}, {row.precision}, {row.framework}")
                continue
            fold = fits.get(f"{split} without {_relatives(row.key)}", fit)
            found.append(_case(split, row, known, fit, fold))
    rows.say_left_out("no row of one GPU, or a DNN of unknown size", left_out)
    if not found:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return found


def _case(split: str, row: Row, known: Configuration, fit: Fit, fold: Fit) -> Case:
    size = _bytes(row.dnn)
    on_node = min(row.num_gpus, NODE_GPUS)
    strict_s = _job_s(row, known.alone_s, row.num_gpus)
    node_s = known.node_s if known.node_s is not None else fit.node(row.key)
    spread = 0.0 if known.node_s is not None else fit.node_spread
    # within a node, bytes grow as those of a ring
    within_s = (
        node_s
        * collective_times.half_ring_bytes(on_node, 1.0)
        / collective_times.half_ring_bytes(NODE_GPUS, 1.0)
    )
    between_s, beyond = 0.0, 0.0
    if row.num_nodes > 1:
        beyond = math.log2(row.num_nodes / 2)
        if known.between_s is not None:
            pair_s = known.between_s
        else:
            pair_s = fold.pair(row.key)
            spread = math.hypot(spread, fold.between_spread)
        between_s = pair_s * fold.growth(row.dnn, row.num_nodes)
    predicted = known.alone_s + within_s + between_s
    if split == "few-strict":
        # what a node took longer than the job says, it takes with more nodes, too
        job_s = _job_s(row, known.alone_s, on_node)
        predicted = strict_s + max(known.alone_s + within_s - job_s, 0.0)
    unsure = Uncertainty(
        measurement=RUN_SPREAD,
        model=spread,
        extrapolation=GROWTH_SPREAD * beyond * between_s / predicted,
    )
    plain_s = collective_times.ring_allreduce_s(
        row.num_gpus, size, bandwidth_bytes_per_s=LINK_BYTES_PER_S, latency_s=CLUSTER.nic.latency_s
    )
    return Case(
        f"dlperf/{split}/{row.dnn}",
        f"{row.model} {row.precision} {row.framework} batch {row.batch_per_gpu} "
        f"{row.num_gpus} GPUs",
        predicted,
        row.step_s,
        interval=unsure.interval(predicted),
        pools=(f"dlperf/{split}",),
        others={
            "ideal scaling": known.alone_s,
            "plain alpha-beta": known.alone_s + plain_s,
            "nominal job": strict_s,
        },
        setting=f"{row.dnn} {row.precision}",
        samples=float(row.num_gpus * row.batch_per_gpu),
    )


def nominal_jobs(folder: Path) -> Iterator[tuple[str, Job, float]]:
    """Framework, job on nominal links, and measured step of every run on several GPUs."""
    table = rows.read(folder / "throughput.csv", Row)
    alone = {row.key: row.step_s for row in table if row.num_gpus == 1}
    for row in table:
        known = row.key in alone and row.dnn in catalogue.model_names()
        if row.num_gpus > 1 and known:
            yield row.framework, _job(row, alone[row.key], row.num_gpus), row.step_s


# -- fitting ---------------------------------------------------------------------------------------


def fit(folder: Path) -> None:
    """Fit to the rows of a folder and write the fits that :func:`cases` predicts with."""
    table = rows.read(folder / "throughput.csv", Row)
    steps: dict[str, dict[int, float]] = {}
    for row in table:
        if row.dnn in catalogue.model_names():
            steps.setdefault(row.key, {})[row.num_gpus] = row.step_s
    measured = {key: of for key, of in steps.items() if 1 in of}
    example = {row.key: row for row in table}
    fits = {"few": _fitted(measured, measured, most=NODE_GPUS)}
    for name in sorted({_relatives(key) for key in measured if 2 * NODE_GPUS in measured[key]}):
        others = {key: of for key, of in measured.items() if _relatives(key) != name}
        fits[f"few without {name}"] = _fitted(others, {})
    misses = [
        math.log(of[NODE_GPUS] / _job_s(example[key], of[1], NODE_GPUS))
        for key, of in measured.items()
        if NODE_GPUS in of
    ]
    fits["few-strict"] = msgspec.structs.replace(
        fits["few"], wait_s=0.0, exposed=1.0, between_spread=_spread(misses)
    )
    fits["all"] = _fitted(measured, measured)
    fitted.write("dlperf", fits)


def _fitted(
    told: dict[str, dict[int, float]], kept: dict[str, dict[int, float]], most: float = math.inf
) -> Fit:
    """What ``told`` have in common, and the configurations ``kept`` on up to ``most`` GPUs."""
    node = {key: of[NODE_GPUS] - of[1] for key, of in told.items() if NODE_GPUS in of}
    if not node:
        raise InputError(f"no configuration has rows of 1 and {NODE_GPUS} GPUs")
    pairs = [key for key, of in told.items() if key in node and 2 * NODE_GPUS in of]
    if not pairs:
        raise InputError(f"no configuration has rows of {NODE_GPUS} and {2 * NODE_GPUS} GPUs")
    wait_s, exposed = _network(pairs, told)
    between = []
    for name in {_relatives(key) for key in pairs}:
        a, x = _network([key for key in pairs if _relatives(key) != name] or pairs, told)
        for key in pairs:
            if _relatives(key) == name:
                waits, bytes_s = _between(_dnn(key), 2)
                guess = told[key][NODE_GPUS] + a * waits + x * bytes_s
                between.append(math.log(told[key][2 * NODE_GPUS] / guess))
    median = float(np.median(list(node.values())))
    fit = Fit(
        rows=sum(len([n for n in of if n <= most]) for of in told.values()),
        wait_s=fitted.rounded(wait_s),
        exposed=fitted.rounded(exposed),
        node_s=fitted.rounded(median),
        between_spread=_spread(between),
        node_spread=_node_spread(told, node),
    )
    configurations = {key: _configuration(of, most) for key, of in sorted(kept.items())}
    return msgspec.structs.replace(fit, configurations=configurations)


def _network(keys: Sequence[str], told: dict[str, dict[int, float]]) -> tuple[float, float]:
    """The a and x, neither below 0, with the least sum of errors as parts of the step."""
    from scipy.optimize import linprog

    terms = np.array([_between(_dnn(key), 2) for key in keys])
    added = np.array([told[key][2 * NODE_GPUS] - told[key][NODE_GPUS] for key in keys])
    steps = np.array([told[key][2 * NODE_GPUS] for key in keys])
    terms, added = terms / steps[:, None], added / steps
    count = len(keys)
    found = linprog(
        np.concatenate([np.zeros(2), np.ones(count)]),
        A_ub=np.block([[terms, -np.eye(count)], [-terms, -np.eye(count)]]),
        b_ub=np.concatenate([added, -added]),
    ).x
    return float(found[0]), float(found[1])


def _node_spread(told: dict[str, dict[int, float]], node: dict[str, float]) -> float:
    """How far one node is off if what it adds is told by other precisions and by the median."""
    misses = []
    for key in node:
        others = {k: s for k, s in node.items() if _but_batch(k) != _but_batch(key)}
        if not others:
            continue
        ones = {k: Configuration((), 0.0, s) for k, s in others.items()}
        own = _of_relatives(key, ones, lambda one: one.node_s)
        median = float(np.median(list(others.values())))
        guess = told[key][1] + (median if own is None else 0.5 * (own + median))
        misses.append(math.log(told[key][NODE_GPUS] / guess))
    return _spread(misses)


def _configuration(of: dict[int, float], most: float) -> Configuration:
    """What a configuration's own rows tell."""
    gpus = tuple(sorted(n for n in of if n <= most))
    node_s = of[NODE_GPUS] - of[1] if NODE_GPUS in gpus else None
    between_s = None
    if node_s is not None and 2 * NODE_GPUS in gpus:
        between_s = max(of[2 * NODE_GPUS] - of[NODE_GPUS], 0.0)
    return Configuration(
        gpus,
        fitted.rounded(of[1]),
        None if node_s is None else fitted.rounded(node_s),
        None if between_s is None else fitted.rounded(between_s),
    )


def _spread(misses: Sequence[float]) -> float:
    """:func:`tables.robust_spread`, 0 where there are no misses."""
    return fitted.rounded(tables.robust_spread(misses)) if misses else 0.0


def _of_relatives(
    key: str,
    configurations: dict[str, Configuration],
    figure: Callable[[Configuration], float | None],
) -> float | None:
    """Mean figure of other configurations of the same DNN and framework; None if there are none."""
    found = [
        figure(one)
        for name, one in configurations.items()
        if name != key and _relatives(name) == _relatives(key)
    ]
    values = [value for value in found if value is not None]
    return float(np.mean(values)) if values else None


# -- sizes, jobs, names ----------------------------------------------------------------------------


def _between(dnn: str, nodes: int) -> tuple[float, float]:
    """What a and x of the formula of this module are multiplied with, the latter in seconds."""
    slowest, of_two = (expected_maximum(n, SMALL, "lognormal") - 1.0 for n in (nodes, 2))
    waits = slowest / of_two
    return float(waits), float(
        collective_times.ring_allreduce_bytes(nodes, _bytes(dnn)) / LINK_BYTES_PER_S
    )


@functools.cache
def _profile(dnn: str) -> Profile:
    return catalogue.model(dnn)


def _bytes(dnn: str) -> float:
    return _profile(dnn).parameter_bytes


def _job_s(row: Row, alone_s: float, gpus: int) -> float:
    """A step by the model's own all-reduce with DDP's buckets on nominal links."""
    return predict(_job(row, alone_s, gpus), fidelity="coarse").iteration_s


def _job(row: Row, alone_s: float, gpus: int) -> Job:
    timing = Timing(
        device="v100",
        batch_size=row.batch_per_gpu,
        samples_per_s=row.batch_per_gpu / alone_s,
        source=PUBLISHED,
    )
    profile = msgspec.structs.replace(_profile(row.dnn), timings=(timing,))
    return make_job(workload=profile, device="v100", cluster=CLUSTER, workers=gpus, arch="ring")


def _dnn(key: str) -> str:
    return key.split("|", maxsplit=1)[0]


def _relatives(key: str) -> str:
    """DNN and framework of a configuration; with XLA or without clipping it is the same framework.

    >>> _relatives("bert-base|OneFlow W/O clip|FP32|32")
    'bert-base in OneFlow'
    """
    dnn, framework = key.split("|")[:2]
    return f"{dnn} in {re.sub(r'(?i) w/.*', '', framework)}"


def _but_batch(key: str) -> str:
    """DNN, framework and precision of a configuration."""
    return key.rpartition("|")[0]
