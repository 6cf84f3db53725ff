"""Fit the model of an asynchronous parameter server to measured throughput.

:mod:`perfmodel.calibration.servers.asynchronous_model` has the model. With few workers the server
is mostly idle, so their throughput says little about its time per step. Therefore all series of
runs are fitted together, with published figures as priors: regularised least squares of logarithms
(Gelman, Hill, "Data Analysis Using Regression and Multilevel/Hierarchical Models", 2007, chapter
12).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number
from perfmodel.calibration.servers.asynchronous_model import (
    BYTES,
    DEMAND,
    EXPOSED,
    EXPOSED_SPREAD,
    MODEL_SPREAD,
    PUBLISHED,
    SHARPER,
    SHARPNESS,
    SHARPNESS_FACTOR,
    Parameters,
    Published,
    Series,
    deviation_key,
    step_key,
)
from perfmodel.calibration.servers.asynchronous_result import (
    ServerFit,
    check,
    fitted_series,
    nested,
    spread,
)

RUN_SPREAD = 0.03
"""Standard deviation of the throughput of equal runs, as a fraction of it.

Median of ten groups of 5 to 10 runs each: asynchronous training with 2 to 7 workers on a public
cloud (Li, Walls, Xu, Guo, "Speeding up Deep Learning with Transient Servers", ICAC 2019).
"""

TOLERATED = 2.0
"""Standard deviations beyond which a residual counts linearly, no longer squared (soft L1)."""

DIFFERENCE = 1e-5
"""Half-width of the central differences that make derivatives, in logarithms and logits."""

WORST_CONDITION = 1e12
"""Condition number of the information matrix beyond which parameters are confounded."""


def fit_asynchronous_server(
    series: Sequence[Series],
    *,
    published: Sequence[Published] = PUBLISHED,
    link_bytes_per_s: float | None = None,
    run_spread: float = RUN_SPREAD,
) -> ServerFit:
    """Fit all series together.

    Parameters
    ----------
    series : at least one; each with at least one run.
    published : what is known of the server before any run.
    link_bytes_per_s : bandwidth of a server's link, each way, if it may limit.
    run_spread : standard deviation of the throughput of equal runs, as a fraction of it.

    Raises
    ------
    InputError : no series, two of one name, one model with different tensors or bytes, a number
        out of range; or nothing tells what the server takes per tensor and per byte.

    >>> from perfmodel.calibration import Run, Series
    >>> runs = tuple(Run(n, x) for n, x in [(1, 11.5), (2, 22.6), (3, 34.6), (4, 40.9)])
    >>> p100 = Series(name="p100", model="resnet32", tensors=104, parameter_bytes=7.4e6, runs=runs)
    >>> fit = fit_asynchronous_server([p100])
    >>> found = fit.predict("p100", workers=8)
    >>> found.low_steps_per_s < 48 < found.high_steps_per_s
    True
    >>> found.note
    '8 workers, calibrated on up to 4'
    """
    series, published = tuple(series), tuple(published)
    check(series)
    number("run_spread", run_spread, above=0.0)
    if link_bytes_per_s is not None:
        number("link_bytes_per_s", link_bytes_per_s, above=0.0)
    reference = _reference(series)
    start = _start(series, reference)
    residuals = _residuals(series, published, link_bytes_per_s, run_spread, reference, start)
    estimates, information = _most_likely(residuals, start)
    runs = sum(len(one.runs) for one in series)
    missed = residuals(np.array([list(estimates.values())]))[0, :runs]
    scale = math.sqrt(float(missed @ missed) / max(1, len(missed) - len(series)))
    likely = Parameters(estimates, reference)
    return ServerFit(
        series=tuple(fitted_series(one, likely, link_bytes_per_s, run_spread) for one in series),
        published=published,
        link_bytes_per_s=link_bytes_per_s,
        run_spread=run_spread * max(1.0, scale),
        reference=reference,
        estimates=estimates,
        covariance=nested(np.linalg.inv(information)),
    )


def _models(series: Sequence[Series]) -> list[Series]:
    """One series of each model."""
    return list({one.model: one for one in series}.values())


def _reference(series: Sequence[Series]) -> tuple[float, float]:
    """Tensors and bytes of the model that the demand is estimated of."""
    sizes = np.array([(one.tensors, one.parameter_bytes) for one in _models(series)])
    tensors, size_bytes = map(float, np.exp(np.log(sizes).mean(axis=0)))
    return tensors, size_bytes


def _start(series: Sequence[Series], reference: tuple[float, float]) -> dict[str, float]:
    """Starting point of the search, in the order of the estimates.

    Step times are those of the fewest workers, the rest are prior means.
    """
    tensors, size_bytes = reference
    tensor_s, byte_s = (figure.demand_s for figure in PUBLISHED)
    return {
        **{step_key(one): _first_guess(one) for one in series},
        **{deviation_key(one): 0.0 for one in series},
        DEMAND: math.log(tensor_s * tensors + byte_s * size_bytes),
        BYTES: math.log(byte_s * size_bytes / (tensor_s * tensors)),
        SHARPER: math.log(SHARPNESS - 1.0),
        EXPOSED: 0.0,
    }


def _residuals(
    series: Sequence[Series],
    published: Sequence[Published],
    link_bytes_per_s: float | None,
    run_spread: float,
    reference: tuple[float, float],
    start: Mapping[str, float],
) -> Callable[[Floats], Floats]:
    """The residuals as a function of points, (points, parameters).

    Its value, (points, residuals), has the misfits of the throughputs of all runs, then the
    distances from the priors; both of logarithms, in standard deviations.
    """
    measured = [np.log([run.steps_per_s for run in one.runs]) for one in series]
    spreads = [np.array([spread(run, run_spread) for run in one.runs]) for one in series]

    def residuals(points: Floats) -> Floats:
        values = dict(zip(start, points.T[:, :, None], strict=True))
        given = Parameters(values, reference)
        misfits = [
            (logs - np.log(given.of_runs(one, link_bytes_per_s))) / own
            for one, logs, own in zip(series, measured, spreads, strict=True)
        ]
        surprises = [
            *(
                np.log(given.whole_s(p.tensors, p.parameter_bytes) / p.demand_s)
                / math.log(p.factor)
                for p in published
            ),
            *(values[deviation_key(one)] / MODEL_SPREAD for one in _models(series)),
            (values[SHARPER] - start[SHARPER]) / math.log(SHARPNESS_FACTOR),
            values[EXPOSED] / EXPOSED_SPREAD,
        ]
        return np.concatenate([*misfits, *surprises], axis=1)

    return residuals


def _most_likely(
    residuals: Callable[[Floats], Floats], start: Mapping[str, float]
) -> tuple[dict[str, float], Floats]:
    """The estimates by name, and their information (the inverse of the covariance)."""
    from scipy.optimize import least_squares

    aside = DIFFERENCE * np.eye(len(start))
    found = least_squares(
        lambda x: residuals(x[None])[0],
        list(start.values()),
        lambda x: (residuals(x + aside) - residuals(x - aside)).T / (2.0 * DIFFERENCE),
        loss="soft_l1",
        f_scale=TOLERATED,
        x_scale=0.1,
    )
    information: Floats = found.jac.T @ found.jac
    if not found.success or np.linalg.cond(information) > WORST_CONDITION:
        raise InputError(
            "published: neither these figures nor the runs tell what the server takes per tensor "
            "and per byte"
        )
    return dict(zip(start, map(float, found.x), strict=True)), information


def _first_guess(series: Series) -> float:
    fewest = min(series.runs, key=lambda run: run.workers)
    return math.log(fewest.workers / fewest.steps_per_s)
