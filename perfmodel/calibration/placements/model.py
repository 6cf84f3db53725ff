r"""Step of data-parallel training by where its devices are: a formula with few parameters.

*n* devices on *N* nodes, *k* of them on the fullest one, exchange gradients of *M* bytes in

.. math:: R_{node} = (n - 1) l + u_i \beta_i r(n) M,
   \quad R = (n - 1) l + u \beta \pi_N r(n) (n / N)^q M,
   \quad r(n) = 2 (n - 1) / n

seconds, the first on one node, the second on several: steps and bytes of a ring of all devices
(Thakur, Rabenseifner, Gropp, IJHPCA 19, 2005, section 4.5) of which the slowest link counts: that
between devices of a node, or that between nodes. Two nodes have but one path between them:
:math:`\pi_2` is more than 1. *q* is for what devices of a node share beyond the link. *u* says how
much more or less the bytes of one DNN take than those of others. A step that computes for *C*
seconds lasts

.. math:: T = (1 - h o) C + ((h o C)^g + R^g)^{1/g}

The part *h* of computing is what an exchange can hide behind, *g* how well it does (Qiao and
others, "Pollux", OSDI 2021, eq. 12). *o* is that part of backward that is left once gradients are
ready: nearly none if they are those of an embedding of the input. Computing grows with devices that
share a node by *1 + c (1 - 1 / k)*, and with the expected largest of *n* factors of which each
varies by *v*. The links (*l*, beta, pi, *q*) are of the cluster, all else is of the DNN.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.theory.order_statistics import expected_maximum
from perfmodel.theory.overlap import blend

SHARPNESS = 4.0
"""Exponent *g*: with 4, the exchange hides well but where both take about as long."""

LEAST_PART = 0.2
"""Of computing on one device, that is left of it in any company."""

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
    "sharing_exponent": Prior("", 0.0, 0.15, "linear"),
}
"""Parameters that all DNNs on a cluster have in common, in the order of a fit."""

TRAITS: dict[str, Prior] = {
    "node": Prior("", 1.0, 0.4),
    # beyond what of its bytes on one node is carried over
    "network": Prior("", 1.0, 0.15),
    "contention": Prior("", 0.0, 0.15, "linear"),
    # backward is about two thirds of a step, and its first gradients take a while
    "hidden_fraction": Prior("", 0.55, 0.7, "logit"),
    "variation": Prior("", 0.03, 1.0),
}
"""What is peculiar to a DNN, in the order of a fit. The spreads are of the size that DNNs differ by
on two clusters of others."""


@dataclass(frozen=True)
class Placed:
    """Steps by where their devices are; every field an array (steps,).

    Attributes
    ----------
    nodes, devices, fullest : *N*, *n* and *k*.
    gradient_bytes, overlap : *M* and *o*.
    base_s, base : measured computing of the same batch on one node, and on how many devices of it.
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
    contention, hidden_fraction, variation : *c*, *h* and *v*.
    """

    node: Floats
    network: Floats
    contention: Floats
    hidden_fraction: Floats
    variation: Floats


def parameters(point: Floats) -> dict[str, float]:
    """Parameters by name from a point on the scales of a fit."""
    given = zip(PRIORS.items(), point, strict=True)
    return {name: prior.from_fit(float(value)) for (name, prior), value in given}


def ring(participants: Floats) -> Floats:
    """Times that a ring moves all bytes through each of its links."""
    return 2.0 * (participants - 1.0) / participants


def waiting(devices: Floats, variation: Floats) -> Floats:
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
        * np.where(placed.nodes == 2, given["pair_factor"], 1.0)
        * (placed.devices / placed.nodes) ** given["sharing_exponent"]
    )
    within = given["node_s_per_byte"]
    per_byte = np.where(placed.nodes > 1, own.network * between, own.node * within)
    startup = given["latency_s"] * (placed.devices - 1.0)
    return np.asarray(startup + per_byte * ring(placed.devices) * placed.gradient_bytes)


def step_s(compute: Floats, exchange: Floats, hidden: Floats) -> Floats:
    """Seconds *T* of steps that compute and exchange so long, of which the part *h o* can hide."""
    hiding = hidden * compute
    return np.asarray(compute - hiding + blend(hiding, exchange, SHARPNESS))


def compute_s(placed: Placed, own: Own) -> Floats:
    """Seconds *C* of the slowest device, from computing measured on one node."""
    grown = shared(placed.fullest, own.contention) / shared(placed.base, own.contention)
    return np.asarray(placed.base_s * grown * waiting(placed.devices, own.variation))


def shared(devices: Floats, contention: Floats) -> Floats:
    """Factor of computing on a node that so many devices share."""
    return np.asarray(np.maximum(1.0 + contention * (1.0 - 1.0 / devices), LEAST_PART))


def predicted_s(given: dict[str, float], placed: Placed, own: Own) -> tuple[Floats, Floats]:
    """Seconds of steps, and how much of a change of the exchange reaches them (elasticity)."""
    computing = compute_s(placed, own)
    exchange = exchange_s(given, placed, own)
    hidden = own.hidden_fraction * placed.overlap
    step = step_s(computing, exchange, hidden)
    more = step_s(computing, exchange * (1.0 + SMALL), hidden)
    return step, np.asarray(np.log(more / step) / math.log1p(SMALL))
