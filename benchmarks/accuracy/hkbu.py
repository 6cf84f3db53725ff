"""Seven ways to communicate on three networks, predicted from runs on one and two nodes.

The benchmarks of arXiv 2005.13247, github.com/HKBU-HPML/ddl-benchmarks: PyTorch with Horovod (a
ring), MG-WFBP, ByteScheduler and BytePS (a parameter server), on nodes of four GPUs. The folder
holds ``throughput.csv``: samples of all GPUs per second, by ``dnn``, ``connection``, ``method`` and
``num_gpus``; one GPU stands for computing without communication.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import dnns, fitted, rows, tables
from benchmarks.accuracy.cases import Case, about, predicted
from perfmodel import InputError, IntraNode, Job, Link, Server
from perfmodel.base.errors import number
from perfmodel.calibration.regression import Parameter
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.cluster import Handover
from perfmodel.inputs.profile import Profile, Timing

ABOUT = about("hkbu")

FILE = "throughput.csv"

PCIE_BYTES_PER_S = 15.75e9
"""PCI Express 3.0 with 16 lanes, nominal."""

RINGS: Mapping[str, dict[str, Any]] = {
    "no_overlap": {"bucketing": "one"},
    "wfbp_per_tensor": {"bucketing": "ddp", "bucket_cap_bytes": 0, "first_bucket_bytes": 0},
    "wfbp_merged": {"bucketing": "mg_wfbp"},
    "bytescheduler": {"bucketing": "ddp", "bucket_cap_bytes": 0, "first_bucket_bytes": 0},
}
"""Options of a ring by schedule."""

BEFORE = {
    "latency_s": Parameter("latency_s", 7.3e-6, 0.1),
    "update_s_per_byte": Parameter("update_s_per_byte", 20 / 616e9, 0.35),
    "scheduler_s": Parameter("scheduler_s", 3e-4, 1.0),
    "servers' part TCP": Parameter("servers' part TCP", 0.6, 0.3, most=1.0),
    "servers' part RDMA": Parameter("servers' part RDMA", 0.6, 0.3, most=1.0),
    "servers' part inside": Parameter("servers' part inside", 0.6, 0.3, most=1.0),
    "tcp connection": Parameter("tcp connection", 1e9, 1.0),
}
"""What is known before any run. The latency of a step of a ring is the start-up time of an
all-reduce over its 2 (n - 1) steps with RDMA, says MG-WFBP's table. An Adam of single operations
passes some 20 times over memory, at the 616 GB/s of an RTX 2080 Ti. For each tensor ByteScheduler
makes some calls in Python, and takes a lock."""


def prior(name: str) -> Parameter:
    """What is known of a value before any run; of a network, that it is slower than its name says:
    ``10GbE with TCP/IP`` (PCI Express if it says nothing)."""
    found = re.match(r"(\d+(?:\.\d+)?)\s*G", name)
    nominal = float(found[1]) * 1e9 / 8 if found else PCIE_BYTES_PER_S
    return BEFORE.get(name) or Parameter(name, nominal / 2, 1.0)


class Row(msgspec.Struct, frozen=True):
    """A row of ``throughput.csv``."""

    dnn: str
    batch_per_gpu: int
    connection: str
    method: str
    architecture: str
    schedule: str
    num_gpus: int
    num_nodes: int
    samples_per_s: float
    alone_s: float = 0.0

    def __post_init__(self) -> None:
        number("samples_per_s", self.samples_per_s, above=0.0)

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.batch_per_gpu * self.num_gpus / self.samples_per_s

    @property
    def setup(self) -> str:
        """What a step on one GPU depends on."""
        return f"{self.dnn}, batch size {self.batch_per_gpu}"

    @property
    def series(self) -> str:
        """What is the same in runs on other numbers of GPUs."""
        return f"{self.dnn}, {self.connection}, {self.method}"

    @property
    def key(self) -> str:
        """The whole row."""
        return f"{self.dnn} {self.method} {self.num_gpus} GPUs {self.connection}"

    @property
    def family(self) -> str:
        """Methods and networks whose predictions are off alike."""
        if self.architecture == "ps":
            return f"ps {self.connection}"
        return f"ring {'bytescheduler' if self.schedule == 'bytescheduler' else ''}".strip()

    @property
    def part(self) -> str:
        """What servers get of a link, as a value is called."""
        protocol = "TCP" if "TCP" in self.connection else "RDMA"
        return f"servers' part {protocol if self.num_nodes > 1 else 'inside'}"

    @property
    def few(self) -> bool:
        """Whether the split *few* calibrates on it: one node, or two without overlap."""
        return self.num_gpus <= (8 if self.schedule == "no_overlap" else 4)

    @property
    def fields(self) -> Mapping[str, str]:
        """See :class:`benchmarks.accuracy.tables.Measured`."""
        away = self.num_nodes > 1
        ps = self.architecture == "ps"
        link = "nic" if away or ps else "intra_node"
        found = {self.connection if away else "inside": f"{link}.bandwidth_bytes_per_s"}
        found["update_s_per_byte"] = ""
        if not ps:
            found["latency_s"] = f"{link}.latency_s"
            if self.schedule == "bytescheduler":
                found["scheduler_s"] = "handover.per_tensor_s"
            return found
        found[self.part] = "nic.efficiency"
        if away and "TCP" in self.connection and self.schedule != "bytescheduler":
            found["tcp connection"] = "flow_bytes_per_s"
        return found

    def job(self, values: Mapping[str, float], known: Calibration | None = None) -> Job:
        """See :class:`benchmarks.accuracy.tables.Measured`."""
        ps, update_s = self.architecture == "ps", values["update_s_per_byte"]
        layers = dnns.layers_of(self.dnn) or ()
        source = tables.PUBLISHED
        update_s = min(dnns.bytes_of(layers) * update_s, self.alone_s / 2)
        timing = Timing(device="gpu", batch_size=self.batch_per_gpu, source=source,
                        step_s=self.alone_s, other_s=update_s if ps else 0.0,
                        optimizer_s=0.0 if ps else update_s)  # fmt: skip
        profile = Profile(name=self.dnn, source=source, layers=layers, timings=(timing,))
        link = Link(values[self.connection if self.num_nodes > 1 else "inside"],
                    values.get("latency_s", 0.0), values.get(self.part, 1.0))  # fmt: skip
        alone = self.num_nodes == 1 and not ps
        inside = IntraNode(link.bandwidth_bytes_per_s, link.latency_s, kind="per_device")
        where = tables.cluster(
            link,
            known,
            devices_per_node=self.num_gpus // self.num_nodes,
            intra_node=inside if alone else None,
            server=Server(),
            handover=Handover(values.get("scheduler_s", 0.0)),
            flow_bytes_per_s=values.get("tcp connection"),
        )
        options = RINGS[self.schedule]
        if ps:
            options = {
                "servers": self.num_nodes,
                "local_aggregation": True,
                "duplex": True,
                "overlap": self.schedule != "no_overlap",
                "partition_bytes": 4e6,
            }
        return tables.job(profile, self.num_gpus, where, "bsp" if ps else "ring", options)


def read(folder: Path, known: Mapping[str, float]) -> tuple[list[Row], dict[str, float]]:
    """Runs on several GPUs, and seconds of a step on one; ``known`` are those of the fits."""
    table = rows.read(folder / FILE, Row)
    alone_s = {**known, **{row.setup: row.step_s for row in table if row.num_gpus == 1}}
    found, left_out = [], []
    for row in table:
        if row.num_gpus == 1:
            continue
        if row.architecture not in ("allreduce", "ps") or row.schedule not in RINGS:
            left_out.append(row.method)
        elif row.num_gpus % row.num_nodes:
            left_out.append(row.key)
        elif row.setup not in alone_s or dnns.layers_of(row.dnn) is None:
            left_out.append(row.setup)
        else:
            found.append(msgspec.structs.replace(row, alone_s=alone_s[row.setup]))
    rows.say_left_out("unknown schedule or DNN, no run on one GPU, or uneven nodes", left_out)
    return found, alone_s


def cases(folder: Path) -> list[Case]:
    """Every run as each fit predicts it that was not fitted to it; step times in seconds."""
    fits = fitted.read("hkbu", tables.Fit)
    found = []
    for row in read(folder, fits["all"].alone_s)[0]:
        splits = {"few": fits["few"], "dnn": fits.get(f"dnn/{row.dnn}", fits["all"])}
        for split, one in {**splits, "all": fits["all"]}.items():
            again = split == "all" and one is splits["dnn"]
            if row.key not in one.keys and not again:
                setting = f"{row.dnn} {row.connection}"
                found.append(tables.run("hkbu", split, row, one, prior, setting))
    if not found:
        raise InputError(f"{folder}: no run that can be predicted and was not fitted to")
    return predicted(found)


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and write the fits that :func:`cases` predicts with."""
    found, alone_s = read(folder, {})
    fits = {"few": tables.fit([row for row in found if row.few], prior)}
    for dnn, others in tables.without(found, lambda row: row.dnn).items():
        fits[f"dnn/{dnn}"] = tables.fit(others, prior)
    fitted.write("hkbu", {**fits, "all": tables.fit(found, prior, alone_s)})
