r"""Step time of data-parallel training as a function of the placement of devices, on arrays.

It is the all-reduce of :mod:`perfmodel.architectures.allreduce` with a ring, a bucket for each
layer, and a workload of *m* equal layers, without what these steps do not need: the iteration of

.. math:: T = (1 - h o) C + \max(h o C / m + R, \; h o C + R / m)

seconds, where *C* is computing, of which the fraction *h o* can hide the exchange *R* of all
gradients (:func:`perfmodel.theory.overlap.equal_wait_free`). *o* is the fraction of backward that
remains once gradients are ready, known of the DNN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.calibration.placements.table import OneNode, Step
from perfmodel.calibration.regression import Parameter
from perfmodel.inputs.cluster import Cluster
from perfmodel.theory.collective_times import ring_allreduce_s
from perfmodel.theory.overlap import equal_wait_free

CARRIED = 0.5
"""Fraction of what the bytes of a DNN take more on one node, in logarithms, that they take more on
the network. 0.3 to 0.5 do as well on two published clusters."""

MESSAGES, MOST_MESSAGES = 8.0, 64.0
"""Messages that a DNN's gradients are sent in, if its steps do not tell, and at most."""

TRAITS = {
    each.name: each
    for each in (
        Parameter("bytes", 1.0, 0.15),
        Parameter("node_bytes", 1.0, 0.4),
        # backward is about two thirds of a step, and its first gradients take a while
        Parameter("hidden_fraction", 0.55, 0.7, scale="logit"),
        Parameter("messages", MESSAGES, 0.7, most=MOST_MESSAGES),
    )
}
"""Traits of a DNN: what its bytes take on the network more than those of others, beyond what
carries over from one node; what they take more on one node; the part of computing that can hide an
exchange; messages. The spreads are those among DNNs on two published clusters."""

LINKS = {
    "nic.efficiency": 0.46,
    "nic.latency_s": 0.5,
    "pair_efficiency": 0.2,
    "intra_node.efficiency": 1.0,
    "intra_node.latency_s": 0.5,
}
"""Fields of a cluster that are fitted, and standard deviations of the logarithms of what is
expected of them. Nine in ten TCP connections deliver a tenth to nearly half of fast links."""


@dataclass(frozen=True)
class Placed:
    """Placements of steps; every field is an array (steps,).

    Attributes
    ----------
    nodes, devices, fullest : nodes, devices, and devices of the fullest node.
    gradient_bytes, overlap : of the DNN; *o* above.
    computing_s : of the same batch on as many devices of one node as the fullest has.
    """

    nodes: Floats
    devices: Floats
    fullest: Floats
    gradient_bytes: Floats
    overlap: Floats
    computing_s: Floats

    @classmethod
    def of(cls, own: OneNode, steps: Sequence[Step]) -> Placed:
        """The placements of steps of one DNN."""
        ones, training = np.ones(len(steps)), own.training
        return cls(
            nodes=np.array([float(len(step.devices)) for step in steps]),
            devices=np.array([float(sum(step.devices)) for step in steps]),
            fullest=np.array([float(max(step.devices)) for step in steps]),
            gradient_bytes=training.gradient_bytes * ones,
            overlap=training.overlap_fraction * ones,
            computing_s=np.array(
                [own.computing_s(max(step.devices), step.batch_size) for step in steps]
            ),
        )

    @classmethod
    def joined(cls, several: Sequence[Placed]) -> Placed:
        """Those of several, one after the other."""
        if not several:
            return cls(*(np.zeros(0) for _ in fields(cls)))
        return cls(
            *(np.concatenate([getattr(p, field.name) for p in several]) for field in fields(cls))
        )


def link_parameters(cluster: Cluster, spreads: Mapping[str, float]) -> list[Parameter]:
    """Parameters of the links of a cluster, whose values are what is expected of them."""
    inside = cluster.intra_node
    expected = {
        "nic.efficiency": cluster.nic.efficiency,
        "nic.latency_s": cluster.nic.latency_s,
        "pair_efficiency": cluster.pair_efficiency,
        "intra_node.efficiency": 1.0 if inside is None else inside.efficiency,
        "intra_node.latency_s": 0.0 if inside is None else inside.latency_s,
    }
    known = LINKS | dict(spreads)
    return [
        Parameter(
            name,
            value,
            known[name],
            unit="s" if name.endswith("_s") else "",
            least=1e-9,
            most=np.inf if name.endswith("_s") else 1.0,
        )
        for name, value in expected.items()
    ]


def trait_parameters(
    names: Sequence[str], bytes_spread: float = TRAITS["bytes"].spread
) -> list[Parameter]:
    """Parameters of the traits of DNNs, called ``trait:name``, with a spread of ``bytes``."""
    spreads = {trait: p.spread for trait, p in TRAITS.items()} | {"bytes": bytes_spread}
    return [
        Parameter(f"{trait}:{name}", p.value, spreads[trait], scale=p.scale, most=p.most)
        for name in names
        for trait, p in TRAITS.items()
    ]


def traits_of(values: Mapping[str, Floats], names: Sequence[str], dnn: Ids) -> dict[str, Floats]:
    """Traits of the DNN of each step, (points, steps), by name."""
    return {
        trait: np.stack([values[f"{trait}:{name}"] for name in names], axis=-1)[..., dnn]
        for trait in TRAITS
    }


def network_bytes(bytes_more: Floats, node_bytes: Floats) -> Floats:
    """What the bytes of a DNN take on the network, over those of others."""
    return np.asarray(bytes_more * node_bytes**CARRIED)


def steps_s(
    cluster: Cluster,
    links: Mapping[str, Floats],
    traits: Mapping[str, Floats],
    placed: Placed,
) -> Floats:
    """Seconds of steps, (points, steps).

    ``links`` are values of :data:`LINKS`, numbers or (points, 1); ``traits`` those of
    :data:`TRAITS`, (points, steps).
    """
    away, inside = placed.nodes > 1, cluster.intra_node
    between = cluster.nic.bandwidth_bytes_per_s * links["nic.efficiency"]
    between = between * np.where(placed.nodes == 2, links["pair_efficiency"], 1.0)
    nominal = np.inf if inside is None else inside.bandwidth_bytes_per_s
    within = nominal * links["intra_node.efficiency"]
    through = np.where(placed.fullest > 1, np.minimum(between, within), between)
    hop_s = links["intra_node.latency_s"] * (placed.fullest > 1)
    each = np.where(
        away, network_bytes(traits["bytes"], traits["node_bytes"]), traits["node_bytes"]
    )
    messages = np.maximum(traits["messages"], 1.0)
    exchange_s = ring_allreduce_s(
        placed.devices,
        each * placed.gradient_bytes,
        bandwidth_bytes_per_s=np.where(away, through, within),
        latency_s=messages * np.where(away, np.maximum(links["nic.latency_s"], hop_s), hop_s),
    )
    hiding_s = traits["hidden_fraction"] * placed.overlap * placed.computing_s
    end = equal_wait_free(hiding_s, exchange_s, messages)
    return np.asarray(placed.computing_s - hiding_s + end)
