"""What the adapters of published tables of throughput share: rows, fits to them, and their jobs.

A row is a job of a few fitted values, each of which is a field of the cluster. A value that no row
tells of keeps what is expected of it before (its :class:`Parameter`), and is as uncertain.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from benchmarks.accuracy import fitted
from benchmarks.accuracy.cases import Run
from perfmodel import Cluster, IntraNode, Job, Link, Server, Source, make_job, predict
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.calibration.regression import Parameter, Regression, spread_of
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.profile import Profile
from perfmodel.predicting import coarse
from perfmodel.predicting.intervals import features_of

PCIE = IntraNode(12e9, 10e-6, kind="per_device")
"""What PCIe 3.0 x16 moves in practice, one way, for each device."""

ETHERNET_EFFICIENCY = 0.9415
"""Payload of TCP in frames of 1500 bytes: 1448 of the 1538 bytes that each takes on the wire."""

PUBLISHED = Source("published", "throughput of one device; layers as published")

SPREAD = 0.03
"""Expected standard deviation of the logarithm of a step around the model; it weighs runs against
what is expected before."""


FARTHEST, LEAST = 4.0, 1e-3
"""Standard deviations above what is expected, and the least factor on it, of values sought."""


SLOW = 2.5
"""Standard deviations from what is expected of a point at which everything is slow."""

CORRECTIONS = 2
"""Times that a fit is corrected for what formulas are off the simulation."""

DIFFERENCE = 1e-2
"""Of coordinates, for slopes."""

ROUNDS, FARTHEST_STEP, CLOSE = 8, 1.5, 0.02
"""Of a search: most rounds, the longest step of one, and one that is short enough to end with, both
in standard deviations of what is expected."""


class ImagesRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table of throughput: ``images_per_s`` of all GPUs together.

    Raises
    ------
    InputError : a number out of range.
    """

    model: str
    batch_per_gpu: int
    num_gpus: int
    images_per_s: float
    num_nodes: int = 1

    def __post_init__(self) -> None:
        number("images_per_s", self.images_per_s, above=0.0)
        for name in ("batch_per_gpu", "num_gpus", "num_nodes"):
            whole_number(name, getattr(self, name))

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.num_gpus * self.batch_per_gpu / self.images_per_s

    @property
    def devices(self) -> int:
        """GPUs of the fullest node."""
        return -(-self.num_gpus // self.num_nodes)


class Measured(Protocol):
    """A row on several GPUs, with what its job needs.

    Attributes
    ----------
    key : what tells it from all others.
    dnn, family : rows whose predictions are off alike; ``series`` are the same but for its size.
    fields : the field of the cluster that each fitted value is, by name of the value; empty for
        one of the workload, which is as well known as the others are.
    """

    @property
    def key(self) -> str: ...
    @property
    def num_gpus(self) -> int: ...
    @property
    def dnn(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def series(self) -> str: ...
    @property
    def step_s(self) -> float: ...
    @property
    def fields(self) -> Mapping[str, str]: ...

    def job(self, values: Mapping[str, float], known: Calibration | None = None) -> Job:
        """Its job with fitted values, on a cluster that carries how well they are ``known``."""


Some = TypeVar("Some", bound=Measured)
Prior = Callable[[str], Parameter]


class Fit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was fitted to the rows ``keys`` of the DNNs ``dnns``.

    Attributes
    ----------
    values : by name.
    known : how well, by the names of the values in the place of fields.
    families : spread of the rows of a family, in fits without those of their series.
    unseen : spread of the rows of a DNN in fits without it.
    alone_s : seconds of a step on one GPU, for folders without such rows.
    """

    values: dict[str, float]
    known: Calibration
    families: dict[str, float]
    unseen: float
    dnns: tuple[str, ...]
    keys: tuple[str, ...]
    alone_s: dict[str, float] = {}

    def job(self, row: Measured, prior: Prior) -> Job:
        """The job of a row, on a cluster that carries how well its values are known."""
        values = {n: self.values.get(n, prior(n).value) for n in row.fields}
        if not self.keys:
            return row.job(values)
        names, count = [n for n, field in row.fields.items() if field], len(self.values)
        order = {name: i for i, name in enumerate(self.known.parameters)}
        every = np.zeros((count + len(names),) * 2)
        every[:count, :count] = self.known.covariance or np.zeros((count, count))
        for i, name in enumerate(names):
            every[count + i, count + i] = prior(name).spread ** 2
        at = [order.get(name, count + i) for i, name in enumerate(names)]
        spread = self.families.get(row.family, max(self.families.values()))
        known = msgspec.structs.replace(
            self.known,
            parameters=tuple(row.fields[name] for name in names),
            covariance=tuple(map(tuple, every[np.ix_(at, at)].tolist())),
            spread=spread if row.dnn in self.dnns else max(spread, self.unseen),
        )
        return row.job(values, known)


NOTHING = Fit({}, Calibration(), {}, 0.0, (), ())
"""No fit at all: every value is as expected before."""


def fit(rows: Sequence[Measured], prior: Prior, alone_s: Mapping[str, float] | None = None) -> Fit:
    """Fit to rows, by the coarse route.

    Raises
    ------
    InputError : there are none.
    """
    if not rows:
        raise InputError("no rows to fit to: needed are runs on one GPU, and on several")
    names = sorted({name for row in rows for name in row.fields})
    before = {name: prior(name) for name in names}
    # factors on what is expected, so that a search begins with steps of one standard deviation
    parameters = [
        Parameter(n, 1.0, p.spread, most=min(math.exp(FARTHEST * p.spread), p.most / p.value))
        for n, p in before.items()
    ]
    more = [0.0] * len(rows)

    @functools.lru_cache(maxsize=100_000)
    def miss(i: int, given: tuple[float, ...]) -> float:
        factors = dict(zip(rows[i].fields, given, strict=True))
        job = rows[i].job({n: before[n].value * max(f, LEAST) for n, f in factors.items()})
        return more[i] + math.log(float(coarse.phases(job).iteration_s) / rows[i].step_s)

    def misses(values: Mapping[str, Floats], points: int) -> Floats:
        of = {n: value.tolist() for n, value in values.items()}
        return np.array(
            [
                [miss(i, tuple(of[n][p] for n in row.fields)) for i, row in enumerate(rows)]
                for p in range(points)
            ]
        )

    def found(at: Floats) -> dict[str, float]:
        return _rounded({n: before[n].value * f for n, f in regression.values(at).items()})

    regression = Regression(parameters, misses, np.full(len(rows), SPREAD))
    ends = [_descend(regression, start) for start in _starts(regression, rows)]
    x = _back(regression, min(ends, key=lambda end: regression.cost(end, 1.0)))
    for _ in range(CORRECTIONS):  # for what the formulas are off the simulation there
        values = found(x)
        more[:] = [_more({n: values[n] for n in row.fields}, row) for row in rows]
        miss.cache_clear()
        x = _descend(regression, x)
    scale = regression.scale(x)
    near = _linear(regression, x)
    series, dnns = [row.series for row in rows], [row.dnn for row in rows]
    values = found(x)
    features = [features_of(row.job({n: values[n] for n in row.fields})) for row in rows]
    left_out = near.left_out(series, x, scale)
    known = near.calibration(x, scale, {n: n for n in names}, left_out=left_out,
                             groups=len(set(series)), features=features)  # fmt: skip
    # features that always change together are one: the workers, if they are among them
    once = {growth: name for name, growth in reversed(known.growth.items())}
    growth = {n: g for n, g in known.growth.items() if once[g] == n}
    known = msgspec.structs.replace(known, growth=growth)
    unseen = near.left_out(dnns, x, scale) if len(set(dnns)) > 1 else left_out
    families = {
        family: spread_of(left_out[[row.family == family for row in rows]],
                          len({row.series for row in rows if row.family == family}))
        for family in sorted({row.family for row in rows})
    }  # fmt: skip
    return Fit(
        values=values,
        known=known,
        families=_rounded(families),
        unseen=fitted.rounded(spread_of(unseen, len(set(dnns)))),
        dnns=tuple(sorted(set(dnns))),
        keys=tuple(row.key for row in rows),
        alone_s=_rounded(alone_s or {}),
    )


def _more(values: Mapping[str, float], row: Measured) -> float:
    """Logarithm of a simulated step over that of the formulas."""
    job = row.job(values)
    if coarse.error_band(job).p90 == 0.0:
        return 0.0
    return math.log(predict(job).iteration_s / float(coarse.phases(job).iteration_s))


def _starts(regression: Regression, rows: Sequence[Measured]) -> list[Floats]:
    """What is expected, and where all communication is slow: of a link that is hidden because it is
    fast nothing tells which way to go."""
    centre, prior = regression.centre, regression.prior
    aside = SLOW * np.diag(prior)
    more, less = (regression.misses(centre + s * aside).sum(axis=1) for s in (1.0, -1.0))
    fields = {name: field for row in rows for name, field in row.fields.items()}
    sent = [fields[name] not in ("", "slowdown_per_neighbour") for name in regression.names]
    return [centre, centre + SLOW * prior * np.where(more > less, 1.0, -1.0) * sent]


def _descend(regression: Regression, x: Floats) -> Floats:
    """A minimum near a point, by fits to misses that are linear about the last one."""
    prior, cost = regression.prior, regression.cost(x, 1.0)
    for _ in range(ROUNDS):
        step = _linear(regression, x).solve([x]) - x
        step = np.clip(step, -FARTHEST_STEP * prior, FARTHEST_STEP * prior)
        tried = [(regression.cost(x + part * step, 1.0), part) for part in (1.0, 0.3)]
        least, part = min(tried)
        if least >= cost:
            break
        x, cost = x + part * step, least
        if float(np.abs(part * step / prior).max()) < CLOSE:
            break
    return x


def _back(regression: Regression, x: Floats) -> Floats:
    """The point with all values as expected that are better so: what starts slow need not find out
    of where it hardly shows."""
    for i, expected in enumerate(regression.centre.tolist()):
        tried = x.copy()
        tried[i] = expected
        if regression.cost(tried, 1.0) < regression.cost(x, 1.0):
            x = tried
    return x


def _linear(regression: Regression, x: Floats) -> Regression:
    """The same with misses that are linear about a point: hundreds of fits without some of the rows
    take no time."""
    at = regression.misses(x[None])[0]
    aside = DIFFERENCE * np.eye(len(x))
    slopes = (regression.misses(x + aside) - regression.misses(x - aside)).T / (2.0 * DIFFERENCE)
    parameters = list(regression.parameters.values())

    def misses(values: Mapping[str, Floats], points: int) -> Floats:
        moved = np.array([[p.coordinate(v) for v in values[p.name].tolist()] for p in parameters])
        found: Floats = at + (moved.T - x) @ slopes.T
        return found

    return Regression(parameters, misses, regression.spreads)


def run(source: str, split: str, row: Measured, found: Fit, prior: Prior, setting: str) -> Run:
    """A row as a fit has its job."""
    pool = f"{source}/{split}"
    job = found.job(row, prior)
    return Run(f"{pool}/{row.dnn}", row.key, job, row.step_s, pools=(pool,), setting=setting)


def without(rows: Iterable[Some], group: Callable[[Some], str]) -> dict[str, list[Some]]:
    """By name of a group, the rows of all others; none where there is but one group."""
    listed = list(rows)
    names = list(dict.fromkeys(map(group, listed)))
    found = {name: [row for row in listed if group(row) != name] for name in names}
    return found if len(names) > 1 else {}


def fewest(rows: Sequence[Some]) -> list[Some]:
    """The rows with the smallest number of GPUs of each series."""
    least: dict[str, int] = {}
    for row in rows:
        least[row.series] = min(row.num_gpus, least.get(row.series, row.num_gpus))
    return [row for row in rows if row.num_gpus == least[row.series]]


def cluster(link: Link, known: Calibration | None = None, **fields: Any) -> Cluster:
    """Equal nodes; servers, if there are any, share the nodes and links of the workers."""
    return Cluster(
        name="published",
        nic=link,
        calibration=known,
        source=Source("estimated", "nominal rates, or what was fitted"),
        **{"server": Server(placement="colocated"), **fields},
    )


def job(
    profile: Profile, workers: int, where: Cluster, arch: str, options: Mapping[str, Any]
) -> Job:
    """A job of a profile with one timing."""
    timing = profile.timings[0]
    return make_job(
        workload=profile,
        device=timing.device,
        batch_size=timing.batch_size,
        cluster=where,
        workers=workers,
        arch=arch,
        options=options,
    )


def as_one(profile: Profile, devices: int, seconds: float) -> Profile:
    """A profile for all devices of a node together, which take ``seconds`` for a step."""
    timing = profile.timings[0]
    size = devices * timing.batch_size
    changed = msgspec.structs.replace(timing, batch_size=size, samples_per_s=size / seconds)
    return msgspec.structs.replace(profile, timings=(changed,))


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: fitted.rounded(value) for name, value in values.items()}
