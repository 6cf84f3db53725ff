r"""Step of data-parallel training by where its devices are: a formula with few parameters.

*n* devices on *N* nodes, *k* of them on the fullest one, exchange gradients of *M* bytes in

.. math:: R_{node} = (n - 1) l + u_i \beta_i r(k) M,
   \quad R = (n - 1) l + u \beta \pi_N r(N) (n / N)^q M,
   \quad r(x) = 2 (x - 1) / x

seconds, the first on one node, the second on several: steps and bytes of a ring (Thakur,
Rabenseifner, Gropp, IJHPCA 19, 2005, section 4.5) between devices of a node, or between nodes whose
devices share what a node has for its network. Two nodes have but one path between them:
:math:`\pi_2` is more than 1. *u* says how much more or less the bytes of one DNN take than those
of others, and *M* stands for :math:`M (M / 100 MB)^s`. A step that computes for *C* seconds lasts

.. math:: T = (1 - h o) C + ((h o C)^g + R^g)^{1/g}

The part *h* of computing is what an exchange can hide behind, *g* how well it does (Qiao and
others, "Pollux", OSDI 2021, eq. 12). *o* is that part of backward that is left once gradients are
ready: nearly none if they are those of an embedding of the input. Computing grows with devices that
share a node by *1 + c (1 - 1 / k)*, where *c* differs among DNNs as well, and with the expected
largest of *n* factors of which each varies by *v*.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.order_statistics import expected_maximum
from perfmodel.overlap import blend

Floats = NDArray[np.float64]

ROUNDS = 12
"""Of Newton's method for computing; it comes from above, to all digits in less than ten."""

LEAST_PART = 0.2
"""Of a step on one node, that is computing in any case."""

USUAL_BYTES = 1e8
"""Size of gradients at which the size exponent changes nothing."""

SMALL = 0.01
"""Variation at which the expected largest factor is taken, as it grows in proportion to it."""


class Prior(msgspec.Struct, frozen=True):
    """What is expected of a parameter before any run; ``scale`` is that of a fit.

    ``spread`` is a standard deviation, of the logarithm or logit where the scale says so.
    """

    unit: str
    value: float
    spread: float
    scale: str = "log"

    def to_fit(self, value: float) -> float:
        """A value on the scale of a fit."""
        if self.scale == "logit":
            return math.log(value / (1.0 - value))
        return math.log(value) if self.scale == "log" else value

    def from_fit(self, value: float) -> float:
        """The value of a parameter."""
        if self.scale == "logit":
            return 1.0 / (1.0 + math.exp(-value))
        return math.exp(value) if self.scale == "log" else value


PRIORS: dict[str, Prior] = {
    # 2 (n - 1) steps of a ring, each about the 50 us of a small message over TCP
    "latency_s": Prior("s", 1e-4, 0.5),
    # one TCP flow between cloud machines: 5 or 10 Gbit/s; InfiniBand far less, Ethernet more
    "network_s_per_byte": Prior("s", 1.5e-9, 1.5),
    "pair_factor": Prior("", 1.35, 0.2),
    # between devices of a node through its memory, 1 to 10 GB/s; NVLink far less
    "node_s_per_byte": Prior("s", 0.8e-9, 1.0),
    "sharing_exponent": Prior("", 0.3, 0.4),
    # backward is about two thirds of a step, and its first gradients take a while
    "hidden_fraction": Prior("", 0.55, 0.3, "logit"),
    "sharpness": Prior("", 4.0, 0.3),
    "contention": Prior("", 0.03, 0.1, "linear"),
    "variation": Prior("", 0.03, 1.0),
    "size_exponent": Prior("", 0.0, 0.1, "linear"),
}
"""Parameters that all DNNs on a cluster have in common, in the order of a fit."""


@dataclass(frozen=True)
class Placed:
    """Steps by where their devices are; every field an array (steps,).

    Attributes
    ----------
    nodes, devices, fullest : *N*, *n* and *k*.
    gradient_bytes, overlap : *M* and *o*.
    base_s, base : a measured step of the same batch on one node, and on how many devices of it.
    """

    nodes: Floats
    devices: Floats
    fullest: Floats
    gradient_bytes: Floats
    overlap: Floats
    base_s: Floats
    base: Floats


