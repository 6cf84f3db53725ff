"""MXNet's scaling table: sharded synchronous servers on nodes of 16 K80 (p2.16xlarge).

``scaling_p2.16xlarge.csv`` has images per second by DNN and number of GPUs, and the size of each
DNN. There are two stages, each a job. Inside a node, MXNet sums each whole variable on the GPU with
the fewest bytes so far, and copies it back; a GPU is a worker and a server with its own link, and
computation hides nothing. Then the nodes, as workers, push to and pull from servers on the same
nodes; MXNet splits large variables over all servers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.accuracy import dnns, fitted, rows, table_fits, tables
from benchmarks.accuracy.cases import Case, about
from perfmodel import InputError, Job, Link, Server, predict
from perfmodel.inputs.calibration import Calibration

SOURCE, FILE = "mxnet", "scaling_p2.16xlarge.csv"

NIC_BYTES_PER_S, NIC_LATENCY_S = 20e9 / 8, 50e-6
"""Link between p2.16xlarge nodes (aws.amazon.com/ec2/instance-types/p2); the latency is an
assumption."""

INSIDE = {"overlap": False, "split_above_bytes": math.inf}
"""Options inside a node; there are as many servers as GPUs."""

BETWEEN = {"overlap": False, "duplex": True, "sharding": "hash", "split_above_bytes": 4e6}
"""Options between nodes, as in MXNet's KVStore; there are as many servers as nodes."""

ABOUT = about("mxnet")
prior = table_fits.prior_of(ABOUT)


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of the scaling table."""

    model_size_mb: float | None = msgspec.field(default=None, name="model_size_MB")

    dnn = series = setting = property(lambda self: self.model)
    family = property(lambda self: "")
    setup = property(lambda self: (self.model, str(self.batch_per_gpu)))

    @property
    def key(self) -> str:
        """Identifies the run."""
        return f"{self.model} {self.num_gpus} GPUs on {self.num_nodes} nodes"

    @property
    def fields(self) -> Mapping[str, str]:
        """See :class:`.table_fits.Measured`."""
        if self.num_nodes == 1:
            return {"gpu link": "nic.bandwidth_bytes_per_s"}
        between = {"between nodes": "nic.efficiency", "server": "server.update_per_byte_s"}
        return {"gpu link": "", **between}

    def job(self, values: Mapping[str, float], known: Calibration | None = None) -> Job:
        """See :class:`.table_fits.Measured`."""
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
    """Return runs on several GPUs, and step times on one (s); ``known`` are those of the fits."""
    return tables.several(rows.read(folder / FILE, Row), known, 2)


def cases(folder: Path) -> list[Case]:
    """Return every multi-GPU run, predicted by the fit to few rows, or by the fit to all rows if
    the run is in neither."""
    known = fitted.read(SOURCE, table_fits.Fit)["all"].alone_s
    return table_fits.cases(SOURCE, read(folder, known)[0], ("few",), prior)


def fit(folder: Path) -> None:
    """Fit to the runs on one node, and to those of them with the fewest GPUs above one."""
    found, alone_s = read(folder, {})
    inside = [row for row in found if row.num_nodes == 1]
    fits = {"few": table_fits.fit(tables.fewest(inside), prior)}
    fitted.write(SOURCE, {**fits, "all": table_fits.fit(inside, prior, alone_s)})
