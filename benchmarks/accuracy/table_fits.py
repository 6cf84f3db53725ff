"""Fits to published tables of throughput: the values of fields, and their uncertainty.

A row is a job with a few fitted values, each of which is a field of the cluster. A value that no
row constrains keeps its prior (its :class:`Parameter`), and the prior's uncertainty.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import fitted
from benchmarks.accuracy.cases import About, Case, Run, predicted
from benchmarks.accuracy.fitted import rounded
from perfmodel import Job, predict
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, unknown_name
from perfmodel.calibration.parameters import Parameter
from perfmodel.calibration.regression import Misses, Regression
from perfmodel.inputs.calibration import Calibration
from perfmodel.predicting import coarse
from perfmodel.predicting.intervals import features_of

SPREAD = 0.03
"""Expected standard deviation of the logarithm of a step time around the model; it weights runs
against the priors."""

FARTHEST, LEAST = 4.0, 1e-3
"""Bounds of the search: standard deviations above the prior, and the smallest factor on it."""

SLOW = 2.5
"""Distance from the prior, in standard deviations, of a starting point where everything is slow."""

SIMULATED = 2
"""Maximum number of rounds of the search by simulation, which follows the search by formulas."""

DIFFERENCE = 0.02
"""Step of coordinates, for slopes."""

ROUNDS, FARTHEST_STEP, CLOSE = 8, 1.5, 0.02
"""Search limits: the number of rounds, the longest step of a round, and the step short enough to
stop, both in standard deviations of the prior."""


class Measured(Protocol):
    """A row on several GPUs, with the data for its job.

    Attributes
    ----------
    key : identifies the row.
    dnn, family : rows with similar errors; rows of one ``series`` only differ in size.
    setting : rows that differ in the training algorithm, and are ranked.
    fields : the field of the cluster for each fitted value, by name of the value; empty for a value
        of the workload, whose uncertainty is that of the others.
    """

    @property
    def key(self) -> str: ...
    @property
    def dnn(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def series(self) -> str: ...
    @property
    def setting(self) -> str: ...
    @property
    def step_s(self) -> float: ...
    @property
    def fields(self) -> Mapping[str, str]: ...

    def job(self, values: Mapping[str, float], known: Calibration | None = None) -> Job:
        """Return its job with fitted values, on a cluster with their uncertainty ``known``."""


Prior = Callable[[str], Parameter]


class Fit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fit to the rows ``keys`` of the DNNs ``dnns``.

    Attributes
    ----------
    values : fitted values by name.
    known : their uncertainty, with names of values in place of fields.
    families : spread of the rows of a family, in fits without their series.
    unseen : spread of the rows of a DNN, in fits without it.
    alone_s : step times on one GPU (s), for folders without such rows.
    """

    values: dict[str, float]
    known: Calibration
    families: dict[str, float]
    unseen: float
    dnns: tuple[str, ...]
    keys: tuple[str, ...]
    alone_s: dict[str, float] = {}

    def job(self, row: Measured, prior: Prior) -> Job:
        """Return the job of a row, on a cluster that stores the uncertainty of its values."""
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


def prior_of(about: About) -> Prior:
    """Return a source's prior of the value with this name, or with this first word."""

    def prior(name: str) -> Parameter:
        known = about.expected
        found = known.get(name) or known.get(name.partition(" ")[0])
        if found is None:
            raise unknown_name("fitted value", name, known)
        return Parameter(name, found.value, found.spread, most=found.most)

    return prior


NOTHING = Fit({}, Calibration(), {}, 0.0, (), ())
"""No fit at all: every value has its prior."""


Row = TypeVar("Row", bound=Measured)


def of_dnn(row: Measured) -> str:
    """Return the DNN of a row: rows of one DNN are held out together."""
    return row.dnn


def cases(
    source: str,
    rows: Iterable[Row],
    splits: Sequence[str],
    prior: Prior,
    group: Callable[[Row], str] = of_dnn,
) -> list[Case]:
    """Return every row, predicted by the fits of each split that exclude it.

    A fit without the ``group`` of the row is preferred. Rows that are in no fit are predicted by
    the fit to all rows, which is the last split.

    Raises
    ------
    InputError : there is nothing to predict.
    """
    fits = fitted.read(source, Fit)
    found = []
    for row in rows:
        unseen = row.key not in fits["all"].keys
        for split in splits[-1:] if unseen else splits:
            one = fits.get(f"{split} without {group(row)}") or fits.get(split)
            one = fits["all"] if unseen else one
            if one is not None and row.key not in one.keys:
                found.append(run(source, split, row, one, prior))
    if not found:
        raise InputError(f"{source}: no predictable row outside the fits")
    return predicted(found)


def run(source: str, split: str, row: Measured, found: Fit, prior: Prior) -> Run:
    """Return a row as a run, with the job of a fit."""
    pool = f"{source}/{split}"
    job = found.job(row, prior)
    return Run(f"{pool}/{row.dnn}", row.key, job, row.step_s, pools=(pool,), setting=row.setting)


def without(
    split: str, rows: Sequence[Row], prior: Prior, group: Callable[[Row], str] = of_dnn
) -> dict[str, Fit]:
    """Return, by name, fits to the rows of all groups but one; none if there is only one group."""
    names = list(dict.fromkeys(map(group, rows)))
    return {
        f"{split} without {name}": fit([row for row in rows if group(row) != name], prior)
        for name in names
        if len(names) > 1
    }