@dataclass(frozen=True)
class Own:
    """What is peculiar to the DNN of each step; every field an array (steps,).

    Attributes
    ----------
    node, network : *u_i* and *u*.
    contention : added to *c*.
    """

    node: Floats
    network: Floats
    contention: Floats


def parameters(point: Floats) -> dict[str, float]:
    """Parameters by name from a point on the scales of a fit."""
    given = zip(PRIORS.items(), point, strict=False)
    return {name: prior.from_fit(float(value)) for (name, prior), value in given}


def ring(participants: Floats) -> Floats:
    """Times that a ring moves all bytes through each of its links."""
    return 2.0 * (participants - 1.0) / participants


def waiting(devices: Floats, variation: float) -> Floats:
    """Expected largest of so many factors with mean 1."""
    counts, where = np.unique(devices, return_inverse=True)
    return np.asarray(1.0 + variation * np.array([_largest(int(n)) for n in counts])[where])


@functools.cache
def _largest(count: int) -> float:
    """How far the largest of so many factors is from their mean, in standard deviations."""
    return (float(expected_maximum(count, SMALL, "lognormal")) - 1.0) / SMALL


def exchange_s(given: dict[str, float], placed: Placed, own: Own) -> Floats:
    """Seconds *R* of an exchange."""
    between = (
        given["network_s_per_byte"]
        * ring(placed.nodes)
        * np.where(placed.nodes == 2, given["pair_factor"], 1.0)
        * (placed.devices / placed.nodes) ** given["sharing_exponent"]
    )
    within = given["node_s_per_byte"] * ring(placed.fullest)
    per_byte = np.where(placed.nodes > 1, own.network * between, own.node * within)
    size = (placed.gradient_bytes / USUAL_BYTES) ** given["size_exponent"]
    startup = given["latency_s"] * (placed.devices - 1.0)
    return np.asarray(startup + per_byte * size * placed.gradient_bytes)


def step_s(given: dict[str, float], compute: Floats, exchange: Floats, overlap: Floats) -> Floats:
    """Seconds *T* of steps that compute and exchange so long."""
    hiding = given["hidden_fraction"] * overlap * compute
    return np.asarray(compute - hiding + blend(hiding, exchange, given["sharpness"]))


def compute_s(given: dict[str, float], placed: Placed, own: Own) -> Floats:
    """Seconds *C* of computing on the fullest node, from the measured step on one node."""
    one = np.ones_like(placed.base)
    alone = replace(placed, nodes=one, devices=placed.base, fullest=placed.base)
    within = exchange_s(given, alone, own)
    part, sharpness = given["hidden_fraction"] * placed.overlap, given["sharpness"]
    found = placed.base_s
    for _ in range(ROUNDS):
        found = np.maximum(found, LEAST_PART * placed.base_s)
        hiding = part * found
        both = blend(hiding, within, sharpness)
        slope = (
            1.0
            - part
            + part * np.divide(hiding, both, where=both > 0.0, out=one.copy()) ** (sharpness - 1.0)
        )
        found = found - (found - hiding + both - placed.base_s) / slope
    found = np.maximum(found, LEAST_PART * placed.base_s)
    found = found * shared(given, placed.fullest, own) / shared(given, placed.base, own)
    variation = given["variation"]
    return np.asarray(found * waiting(placed.devices, variation) / waiting(placed.base, variation))


def shared(given: dict[str, float], devices: Floats, own: Own) -> Floats:
    """Factor of computing on a node that so many devices share."""
    contention = given["contention"] + own.contention
    return np.asarray(np.maximum(1.0 + contention * (1.0 - 1.0 / devices), LEAST_PART))


def predicted_s(given: dict[str, float], placed: Placed, own: Own) -> tuple[Floats, Floats]:
    """Seconds of steps, and how much of a change of the exchange reaches them (elasticity)."""
    computing = compute_s(given, placed, own)
    exchange = exchange_s(given, placed, own)
    step = step_s(given, computing, exchange, placed.overlap)
    more = step_s(given, computing, exchange * (1.0 + SMALL), placed.overlap)
    return step, np.asarray(np.log(more / step) / math.log1p(SMALL))
