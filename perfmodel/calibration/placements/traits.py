"""Traits of a DNN on a cluster, and the standard deviations that a fit leaves."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from perfmodel.calibration.placements.model import TRAITS, Own

UNSEEN_GROWTH = 0.15
"""Standard deviation of the growth of computing time on a node, where no step identifies it."""

TRANSPORT_SPREAD = 0.46
"""Standard deviation of the logarithm of the time per byte on a network that was not measured,
if nine in ten lie between a tenth and nearly half of fast links, which is what TCP delivers of
them."""


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a DNN differs from others.

    Attributes
    ----------
    node, network : time per byte relative to that of other DNNs: on one node, on the network.
    contention : growth of its computing time with the devices of a node.
    hidden_fraction : the part of computing that an exchange can hide behind.
    variation : standard deviation of computing among devices, as a part of it.
    known : whether from steps on several nodes, on one node, or on one device only.
    """

    node: float = TRAITS["node"].value
    network: float = TRAITS["network"].value
    contention: float = TRAITS["contention"].value
    hidden_fraction: float = TRAITS["hidden_fraction"].value
    variation: float = TRAITS["variation"].value
    known: Literal["nodes", "node", "device"] = "device"

    def of(self, steps: int) -> Own:
        """The same for each of so many steps."""
        return Own(*(getattr(self, name) * np.ones(steps) for name in TRAITS))


class Spreads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Residual standard deviations of logarithms.

    Attributes
    ----------
    step, exchange : of measured steps, and of exchanges on top of it, around the fit.
    node, carried, network : of the scale of a DNN that was not fitted to: on one node; on the
        network, if it was run on one node; on the network, if it was not.
    growth : of a step on one node, if only that on one device is known, for a DNN fitted to.
    contention : of the contention of a DNN that was not fitted to (not a logarithm).
    """

    step: float
    exchange: float
    node: float
    carried: float
    network: float
    growth: float
    contention: float


UNSEEN = Spreads(
    step=0.1,
    exchange=0.2,
    node=1.0,
    carried=TRANSPORT_SPREAD,
    network=TRANSPORT_SPREAD,
    growth=UNSEEN_GROWTH,
    contention=TRAITS["contention"].spread,
)
"""Standard deviations before any run."""
