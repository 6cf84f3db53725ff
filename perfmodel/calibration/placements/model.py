r"""Step time of data-parallel training as a function of the placement of devices.

*n* devices on *N* nodes, *k* of them on the fullest one, exchange gradients of *M* bytes in

.. math:: R_{node} = (n - 1) l + u_i \beta_i r(n) M,
   \quad R = (n - 1) l + u \beta \pi_N r(n) (n / N)^q M,
   \quad r(n) = 2 (n - 1) / n

seconds, the first on one node, the second on several: steps and bytes of a ring of all devices
(Thakur, Rabenseifner, Gropp, IJHPCA 19, 2005, section 4.5), limited by the slowest link: that
between devices of a node, or that between nodes. Two nodes have only one path between them:
:math:`\pi_2` is more than 1. *q* is for resources other than the link that devices of a node share.
*u* is the time per byte of one DNN relative to that of others. A step that computes for *C*
seconds lasts

.. math:: T = (1 - h o) C + ((h o C)^g + R^g)^{1/g}

An exchange can hide behind the fraction *h* of computing, and *g* is how completely it does (Qiao
and others, "Pollux", OSDI 2021, eq. 12). *o* is the fraction of backward that remains once
gradients are ready: almost 0 if most are those of an embedding of the input. Computing grows with
devices that share a node by *1 + c (1 - 1 / k)*, and with the expected largest of *n* factors of
which each varies by *v*. The links (*l*, beta, pi, *q*) are of the cluster, all else is of the DNN.
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
"""Exponent *g*: with 4, the exchange is almost fully hidden unless both take about equally long."""

LEAST_PART = 0.2
"""Lower bound of computing time, as a fraction of that on one device."""

SMALL = 0.01
"""Variation at which the expected largest factor is evaluated; its excess is proportional to it."""


class Prior(msgspec.Struct, frozen=True):
    """Prior of a parameter; ``scale`` is that of a fit.

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
    # in addition to what carries over from one node
    "network": Prior("", 1.0, 0.15),
    "contention": Prior("", 0.0, 0.15, "linear"),
    # backward is about two thirds of a step, and its first gradients take a while
    "hidden_fraction": Prior("", 0.55, 0.7, "logit"),
    "variation": Prior("", 0.03, 1.0),
}
"""Traits of a DNN, in the order of a fit. The spreads are those among DNNs on two published
clusters."""


@dataclass(frozen=True)
class Placed:
    """Placements of steps; every field is an array (steps,).

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
    """Traits of the DNN of each step; every field is an array (steps,).

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
    """How often a ring moves all bytes through each of its links."""
    return 2.0 * (participants - 1.0) / participants


def waiting(devices: Floats, variation: Floats) -> Floats:
    """Expected largest of so many factors with mean 1."""
    counts, where = np.unique(devices, return_inverse=True)
    return np.asarray(1.0 + variation * np.array([_largest(int(n)) for n in counts])[where])


@functools.cache
def _largest(count: int) -> float:
    """Expected largest of so many standardised factors."""
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
    """Seconds *T* of steps, given the times of computing and exchange and the fraction *h o*."""
    hiding = hidden * compute
    return np.asarray(compute - hiding + blend(hiding, exchange, SHARPNESS))


def compute_s(placed: Placed, own: Own) -> Floats:
    """Seconds *C* of the slowest device, from computing measured on one node."""
    grown = shared(placed.fullest, own.contention) / shared(placed.base, own.contention)
    return np.asarray(placed.base_s * grown * waiting(placed.devices, own.variation))


def shared(devices: Floats, contention: Floats) -> Floats:
    """Factor of computing time on a node with so many devices."""
    return np.asarray(np.maximum(1.0 + contention * (1.0 - 1.0 / devices), LEAST_PART))


def predicted_s(given: dict[str, float], placed: Placed, own: Own) -> tuple[Floats, Floats]:
    """Seconds of steps, and their elasticity in the exchange."""
    computing = compute_s(placed, own)
    exchange = exchange_s(given, placed, own)
    hidden = own.hidden_fraction * placed.overlap
    step = step_s(computing, exchange, hidden)
    more = step_s(computing, exchange * (1.0 + SMALL), hidden)
    return step, np.asarray(np.log(more / step) / math.log1p(SMALL))
