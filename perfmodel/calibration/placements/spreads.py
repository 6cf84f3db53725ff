"""Standard deviations that a fit leaves, learnt from DNNs that were left out of it in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats

EXPECTED_SPREAD = 1.0
"""Standard deviation, of the logarithm, of what is expected of the standard deviations."""

AS_MANY = 4.0
"""Effective number of independent steps of a DNN that was left out."""

CONTENTION = 0.15
"""Standard deviation of the growth of computing on a node, where no DNN tells it."""


class Spreads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Standard deviations of logarithms; the defaults are those before any run.

    Attributes
    ----------
    step : of measured steps around predictions.
    node, device : of what the bytes of a DNN take on the network, if it was measured on one node
        only, or on one device.
    contention : of the growth of a DNN's computing from one device to many on a node.
    growth : of computing on several devices of a node around that growth.
    """

    step: float = 0.08
    node: float = 0.15
    device: float = 0.25
    contention: float = CONTENTION
    growth: float = 0.1


@dataclass(frozen=True)
class Left:
    """Steps on several nodes of a DNN that was left out of a fit; arrays (steps,).

    ``node`` and ``device`` are logarithms of predicted over measured, if its steps on one node are
    known, or none on several devices; ``elasticity`` that of the step in what is exchanged, and
    ``links`` the variance for what is left unknown of the links.
    """

    node: Floats
    device: Floats
    elasticity: Floats
    links: Floats


def learnt(left: Sequence[Left], growths: Sequence[float]) -> Spreads:
    """The most likely spreads, each expected to be near its default.

    ``growths`` are those of the computing of the DNNs; their expectation is 0, and counts as one
    DNN more.
    """
    from scipy.optimize import minimize

    usual = Spreads()
    centre = np.log([usual.step, usual.node, usual.device])
    told = [each for each in left if len(each.node)]

    def cost(x: Floats) -> float:
        step, *others = np.exp(2.0 * x)
        found = float((((x - centre) / EXPECTED_SPREAD) ** 2).sum())
        for each in told:
            for misses, own in zip((each.node, each.device), others, strict=True):
                variance = each.links + step + own * each.elasticity**2
                found += AS_MANY * float(np.mean(np.log(variance) + misses**2 / variance))
        return found

    step, node, device = np.exp(minimize(cost, centre).x).tolist() if told else np.exp(centre)
    squares = CONTENTION**2 + sum(growth**2 for growth in growths)
    contention = math.sqrt(squares / (1 + len(growths)))
    found = {"step": step, "node": node, "device": device, "contention": contention}
    return Spreads(**{name: float(f"{value:.4g}") for name, value in found.items()})
