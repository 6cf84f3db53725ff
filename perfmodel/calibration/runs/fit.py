"""Fits network, server and compute parameters to a table of past runs.

Step times come from the coarse model. The priors are the current values, known within a factor of
ten.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number
from perfmodel.base.units import dimension_of, show
from perfmodel.calibration import figures
from perfmodel.calibration.files import slower_profile, with_fields
from perfmodel.calibration.parameters import Observation, Parameter
from perfmodel.calibration.regression import Determination, Regression
from perfmodel.calibration.runs.parameters import (
    FIELDS,
    OVERLAP,
    free_overlap,
    groups_of,
    names_of,
    now,
    on_job,
    parameters_of,
    step_s,
    with_overlap,
)
from perfmodel.calibration.statistics import Fitted, Residuals, RunError, Status, Written, folds
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Job
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.workload import Workload
from perfmodel.predicting import coarse
from perfmodel.predicting.intervals import features_of
from perfmodel.reporting.contents import Figure

Progress = Callable[[int, int], None]
_Searched = tuple["_RunsRegression", Floats, float]
"""A regression with one setting of the overlap, its fit, and the fit's scale."""

RUN_SPREAD = 0.03
"""Prior standard deviation of repeated runs as a fraction of their mean, as in
:mod:`perfmodel.calibration.servers.fit`."""

OUTLIER = 5.0
"""Standard deviations beyond which a run is reported as an outlier."""

EFFECT = 0.01
"""A parameter is fitted by default if one prior standard deviation of it changes some run by at
least this fraction."""

MARGIN = 2.0
"""Difference in log-likelihood needed to decide whether communication overlaps."""

STARTS_OF_ONE = np.array([0.0, 1.0])
"""Starts of the search for one more parameter, in prior standard deviations from its mean."""

FOLDS = 5
"""Folds of the cross-validation."""

OF_CLUSTER = {name: field.path for name, field in FIELDS.items()}
OF_WORKLOAD = {"compute_factor": "compute_s"}
"""Fields of a cluster and of a workload that the parameters belong to."""

COARSE_ERROR = 0.05
"""A note is added if the 90th percentile of the coarse model's error for such jobs exceeds this."""


class Overlap(msgspec.Struct, frozen=True):
    """Whether communication overlaps with computation in runs that do not specify it.

    ``was`` is the default, ``margin`` the difference in log-likelihood in favour of ``value``.
    """

    value: bool
    was: bool
    margin: float
    status: Status


class RunsFit(Written, frozen=True, kw_only=True):
    """Parameters fitted to past runs (schema ``perfmodel.calibration/1``).

    Attributes
    ----------
    estimates : each parameter that was fitted, or that has too little effect to be fitted.
    overlap : None if all runs specify it, or if it was not requested.
    run_spread : standard deviation of a run around the fit, as a fraction.
    residuals, held_out : errors of the fit, and of the cross-validation; None if there are too few
        runs.
    ranges : smallest and largest value among the runs, by feature.
    architectures : those of the runs.
    of_cluster, of_workload : remaining uncertainty of the cluster and of compute times, for the
        intervals of predictions.
    """

    schema: Literal["perfmodel.calibration/1"] = "perfmodel.calibration/1"
    kind: Literal["runs"] = "runs"
    estimates: tuple[Fitted, ...]
    overlap: Overlap | None
    run_spread: float
    residuals: Residuals
    held_out: Residuals | None
    runs: tuple[RunError, ...]
    ranges: dict[str, tuple[float, float]]
    architectures: tuple[str, ...]
    notes: tuple[str, ...]
    of_cluster: Calibration
    of_workload: Calibration

    @property
    def values(self) -> dict[str, float]:
        """Values of the parameters that are identified or confounded."""
        return {e.name: e.value for e in self.estimates if e.determined}

    def __getitem__(self, name: str) -> Fitted:
        """Return the estimate of a parameter."""
        return next(e for e in self.estimates if e.name == name)

    def apply(self, job: Job) -> Job:
        """Return the job with the fitted parameters, for :func:`perfmodel.predict`.

        Raises
        ------
        InputError : the job's options are incompatible with the fitted overlap.
        """
        overlap = None if self.overlap is None else self.overlap.value
        fitted = on_job(with_overlap(job, overlap), self.values)
        return msgspec.structs.replace(
            fitted,
            cluster=msgspec.structs.replace(fitted.cluster, calibration=self.of_cluster),
            workload=msgspec.structs.replace(fitted.workload, calibration=self.of_workload),
        )

    def cluster(self, base: Cluster) -> Cluster:
        """Return the cluster with the fitted parameters."""
        estimates = [e for e in self.estimates if e.determined and e.name in OF_CLUSTER]
        values = {OF_CLUSTER[e.name]: e.value for e in estimates}
        shown = ", ".join(f"{e.name} {_shown(e)}" for e in estimates) or "nothing"
        text = f"{shown} fitted to {self.seen}"
        return with_fields(base, values, "estimated", text, self.of_cluster)

    def profile(self, base: Profile, workload: Workload) -> Profile:
        """Return a workload's profile with its times scaled by the fitted compute factor.

        Raises
        ------
        InputError : the factor is not identified, or the profile has no times on that device.
        """
        if "compute_factor" not in self.values:
            raise InputError("compute_factor: the runs do not determine it")
        why = f"fitted to {self.seen}"
        scaled = slower_profile(base, workload, self.values["compute_factor"], why)
        return msgspec.structs.replace(scaled, calibration=self.of_workload)

    @property
    def seen(self) -> str:
        """Summary of the runs as text."""
        spans = [_span(name, *span) for name, span in self.ranges.items()]
        return f"{len(self.runs)} runs ({', '.join((*self.architectures, *spans))})"

    def figure(self) -> Figure:
        """The estimates, and the error of each run."""
        return figures.fit(self.estimates, self.runs, self.seen)


