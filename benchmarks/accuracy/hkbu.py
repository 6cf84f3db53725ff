"""Seven communication schedules on three networks, predicted from runs on one and two nodes.

The benchmarks of arXiv 2005.13247, github.com/HKBU-HPML/ddl-benchmarks: PyTorch with Horovod (a
ring), MG-WFBP, ByteScheduler and BytePS (a parameter server), on nodes of four GPUs. The folder
holds ``throughput.csv``: samples of all GPUs per second, by ``dnn``, ``connection``, ``method`` and
``num_gpus``; rows with one GPU give the compute time without communication.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.accuracy import dnns, fitted, rows, table_fits, tables
from benchmarks.accuracy.cases import Case, about
from perfmodel import IntraNode, Job, Link, Server
from perfmodel.inputs.calibration import Calibration
from perfmodel.inputs.cluster import Handover
from perfmodel.inputs.profile import Profile, Timing

ABOUT = about("hkbu")
prior = table_fits.prior_of(ABOUT)

FILE, COLUMNS = "throughput.csv", {"dnn": "model", "samples_per_s": "images_per_s"}

RINGS: Mapping[str, dict[str, Any]] = {
    "no_overlap": {"bucketing": "one"},
    "wfbp_per_tensor": {"bucketing": "ddp", "bucket_cap_bytes": 0, "first_bucket_bytes": 0},
    "wfbp_merged": {"bucketing": "mg_wfbp"},
    "bytescheduler": {"bucketing": "ddp", "bucket_cap_bytes": 0, "first_bucket_bytes": 0},
}
"""Options of a ring by schedule."""


class Row(tables.ImagesRow, frozen=True, kw_only=True):
    """A row of ``throughput.csv``."""

    connection: str
    method: str
    architecture: str
    schedule: str

    dnn = property(lambda self: self.model)
    setting = property(lambda self: f"{self.dnn} {self.connection}")
    setup = property(lambda self: (self.dnn, f"batch size {self.batch_per_gpu}"))
    series = property(lambda self: f"{self.dnn}, {self.connection}, {self.method}")

    @property
    def key(self) -> str:
        """Identifies the row."""
        return f"{self.dnn} {self.method} {self.num_gpus} GPUs {self.connection}"

    @property
    def family(self) -> str:
        """Methods and networks whose predictions have similar errors."""
        if self.architecture == "ps":
            return f"ps {self.connection}"
        return f"ring {'bytescheduler' if self.schedule == 'bytescheduler' else ''}".strip()

    @property
    def part(self) -> str:
        """Name of the value for the servers' share of a link."""
        protocol = "TCP" if "TCP" in self.connection else "RDMA"
        return f"servers' part {protocol if self.num_nodes > 1 else 'inside'}"

    @property
    def few(self) -> bool:
        """Whether the split *few* calibrates on the row: one node, or two without overlap."""
        return self.num_gpus <= (8 if self.schedule == "no_overlap" else 4)

    @property
    def fields(self) -> Mapping[str, str]:
        """See :class:`.table_fits.Measured`."""
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
        if away and "TCP" in self.connection:
            found["tcp connection"] = "flow_bytes_per_s"
        return found

    def job(self, values: Mapping[str, float], known: Calibration | None = None) -> Job:
        """See :class:`.table_fits.Measured`."""
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
    """Return runs on several GPUs, and step times on one (s); ``known`` are those of the fits."""

    def usable(row: Row) -> bool:
        even = row.num_gpus % row.num_nodes == 0
        schedules = row.architecture in ("allreduce", "ps") and row.schedule in RINGS
        known = row.connection in ABOUT.expected and dnns.layers_of(row.dnn) is not None
        return even and schedules and known

    return tables.several(rows.read(folder / FILE, Row, COLUMNS), known, 2, usable)


def cases(folder: Path) -> list[Case]:
    """Return every run, predicted by each fit that does not include it; step times in seconds."""
    known = fitted.read("hkbu", table_fits.Fit)["all"].alone_s
    return table_fits.cases("hkbu", read(folder, known)[0], tuple(ABOUT.splits), prior)


def fit(folder: Path) -> None:
    """Fit to the runs in a folder and store the fits for :func:`cases`."""
    found, alone_s = read(folder, {})
    few = table_fits.fit([row for row in found if row.few], prior)
    others = table_fits.without("dnn", found, prior)
    fitted.write("hkbu", {"few": few, **others, "all": table_fits.fit(found, prior, alone_s)})
