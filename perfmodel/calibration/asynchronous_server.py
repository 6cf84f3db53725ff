r"""From measured throughput to a model of an asynchronous parameter server, and on to more workers.

A worker computes, its gradients wait for the server, and the server applies them: a closed queueing
network with one station (:mod:`perfmodel.queueing`). A worker that never meets another takes *T*
seconds for a step. Of these the server is busy for

.. math:: D = (c_0 \cdot tensors + c_1 \cdot bytes) \, e^{\delta}

whatever the worker's device. :math:`c_0` and :math:`c_1` hold for all models; :math:`\delta` is
what is peculiar to one. *N* workers and *P* servers make

.. math:: X = \left( \left( \frac{T_P}{N} \right)^p + \left( \frac{D}{P} \right)^p \right)^{-1/p},
   \quad T_P = T - \epsilon D \left( 1 - \frac{1}{P} \right)

steps per second (:func:`perfmodel.queueing.blended`). The sharpness *p* of the knee says how near
they come to the asymptotic bounds, :math:`\epsilon` which part of the server's work a worker waits
for even if alone. Where a server's link is slower than the server, its time stands for *D*.

Several servers share tensors evenly. Most bytes are in few tensors, so one server may have more of
them than its share: where no run tells, the interval reaches from an even share to all of them.

Few workers leave the server idle most of the time, so their throughput says little about *D*.
Therefore all series of runs are fitted together, and published figures stand in where nothing was
measured: regularised least squares of logarithms (Gelman, Hill, "Data Analysis Using Regression
and Multilevel/Hierarchical Models", 2007, chapter 12). What is still unknown is in the interval of
every prediction.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel import files
from perfmodel.algebra import Quantity, maximum
from perfmodel.calibration.statistics import Estimate, Residuals
from perfmodel.errors import InputError, number, unknown_name, whole_number
from perfmodel.provenance import Source
from perfmodel.queueing import Station, blended

Floats = NDArray[np.float64]

SCHEMA = "perfmodel.server-fit/1"

RUN_SPREAD = 0.03
"""Standard deviation of the throughput of equal runs, as a fraction of it.

Median of ten groups of 5 to 10 runs each: asynchronous training with 2 to 7 workers on a public
cloud (Li, Walls, Xu, Guo, "Speeding up Deep Learning with Transient Servers", ICAC 2019).
"""

MODEL_SPREAD = 0.1
"""How far a model's demand may be from that of its tensors and bytes: standard deviation of the
logarithm. An assumption, not a measurement."""

SHARPNESS, SHARPNESS_FACTOR = 4.0, 1.65
"""Sharpness that is expected, and the factor within which *p* - 1 is: between 2.8 and 6.

Up to seven V100 workers in the source of RUN_SPREAD are like 2.8. Where the knee is at three to
five workers, exponential times (mean-value analysis) are like 3, times with a coefficient of
variation of 0.2 like 6 (simulated), fixed times like infinity.
"""

EXPOSED_SPREAD = 1.5
"""Standard deviation of the logit of the exposed fraction: nearly even between none of the server's
work (it hides behind computation) and all of it."""

TOLERATED = 2.0
"""Standard deviations beyond which a residual counts linearly, no longer squared (soft L1)."""

DIFFERENCE = 1e-5
"""Half-width of the central differences that make derivatives, in logarithms and logits."""

WORST_CONDITION = 1e12
"""Condition number of the information beyond which parameters cannot be told apart."""

DRAWS = 4096
"""Draws of the parameters that an interval is made of."""

QUANTILES = (0.05, 0.95)
"""Ends of an interval of 90 %."""

CHANCE = 2.0
"""Standard deviations below linear scaling that are taken for a bend, not for chance."""

UNEVEN = "uneven"
"""Which part of the other servers' bytes the fullest of several has as well, where no run tells. An
assumption: squares of numbers spread evenly between 0 and 1."""

HALF_UNEVEN = 0.25
"""The median of these. Tensors of a convolutional network that are placed at random on two servers
are about as uneven: with 13 large ones of equal size it is 0.23 on average."""

DEMAND, BYTES, SHARPER, EXPOSED = "demand_s", "bytes_fraction", "sharpness", "exposed_fraction"
"""Shared parameters: demand of the reference model, which part of it its bytes are, and the others
of the module's text."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured run: steps of all its workers per second, in its steady part.

    ``spread_fraction`` is the standard deviation of this mean as a fraction of it. What equal runs
    differ by comes on top (``run_spread`` of :func:`fit_asynchronous_server`).
    """

    workers: int
    steps_per_s: float
    servers: int = 1
    spread_fraction: float = 0.0

    def __post_init__(self) -> None:
        whole_number("workers", self.workers)
        number("steps_per_s", self.steps_per_s, above=0.0)
        whole_number("servers", self.servers)
        number("spread_fraction", self.spread_fraction)


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Workers that are alike: one model on one kind of device.

    A step pushes and pulls ``tensors`` tensors of ``parameter_bytes`` bytes in all. Workers of the
    same ``model`` load the server alike, whatever their device.
    """

    name: str
    model: str
    tensors: int
    parameter_bytes: float

    def __post_init__(self) -> None:
        whole_number(f"{self.name}: tensors", self.tensors)
        number(f"{self.name}: parameter_bytes", self.parameter_bytes, above=0.0)


