"""Runs that people reported in public threads, predicted from the speed of one device.

``cases.csv`` has a row for each run: what the poster said about model, devices, links and
framework, the speed of one device, and the measured step. Nothing is fitted: links are nominal, and
everything else is as ``perfmodel predict`` assumes it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel import Cluster, IntraNode, Link, Source
from perfmodel.base.errors import InputError
from perfmodel.inputs import catalogue
from perfmodel.inputs.profile import Gradients, Profile
from perfmodel.validation import cases as cases_files

SOURCE, FILE = "field", "cases.csv"
ABOUT = about(SOURCE)

UNKNOWN_DEVICE = "gpu"
"""Device of rows that do not name one."""

NVLINK_BRIDGE = IntraNode(56.25e9, 1.9e-6, 0.8, kind="per_device", interconnect="nvlink")
"""NVLink bridge of two workstation cards: four links of 14 GB/s each way."""

TCP_LATENCY_S, RDMA_LATENCY_S = 25e-6, 4e-6
TCP_EFFICIENCY, RDMA_EFFICIENCY = 0.9415, 0.85

INFINIBAND_GBPS = {"sdr": 10, "ddr": 20, "qdr": 40, "fdr": 56, "edr": 100, "hdr100": 100,
                   "hdr": 200, "ndr": 400}  # fmt: skip

ALONE = "no speed of one device"


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
    def hardware(self) -> str:
        """What is said about devices and their links, in lower case."""
        return self.inside_node.lower()

    @property
    def device(self) -> str:
        """The device of the catalogue whose name or alias is named, the longest one."""
        text = re.sub(r"[^a-z0-9]", "", f"{self.inside_node}".lower())
        known = {
            re.sub(r"[^a-z0-9]", "", alias): name
            for name in catalogue.device_names()
            for alias in (name, *catalogue.device(name).aliases)
        }
        named = [alias for alias in known if alias in text]
        device = known[max(named, key=len)] if named else UNKNOWN_DEVICE
        on_pcie = f"{device}-pcie"
        return on_pcie if "pcie" in text and on_pcie in catalogue.device_names() else device

    @property
    def passes(self) -> int:
        """Forward and backward passes per update."""
        said = re.search(r"(\d+) passes", f"{self.model} {self.batch_per_device}")
        return int(said[1]) if said else 1

    @property
    def batch_size(self) -> int | None:
        """Samples per device and update; None if not given as a number of samples."""
        return int(self.batch_per_device) if self.batch_per_device.isdigit() else None


def fields_of(row: Row) -> dict[str, Any]:
    """Return the cluster's fields that a row states."""
    device = row.device
    known = catalogue.device(device) if device != UNKNOWN_DEVICE else None
    default = catalogue.cluster(known.default_cluster) if known and known.default_cluster else None
    fields: dict[str, Any] = {"devices_per_node": row.devices_per_node}
    generation = re.search(r"pcie (\d)", row.hardware)
    if "nvlink" in row.hardware or "sxm" in row.hardware:
        shipped = default.intra_node if default is not None else None
        on_nvlink = shipped is not None and shipped.interconnect == "nvlink"
        fields["intra_node"] = shipped if on_nvlink else NVLINK_BRIDGE
    elif generation:
        fields["intra_node"] = catalogue.cluster(f"pcie{generation[1]}").intra_node
    elif default is not None and default.intra_node is not None:
        fields["intra_node"] = default.intra_node
    elif "cpu" not in row.hardware and row.devices_per_node > 1:
        fields["intra_node"] = catalogue.cluster("pcie4").intra_node
    fields |= _network(row.network.lower(), default)
    return fields


def _network(text: str, default: Cluster | None) -> dict[str, Any]:
    """Return the links between nodes: their rate, or that of the device's default cluster."""
    infiniband = next((g for name, g in reversed(INFINIBAND_GBPS.items()) if name in text), None)
    stated = re.search(r"(\d+(?:\.\d+)?) ?(?:g\b|gb|gbit)", text)
    times = re.search(r"(\d+) x ", text)
    fields: dict[str, Any] = {"nics_per_node": int(times[1])} if times else {}
    if stated is None and infiniband is None:
        shipped = default if default is not None else catalogue.cluster(catalogue.DEFAULT_CLUSTER)
        return {"nic": shipped.nic, "nics_per_node": shipped.nics_per_node, **fields}
    bytes_per_s = 1.25e8 * (float(stated[1]) if stated else float(infiniband or 0.0))
    rdma = infiniband is not None or any(word in text for word in ("infiniband", "rdma", "roce"))
    rdma = rdma and "tcp" not in text
    fields["nic"] = (
        Link(bytes_per_s, RDMA_LATENCY_S, RDMA_EFFICIENCY)
        if rdma
        else Link(bytes_per_s, TCP_LATENCY_S, TCP_EFFICIENCY)
    )
    return fields


def training_of(row: Row) -> dict[str, Any]:
    """Return the job's architecture and options, from the framework and the precision."""
    framework = row.framework.lower()
    options: dict[str, Any] = {}
    arch = "allreduce"
    if "mxnet" in framework and "server" in row.network.lower():
        return {"arch": "bsp", "options": {"servers": -(-row.devices // row.devices_per_node)}}
    if "horovod" in framework:
        options["bucketing"] = "horovod"
    if "16-bit all-reduce" in row.precision:
        options |= {"compression": "quantised", "quantised_bits": 16}
    return {"arch": arch, "options": options}


def case_of(row: Row) -> tuple[cases_files.Case, Profile, Cluster]:
    """Return a row as a case, its workload and its cluster, both named as the row.

    Raises
    ------
    InputError : the row lacks what a prediction needs.
    """
    if row.one_device_samples_per_s is None:
        raise InputError(ALONE)
    name, _, tokens = row.model.removesuffix(" tokens").rpartition(" ")
    base = (name or row.model).split(" with ")[0]
    if base in catalogue.model_names():
        profile = catalogue.model(base)
    elif row.gradient_bytes is None:
        raise InputError(f"the catalogue has no {base}, and its gradients are not stated")
    else:
        profile = Profile(
            name=row.model.split(" with ")[0],
            gradients=Gradients(row.gradient_bytes, row.tensors or 1, row.largest_bytes),
            source=Source("published", row.source),
            timings=catalogue.model("resnet50").timings[:1],
        )
    tokens_of = int(tokens) if profile.decoder is not None and tokens.isdigit() else None
    cluster = Cluster(
        name=row.id, source=Source("estimated", "nominal rates"), **fields_of(row)
    )
    job = cases_files.CaseJob(
        workload=row.id,
        device=row.device,
        batch_size=row.batch_size,
        sequence_length=tokens_of,
        accumulation=row.passes if row.passes > 1 else None,
        one_worker_samples_per_s=row.one_device_samples_per_s,
        cluster=row.id,
        workers=row.devices,
        **training_of(row),
    )
    measured = cases_files.MeasuredValues(step_s=row.measured_step_s)
    source = Source("published", row.source)
    case = cases_files.Case(name=row.id, group=kind_of(row), job=job, measured=measured, source=source)
    return case, profile, cluster
