"""A fixed grid of jobs: every architecture, five models, 1 to 256 workers, 1 to 100 Gbps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from perfmodel import Cluster, Job, catalogue, make_job

MODELS = ("alexnet", "inception_v1", "resnet18", "resnet50", "vgg16")
WORKERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
GBPS = (1, 2, 5, 10, 25, 50, 100)
DEVICE = "v100"

EACH = 12
"""Jobs of each variant."""


class Variant(msgspec.Struct, frozen=True):
    """A way of training: ``group`` in the tables, architecture, options, jitter, cluster.

    ``servers`` is how many workers there are to a server; None for one server. ``devices`` are
    those of a node. ``most`` workers are simulated: many servers take long.
    """

    group: str
    arch: str
    options: dict[str, Any] = {}
    jitter: float | str = 0.0
    servers: int | None = None
    devices: int = 1
    most: int = WORKERS[-1]

    @property
    def name(self) -> str:
        """A readable name, one for each variant."""
        parts = [self.arch, *(f"{k}={v}" for k, v in self.options.items())]
        if self.servers is not None:
            parts.append(f"servers=N/{self.servers}")
        if self.devices > 1:
            parts.append(f"devices={self.devices}")
        if self.jitter:
            parts.append(f"jitter={self.jitter}")
        return " ".join(parts)


VARIANTS = (
    Variant("ps bsp", "bsp"),
    Variant("ps bsp", "bsp", {"overlap": False}),
    Variant("ps bsp", "bsp", {"duplex": True}),
    Variant("ps bsp", "bsp", {}, servers=4),
    Variant("ps bsp", "bsp", {"duplex": True}, servers=1),
    Variant("ps bsp", "bsp", {}, jitter=0.1),
    Variant("ps bsp", "bsp", {"overlap": False}, jitter=0.2, servers=4),
    Variant("ps bsp", "bsp", {"local_aggregation": True}, devices=4),
    Variant("ps bsp", "bsp", {"backup_workers": 1}, jitter=0.2),
    Variant("ps asp", "asp"),
    Variant("ps asp", "asp", {"overlap": False}),
    Variant("ps asp", "asp", {}, jitter=0.1),
    Variant("ps asp", "asp", {"overlap": False}, jitter=0.2),
    Variant("ps asp", "asp", {"duplex": True}, jitter=0.1),
    Variant("ps asp", "asp", {}, jitter=0.1, servers=4, most=16),
    Variant("ps asp", "asp", {"overlap": False}, servers=1, most=16),
    Variant("ps asp", "asp", {"softsync": 2}, jitter=0.1),
    Variant("ps ssp", "ssp"),
    Variant("ps ssp", "ssp", {"staleness_bound": 1}, jitter=0.2),
    Variant("ps ssp", "ssp", {"overlap": False}, jitter=0.1, servers=4),
    Variant("p2p", "p2p"),
    Variant("p2p", "p2p", {"overlap": False}),
    Variant("p2p", "p2p", {"exchange": "sharded"}),
    Variant("p2p", "p2p", {"exchange": "sharded", "overlap": False}),
    Variant("p2p", "p2p", {}, jitter=0.1),
    Variant("allreduce", "ring"),
    Variant("allreduce", "ring", {"overlap": False}),
    Variant("allreduce", "ring", {"bucketing": "layer"}),
    Variant("allreduce", "ring", {"bucketing": "mg_wfbp"}),
    Variant("allreduce", "ring", {"bucketing": "horovod"}),
    Variant("allreduce", "ring", {}, jitter=0.1),
    Variant("allreduce", "ring", {"overlap": False}, jitter="gamma:0.3"),
    Variant("allreduce", "ring", {"cross_barrier": True, "bucketing": "layer", "priority": True}),
    Variant("allreduce", "allreduce", {"algorithm": "halving_doubling"}),
    Variant("allreduce", "allreduce", {"algorithm": "tree"}),
    Variant("allreduce", "allreduce", {"algorithm": "hierarchical"}, devices=4),
    Variant("allreduce", "ring", {}, devices=4),
    Variant("fsdp", "zero2"),
    Variant("fsdp", "zero3"),
    Variant("fsdp", "zero3", {"reshard_after_forward": False}, jitter=0.1),
    Variant("local_sgd", "local_sgd", {"period": 4}),
    Variant("local_sgd", "local_sgd", {"period": 4}, jitter=0.2),
    Variant("d_psgd", "d_psgd"),
    Variant("d_psgd", "d_psgd", {"overlap": False}),
    Variant("d_psgd", "d_psgd", {}, jitter=0.1),
    Variant("easgd", "easgd"),
    Variant("easgd", "easgd", {"period": 1}, jitter=0.1),
    Variant("easgd", "easgd", {"period": 8}, jitter=0.1, servers=4),
    Variant("gosgd", "gosgd"),
    Variant("gosgd", "gosgd", {"probability": 1.0}, jitter=0.1),
    Variant("ad_psgd", "ad_psgd"),
    Variant("ad_psgd", "ad_psgd", {"overlap": False}),
    Variant("ad_psgd", "ad_psgd", {}, jitter=0.1),
)


class Cell(msgspec.Struct, frozen=True):
    """One job of the grid."""

    variant: Variant
    model: str
    workers: int
    gbps: int

    @property
    def name(self) -> str:
        """A readable name, one for each cell."""
        return f"{self.variant.name}, {self.model}, {self.workers} workers, {self.gbps} Gbps"

    def job(self) -> Job:
        """The job itself."""
        variant, options = self.variant, dict(self.variant.options)
        if variant.servers is not None:
            options["servers"] = max(self.workers // variant.servers, 1)
        return make_job(
            model=self.model,
            device=DEVICE,
            cluster=_cluster(variant.devices, self.gbps),
            workers=self.workers,
            arch=variant.arch,
            options=options,
            jitter=variant.jitter or None,
        )


def _cluster(devices: int, gbps: int) -> Cluster:
    base = catalogue.cluster("ethernet-10g")
    nic = msgspec.structs.replace(base.nic, bandwidth_bytes_per_s=gbps * 1e9 / 8)
    return msgspec.structs.replace(base, nic=nic, devices_per_node=devices)


def cells(offset: float = 0.5) -> Iterator[Cell]:
    """Every job of the grid, evenly spread over models, workers and bandwidths.

    The points are those of an additive recurrence (Roberts, "The unreasonable effectiveness of
    quasirandom sequences", 2018): the same on every machine. Another ``offset`` gives other jobs.
    """
    plastic = 1.2207440846057596  # root of x^4 = x + 1, for three axes
    steps = [plastic**-k for k in (1, 2, 3)]
    number = 0
    for variant in VARIANTS:
        least = 1 + variant.options.get("backup_workers", 0)
        allowed = [n for n in WORKERS if least <= n <= variant.most]
        for _ in range(EACH):
            number += 1
            model, workers, rate = (
                axis[int((offset + number * step) % 1.0 * len(axis))]
                for axis, step in zip((MODELS, allowed, GBPS), steps, strict=True)
            )
            yield Cell(variant, model, workers, rate)