def fit_runs(
    runs: Sequence[Observation],
    *,
    fit: Sequence[str] | None = None,
    run_spread: float = RUN_SPREAD,
    progress: Progress | None = None,
) -> RunsFit:
    """Fit a cluster and a device to past runs; see :mod:`perfmodel.calibration.regression`.

    Parameters
    ----------
    runs : at least one; all on the same cluster, except for the bandwidth of its links.
    fit : names from :data:`perfmodel.calibration.runs.parameters.PARAMETERS`, and *overlap*; by
        default all that have an effect on these runs.
    run_spread : prior standard deviation of repeated runs, as a fraction; updated by the misfits.
    progress : called with (done, expected).

    Raises
    ------
    InputError : there is no run, clusters differ, a parameter is unknown, or none has an effect.
    """
    runs = tuple(runs)
    number("run_spread", run_spread, above=0.0)
    _check(runs)
    wanted = None if fit is None else names_of(fit)
    choosing = any(free_overlap(r.job) for r in runs) and (wanted is None or OVERLAP in wanted)
    problems = [_RunsRegression(runs, some, run_spread) for some in _choices(runs, choosing)]
    names = _fitted(problems[0], wanted)
    if not names and not choosing:
        raise InputError(f"fit: {', '.join(wanted or ()) or 'nothing'}: all runs specify it")
    done = itertools.count(1)

    def advance() -> None:
        if progress is not None:
            progress(next(done), len(problems) + FOLDS + 1)

    optional = [name for name in names if wanted is None and problems[0].parameters[name].optional]
    searched = [_searched(problem, names, optional, choosing, advance) for problem in problems]
    (problem, x, scale), overlap = _chosen(searched) if choosing else (searched[0], None)
    known = problem.identified(x, scale)
    unidentified = [name for name, what in known.items() if what.status == "not identified"]
    x_known = x
    if unidentified:  # these keep their former values exactly
        x_known = x[[name not in unidentified for name in problem.names]]
        problem.names = [name for name in problem.names if name not in unidentified]
        x_known = problem.solve([x_known], scale)
    advance()
    parts = _parts(problem, len(x_known))
    held = problem.left_out(parts, x_known, scale, advance) if parts else None
    values = problem.values(x_known)
    estimates = [_estimate(problem.parameters[n], runs[0].job, values, known) for n in names]
    errors = np.exp(problem.misses(x_known[None])[0]) - 1.0
    spread = problem.run_spread * scale
    return RunsFit(
        estimates=tuple(estimates),
        overlap=overlap,
        run_spread=spread,
        residuals=Residuals.of(errors),
        held_out=None if held is None else Residuals.of(np.exp(held.misses) - 1.0),
        runs=tuple(
            RunError(
                r.place,
                r.job.architecture.name,
                r.job.workers,
                float(errors[i]),
                None if held is None else float(np.exp(held.misses[i]) - 1.0),
            )
            for i, r in enumerate(runs)
        ),
        ranges=_ranges(runs),
        architectures=tuple(dict.fromkeys(r.job.architecture.name for r in runs)),
        notes=(*_flags(values, overlap), *_notes(runs, errors, spread)),
        of_cluster=problem.calibration(
            x_known, scale, OF_CLUSTER, left_out=held, features=[features_of(r.job) for r in runs]
        ),
        of_workload=problem.calibration(x_known, scale, OF_WORKLOAD),
    )


