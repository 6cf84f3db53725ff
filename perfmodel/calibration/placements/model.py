r"""Step time of data-parallel training as a function of device placement, on arrays.

This is the all-reduce of :mod:`perfmodel.architectures.allreduce` with a ring, one bucket per layer
and a workload of *m* equal layers, reduced to what these steps need. An iteration takes

.. math:: T = (1 - h o) C + \max(h o C / m + R, \; h o C + R / m)

seconds, where *C* is the compute time, of which the fraction *h o* can overlap with *R*, the
exchange of all gradients (:func:`perfmodel.theory.overlap.equal_wait_free`). *o* is the fraction of
backward that remains once the first gradients are ready; it is known for each DNN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.calibration.parameters import Parameter
from perfmodel.calibration.placements.table import OneNode, Step
from perfmodel.inputs.calibration import value_at
from perfmodel.inputs.cluster import Cluster
from perfmodel.theory.collective_times import ring_s
from perfmodel.theory.overlap import equal_wait_free

CARRIED = 0.5
"""Fraction of a DNN's excess cost per byte on one node, in logarithms, that carries over to the
network. Values from 0.3 to 0.5 do as well on two published clusters."""

MESSAGES, MOST_MESSAGES = 8.0, 64.0
"""Messages that a DNN's gradients are sent in: the default if its steps do not tell, and the
maximum."""

TRAITS = (
    Parameter("bytes", 1.0, 0.0, apart=0.15),
    Parameter("node_bytes", 1.0, 0.0, apart=0.4),
    # backward is about two thirds of a step, and its first gradients take a while
    Parameter("hidden_fraction", 0.55, 0.0, scale="logit", apart=0.7),
    Parameter("messages", MESSAGES, 0.0, most=MOST_MESSAGES, apart=0.7),
)
"""Traits of a DNN: its cost per byte on the network relative to other DNNs, beyond what carries
over from one node; its cost per byte on one node; the fraction of compute time that can overlap
with an exchange; the number of messages. How far DNNs are apart is that of two published
clusters."""

LINKS = {
    "nic.efficiency": 0.46,
    "nic.latency_s": 0.5,
    "pair_efficiency": 0.2,
    "intra_node.efficiency": 1.0,
    "intra_node.latency_s": 0.5,
}
"""Fitted fields of a cluster, and standard deviations of the logarithms of their expected values.
Nine in ten TCP connections deliver between a tenth and nearly half of a fast link."""


@dataclass(frozen=True)
class PlacedSteps:
    """Placements of steps; every field is an array (steps,).

    Attributes
    ----------
    nodes, devices, fullest : number of nodes, of devices, and of devices on the fullest node.
    gradient_bytes, overlap : of the DNN; overlap is *o* above.
    computing_s : compute time of the same batch on one node with as many devices as the fullest
        has.
    """

    nodes: Floats
    devices: Floats
    fullest: Floats
    gradient_bytes: Floats
    overlap: Floats
    computing_s: Floats

    @classmethod
    def of(cls, node: OneNode, steps: Sequence[Step]) -> PlacedSteps:
        """Placements of the steps of one DNN."""
        ones, training = np.ones(len(steps)), node.training
        return cls(
            nodes=np.array([float(len(step.devices)) for step in steps]),
            devices=np.array([float(sum(step.devices)) for step in steps]),
            fullest=np.array([float(max(step.devices)) for step in steps]),
            gradient_bytes=training.gradient_bytes * ones,
            overlap=training.overlap_fraction * ones,
            computing_s=np.array(
                [node.computing_s(max(step.devices), step.batch_size) for step in steps]
            ),
        )

    @classmethod
    def joined(cls, several: Sequence[PlacedSteps]) -> PlacedSteps:
        """Concatenate the placements of several DNNs."""
        columns = ([getattr(placed, field.name) for placed in several] for field in fields(cls))
        return cls(*(np.concatenate(arrays or [np.zeros(0)]) for arrays in columns))


def link_parameters(cluster: Cluster, spreads: Mapping[str, float]) -> list[Parameter]:
    """Parameters of a cluster's links, with their expected values."""
    return [
        Parameter(
            path,
            value_at(cluster, path),
            spreads.get(path, usual),
            unit="s" if path.endswith("_s") else "",
            least=1e-9,
            most=np.inf if path.endswith("_s") else 1.0,
            path=path,
        )
        for path, usual in LINKS.items()
    ]


def network_bytes(bytes_more: Floats, node_bytes: Floats) -> Floats:
    """A DNN's cost per byte on the network, relative to other DNNs."""
    return np.asarray(bytes_more * node_bytes**CARRIED)


def steps_s(
    cluster: Cluster,
    links: Mapping[str, Floats],
    traits: Mapping[str, Floats],
    placed: PlacedSteps,
) -> Floats:
    """Step times, (points, steps).

    ``links`` has values of :data:`LINKS`, numbers or (points, 1); ``traits`` those of
    :data:`TRAITS`, (points, steps).
    """
    away, inside = placed.nodes > 1, cluster.intra_node
    between = cluster.nic.bandwidth_bytes_per_s * links["nic.efficiency"]
    between = between * np.where(placed.nodes == 2, links["pair_efficiency"], 1.0)
    nominal = np.inf if inside is None else inside.bandwidth_bytes_per_s
    within = nominal * links["intra_node.efficiency"]
    through = np.where(placed.fullest > 1, np.minimum(between, within), between)
    inside_s = links["intra_node.latency_s"]
    hops = placed.nodes * links["nic.latency_s"] + (placed.devices - placed.nodes) * inside_s
    per_byte = np.where(
        away, network_bytes(traits["bytes"], traits["node_bytes"]), traits["node_bytes"]
    )
    messages = np.maximum(traits["messages"], 1.0)
    exchange_s = ring_s(
        "all_reduce",
        placed.devices,
        per_byte * placed.gradient_bytes,
        bandwidth_bytes_per_s=np.where(away, through, within),
        latency_s=messages * np.where(away, hops / placed.devices, inside_s * (placed.fullest > 1)),
    )
    hiding_s = traits["hidden_fraction"] * placed.overlap * placed.computing_s
    end = equal_wait_free(hiding_s, exchange_s, messages)
    return np.asarray(placed.computing_s - hiding_s + end)
