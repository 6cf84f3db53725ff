"""What the adapters of published tables of throughput share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from perfmodel import Cluster, IntraNode, Link, Server, Source, make_job, predict
from perfmodel.api import Fidelity
from perfmodel.base.errors import number, whole_number
from perfmodel.base.uncertainty import COVERAGE, WIDTH
from perfmodel.inputs.profile import Profile

PCIE = IntraNode(12e9, 10e-6, kind="per_device")
"""What PCIe 3.0 x16 moves in practice, one way, for each device."""

ETHERNET_EFFICIENCY = 0.9415
"""Payload of TCP in frames of 1500 bytes: 1448 of the 1538 bytes that each takes on the wire."""

RUN_SPREAD = 0.01
"""Standard deviation of one measured throughput, as a fraction: an assumption. In the table of
TensorFlow synthetic and real images differ by 0 to 1.5 % on one device."""

RUNS_SPREAD = math.sqrt(2.0) * RUN_SPREAD
"""Of the ratio of two of them: one device, and many."""


class ImagesRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table of throughput: ``images_per_s`` of all GPUs together.

    Raises
    ------
    InputError : a number out of range.
    """

    model: str
    batch_per_gpu: int
    num_gpus: int
    images_per_s: float
    num_nodes: int = 1

    def __post_init__(self) -> None:
        number("images_per_s", self.images_per_s, above=0.0)
        for name in ("batch_per_gpu", "num_gpus", "num_nodes"):
            whole_number(name, getattr(self, name))

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.samples / self.images_per_s

    @property
    def samples(self) -> float:
        """Images of a step of all GPUs."""
        return float(self.num_gpus * self.batch_per_gpu)

    @property
    def devices(self) -> int:
        """GPUs of the fullest node."""
        return -(-self.num_gpus // self.num_nodes)


def step_s(
    profile: Profile,
    workers: int,
    cluster: Cluster,
    arch: str,
    options: Mapping[str, Any],
    fidelity: Fidelity = "fine",
) -> float:
    """Predicted seconds of a step; the profile has one timing."""
    timing = profile.timings[0]
    job = make_job(
        workload=profile,
        device=timing.device,
        batch_size=timing.batch_size,
        cluster=cluster,
        workers=workers,
        arch=arch,
        options=options,
    )
    return predict(job, fidelity=fidelity).iteration_s


def cluster(
    link: Link,
    *,
    devices_per_node: int = 1,
    inside: IntraNode | None = None,
    server: Server | None = None,
) -> Cluster:
    """Equal nodes; servers, if there are any, share the nodes and links of the workers."""
    return Cluster(
        name="published",
        nic=link,
        devices_per_node=devices_per_node,
        intra_node=inside,
        server=server or Server(placement="colocated"),
        source=Source("estimated", "nominal rates, or what was fitted"),
    )


def as_one(profile: Profile, devices: int, seconds: float) -> Profile:
    """A profile for all devices of a node together, which take ``seconds`` for a step."""
    timing = profile.timings[0]
    size = devices * timing.batch_size
    changed = msgspec.structs.replace(timing, batch_size=size, samples_per_s=size / seconds)
    return msgspec.structs.replace(profile, timings=(changed,))


def baselines(alone_s: float, size_bytes: float, workers: int, link: Link) -> dict[str, float]:
    """Naive predictions of a step that takes ``alone_s`` on one device.

    *Ideal scaling* is that step, *plain alpha-beta* adds a ring over the nominal link with nothing
    hidden.
    """
    steps = 2 * (workers - 1)
    ring_s = steps * (link.latency_s + size_bytes / workers / link.bandwidth_bytes_per_s)
    return {"ideal scaling": alone_s, "plain alpha-beta": alone_s + ring_s}


def spread(logs: ArrayLike) -> float:
    """Standard deviation about the mean, 0 of fewer than two values."""
    found = np.asarray(logs, dtype=float)
    return float(np.std(found, ddof=1)) if found.size > 1 else 0.0


def rms(misses: ArrayLike) -> float:
    """Root mean square: the standard deviation about 0."""
    return float(np.sqrt(np.mean(np.square(misses))))


def robust_spread(misses: ArrayLike) -> float:
    """Standard deviation of the normal distribution that has 9 of 10 misses as far from 0 as these.

    >>> round(robust_spread([-2.0, -1.0, 0.0, 1.0, 2.0]), 2)
    1.22
    """
    return float(np.quantile(np.abs(misses), COVERAGE)) / WIDTH