def fit(rows: Sequence[Measured], prior: Prior, alone_s: Mapping[str, float] | None = None) -> Fit:
    """Fit to rows: by formulas first, then by simulation if the formulas are inaccurate.

    Raises
    ------
    InputError : there are no rows.
    """
    if not rows:
        raise InputError("no rows to fit to: needed are runs on one GPU, and on several")
    before = {name: prior(name) for name in sorted({n for row in rows for n in row.fields})}
    # factors on the priors, so that a search begins with steps of one standard deviation
    parameters = [
        Parameter(n, 1.0, p.spread, most=min(math.exp(FARTHEST * p.spread), p.most / p.value))
        for n, p in before.items()
    ]
    spreads = np.full(len(rows), SPREAD)
    formulas, simulations = (
        Regression(parameters, _misses(rows, before, simulated), spreads)
        for simulated in (False, True)
    )
    ends = [_descend(formulas, start) for start in _starts(formulas, rows)]
    x = _back(formulas, min(ends, key=lambda end: formulas.cost(end, 1.0)))
    x = _descend(simulations, x, SIMULATED)
    return _found(simulations.near(x, DIFFERENCE), x, rows, before, alone_s or {})


def _found(
    near: Regression,
    x: Floats,
    rows: Sequence[Measured],
    before: Mapping[str, Parameter],
    alone_s: Mapping[str, float],
) -> Fit:
    """Return the values at a point, and their spread over held-out rows of a regression near it."""
    scale = near.scale(x)
    series, dnns = [row.series for row in rows], [row.dnn for row in rows]
    values = {n: rounded(before[n].value * f) for n, f in near.values(x).items()}
    features = [features_of(row.job({n: values[n] for n in row.fields})) for row in rows]

    def exact(at: Floats, some: NDArray[np.int64]) -> Floats:
        misses = _misses([rows[i] for i in some], before, True)
        one = Regression(list(near.parameters.values()), misses, near.spreads[some])
        found: Floats = one.misses(at[None])[0]
        return found

    left_out = near.left_out(series, x, scale, exact=exact)
    known = near.calibration(x, scale, {n: n for n in values}, left_out=left_out,
                             groups=len(set(series)), features=features)  # fmt: skip
    # features that always change together count as one: the workers, if they are among them
    once = {growth: name for name, growth in reversed(known.growth.items())}
    growth = {n: g for n, g in known.growth.items() if once[g] == n}
    unseen = near.left_out(dnns, x, scale, exact=exact) if len(set(dnns)) > 1 else left_out
    families = {}
    for family in sorted({row.family for row in rows}):
        own = np.array([row.family == family for row in rows])
        count = len({row.series for row in rows if row.family == family})
        families[family] = left_out.spread(count, own)
    return Fit(
        values=values,
        known=msgspec.structs.replace(known, growth=growth),
        families={family: rounded(spread) for family, spread in families.items()},
        unseen=rounded(unseen.spread(len(set(dnns)))),
        dnns=tuple(sorted(set(dnns))),
        keys=tuple(row.key for row in rows),
        alone_s={name: rounded(seconds) for name, seconds in alone_s.items()},
    )


def _misses(rows: Sequence[Measured], before: Mapping[str, Parameter], simulated: bool) -> Misses:
    """Return logarithms of predicted over measured, for factors on the priors."""

    @functools.lru_cache(maxsize=100_000)
    def miss(i: int, given: tuple[float, ...]) -> float:
        factors = dict(zip(rows[i].fields, given, strict=True))
        job = rows[i].job({n: before[n].value * max(f, LEAST) for n, f in factors.items()})
        exact = not simulated or coarse.error_band(job).p90 == 0.0
        step_s = float(coarse.phases(job).iteration_s) if exact else predict(job).iteration_s
        return math.log(step_s / rows[i].step_s)

    def misses(values: Mapping[str, Floats], points: int) -> Floats:
        of = {n: value.tolist() for n, value in values.items()}
        return np.array(
            [
                [miss(i, tuple(of[n][p] for n in row.fields)) for i, row in enumerate(rows)]
                for p in range(points)
            ]
        )

    return misses


def _starts(regression: Regression, rows: Sequence[Measured]) -> list[Floats]:
    """Return the prior, and a point where all communication is slow: if a link is hidden because it
    is fast, the errors do not depend on it, and the search has no direction."""
    centre, prior = regression.centre, regression.prior
    aside = SLOW * np.diag(prior)
    more, less = (regression.misses(centre + s * aside).sum(axis=1) for s in (1.0, -1.0))
    fields = {name: field for row in rows for name, field in row.fields.items()}
    sent = [fields[name] not in ("", "slowdown_per_neighbour") for name in regression.names]
    return [centre, centre + SLOW * prior * np.where(more > less, 1.0, -1.0) * sent]


def _descend(regression: Regression, x: Floats, rounds: int = ROUNDS) -> Floats:
    """Return a minimum near a point, by repeated linear fits to the errors."""
    prior, cost = regression.prior, regression.cost(x, 1.0)
    for _ in range(rounds):
        step = regression.near(x, DIFFERENCE).solve([x]) - x
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
    """Return the point with each value reset to its prior if that is better: a value that starts
    slow may be stuck where it has little effect."""
    for i, expected in enumerate(regression.centre.tolist()):
        tried = x.copy()
        tried[i] = expected
        if regression.cost(tried, 1.0) < regression.cost(x, 1.0):
            x = tried
    return x