class Series(Load, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured runs of workers that are alike."""

    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs:
            raise InputError(f"{self.name}: runs: at least one is needed")


class FittedSeries(Load, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a fit keeps of a series: never the measured values.

    Attributes
    ----------
    runs : workers and servers of each run that was fitted to.
    errors : error of the step time of each: predicted / measured - 1.
    bends : whether a run with many workers was slower than its share of linear scaling.
    """

    runs: tuple[tuple[int, int], ...]
    errors: tuple[float, ...]
    bends: bool


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one server needs for an update of so many tensors and bytes, as others found it.

    It is right within ``factor`` two times in three: a prior whose logarithm has the standard
    deviation ln(factor).
    """

    tensors: int
    parameter_bytes: float
    demand_s: float
    factor: float
    source: Source

    def __post_init__(self) -> None:
        whole_number("tensors", self.tensors, at_least=0)
        number("parameter_bytes", self.parameter_bytes)
        if not self.tensors and not self.parameter_bytes:
            raise InputError("published: needs tensors or parameter_bytes")
        number("demand_s", self.demand_s, above=0.0)
        number("factor", self.factor, above=1.0)


PUBLISHED = (
    Published(
        tensors=1,
        parameter_bytes=0.0,
        demand_s=0.2e-3,
        factor=2.0,
        source=Source(
            "published",
            "one TensorFlow server on a cloud machine applies 46 updates/s of 104 tensors: 0.2 ms "
            "for each, if nothing else took time (Li, Walls, Xu, Guo, ICAC 2019)",
            url="https://arxiv.org/abs/1903.00045",
        ),
    ),
    Published(
        tensors=0,
        parameter_bytes=1.0,
        demand_s=1.25e-9,
        factor=2.0,
        source=Source(
            "estimated",
            "TensorFlow's gRPC moves 800 MB/s over one connection; both ways, on two cores",
            url="https://github.com/tensorflow/tensorflow/issues/6116",
        ),
    ),
)
"""Seconds per tensor and per byte of a TensorFlow server: what is assumed before any run."""


class Throughput(msgspec.Struct, frozen=True):
    """Predicted steps of all workers per second, the 90 % interval of a measured run, and a note.

    ``note`` says what the prediction rests on where that is not runs like it; else it is empty.
    """

    steps_per_s: float
    low_steps_per_s: float
    high_steps_per_s: float
    note: str


class ServerFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A calibrated asynchronous parameter server (schema ``perfmodel.server-fit/1``).

    Attributes
    ----------
    series, published : what was fitted to.
    link_bytes_per_s : bandwidth of a server's link, each way; None where it never limits.
    run_spread : standard deviation of equal runs, as a fraction; at least that of the residuals.
    reference : tensors and bytes of the model that ``demand_s`` of the estimates is of: geometric
        means of those fitted to. Its demand is known better than how tensors and bytes share it.
    estimates : most likely parameters: logarithms of seconds, of factors (``deviation``) and of
        p - 1 (``sharpness``); logits of fractions.
    covariance : of the estimates, shape (parameters, parameters), in their order.
    """

    schema: Literal["perfmodel.server-fit/1"] = "perfmodel.server-fit/1"
    series: tuple[FittedSeries, ...]
    published: tuple[Published, ...]
    link_bytes_per_s: float | None
    run_spread: float
    reference: tuple[float, float]
    estimates: dict[str, float]
    covariance: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        loads = [name(one) for one in self.series for name in (_step, _deviation)]
        for name in (*loads, DEMAND, BYTES, SHARPER, EXPOSED):
            if name not in self.estimates:
                raise InputError(f"estimates: {name!r} is missing")
        if {len(self.estimates)} != {len(self.covariance), *map(len, self.covariance)}:
            raise InputError(
                f"covariance: must have {len(self.estimates)} rows and columns, as there are "
                "estimates"
            )
        try:
            np.linalg.cholesky(np.array(self.covariance))
        except np.linalg.LinAlgError:
            raise InputError("covariance: must be positive definite") from None

    def __repr__(self) -> str:
        return (
            f"ServerFit({len(self.series)} series: {self.update_per_tensor_s.value * 1e3:.3g} ms "
            f"per tensor, {self.update_per_byte_s.value * 1e9:.3g} ns per byte, sharpness "
            f"{self.sharpness.value:.3g})"
        )

    @property
    def step_s(self) -> dict[str, Estimate]:
        """Seconds of a step of a worker that never meets another, by series."""
        return {s.name: self._estimate(_Parameters.step_s, s) for s in self.series}

    @property
    def compute_s(self) -> dict[str, Estimate]:
        """Seconds of that step in which the server does not work for it, by series."""
        return {s.name: self._estimate(_Parameters.compute_s, s) for s in self.series}

    @property
    def demand_s(self) -> dict[str, Estimate]:
        """Seconds that one server is busy with one step, by model."""
        return {s.model: self._estimate(_Parameters.demand_s, s) for s in self.series}

    @property
    def deviations(self) -> dict[str, Estimate]:
        """A model's demand over that of its tensors and bytes."""
        return {s.model: self._estimate(_Parameters.deviation, s) for s in self.series}

    @property
    def update_per_tensor_s(self) -> Estimate:
        """Seconds of a server per tensor and step."""
        return self._estimate(_Parameters.update_per_tensor_s)

    @property
    def update_per_byte_s(self) -> Estimate:
        """Seconds of a server per byte of parameters and step."""
        return self._estimate(_Parameters.update_per_byte_s)

    @property
    def sharpness(self) -> Estimate:
        """How sharp the knee between few and many workers is (the exponent *p*)."""
        return self._estimate(_Parameters.sharpness)

    @property
    def residuals(self) -> Residuals:
        """How well the runs are met that were fitted to."""
        sizes = np.abs([error for one in self.series for error in one.errors])
        return Residuals(
            float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(sizes.max())
        )

    def predict(self, series: str, workers: int, servers: int = 1) -> Throughput:
        """Throughput of ``workers`` workers of one series.

        Raises
        ------
        InputError : no such series, or a number that is not a whole number of 1 or more.
        """
        return self.predict_mixed({series: workers}, servers)

    def predict_mixed(self, workers: Mapping[str, int], servers: int = 1) -> Throughput:
        """Throughput of workers on different devices, counted by series; all train one model.

        Raises
        ------
        InputError : as :meth:`predict`; no workers; series of different models.
        """
        mix = {self._find(name): whole_number("workers", n) for name, n in workers.items()}
        whole_number("servers", servers)
        models = sorted({one.model for one in mix})
        if len(models) != 1:
            raise InputError(
                f"workers: must all train one model, got {', '.join(models) or 'none at all'}"
            )
        found = self._estimate(
            _Parameters.steps_per_s,
            mix,
            servers,
            self.link_bytes_per_s,
            servers not in self._servers_of(models[0]),
            noise=self.run_spread,
        )
        return Throughput(found.value, found.low, found.high, self._note(mix, servers))

    def with_series(self, series: Series) -> ServerFit:
        """The fit with one more series, of which only the runs with one worker are used.

        Nothing that was fitted changes. The new series has the shared seconds per tensor and byte
        and, if its model is new too, a deviation as wide as its prior.

        Raises
        ------
        InputError : the name is taken, no run with one worker, or the model has other tensors.
        """
        from scipy.linalg import block_diag

        alone = tuple(run for run in series.runs if run.workers == 1)
        if not alone:
            raise InputError(f"{series.name}: runs: one with 1 worker is needed")
        _check((*self.series, series))
        weights = np.array([_spread(run, self.run_spread) ** -2.0 for run in alone])
        steps = np.log([run.steps_per_s for run in alone])
        estimates = self.estimates | {_step(series): -float(np.average(steps, weights=weights))}
        variances = [1.0 / float(weights.sum())]
        if _deviation(series) not in estimates:
            estimates[_deviation(series)] = 0.0
            variances.append(MODEL_SPREAD**2)
        likely = _Parameters(estimates, self.reference)
        added = _fitted(
            msgspec.structs.replace(series, runs=alone),
            likely,
            self.link_bytes_per_s,
            self.run_spread,
        )
        return msgspec.structs.replace(
            self,
            series=(*self.series, added),
            estimates=estimates,
            covariance=_nested(block_diag(self.covariance, np.diag(variances))),
        )

    def to_dict(self) -> dict[str, Any]:
        """The fit as JSON-like values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    def to_json(self) -> str:
        """The fit as JSON text, for :func:`read_fit`."""
        return json.dumps(self.to_dict(), indent=1)

    def _servers_of(self, model: str) -> set[int]:
        """With how many servers a model was run."""
        return {run[1] for one in self.series if one.model == model for run in one.runs}

    def _find(self, name: str) -> FittedSeries:
        for one in self.series:
            if one.name == name:
                return one
        raise unknown_name("series", name, (one.name for one in self.series))

    def _estimate(
        self, quantity: Callable[..., Quantity], *arguments: object, noise: float = 0.0
    ) -> Estimate:
        """A quantity of the parameters; ``noise``: spread of its logarithm on top of theirs."""
        value = float(quantity(_Parameters(self.estimates, self.reference), *arguments))
        normal, draws = self._drawn
        low, high = map(
            float, np.quantile(quantity(draws, *arguments) * np.exp(noise * normal), QUANTILES)
        )
        return Estimate(value, min(low, value), max(high, value))

    @functools.cached_property
    def _drawn(self) -> tuple[Floats, _Parameters]:
        """Standard normal draws, and independent ones of the parameters; the same every time."""
        generator = np.random.Generator(np.random.Philox(0))
        normal, *others = generator.standard_normal((1 + len(self.estimates), DRAWS))
        # a triangular root, so that a series that is added leaves the draws of the others alone
        drawn = np.linalg.cholesky(np.array(self.covariance)) @ np.array(others)
        values = {
            name: value + off
            for (name, value), off in zip(self.estimates.items(), drawn, strict=True)
        }
        values[UNEVEN] = generator.random(DRAWS) ** 2
        return normal, _Parameters(values, self.reference)

    def _note(self, mix: Mapping[FittedSeries, int], servers: int) -> str:
        """What a prediction rests on where no run is like it."""
        model = next(iter(mix)).model
        alike = [one for one in self.series if one.model == model]
        workers = sum(mix.values())
        notes = []
        calibrated = max(run[0] for one in mix for run in one.runs)
        if workers > calibrated:
            notes.append(f"{_count(workers, 'worker')}, calibrated on up to {calibrated}")
        seen = max(run[0] for one in alike for run in one.runs)
        if workers > seen and not any(one.bends for one in alike):
            notes.append(
                f"no plateau of {model} was seen by {_count(seen, 'worker')}: its height comes "
                "from published figures and from other models"
            )
        if servers not in self._servers_of(model):
            notes.append(
                f"no run with {_count(servers, 'server')}: how evenly they share the bytes is not "
                "known"
            )
        return "; ".join(notes)


def fit_asynchronous_server(
    series: Sequence[Series],
    *,
    published: Sequence[Published] = PUBLISHED,
    link_bytes_per_s: float | None = None,
    run_spread: float = RUN_SPREAD,
) -> ServerFit:
    """Fit all series together; the module's text has the model.

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

    >>> runs = tuple(Run(n, x) for n, x in [(1, 11.5), (2, 22.6), (3, 34.6), (4, 40.9)])
    >>> p100 = Series(name="p100", model="resnet32", tensors=104, parameter_bytes=7.4e6, runs=runs)
    >>> fit = fit_asynchronous_server([p100])
    >>> found = fit.predict("p100", workers=8)
    >>> found.low_steps_per_s < 48 < found.high_steps_per_s
    True
    >>> found.note
    '8 workers, calibrated on up to 4'
    """
    from scipy.optimize import least_squares

    series, published = tuple(series), tuple(published)
    _check(series)
    number("run_spread", run_spread, above=0.0)
    if link_bytes_per_s is not None:
        number("link_bytes_per_s", link_bytes_per_s, above=0.0)
    models = {one.model: one for one in series}
    sizes = np.array([(one.tensors, one.parameter_bytes) for one in models.values()])
    tensors, size_bytes = map(float, np.exp(np.log(sizes).mean(axis=0)))
    tensor_s, byte_s = (figure.demand_s for figure in PUBLISHED)
    start = {
        **{_step(one): _first_guess(one) for one in series},
        **{_deviation(one): 0.0 for one in models.values()},
        DEMAND: math.log(tensor_s * tensors + byte_s * size_bytes),
        BYTES: math.log(byte_s * size_bytes / (tensor_s * tensors)),
        SHARPER: math.log(SHARPNESS - 1.0),
        EXPOSED: 0.0,
    }
    measured = [np.log([run.steps_per_s for run in one.runs]) for one in series]
    spread = [np.array([_spread(run, run_spread) for run in one.runs]) for one in series]

    def residuals(points: Floats) -> Floats:
        """Of each point (a row of parameters): misfits of all runs, then surprises.

        A misfit is that of a run's throughput, a surprise the distance from what was known before
        any run; both are of logarithms, in standard deviations.
        """
        values = dict(zip(start, points.T[:, :, None], strict=True))
        given = _Parameters(values, (tensors, size_bytes))
        misfits = [
            (logs - np.log(given.of_runs(one, link_bytes_per_s))) / spreads
            for one, logs, spreads in zip(series, measured, spread, strict=True)
        ]
        surprises = [
            *(
                np.log(given.whole_s(p.tensors, p.parameter_bytes) / p.demand_s)
                / math.log(p.factor)
                for p in published
            ),
            *(values[_deviation(one)] / MODEL_SPREAD for one in models.values()),
            (values[SHARPER] - start[SHARPER]) / math.log(SHARPNESS_FACTOR),
            values[EXPOSED] / EXPOSED_SPREAD,
        ]
        return np.concatenate([*misfits, *surprises], axis=1)

    aside = DIFFERENCE * np.eye(len(start))
    found = least_squares(
        lambda x: residuals(x[None])[0],
        list(start.values()),
        lambda x: (residuals(x + aside) - residuals(x - aside)).T / (2.0 * DIFFERENCE),
        loss="soft_l1",
        f_scale=TOLERATED,
        x_scale=0.1,
    )
    information = found.jac.T @ found.jac
    if not found.success or np.linalg.cond(information) > WORST_CONDITION:
        raise InputError(
            "published: neither these figures nor the runs tell what the server takes per tensor "
            "and per byte"
        )
    estimates = dict(zip(start, map(float, found.x), strict=True))
    missed = residuals(found.x[None])[0, : sum(map(len, measured))]
    scale = math.sqrt(float(missed @ missed) / max(1, len(missed) - len(series)))
    likely = _Parameters(estimates, (tensors, size_bytes))
    return ServerFit(
        series=tuple(_fitted(one, likely, link_bytes_per_s, run_spread) for one in series),
        published=published,
        link_bytes_per_s=link_bytes_per_s,
        run_spread=run_spread * max(1.0, scale),
        reference=(tensors, size_bytes),
        estimates=estimates,
        covariance=_nested(np.linalg.inv(information)),
    )


def read_fit(path: str | Path) -> ServerFit:
    """Read a fit that :meth:`ServerFit.to_json` wrote.

    Raises
    ------
    InputError : the file cannot be read, or is no such fit.
    """
    return files.read(path, ServerFit, SCHEMA)


class _Parameters:
    """What estimates mean: one value of each, or an array of draws of each."""

    def __init__(self, values: Mapping[str, Quantity], reference: tuple[float, float]) -> None:
        self._values = values
        self._tensors, self._bytes = reference

    def step_s(self, load: Load) -> Quantity:
        return np.exp(self._values[_step(load)])

    def compute_s(self, load: Load) -> Quantity:
        return self.step_s(load) - self.demand_s(load)

    def demand_s(self, load: Load) -> Quantity:
        return self.whole_s(load.tensors, load.parameter_bytes) * self.deviation(load)

    def deviation(self, load: Load) -> Quantity:
        return np.exp(self._values[_deviation(load)])

    def whole_s(self, tensors: int, size_bytes: float) -> Quantity:
        """Demand of tensors and bytes."""
        return self.update_per_tensor_s() * tensors + self.update_per_byte_s() * size_bytes

    def update_per_tensor_s(self) -> Quantity:
        return self._fraction(BYTES, -1.0) * np.exp(self._values[DEMAND]) / self._tensors

    def update_per_byte_s(self) -> Quantity:
        return self._fraction(BYTES) * np.exp(self._values[DEMAND]) / self._bytes

    def sharpness(self) -> Quantity:
        return 1.0 + np.exp(self._values[SHARPER])

    def of_runs(self, series: Series, link_bytes_per_s: float | None) -> Floats:
        """Throughput of each run of a series."""
        workers = np.array([run.workers for run in series.runs])
        servers = np.array([run.servers for run in series.runs])
        found: Floats = self.steps_per_s({series: workers}, servers, link_bytes_per_s)
        return found

    def steps_per_s(
        self,
        mix: Mapping[Load, Quantity],
        servers: Quantity,
        link_bytes_per_s: float | None,
        uneven: bool = False,
    ) -> Quantity:
        """Steps per second of so many workers of each series, which are of one model.

        ``uneven``: one server may have more of the bytes than its share.
        """
        workers = sum(mix.values())
        step_s = workers / sum(count / self.step_s(one) for one, count in mix.items())
        model = next(iter(mix))
        demand_s = self.demand_s(model)
        more = self._values.get(UNEVEN, HALF_UNEVEN) * (1.0 - 1.0 / servers) if uneven else 0.0
        of_bytes_s = self.update_per_byte_s() * model.parameter_bytes * self.deviation(model)
        busiest_s = share_s = demand_s / servers + more * of_bytes_s
        if link_bytes_per_s is not None:
            of_link_s = model.parameter_bytes / link_bytes_per_s
            busiest_s = maximum(share_s, of_link_s * (1.0 / servers + more))
        # alone, a worker is no faster than the server is
        alone_s = maximum(step_s - self._fraction(EXPOSED) * (demand_s - share_s), busiest_s)
        server = Station("server", busiest_s, "fifo")
        return blended(workers, (server,), alone_s - busiest_s, sharpness=self.sharpness())

    def _fraction(self, name: str, sign: float = 1.0) -> Quantity:
        return 1.0 / (1.0 + np.exp(-sign * self._values[name]))


def _check(series: Sequence[Load]) -> None:
    if not series:
        raise InputError("series: at least one is needed")
    names = [one.name for one in series]
    models: dict[str, Load] = {}
    for one in series:
        if names.count(one.name) > 1:
            raise InputError(f"series: {one.name!r} is given twice")
        first = models.setdefault(one.model, one)
        if (one.tensors, one.parameter_bytes) != (first.tensors, first.parameter_bytes):
            raise InputError(
                f"{one.name}: {one.model} has {one.tensors} tensors and {one.parameter_bytes:g} "
                f"bytes here, {first.tensors} and {first.parameter_bytes:g} in {first.name}"
            )


def _step(load: Load) -> str:
    return f"step_s {load.name}"


def _deviation(load: Load) -> str:
    return f"deviation {load.model}"


def _fitted(
    series: Series, likely: _Parameters, link_bytes_per_s: float | None, run_spread: float
) -> FittedSeries:
    measured = np.array([run.steps_per_s for run in series.runs])
    last = max(series.runs, key=lambda run: run.workers / run.servers)
    expected = last.workers / float(likely.step_s(series))
    slow = last.steps_per_s < expected * (1.0 - CHANCE * _spread(last, run_spread))
    return FittedSeries(
        name=series.name,
        model=series.model,
        tensors=series.tensors,
        parameter_bytes=series.parameter_bytes,
        runs=tuple((run.workers, run.servers) for run in series.runs),
        errors=tuple(map(float, measured / likely.of_runs(series, link_bytes_per_s) - 1.0)),
        bends=last.workers > 1 and slow,
    )


def _first_guess(series: Series) -> float:
    fewest = min(series.runs, key=lambda run: run.workers)
    return math.log(fewest.workers / fewest.steps_per_s)


def _spread(run: Run, run_spread: float) -> float:
    """Standard deviation of the logarithm of a measured throughput."""
    return math.hypot(run_spread, run.spread_fraction)


def _nested(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in matrix)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
