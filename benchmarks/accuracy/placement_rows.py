"""Tables of data-parallel step times by placement and batch size, and further facts about them.

``throughput.csv`` has step times by ``model``, ``cluster``, ``table``, ``placement`` (digits:
devices on each node), ``num_nodes``, ``num_replicas`` (spread evenly if ``placement`` is empty),
``local_bsz`` (samples per device), ``step_time_s``, and ``sync_time_s``: waiting for gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import perfmodel as pm
from benchmarks.accuracy import rows
from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.calibration.placements import Step, Training

FILE = "throughput.csv"

BYTES = 4
"""Bytes per parameter: gradients have single precision."""

DNNS: dict[str, tuple[float, float]] = {
    "cifar10": (11.2e6, 1.0),
    "imagenet": (25.6e6, 1.0),
    # the word embeddings, a fifth of all bytes, come last
    "bert": (110e6, 0.8),
    "yolov3": (61.9e6, 1.0),
    # five recurrent layers: the first fifth of backward ends with the first gradients
    "deepspeech2": (41e6, 0.8),
    # nearly all bytes are embeddings of the input
    "ncf": (1.6e6, 0.1),
}
"""Parameters, from the READMEs of both sources, and the fraction of backward that remains once
gradients become ready, from the DNNs' layers."""


TCP_NOMINAL_BYTES_PER_S, TCP_BYTES_PER_S = 100e9 / 8, (1.3e9, 2.9e9)
"""What TCP was observed to deliver over 100 Gbit/s (README of the data). On slower links it may be
the same fraction, or the same rate; the prior is the middle of all."""

HOP_S = 6e-6
"""Latency that a hop of a ring over TCP adds to each of several messages in flight."""

PAIR_EFFICIENCY = 0.74
"""Fraction of their links that two nodes get."""


def ethernet(name: str, nominal_bytes_per_s: float, flow_bytes_per_s: float) -> pm.Cluster:
    """Return the priors for nodes on Ethernet with a maximum rate per connection, whose devices
    exchange through the memory of the host."""
    link = min(nominal_bytes_per_s, flow_bytes_per_s)
    least, most = TCP_BYTES_PER_S
    least = min(least * nominal_bytes_per_s / TCP_NOMINAL_BYTES_PER_S, link)
    return pm.Cluster(
        name=name,
        nic=pm.Link(link, HOP_S, math.sqrt(least * min(most, link)) / link),
        intra_node=pm.IntraNode(16e9, HOP_S, 0.08, kind="per_device"),
        pair_efficiency=PAIR_EFFICIENCY,
        source=pm.Source("estimated", "what TCP delivers, and PCI Express through memory"),
    )


class Row(msgspec.Struct, frozen=True):
    """A row of ``throughput.csv``."""

    model: str
    cluster: str
    num_nodes: int
    num_replicas: int
    local_bsz: int
    step_time_s: float
    sync_time_s: float = 0.0
    table: str = "placements"
    placement: str = ""

    def __post_init__(self) -> None:
        whole_number("num_nodes", self.num_nodes)
        whole_number("num_replicas", self.num_replicas, at_least=self.num_nodes)
        whole_number("local_bsz", self.local_bsz)
        number("step_time_s", self.step_time_s, above=0.0)
        number("sync_time_s", self.sync_time_s)
        if self.placement and not (self.placement.isdigit() and "0" not in self.placement):
            raise InputError(f"placement: must be digits of 1 to 9, got {self.placement!r}")

    @property
    def step(self) -> Step:
        """Return the row as a step."""
        each, more = divmod(self.num_replicas, self.num_nodes)
        even = (each + (node < more) for node in range(self.num_nodes))
        devices = tuple(map(int, self.placement)) or tuple(even)
        return Step(
            devices, self.local_bsz, self.step_time_s, min(self.sync_time_s, self.step_time_s)
        )

    @property
    def key(self) -> str:
        """Its table and placement."""
        return f"{self.table} {'.'.join(map(str, self.step.devices))}"


def read(folder: Path) -> dict[str, list[Row]]:
    """Return the rows of a folder by cluster; a measurement that is in both tables counts once."""
    found: dict[str, dict[Any, Row]] = {}
    for row in rows.read(folder / FILE, Row):
        same = (row.model, row.step.devices, row.local_bsz, row.step_time_s)
        found.setdefault(row.cluster, {}).setdefault(same, row)
    if not found:
        raise InputError(f"{folder / FILE}: no rows")
    return {cluster: list(own.values()) for cluster, own in found.items()}


def trainings(of: Iterable[Row]) -> dict[str, Training]:
    """Return the steps of each known DNN that was run on one device."""
    steps: dict[str, list[Step]] = {}
    for row in of:
        steps.setdefault(row.model, []).append(row.step)
    alone = [name for name in sorted(steps) if any(s.devices == (1,) for s in steps[name])]
    return {name: _training(name, steps[name]) for name in alone if name in DNNS}


def _training(name: str, steps: Iterable[Step]) -> Training:
    parameters, left = DNNS[name]
    return Training(
        name=name,
        gradient_bytes=parameters * BYTES,
        steps=tuple(steps),
        overlap_fraction=left,
    )
