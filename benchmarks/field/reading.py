"""What people say of a run in a public thread, as a job.

The words are those of ``cases.csv``; what a row leaves out is as ``perfmodel predict`` assumes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.accuracy.cases import about
from perfmodel import Cluster, IntraNode, Link, Source
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.profile import Gradients, Profile
from perfmodel.validation.cases import Case, CaseJob, MeasuredValues

UNKNOWN_DEVICE = "gpu"
"""Device of rows that do not name one of the catalogue."""

NVLINK_BRIDGE = IntraNode(56.25e9, 1.9e-6, 0.8, kind="per_device", interconnect="nvlink")
"""NVLink bridge between two cards: four links of 14 GB/s each way."""

TCP = Link(1.0, latency_s=25e-6, efficiency=0.9415)
RDMA = Link(1.0, latency_s=14e-6, efficiency=0.85)
"""Latency and efficiency as in the shipped clusters."""

INFINIBAND_GBPS = {"hdr100": 100, "qdr": 40, "fdr": 56, "edr": 100, "hdr": 200, "ndr": 400}


class Model(msgspec.Struct, frozen=True):
    """Model of the catalogue that a row's model corresponds to, and its usual tokens per sample."""

    model: str
    sequence_length: int | None = None


MODELS = msgspec.convert(about("field").facts["models"], dict[str, Model])


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    id: str
    source: str
    model: str
    devices: int
    measured_step_s: float
    gradient_bytes: float | None = None
    tensors: int | None = None
    largest_bytes: float | None = None
    batch_per_device: str = ""
    precision: str = ""
    one_device_samples_per_s: float | None = None
    devices_per_node: int = 1
    inside_node: str = ""
    network: str = ""
    framework: str = ""
    cause_found_in_thread: str = ""

    @property
    def known(self) -> Model | None:
        """The model of the catalogue; None if it has none."""
        name = re.sub(r" (with|global|\d+ tokens|ZeRO).*", "", self.model)
        model = MODELS.get(name, Model(name))
        return model if model.model in catalogue.model_names() else None

    @property
    def sequence_length(self) -> int | None:
        """Tokens per sample, as stated or as usual for the model."""
        stated = re.search(r"(\d+) tokens", f"{self.model} {self.batch_per_device}")
        usual = self.known.sequence_length if self.known is not None else None
        return int(stated[1]) if stated else usual

    @property
    def passes(self) -> int:
        """Forward and backward passes per update."""
        stated = re.search(r"(\d+) passes", f"{self.model} {self.batch_per_device}")
        return int(stated[1]) if stated else 1

    @property
    def batch_size(self) -> int:
        """Samples per device and update.

        Raises
        ------
        InputError : the row does not state it.
        """
        stated = re.match(r"\d+", self.batch_per_device)
        if stated is None:
            raise InputError("no batch size")
        return int(stated[0])

    @property
    def device(self) -> str:
        """The device of the catalogue that is named, by its longest name."""
        text = _plain(self.inside_node)
        known = {
            _plain(alias): name
            for name in catalogue.device_names()
            for alias in (name, *catalogue.device(name).aliases)
        }
        named = max((alias for alias in known if alias in text), key=len, default=None)
        if named is None:
            return UNKNOWN_DEVICE
        on_pcie = f"{known[named]}-pcie"
        return on_pcie if "pcie" in text and on_pcie in catalogue.device_names() else known[named]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def cluster_of(row: Row) -> Cluster:
    """Return the cluster that a row describes; what it leaves out is as on the device's default."""
    device, inside = row.device, row.inside_node.lower()
    default = catalogue.cluster(catalogue.default_cluster_of(device) or "pcie4")
    links = default.intra_node
    generation = re.search(r"pcie (\d)", inside)
    if "nvlink" in inside and not (links and links.interconnect == "nvlink"):
        links = NVLINK_BRIDGE
    elif "pcie" in inside and (generation or not (links and links.interconnect == "pcie")):
        links = catalogue.cluster(f"pcie{generation[1] if generation else 4}").intra_node
    text = row.network.lower()
    nics = re.search(r"(\d+) x ", text)
    fields: dict[str, Any] = {"nic": default.nic, "nics_per_node": default.nics_per_node}
    stated = re.search(r"(\d+(?:\.\d+)?) ?g", text)
    standard = next((gbps for name, gbps in INFINIBAND_GBPS.items() if name in text), None)
    if stated or standard:
        gbps = float(stated[1]) if stated else float(standard or 0)
        rdma = any(word in text for word in ("infiniband", "rdma", "roce")) and "tcp" not in text
        link = msgspec.structs.replace(RDMA if rdma else TCP, bandwidth_bytes_per_s=1.25e8 * gbps)
        fields = {"nic": link, "nics_per_node": int(nics[1]) if nics else 1}
    return Cluster(
        name=row.id,
        devices_per_node=row.devices_per_node,
        intra_node=links if row.devices_per_node > 1 and "cpu" not in inside else None,
        source=Source("estimated", "nominal rates"),
        **fields,
    )


def training_of(row: Row) -> dict[str, Any]:
    """Return the architecture and its options, from the framework and the precision."""
    if "servers" in row.network:
        nodes = -(-row.devices // row.devices_per_node)
        return {"arch": "mxnet", "options": {"servers": nodes}}
    if "ZeRO" in row.model:
        return {"arch": f"zero{row.model[-1]}"}
    options: dict[str, Any] = {}
    if "16-bit all-reduce" in row.precision:
        options = {"compression": "quantised", "quantised_bits": 16}
    arch = "horovod" if "horovod" in row.framework.lower() else "allreduce"
    return {"arch": arch, "options": options}


def speed_of(row: Row, thread: Sequence[Row]) -> dict[str, Any]:
    """Return the speed of one device: the poster's, or that of the thread's smallest run.

    Raises
    ------
    InputError : neither is known.
    """
    if row.one_device_samples_per_s is not None:
        return {"one_device_samples_per_s": row.one_device_samples_per_s}
    smallest = min(thread, key=lambda other: other.devices)
    if smallest.devices == row.devices:
        raise InputError("no speed of one device, and no run on fewer devices")
    return {
        "one_device_step_s": smallest.measured_step_s,
        "one_device_batch_size": smallest.batch_size,
    }


def case_of(row: Row, thread: Sequence[Row]) -> tuple[Case, Profile | None]:
    """Return a row as a case on the cluster of its name, and its workload if the catalogue has not.

    Raises
    ------
    InputError : the row lacks what a prediction needs.
    """
    profile = None
    if row.known is None:
        if row.gradient_bytes is None:
            raise InputError(f"the catalogue has no {row.model}, whose gradients are not stated")
        gradients = Gradients(row.gradient_bytes, row.tensors or 1, row.largest_bytes)
        source = Source("published", row.source)
        profile = Profile(name=row.model, gradients=gradients, source=source)
    decoder = row.known is not None and catalogue.model(row.known.model).decoder is not None
    job = CaseJob(
        model=None if row.known is None else row.known.model,
        workload=None if profile is None else row.id,
        device=row.device,
        precision="mixed" if decoder and "16" in row.precision else None,
        batch_size=row.batch_size,
        sequence_length=row.sequence_length if decoder else None,
        accumulation=row.passes if row.passes > 1 else None,
        cluster=row.id,
        workers=row.devices,
        **speed_of(row, thread),
        **training_of(row),
    )
    measured = MeasuredValues(step_s=row.measured_step_s)
    source = Source("published", row.source)
    return Case(name=row.id, job=job, measured=measured, source=source), profile