class _RunsRegression(Regression):
    """Runs with one setting of the overlap."""

    def __init__(
        self, runs: Sequence[Observation], overlap: bool | None, run_spread: float
    ) -> None:
        self.overlap, self.run_spread = overlap, run_spread
        self.groups = [r.group or f"run {i}" for i, r in enumerate(runs)]
        groups = groups_of([with_overlap(r.job, overlap) for r in runs])
        measured = np.log([r.step_s for r in runs])

        def misses(values: Mapping[str, Floats], points: int) -> Floats:
            return np.asarray(np.log(step_s(groups, values, points)) - measured)

        spreads = [math.hypot(run_spread, r.spread_fraction) for r in runs]
        super().__init__(parameters_of([r.job for r in runs]), misses, spreads)


def _fitted(problem: Regression, wanted: Sequence[str] | None) -> list[str]:
    """Names of the parameters to fit: those requested, or all usual ones."""
    if wanted is None:
        return [name for name, p in problem.parameters.items() if p.usual]
    for name in wanted:
        if name in FIELDS and name not in problem.parameters:
            raise InputError(f"fit: {name}: no run has several linked devices on a node")
    return [name for name in problem.parameters if name in wanted]


def _with_more(
    problem: _RunsRegression, optional: Sequence[str], x: Floats, scale: float
) -> tuple[Floats, float]:
    """Add each optional parameter to the fit that improves the prediction of held-out runs."""
    for name in optional:
        parts = _parts(problem, len(x) + 1)
        if not parts or problem.effect(name) <= EFFECT:
            continue
        before, without = problem.names, problem.left_out(parts, x, scale).misses
        problem.names = [n for n in problem.parameters if n in {*before, name}]
        at = problem.parameters[name].centre + problem.parameters[name].spread * STARTS_OF_ONE
        starts = [np.insert(x, problem.names.index(name), value) for value in at]
        more = problem.solve([*starts, *problem.starts()], scale)
        least = min(scale, problem.scale(more))
        more = problem.solve([more], least)
        costs = [
            problem.data_cost(misses, least)
            for misses in (without, problem.left_out(parts, more, least).misses)
        ]
        if costs[0] - costs[1] > MARGIN:
            x, scale = more, least
        else:
            problem.names = before
    return x, scale


def _check(runs: Sequence[Observation]) -> None:
    if not runs:
        raise InputError("runs: needs at least one")

    def without_rate(cluster: Cluster) -> Cluster:
        nic = msgspec.structs.replace(cluster.nic, bandwidth_bytes_per_s=1.0)
        return msgspec.structs.replace(cluster, nic=nic, devices_on_nodes=())

    for r in runs:
        if without_rate(r.job.cluster) != without_rate(runs[0].job.cluster):
            raise InputError(f"{r.place or 'runs'}: not on the cluster of {runs[0].place or 'all'}")


def _choices(runs: Sequence[Observation], choosing: bool) -> list[bool | None]:
    """Settings of the overlap to try, the default first."""
    if not choosing:
        return [None]
    was = next(bool(getattr(r.job.options, OVERLAP)) for r in runs if free_overlap(r.job))
    try:
        for r in runs:
            with_overlap(r.job, not was)
    except InputError:  # other options require the default
        return [was]
    return [was, not was]


def _searched(
    problem: _RunsRegression,
    names: Sequence[str],
    optional: Sequence[str],
    choosing: bool,
    advance: Callable[[], None],
) -> _Searched:
    """Fit the parameters that have an effect, and the optional ones that improve the fit."""
    needed = [name for name in names if name not in optional]
    problem.names = [name for name in needed if problem.effect(name) > EFFECT]
    if not problem.names and not choosing:
        raise InputError(f"fit: {', '.join(names)}: no run changes by {EFFECT:.0%} or more")
    first = problem.solve(problem.starts(), 1.0)
    scale = problem.scale(first)
    advance()
    return problem, *_with_more(problem, optional, problem.solve([first], scale), scale)


