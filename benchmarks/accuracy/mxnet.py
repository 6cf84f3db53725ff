"""MXNet's scaling table: sharded synchronous servers on nodes of 16 K80 (p2.16xlarge).

``scaling_p2.16xlarge.csv`` has images per second by DNN and number of GPUs, and the size of each
DNN. Two stages, each a job. Inside a node MXNet sums each variable on the GPU that has the fewest
bytes so far, whole, and copies it back; a GPU is a worker and a server with a link of its own, and
nothing is hidden behind computation. Then the nodes, as workers, push to and pull from the servers
that they share nodes with; MXNet splits large variables over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.accuracy import dnns, fitted, rows, tables
from benchmarks.accuracy.cases import Case, about, predicted
from perfmodel import InputError, Job, Link, Server, predict
from perfmodel.calibration.regression import Parameter
from perfmodel.inputs.calibration import Calibration

SOURCE, FILE = "mxnet", "scaling_p2.16xlarge.csv"

NIC_BYTES_PER_S, NIC_LATENCY_S = 20e9 / 8, 50e-6
"""Between nodes of p2.16xlarge (aws.amazon.com/ec2/instance-types/p2); the latency is an
assumption."""

INSIDE = {"overlap": False, "split_above_bytes": math.inf}
"""Options inside a node; as many servers as GPUs."""

BETWEEN = {"overlap": False, "duplex": True, "sharding": "hash", "split_above_bytes": 4e6}
"""Options between nodes, those of MXNet's KVStore; as many servers as nodes."""

BEFORE = {
    "gpu link": Parameter("gpu link", 8e9, 0.7),
    "between nodes": Parameter("between nodes", tables.ETHERNET_EFFICIENCY, 0.5, most=1.0),
    "server": Parameter("server", (0.295 - 0.100) / 258e6, 0.5),
}
"""What is known before any run. Servers: an exchange of 258 MB by way of one less one without, by
MXNet's bandwidth tool. TCP was seen to deliver between a quarter and all of a fast link."""

ABOUT = about("mxnet")


def prior(name: str) -> Parameter:
    """What is known of a value before any run."""
    return BEFORE[name]


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of the scaling table."""

    model_size_mb: float | None = msgspec.field(default=None, name="model_size_MB")
    alone_s: float = 0.0

    dnn = series = property(lambda self: self.model)
    family = property(lambda self: "")

    @property
    def key(self) -> str:
        """What tells runs apart."""
        return f"{self.model} {self.num_gpus} GPUs on {self.num_nodes} nodes"

    @property
    def setup(self) -> str:
        """What a step on one GPU depends on."""
        return f"{self.model} {self.batch_per_gpu}"

    @property
    def fields(self) -> Mapping[str, str]:
        """See :class:`benchmarks.accuracy.tables.Measured`."""
        if self.num_nodes == 1:
            return {"gpu link": "nic.bandwidth_bytes_per_s"}
        between = {"between nodes": "nic.efficiency", "server": "server.update_per_byte_s"}
        return {"gpu link": "", **between}

    def job(self, values: Mapping[str, float], known: Calibration | None = None) -> Job:
        """See :class:`benchmarks.accuracy.tables.Measured`."""
        size = self.model_size_mb and 1e6 * self.model_size_mb
        rate = self.batch_per_gpu / self.alone_s
        profile = dnns.profile(self.model, "k80", self.batch_per_gpu, rate, size)
        if profile is None:
            raise InputError(f"{self.model}: size not known")
        link = Link(values["gpu link"], tables.PCIE.latency_s)
        where = tables.cluster(link, known if self.num_nodes == 1 else None)
        options = {**INSIDE, "servers": self.devices}
        inside = tables.job(profile, self.devices, where, "bsp", options)
        if self.num_nodes == 1:
            return inside
        node = tables.as_one(profile, self.devices, predict(inside).iteration_s)
        nic = Link(NIC_BYTES_PER_S, NIC_LATENCY_S, values["between nodes"])
        server = Server("colocated", update_per_byte_s=values["server"])
        options = {**BETWEEN, "servers": self.num_nodes}
        between = tables.cluster(nic, known, server=server)
        return tables.job(node, self.num_nodes, between, "bsp", options)


def read(folder: Path, known: Mapping[str, float]) -> tuple[list[Row], dict[str, float]]:
    """Runs on several GPUs, and seconds of a step on one; ``known`` are those of the fits."""
    table = rows.read(folder / FILE, Row)
    alone_s = {**known, **{row.setup: row.step_s for row in table if row.num_gpus == 1}}
    many = [row for row in table if row.num_gpus > 1]
    left_out = [row.setup for row in many if row.setup not in alone_s]
    rows.say_left_out("no run with one GPU", left_out)
    found = [row for row in many if row.setup in alone_s]
    return [msgspec.structs.replace(row, alone_s=alone_s[row.setup]) for row in found], alone_s


def cases(folder: Path) -> list[Case]:
    """Every run with more than one GPU, by the fit of few rows, or that of all if it is unseen."""
    fits = fitted.read(SOURCE, tables.Fit)
    found = []
    for row in read(folder, fits["all"].alone_s)[0]:
        one = fits["few" if row.key in fits["all"].keys else "all"]
        if row.key not in one.keys:
            found.append(tables.run(SOURCE, "few", row, one, prior, row.model))
    return predicted(found)


def fit(folder: Path) -> None:
    """Fit to the runs on one node, and to those of them with the fewest GPUs above one."""
    found, alone_s = read(folder, {})
    inside = [row for row in found if row.num_nodes == 1]
    fits = {"few": tables.fit(tables.fewest(inside), prior)}
    fitted.write(SOURCE, {**fits, "all": tables.fit(inside, prior, alone_s)})
