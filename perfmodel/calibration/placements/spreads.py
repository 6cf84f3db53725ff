"""Standard deviations that remain after a fit, learnt by leaving out one DNN at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.calibration.regression import WEIGHT
from perfmodel.calibration.statistics import rounded

EXPECTED_SPREAD = 1.0
"""Standard deviation of the logarithm of the expected standard deviations."""

AS_MANY = 10.0
"""Effective number of independent steps of a DNN that was left out."""

CONTENTION, CONTENTION_DNNS = 0.27, 2
"""Standard deviation of the growth of compute time on a node if no DNN determines it, and the
number of DNNs that it counts as. It comes from 18 pairs of DNN and cluster, of which six (limited
by data loading) contribute nearly all."""

NOISE = 0.03
"""Expected standard deviation of repeated steps."""


class Spreads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Standard deviations of logarithms; the defaults hold before any run.

    Attributes
    ----------
    step : of measured steps around predictions, beyond ``noise``.
    noise : of repeated steps, for DNNs measured on one device only.
    node, device : of a DNN's cost per byte on the network, if it was measured on one node only, or
        on one device only.
    contention : of the growth of a DNN's compute time from one device to many on a node.
    growth : of compute time on several devices of a node around that growth.
    computing : of compute time on several nodes; the rest of a step is waiting.
    """

    step: float = 0.08
    noise: float = NOISE
    node: float = 0.1
    device: float = 0.25
    contention: float = CONTENTION
    growth: float = 0.1
    computing: float = 0.1


@dataclass(frozen=True)
class Left:
    """Steps on several nodes of a DNN that was left out of a fit; arrays (steps,).

    ``node`` and ``device`` are logarithms of predicted over measured step time, given its steps on
    one node, or only those on one device. ``computed`` is the same for compute time, if waiting was
    measured. ``exchanged``, ``computing`` and ``links`` (links, steps) are elasticities of the step
    time; ``noise`` is that of the DNN.
    """

    node: Floats
    device: Floats
    exchanged: Floats
    computing: Floats
    links: Floats
    noise: float
    computed: Floats | None = None


def learnt(left: Sequence[Left], growths: Sequence[float], links: Floats) -> Spreads:
    """The most likely spreads, each expected to be near its default.

    ``growths`` has the growth of each DNN's compute time on a node, expected to be 0; ``links`` is
    the covariance of the links.
    """
    from scipy.optimize import minimize

    usual = Spreads()
    centre = np.log([usual.step, usual.node, usual.device])
    used = [dnn for dnn in left if len(dnn.node)]
    known = [
        np.einsum("is,ij,js->s", dnn.links, links, dnn.links)
        + (dnn.noise**2) * (1.0 + dnn.computing**2)
        for dnn in used
    ]

    def cost(x: Floats) -> float:
        step, *others = np.exp(2.0 * x)
        total = float((((x - centre) / EXPECTED_SPREAD) ** 2).sum())
        for dnn, already in zip(used, known, strict=True):
            for misses, between in zip((dnn.node, dnn.device), others, strict=True):
                variance = already + step + between * dnn.exchanged**2
                total += AS_MANY * float(np.mean(np.log(variance) + misses**2 / variance))
        return total

    step, node, device = np.exp(minimize(cost, centre).x).tolist() if used else np.exp(centre)
    computed = [float(np.mean(dnn.computed**2)) for dnn in used if dnn.computed is not None]
    spreads = {
        "step": step,
        "node": node,
        "device": device,
        "noise": _rms([dnn.noise**2 for dnn in used], NOISE, 1),
        "contention": _rms([growth**2 for growth in growths], CONTENTION, CONTENTION_DNNS),
        "computing": _rms(computed, usual.computing, 1),
    }
    return Spreads(**{name: rounded(value, 4) for name, value in spreads.items()})


def _rms(squares: Sequence[float], expected: float, as_many: float) -> float:
    """Root mean square, in which the expected value counts ``as_many`` times."""
    return math.sqrt((as_many * expected**2 + sum(squares)) / (as_many + len(squares)))


def noise_of(misses: Floats, devices: Floats, batch_size: Floats) -> float:
    """Standard deviation of a DNN's repeated steps on one node: of their ``misses``, after removing
    an effect of each number of devices and of each batch size, all (steps,).

    :data:`NOISE` counts as :data:`perfmodel.calibration.regression.WEIGHT` degrees of freedom.
    """
    parts = [column[:, None] == np.unique(column) for column in (devices, batch_size)]
    design = np.concatenate(parts, axis=1).astype(float)
    effects, _, rank, _ = np.linalg.lstsq(design, misses, rcond=None)
    free = len(misses) - int(rank)
    squares = float(((misses - design @ effects) ** 2).sum())
    return math.sqrt((WEIGHT * NOISE**2 + squares) / (WEIGHT + free))