def _chosen(searched: Sequence[_Searched]) -> tuple[_Searched, Overlap]:
    """Return the fit with the more likely overlap, or with the default if the margin is small."""
    scale = min(scale for _, _, scale in searched)
    costs = [problem.cost(problem.solve([x], scale), scale) for problem, x, _ in searched]
    margin = abs(costs[0] - costs[-1])
    clear = margin >= MARGIN
    best = searched[int(np.argmin(costs)) if clear else 0]
    value, was = bool(best[0].overlap), bool(searched[0][0].overlap)
    return best, Overlap(value, was, margin, "identified" if clear else "not identified")


def _parts(problem: _RunsRegression, parameters: int) -> list[int]:
    """Cross-validation fold of each run, the same for all of a group; empty if there are too few
    runs."""
    if len(problem.spreads) <= parameters + 1:
        return []
    groups = list(dict.fromkeys(problem.groups))
    fold = {groups[i]: n for n, part in enumerate(folds(len(groups), FOLDS)) for i in part}
    return [fold[group] for group in problem.groups]


def _estimate(
    p: Parameter, job: Job, values: dict[str, float], known: dict[str, Determination]
) -> Fitted:
    name, was = p.name, now(job)[p.name]
    determination = known.get(name)
    if determination is None:
        note = f"no run changes by {EFFECT:.0%} or more"
        if p.optional:
            note = "does not improve the prediction of held-out runs"
        return Fitted.kept(name, p.unit, was, note)
    value = values.get(name, was)
    note = {
        "identified": "",
        "confounded": f"only together with {determination.other}",
        "not identified": "the runs do not determine it",
    }[determination.status]
    ends = {"low": min(determination.low, value), "high": max(determination.high, value)}
    return Fitted(
        name=name, unit=p.unit, was=was, value=value, status=determination.status, note=note, **ends
    )


def _ranges(runs: Sequence[Observation]) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of features of the jobs, by name."""
    columns: dict[str, list[float]] = {}
    for job in (run.job for run in runs):
        for name, value in (
            ("workers", job.workers),
            ("batch_size", job.workload.batch_size),
            ("gradient_bytes", job.workload.gradient_bytes),
            ("bandwidth_bytes_per_s", job.cluster.nic.bandwidth_bytes_per_s),
            ("servers", job.options.server_count),
        ):
            if value or name != "servers":
                columns.setdefault(name, []).append(value)
    return {name: (min(values), max(values)) for name, values in columns.items()}


def _span(name: str, low: float, high: float) -> str:
    unit = dimension_of(name) or ""
    ends = [show(value, unit) for value in dict.fromkeys((low, high))]
    return f"{name} {' to '.join(ends)}".strip()


def _shown(estimate: Fitted) -> str:
    value, low, high = (
        show(v, estimate.unit) for v in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"


def _flags(values: dict[str, float], overlap: Overlap | None) -> list[str]:
    """Notes on parameters that cluster and workload files do not store."""
    flags = [f"--jitter {values['jitter']:.3g}"] if "jitter" in values else []
    if overlap is not None and overlap.value != overlap.was:
        flags.append("--overlap" if overlap.value else "--no-overlap")
    return [f"cluster and workload files do not store {flag}: give it to predict" for flag in flags]


def _notes(runs: Sequence[Observation], errors: Floats, spread: float) -> list[str]:
    notes = []
    for r, error in zip(runs, errors, strict=True):
        expected = math.hypot(spread, r.spread_fraction)
        if abs(math.log1p(error)) > OUTLIER * expected:
            notes.append(
                f"{r.place or 'a run'} took {1.0 / (1.0 + error):.3g} times the fitted time, "
                "unlike the other runs: check it"
            )
    bands = [coarse.error_band(r.job).p90 for r in runs]
    known = [band for band in bands if band is not None]
    if len(known) < len(bands):
        notes.append("the coarse model leaves out part of some runs: the fit compensates for it")
    if max(known, default=0.0) > COARSE_ERROR:
        notes.append(
            f"for such jobs the coarse model is within {max(known):.0%} of the simulation in 9 of "
            "10 cases; the fit compensates for that error, so predict with --fidelity coarse"
        )
    return notes
