"""Updates by the host: how long an optimizer with offloaded states takes.

As in DeepSpeed, gradients are copied to the host while the backward pass computes others, so that
only the last layer's copy is left after it, unless copies take longer than the pass; then the host
updates the parameters, and copies them back (``deepspeed/runtime/zero/stage_1_and_2.py``). Updates
on a host are bound by its memory, which the devices of a node share. Each device has a link to the
host for each direction, on which its copies follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perfmodel.base.provenance import Assumption
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.workload import Workload, expanded

MEMORY_BYTES_PER_S = 115e9
"""Bytes that the processors of a node read and write in an update: 28 bytes per parameter with
Adam, at about a quarter of a second per billion parameters on two sockets (Ren et al., "ZeRO-
Offload", USENIX ATC 2021, latency of CPU-Adam)."""

COPY_BYTES_PER_S = 25e9
"""Bytes between a device and its host: PCIe 4.0 with 16 lanes, from pinned memory."""


class Offload(msgspec.Struct, frozen=True):
    """Seconds of an update of the whole model by the host, one after the other: the copy of the
    last gradients, the update, and the copy of the parameters.

    ``gradient_bytes`` are the copies of each layer's gradients, in the order of the forward pass,
    ``parameter_bytes`` those of the parameters.
    """

    gradients_s: float
    update_s: float
    parameters_s: float
    gradient_bytes: tuple[float, ...]
    parameter_bytes: float

    @property
    def seconds(self) -> float:
        """Time after the backward pass."""
        return self.gradients_s + self.update_s + self.parameters_s

    @property
    def last(self) -> int:
        """The layer whose gradients are copied last: the first one with parameters."""
        return next((i for i, size in enumerate(self.gradient_bytes) if size), 0)

    def late_s(self, backward_s: Sequence[float], parts: int = 1) -> float:
        """Return by how much the copies of all gradients but the last outlast the backward pass.

        ``backward_s`` are the times of its layers, (layers,), in the order of the forward pass; a
        device copies one of ``parts`` of the gradients.

        >>> Offload(0, 0, 0, (25e9, 25e9), 0).late_s([0.25, 1.0])
        0.75
        """
        now = copied = 0.0
        for number in reversed(range(len(backward_s))):
            now += backward_s[number]
            if number > self.last:
                size = self.gradient_bytes[number] / parts
                copied = max(copied, now) + size / COPY_BYTES_PER_S
        return max(copied - now, 0.0)


NOTE = Assumption(
    "offload_optimizer",
    True,
    "",
    f"the host updates at {MEMORY_BYTES_PER_S / 1e9:g} GB/s of its memory, and copies at "
    f"{COPY_BYTES_PER_S / 1e9:g} GB/s per device",
)


def offload_of(workload: Workload, cluster: Cluster, workers: int, devices: int = 1) -> Offload:
    """Return the times of an update on the host, which reads states, masters and gradients, and
    writes all but gradients.

    All ``workers`` of a node share its memory. Each has so many ``devices``, which divide the
    layers of the workload.
    """
    stored = workload.stored
    masters = max(stored.masters, workload.gradient_bytes)
    moved = 2.0 * (stored.states + masters) + workload.gradient_bytes
    share = min(stored.gradients / workload.gradient_bytes, 1.0)  # in one precision
    layers = expanded(workload).layers
    copies = tuple(share * sum(layer.tensor_bytes) / devices for layer in layers)
    parameters = (stored.parameters - stored.frozen) / devices
    return Offload(
        next((size for size in copies if size), 0.0) / COPY_BYTES_PER_S,
        moved * min(cluster.devices_per_node, workers) / MEMORY_BYTES_PER_S,
        parameters / COPY_BYTES_PER_S,
        copies,
        parameters,
    )
