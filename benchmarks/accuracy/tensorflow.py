"""TensorFlow's benchmarks of 2017: servers and replicas inside a node, and servers between nodes.

``throughput.csv`` has images per second by ``platform``, ``gpu``, ``data`` (synthetic or real
images), ``model``, ``batch_per_gpu``, ``variable_update`` and ``local_parameter_device`` (location
of variables inside a node), ``num_gpus``, ``num_nodes`` and ``num_ps``. Several nodes are a second
job, in which each node sums its gradients before it sends them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.accuracy import dnns, fitted, rows, table_fits, tables
from benchmarks.accuracy.cases import Case, about
from perfmodel import InputError, IntraNode, Job, Link, Server, predict
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.cluster import Handover

SOURCE, FILE = "tensorflow", "throughput.csv"

NIC = Link(10e9 / 8, 50e-6, tables.ETHERNET_EFFICIENCY)
"""10 Gbit/s between p2.8xlarge nodes; the latency is an assumption."""

NVLINK = IntraNode(40e9, 10e-6, kind="per_device")
"""Practical rate of a ring over the NVLinks of a P100, four of 20 GB/s each way."""

THREADS = {"DGX-1": 80, "p2.8xlarge": 32, "p2.16xlarge": 64, "n1-standard-32": 32}
"""Hardware threads of a node, which load images, by part of the platform's name."""

ABOUT = about("tensorflow")
prior = table_fits.prior_of(ABOUT)


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of the table."""

    platform: str
    gpu: str
    variable_update: str
    data: str = "synthetic"
    local_parameter_device: str = "n/a"
    num_ps: int | None = None

    dnn = property(lambda self: self.model)
    family = property(lambda self: self.gpu)
    setting = property(lambda self: f"{self.model}, {self.platform}")

    @property
    def method(self) -> str:
        """Exchange of gradients, and location of variables."""
        return f"{self.variable_update} {self.local_parameter_device}"

    @property
    def series(self) -> str:
        """Everything except the number of GPUs."""
        return ", ".join(
            (self.platform, self.method, self.data, self.model, str(self.batch_per_gpu))
        )

    @property
    def key(self) -> str:
        """Identifies the run."""
        return f"{self.series}, {self.num_gpus} GPUs"

    @property
    def setup(self) -> tuple[str, ...]:
        """Properties that a step on one GPU depends on, the most important first."""
        batch = str(self.batch_per_gpu)
        return (self.gpu, self.model, batch, self.platform, self.data, self.method)

    @property
    def fields(self) -> Mapping[str, str]:
        """See :class:`.table_fits.Measured`."""
        away = self.num_nodes > 1
        found = {
            f"neighbours {self.series}": "" if away else "slowdown_per_neighbour",
            f"host {self.gpu}": "" if away else "handover.per_byte_s",
        }
        if self.data == "real":
            found["thread"] = ""
        return {**found, **({"server": "server.update_per_byte_s"} if away else {})}

    def job(self, values: Mapping[str, float], known: Calibration | None = None) -> Job:
        """See :class:`.table_fits.Measured`."""
        threads = next((n for name, n in THREADS.items() if name in self.platform), 0)
        rate = self.batch_per_gpu / self.alone_s
        profile = dnns.profile(self.model, self.gpu, self.batch_per_gpu, rate)
        if profile is None:
            raise InputError(f"{self.model}: layers not known")
        if self.data == "real" and threads:
            loading_s = self.devices * self.batch_per_gpu / (values["thread"] * threads)
            (timing,) = profile.timings
            timing = msgspec.structs.replace(timing, data_loading_s=loading_s)
            profile = msgspec.structs.replace(profile, timings=(timing,))
        replicas = self.variable_update != "parameter_server"
        where = tables.cluster(
            Link(self.devices * tables.PCIE.bandwidth_bytes_per_s),
            known if self.num_nodes == 1 else None,
            devices_per_node=self.devices,
            intra_node=NVLINK if replicas and "DGX" in self.platform else tables.PCIE,
            slowdown_per_neighbour=values[f"neighbours {self.series}"] / max(self.devices - 1, 1),
            handover=Handover(per_byte_s=values[f"host {self.gpu}"]),
        )
        servers = self.devices if self.local_parameter_device == "gpu" else 1
        options: dict[str, object] = {"servers": servers, "split_above_bytes": math.inf}
        if replicas:
            options = {"bucketing": "layer"}
        arch = "ring" if replicas else "bsp"
        inside = tables.job(profile, self.devices, where, arch, options)
        if self.num_nodes == 1:
            return inside
        node = tables.as_one(profile, self.devices, predict(inside).iteration_s)
        server = Server("colocated", update_per_byte_s=values["server"])
        options = {"servers": self.num_ps or self.num_nodes, "split_above_bytes": math.inf}
        between = tables.cluster(NIC, known, server=server)
        return tables.job(node, self.num_nodes, between, "bsp", options)


def read(folder: Path, known: Mapping[str, float]) -> tuple[list[Row], dict[str, float]]:
    """Return runs on several GPUs, and step times on one (s); ``known`` are those of the fits. The
    run on one GPU has the same data, else the other data, else another platform."""
    table = rows.read(folder / FILE, Row)
    return tables.several(table, known, 3, lambda row: dnns.layers_of(row.model) is not None)


def cases(folder: Path) -> list[Case]:
    """Return every multi-GPU run, predicted by the fit to few rows, or by the fit to all rows if
    the run is in neither."""
    known = fitted.read(SOURCE, table_fits.Fit)["all"].alone_s
    return table_fits.cases(SOURCE, read(folder, known)[0], ("few",), prior)


def fit(folder: Path) -> None:
    """Fit to all runs, and to those with the fewest GPUs above one of each configuration."""
    found, alone_s = read(folder, {})
    fits = {"few": table_fits.fit(tables.fewest(found), prior)}
    fitted.write(SOURCE, {**fits, "all": table_fits.fit(found, prior, alone_s)})
