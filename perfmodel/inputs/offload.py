"""Updates by the host: how long an optimizer with offloaded states takes.

As in DeepSpeed, gradients are copied to the host while the backward pass computes others, so that
only the last tensor's copy is left after it; then the host updates the parameters, and copies them
back (``deepspeed/runtime/zero/stage_1_and_2.py``). Updates on a host are bound by its memory, which
the devices of a node share.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.base.provenance import Assumption
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.workload import Workload

MEMORY_BYTES_PER_S = 115e9
"""Bytes that the processors of a node read and write in an update: 28 bytes per parameter with
Adam, at about a quarter of a second per billion parameters on two sockets (Ren et al., "ZeRO-
Offload", USENIX ATC 2021, latency of CPU-Adam)."""

COPY_BYTES_PER_S = 25e9
"""Bytes between a device and its host: PCIe 4.0 with 16 lanes, from pinned memory."""


class Offload(NamedTuple):
    """Seconds of an update of the whole model by the host, one after the other: the copy of the
    last gradients, the update, and the copy of the parameters."""

    gradients_s: float
    update_s: float
    parameters_s: float


NOTE = Assumption(
    "offload_optimizer",
    True,
    "",
    f"the host updates at {MEMORY_BYTES_PER_S / 1e9:g} GB/s of its memory, and copies at "
    f"{COPY_BYTES_PER_S / 1e9:g} GB/s per device",
)


def offload_of(workload: Workload, cluster: Cluster) -> Offload:
    """Return the times of an update on the host, which reads states, masters and gradients, and
    writes all but gradients."""
    stored = workload.stored
    masters = max(stored.masters, workload.gradient_bytes)
    moved = 2.0 * (stored.states + masters) + workload.gradient_bytes
    share = min(stored.gradients / workload.gradient_bytes, 1.0)  # in one precision
    return Offload(
        share * workload.largest_tensor_bytes / COPY_BYTES_PER_S,
        moved * cluster.devices_per_node / MEMORY_BYTES_PER_S,
        (stored.parameters - stored.frozen) / COPY_BYTES_PER_S,
    )
