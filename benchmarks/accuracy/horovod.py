"""Horovod's first table: servers against ring all-reduce, over TCP and over RDMA.

``throughput.csv`` has images per second by ``cluster`` (with the rate of its links in its name),
``method``, ``model``, ``batch_per_gpu``, ``num_gpus`` and ``num_nodes``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.accuracy import dnns, fitted, rows, table_fits, tables
from benchmarks.accuracy.cases import Case, about, predicted
from perfmodel import InputError, Job, Link, Server
from perfmodel.inputs.calibration import Calibration

SOURCE, FILE = "horovod", "throughput.csv"

LATENCY_S = 25e-6
"""One-way latency between nodes: an assumption. Doubling it makes steps at most 0.8 % longer."""

USUAL_BITS_PER_S = 25e9
"""Link rate if the name of a cluster does not give it."""

CYCLE_S = 1e-6
"""Horovod of 2017 looked for tensors to fuse continuously."""

ABOUT = about("horovod")
prior = table_fits.prior_of(ABOUT)


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of the table."""

    cluster: str
    method: str

    dnn = series = property(lambda self: self.model)
    family = property(lambda self: "server" if self.servers else "ring")
    servers = property(lambda self: "tensorflow" in self.method.lower())
    setting = property(lambda self: f"{self.model}, {self.cluster}")
    setup = property(lambda self: (self.model, self.cluster))

    @property
    def key(self) -> str:
        """Identifies the run."""
        return f"{self.model} batch {self.batch_per_gpu}, {self.method}, {self.num_gpus} GPUs"

    @property
    def follows_link(self) -> bool:
        """Whether a faster link helps; the CPU limits all other methods."""
        return "RDMA" in self.method and "NCCL" in self.method

    @property
    def fields(self) -> Mapping[str, str]:
        """See :class:`.table_fits.Measured`."""
        name, field = f"rate {self.method}", "nic.bandwidth_bytes_per_s"
        if self.servers:
            name, field = f"server {self.method}", "server.update_per_byte_s"
        elif self.follows_link:
            name, field = f"part {self.method}", "nic.efficiency"
        return {"neighbours": "slowdown_per_neighbour", name: field}

    def job(self, values: Mapping[str, float], known: Calibration | None = None) -> Job:
        """See :class:`.table_fits.Measured`. There are as many servers as GPUs; whole variables are
        placed on them in turn."""
        (found,) = (value for name, value in values.items() if name != "neighbours")
        bits = re.search(r"(\d+(?:\.\d+)?)\s*G", self.cluster)
        nominal = (1e9 * float(bits[1]) if bits else USUAL_BITS_PER_S) / 8
        link = Link(nominal, LATENCY_S, tables.ETHERNET_EFFICIENCY)
        if self.follows_link:
            link = Link(nominal, LATENCY_S, min(found, 1.0))
        elif not self.servers:
            link = Link(min(found, link.goodput_bytes_per_s), LATENCY_S)
        where = tables.cluster(
            link,
            known,
            devices_per_node=self.devices,
            intra_node=tables.PCIE,
            slowdown_per_neighbour=values["neighbours"],
            server=Server("colocated", update_per_byte_s=found if self.servers else 0.0),
        )
        profile = dnns.profile(self.model, "pascal", self.batch_per_gpu,
                               self.batch_per_gpu / self.alone_s)  # fmt: skip
        if profile is None:
            raise InputError(f"{self.model}: layers not known")
        if not self.servers:
            fused = {"bucketing": "horovod", "fusion_cycle_s": CYCLE_S}
            return tables.job(profile, self.num_gpus, where, "ring", fused)
        options = {"servers": self.num_gpus, "sharding": "hash", "split_above_bytes": math.inf}
        return tables.job(profile, self.num_gpus, where, "bsp", options)


def read(folder: Path, known: Mapping[str, float]) -> tuple[list[Row], dict[str, float]]:
    """Return runs on several GPUs, and step times on one (s); ``known`` are those of the fits."""
    table = rows.read(folder / FILE, Row)
    return tables.several(table, known, 1, lambda row: dnns.layers_of(row.model) is not None)


def cases(folder: Path) -> list[Case]:
    """Return every multi-GPU run, predicted with nominal links and by a fit that excludes it."""
    table, _ = read(folder, fitted.read(SOURCE, table_fits.Fit)["all"].alone_s)
    nominal = [table_fits.run(SOURCE, "none", row, table_fits.NOTHING, prior) for row in table]
    return table_fits.cases(SOURCE, table, ("few",), prior) + predicted(nominal)


def fit(folder: Path) -> None:
    """Fit to all runs, and to the runs of all DNNs but one."""
    found, alone_s = read(folder, {})
    few = table_fits.without("few", found, prior)
    fitted.write(SOURCE, {**few, "all": table_fits.fit(found, prior, alone_s)})
