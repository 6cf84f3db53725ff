"""Horovod's first table: servers against ring all-reduce, by TCP and by RDMA.

``throughput.csv`` has images per second by ``cluster`` (with the rate of its links in its name),
``method``, ``model``, ``batch_per_gpu``, ``num_gpus`` and ``num_nodes``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.accuracy import dnns, fitted, rows, tables
from benchmarks.accuracy.cases import Case, about, predicted
from perfmodel import InputError, Job, Link, Server
from perfmodel.calibration.regression import Parameter
from perfmodel.inputs.calibration import Calibration

SOURCE, FILE = "horovod", "throughput.csv"

LATENCY_S = 25e-6
"""Of a message between nodes, one way: an assumption. Twice as much makes steps 0.8 % longer at
most."""

USUAL_BITS_PER_S = 25e9
"""Where the name of a cluster says nothing."""

CYCLE_S = 1e-6
"""Horovod of 2017 looked for tensors to fuse without a pause."""

SERVER_S_PER_BYTE = 1 / 1.5e9
"""What a server takes to add a byte, before any run: what MXNet's servers do, by its bandwidth tool
(258 MB on eight GPUs: 0.27 s by way of a server, 0.10 s without)."""

ABOUT = about("horovod")


def prior(name: str) -> Parameter:
    """What is known of a value before any run."""
    if name == "neighbours":
        return Parameter(name, 0.02, 0.5)
    if name.startswith("server"):
        return Parameter(name, SERVER_S_PER_BYTE, 0.5)
    if name.startswith("part"):
        return Parameter(name, tables.ETHERNET_EFFICIENCY, 0.5, most=tables.ETHERNET_EFFICIENCY)
    return Parameter(name, tables.ETHERNET_EFFICIENCY * USUAL_BITS_PER_S / 8, 0.5)


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of the table."""

    cluster: str
    method: str
    alone_s: float = 0.0

    dnn = series = property(lambda self: self.model)
    family = property(lambda self: "server" if self.servers else "ring")
    servers = property(lambda self: "tensorflow" in self.method.lower())

    @property
    def key(self) -> str:
        """What tells runs apart."""
        return f"{self.model} batch {self.batch_per_gpu}, {self.method}, {self.num_gpus} GPUs"

    @property
    def follows_link(self) -> bool:
        """Whether a faster link helps: without the processor, which limits all others."""
        return "RDMA" in self.method and "NCCL" in self.method

    @property
    def fields(self) -> Mapping[str, str]:
        """See :class:`benchmarks.accuracy.tables.Measured`."""
        name, field = f"rate {self.method}", "nic.bandwidth_bytes_per_s"
        if self.servers:
            name, field = f"server {self.method}", "server.update_per_byte_s"
        elif self.follows_link:
            name, field = f"part {self.method}", "nic.efficiency"
        return {"neighbours": "slowdown_per_neighbour", name: field}

    def job(self, values: Mapping[str, float], known: Calibration | None = None) -> Job:
        """See :class:`benchmarks.accuracy.tables.Measured`. Servers are as many as GPUs; variables
        go to them in turn, each whole to one."""
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
    """Runs on several GPUs, and seconds of a step on one; ``known`` are those of the fits."""
    table = rows.read(folder / FILE, Row)
    own = {f"{row.model}, {row.cluster}": row.step_s for row in table if row.num_gpus == 1}
    alone_s = {**known, **own}
    found, left_out = [], []
    for row in table:
        near = [s for name, s in alone_s.items() if name.startswith(f"{row.model}, ")]
        step_s = alone_s.get(f"{row.model}, {row.cluster}", near[0] if near else None)
        if row.num_gpus > 1 and (step_s is None or dnns.layers_of(row.model) is None):
            left_out.append(row.model)
        elif row.num_gpus > 1 and step_s is not None:
            found.append(msgspec.structs.replace(row, alone_s=step_s))
    rows.say_left_out("no run with one GPU, or layers not known", left_out)
    return found, alone_s


def cases(folder: Path) -> list[Case]:
    """Every run with more than one GPU, from nominal links and by a fit that it is not in."""
    fits = fitted.read(SOURCE, tables.Fit)
    found = []
    for row in read(folder, fits["all"].alone_s)[0]:
        one = fits["all"]
        if row.key in one.keys:
            one = fits.get(f"few/{row.model}", one)
        setting = f"{row.model}, {row.cluster}"
        if row.key not in one.keys:
            found.append(tables.run(SOURCE, "few", row, one, prior, setting))
        found.append(tables.run(SOURCE, "none", row, tables.NOTHING, prior, setting))
    return predicted(found)


def fit(folder: Path) -> None:
    """Fit to all runs, and to those of all DNNs but one."""
    found, alone_s = read(folder, {})
    fits = {
        f"few/{model}": tables.fit(others, prior)
        for model, others in tables.without(found, lambda row: row.model).items()
    }
    fitted.write(SOURCE, {**fits, "all": tables.fit(found, prior, alone_s)})
