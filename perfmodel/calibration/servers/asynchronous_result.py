"""A calibrated asynchronous parameter server: its estimates, and what they predict.

:mod:`perfmodel.calibration.servers.asynchronous_model` has the model,
:mod:`perfmodel.calibration.servers.asynchronous_fit` how it is fitted. What is still unknown is in
the interval of every prediction: it is made of draws of all parameters.
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

from perfmodel.base import files
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, unknown_name, whole_number
from perfmodel.base.quantities import Quantity
from perfmodel.calibration.servers.asynchronous_model import (
    BYTES,
    DEMAND,
    EXPOSED,
    MODEL_SPREAD,
    SHARPER,
    UNEVEN,
    Load,
    Parameters,
    Published,
    Run,
    Series,
    deviation_key,
    step_key,
)
from perfmodel.calibration.statistics import Estimate, Residuals

SCHEMA = "perfmodel.server-fit/1"

DRAWS = 4096
"""Draws of the parameters for an interval."""

QUANTILES = (0.05, 0.95)
"""Ends of an interval of 90 %."""

CHANCE = 2.0
"""Standard deviations below linear scaling that count as saturation."""


class FittedSeries(Load, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Summary of a series in a fit, without the measured values.

    Attributes
    ----------
    runs : workers and servers of each run that was fitted to.
    errors : error of the step time of each: predicted / measured - 1.
    bends : whether runs with many workers fall below linear scaling.
    """

    runs: tuple[tuple[int, int], ...]
    errors: tuple[float, ...]
    bends: bool


class Throughput(msgspec.Struct, frozen=True):
    """Predicted steps of all workers per second, the 90 % interval of a measured run, and a note.

    ``note`` says what the prediction is based on if there are no similar runs; else it is empty.
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
        loads = [name(one) for one in self.series for name in (step_key, deviation_key)]
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
        """Seconds of a step of a single worker, by series."""
        return {s.name: self._estimate(Parameters.step_s, s) for s in self.series}

    @property
    def compute_s(self) -> dict[str, Estimate]:
        """Seconds of that step without work of the server, by series."""
        return {s.name: self._estimate(Parameters.compute_s, s) for s in self.series}

    @property
    def demand_s(self) -> dict[str, Estimate]:
        """Seconds that one server is busy with one step, by model."""
        return {s.model: self._estimate(Parameters.demand_s, s) for s in self.series}

    @property
    def deviations(self) -> dict[str, Estimate]:
        """A model's demand over that of its tensors and bytes."""
        return {s.model: self._estimate(Parameters.deviation, s) for s in self.series}

    @property
    def update_per_tensor_s(self) -> Estimate:
        """Seconds of a server per tensor and step."""
        return self._estimate(Parameters.update_per_tensor_s)

    @property
    def update_per_byte_s(self) -> Estimate:
        """Seconds of a server per byte of parameters and step."""
        return self._estimate(Parameters.update_per_byte_s)

    @property
    def sharpness(self) -> Estimate:
        """Sharpness of the knee between few and many workers (the exponent *p*)."""
        return self._estimate(Parameters.sharpness)

    @property
    def residuals(self) -> Residuals:
        """Residuals of the runs that were fitted to."""
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
            Parameters.steps_per_s,
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
        check((*self.series, series))
        weights = np.array([spread(run, self.run_spread) ** -2.0 for run in alone])
        steps = np.log([run.steps_per_s for run in alone])
        estimates = self.estimates | {step_key(series): -float(np.average(steps, weights=weights))}
        variances = [1.0 / float(weights.sum())]
        if deviation_key(series) not in estimates:
            estimates[deviation_key(series)] = 0.0
            variances.append(MODEL_SPREAD**2)
        likely = Parameters(estimates, self.reference)
        added = fitted_series(
            msgspec.structs.replace(series, runs=alone),
            likely,
            self.link_bytes_per_s,
            self.run_spread,
        )
        return msgspec.structs.replace(
            self,
            series=(*self.series, added),
            estimates=estimates,
            covariance=nested(block_diag(self.covariance, np.diag(variances))),
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
        """A function of the parameters; ``noise``: additional spread of its logarithm."""
        value = float(quantity(Parameters(self.estimates, self.reference), *arguments))
        normal, draws = self._drawn
        low, high = map(
            float, np.quantile(quantity(draws, *arguments) * np.exp(noise * normal), QUANTILES)
        )
        return Estimate(value, min(low, value), max(high, value))

    @functools.cached_property
    def _drawn(self) -> tuple[Floats, Parameters]:
        """Standard normal draws, and independent ones of the parameters; the same every time."""
        generator = np.random.Generator(np.random.Philox(0))
        normal, *others = generator.standard_normal((1 + len(self.estimates), DRAWS))
        # a triangular root, so that adding a series does not change the draws of the others
        drawn = np.linalg.cholesky(np.array(self.covariance)) @ np.array(others)
        values = {
            name: value + off
            for (name, value), off in zip(self.estimates.items(), drawn, strict=True)
        }
        values[UNEVEN] = generator.random(DRAWS) ** 2
        return normal, Parameters(values, self.reference)

    def _note(self, mix: Mapping[FittedSeries, int], servers: int) -> str:
        """What a prediction is based on if there are no similar runs."""
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


def read_fit(path: str | Path) -> ServerFit:
    """Read a fit that :meth:`ServerFit.to_json` wrote.

    Raises
    ------
    InputError : the file cannot be read, or is no such fit.
    """
    return files.read(path, ServerFit, SCHEMA)


def check(series: Sequence[Load]) -> None:
    """Raise InputError for series that cannot be fitted together.

    Raises
    ------
    InputError : there is none, two have one name, or a model has different tensors or bytes.
    """
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


def fitted_series(
    series: Series, likely: Parameters, link_bytes_per_s: float | None, run_spread: float
) -> FittedSeries:
    """Summary of a series, given the most likely parameters."""
    measured = np.array([run.steps_per_s for run in series.runs])
    last = max(series.runs, key=lambda run: run.workers / run.servers)
    expected = last.workers / float(likely.step_s(series))
    slow = last.steps_per_s < expected * (1.0 - CHANCE * spread(last, run_spread))
    return FittedSeries(
        name=series.name,
        model=series.model,
        tensors=series.tensors,
        parameter_bytes=series.parameter_bytes,
        runs=tuple((run.workers, run.servers) for run in series.runs),
        errors=tuple(map(float, measured / likely.of_runs(series, link_bytes_per_s) - 1.0)),
        bends=last.workers > 1 and slow,
    )


def spread(run: Run, run_spread: float) -> float:
    """Standard deviation of the logarithm of a measured throughput."""
    return math.hypot(run_spread, run.spread_fraction)


def nested(matrix: NDArray[np.floating[Any]]) -> tuple[tuple[float, ...], ...]:
    """The rows of a matrix."""
    return tuple(tuple(map(float, row)) for row in matrix)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
