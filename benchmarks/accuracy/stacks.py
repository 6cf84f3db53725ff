"""How much longer training takes than its operators, fitted to measured steps.

Device files have the factors: *as_found* from llm-foundry's table (``fitted/llm_foundry.json``),
*tuned* from the utilisations that the device files themselves state for tuned software
(:func:`of_figures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

import perfmodel as pm
from perfmodel.base.arrays import Floats
from perfmodel.calibration.parameters import Parameter
from perfmodel.calibration.regression import Regression
from perfmodel.calibration.statistics import rounded
from perfmodel.catalogue import catalogue
from perfmodel.inputs.decoder_layers import layers_of
from perfmodel.inputs.device import Device, PublishedUtilisation
from perfmodel.inputs.software import AS_FOUND, TUNED
from perfmodel.times.operator_times import Factors, layers_s
from perfmodel.times.operator_transfer import stack_of

EXPECTED = {
    AS_FOUND: (Parameter("products", 1.25, 0.2), Parameter("attention", 1.5, 0.6)),
    TUNED: (Parameter("products", 1.2, 0.2), Parameter("attention", 1.0, 0.2)),
}
"""What is expected of the factors: figures of attention are those of the newest kernels."""

SPREAD = 0.1
"""Expected spread of the misfits."""

TOKENS = 16384
"""Tokens of a batch, for the operators of published utilisations."""


class StackFit(msgspec.Struct, frozen=True):
    """Fitted factors, the 90th percentile of the errors of models that were left out, and how many
    steps were measured."""

    products: float
    attention: float
    error_fraction: float = 0.0
    rows: int = 0


class Step(NamedTuple):
    """A measured step: seconds of products and all else, of attention, and of what does not
    depend on the factors, such as the optimizer; the measured seconds."""

    products_s: float
    attention_s: float
    rest_s: float
    measured_s: float


def step_of(job: pm.Job, measured_s: float) -> Step:
    """Return the parts of the step of a job that was estimated as found."""
    work, device = job.workload, catalogue.device(job.workload.device)
    used = stack_of(device, AS_FOUND, _devices())
    attention_s = sum(
        layer.forward_s + layer.backward_s for layer in work.layers if layer.kind == "attention"
    )
    passes_s = work.forward_s + work.backward_s - attention_s
    return Step(
        passes_s / used.products, attention_s / used.attention, work.optimizer_s, measured_s
    )


def with_factors(job: pm.Job, fit: StackFit) -> pm.Job:
    """Return the job with other factors than those that it was estimated with."""
    work = job.workload
    used = stack_of(catalogue.device(work.device), AS_FOUND, _devices())
    layers = []
    for layer in work.layers:
        attention = layer.kind == "attention"
        factor = fit.attention / used.attention if attention else fit.products / used.products
        layers.append(
            msgspec.structs.replace(
                layer, forward_s=layer.forward_s * factor, backward_s=layer.backward_s * factor
            )
        )
    changed = msgspec.structs.replace(
        work,
        layers=tuple(layers),
        forward_s=sum(layer.forward_s for layer in layers),
        backward_s=sum(layer.backward_s for layer in layers),
    )
    return msgspec.structs.replace(job, workload=changed)


def fit_of(steps: Sequence[Step], level: str) -> StackFit:
    """Fit the factors of a level of software to measured steps."""
    products, attention, rest, measured = np.array(steps).T

    def misses(values: Mapping[str, Floats], points: int) -> Floats:
        factors = [np.asarray(values[name])[:, None] for name in ("products", "attention")]
        return np.asarray(
            np.log((factors[0] * products + factors[1] * attention + rest) / measured)
        )

    fit = Regression(EXPECTED[level], misses, np.full(len(steps), SPREAD))
    values = fit.values(fit.fit()[0])
    return StackFit(**{name: rounded(value, 3) for name, value in values.items()}, rows=len(steps))


def folds(split: str, steps: Mapping[str, Mapping[str, Sequence[Step]]]) -> dict[str, StackFit]:
    """Fit *as found* the steps of all models on each chip, and those without each model; ``steps``
    are by chip and model, names are ``SPLIT/CHIP`` and ``SPLIT/CHIP/MODEL``."""
    fits: dict[str, StackFit] = {}
    for chip, models in steps.items():
        errors = []
        for model, left_out in models.items():
            others = [step for name in models if name != model for step in models[name]]
            fits[f"{split}/{chip}/{model}"] = fit = fit_of(others, AS_FOUND)
            errors += [error(step, fit) for step in left_out]
        every = fit_of([step for some in models.values() for step in some], AS_FOUND)
        worst = rounded(float(np.quantile(errors, 0.9)), 2)
        fits[f"{split}/{chip}"] = msgspec.structs.replace(every, error_fraction=worst)
    return fits


def without(fits: Mapping[str, StackFit], split: str, chip: str, model: str) -> StackFit:
    """Return the fit to all models on a chip but one."""
    return fits.get(f"{split}/{chip}/{model}", fits[f"{split}/{chip}"])


def error(step: Step, fit: StackFit) -> float:
    """Return the factor between a measured step and the fit, less one."""
    passes_s = fit.products * step.products_s + fit.attention * step.attention_s
    return float(np.exp(abs(np.log((passes_s + step.rest_s) / step.measured_s)))) - 1.0


def published(device: Device, figure: PublishedUtilisation) -> Step:
    """Return the parts of the step that a published utilisation implies."""
    decoder, length = catalogue.model(figure.model).decoder, figure.sequence_length
    if decoder is None:
        raise pm.InputError(f"language_models: model {figure.model!r} has no decoder")
    size = max(1, TOKENS // length)
    layers = layers_of(decoder, length, figure.precision)
    parts = [
        layers_s(
            device, layers, size, figure.precision, _devices(), factors, fused=figure.stack == TUNED
        )
        for factors in (Factors(1.0, 1e-9), Factors(1e-9, 1.0))
    ]
    products_s, attention_s = (sum(map(sum, part)) for part in parts)
    flop = size * length * decoder.model_flop(length)
    step_s = flop / figure.utilisation / device.peak(figure.precision)
    return Step(products_s, attention_s, 0.0, step_s)


def of_figures(device: Device, level: str) -> StackFit:
    """Fit the factors to the published utilisations of a device."""
    figures = [one for one in device.language_models if one.stack == level]
    return fit_of([published(device, figure) for figure in figures], level)


def _devices() -> dict[str, Device]:
    return {name: catalogue.device(name) for name in catalogue.device_names()}
