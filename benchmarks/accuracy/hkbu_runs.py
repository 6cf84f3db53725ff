"""What the HKBU benchmarks ran, as jobs: PyTorch on nodes of four GPUs, with Horovod, MG-WFBP,
ByteScheduler and BytePS. :mod:`benchmarks.accuracy.hkbu` has the source."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from benchmarks.accuracy.hkbu_models import profile_of
from perfmodel import Cluster, IntraNode, Job, Link, Source, Workload, make_job, predict
from perfmodel.base.errors import number, whole_number
from perfmodel.inputs.workload import resolve

Fidelity = Literal["coarse", "fine"]

PARTITION_BYTES = 4e6
"""Of a BytePS message, as the folder's README says."""

PCIE_BYTES_PER_S = 15.75e9
"""PCI Express 3.0 with 16 lanes, nominal; for the naive baseline."""


class Row(msgspec.Struct, frozen=True):
    """A row of ``throughput.csv``; ``std`` is that of ``samples_per_s`` over five runs."""

    dnn: str
    batch_per_gpu: int
    connection: str
    method: str
    architecture: str
    schedule: str
    num_gpus: int
    num_nodes: int
    samples_per_s: float
    std: float = math.nan

    def __post_init__(self) -> None:
        number("samples_per_s", self.samples_per_s, above=0.0)
        for name in ("batch_per_gpu", "num_gpus", "num_nodes"):
            whole_number(name, getattr(self, name))

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
    def family(self) -> str:
        """Methods whose predictions are off alike."""
        special = self.architecture == "allreduce" and self.schedule == "bytescheduler"
        return f"{self.architecture} {self.schedule}" if special else self.architecture


class Run(msgspec.Struct, frozen=True):
    """A measured run on several GPUs, and the step of its DNN on one GPU."""

    row: Row
    alone_s: float

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of what its step depends on."""
        row, away = self.row, self.row.num_nodes > 1
        if row.architecture == "ps":
            return (f"ps bytes_per_s {row.connection if away else 'inside'}", "update_s_per_byte")
        rate = f"ring bytes_per_s {row.connection if away else 'inside'}"
        scheduler = ("scheduler_s",) if row.schedule == "bytescheduler" else ()
        return (rate, "ring latency_s", "update_s_per_byte", *scheduler)

    def step_s(self, values: Mapping[str, float], fidelity: Fidelity) -> float:
        """Predicted seconds of a step."""
        setup = msgspec.structs.replace(self.row, connection="", samples_per_s=1.0, std=0.0)
        figures = tuple(values[name] for name in self.parameters)
        return _step_s(Run(setup, self.alone_s), figures, fidelity)


@functools.lru_cache(maxsize=100_000)
def _step_s(run: Run, figures: tuple[float, ...], fidelity: Fidelity) -> float:
    make = _ps_job if run.row.architecture == "ps" else _ring_job
    return predict(make(run, *figures), fidelity=fidelity).iteration_s


def _workload(run: Run, update_s_per_byte: float, *, update_first: bool = False) -> Workload:
    """The DNN on one GPU. With ``update_first`` the update is a part of the next forward pass."""
    profile = profile_of(run.row.dnn, run.row.batch_per_gpu, run.alone_s, update_s_per_byte)
    (timing,) = profile.timings
    if update_first:
        timing = msgspec.structs.replace(timing, optimizer_s=0.0, other_s=timing.optimizer_s)
    return resolve(profile, [timing])


def _cluster(run: Run, link: Link) -> Cluster:
    """All nodes of a run, joined by the slowest that there is between its GPUs."""
    row = run.row
    inside = IntraNode(link.bandwidth_bytes_per_s, link.latency_s, kind="per_device")
    return Cluster(
        name="HKBU",
        nic=link,
        devices_per_node=row.num_gpus // row.num_nodes,
        intra_node=inside if row.num_nodes == 1 and row.architecture == "allreduce" else None,
        source=Source("measured", "fitted to runs of HKBU-HPML/ddl-benchmarks"),
    )


def _ring_job(
    run: Run,
    bytes_per_s: float,
    latency_s: float,
    update_s_per_byte: float,
    scheduler_s: float = 0.0,
) -> Job:
    """A ring over all GPUs, at the pace of its slowest link. ByteScheduler's work for a tensor
    delays what follows it in backward: its runs on one node are as slow as that."""
    workload = _workload(run, update_s_per_byte)
    options: dict[str, Any] = {
        "no_overlap": {"bucketing": "one"},
        "wfbp_merged": {"bucketing": "mg_wfbp"},
    }.get(run.row.schedule, {"bucketing": "ddp", "bucket_cap_bytes": 0, "first_bucket_bytes": 0})
    return make_job(
        workload=_slower_tensors(workload, scheduler_s) if scheduler_s else workload,
        cluster=_cluster(run, Link(bytes_per_s, latency_s)),
        workers=run.row.num_gpus,
        arch="ring",
        options=options,
    )


def _slower_tensors(workload: Workload, tensor_s: float) -> Workload:
    layers = tuple(
        msgspec.structs.replace(
            layer, backward_s=layer.backward_s + tensor_s * len(layer.tensor_bytes)
        )
        for layer in workload.layers
    )
    backward_s = sum(layer.backward_s for layer in layers)
    return msgspec.structs.replace(workload, layers=layers, backward_s=backward_s)


def _ps_job(run: Run, bytes_per_s: float, update_s_per_byte: float) -> Job:
    """A server for each node. A node's gradient goes through its stages (inside the node, network,
    server and back) in small parts, so that the slowest of them counts."""
    row = run.row
    return make_job(
        workload=_workload(run, update_s_per_byte, update_first=True),
        cluster=_cluster(run, Link(bytes_per_s)),
        workers=row.num_gpus,
        arch="bsp",
        options={
            "servers": row.num_nodes,
            "local_aggregation": True,
            "duplex": True,
            "overlap": row.schedule != "no_overlap",
            "partition_bytes": PARTITION_BYTES,
        },
    )


def nominal_bytes_per_s(connection: str) -> float:
    """What a network's name says, as in ``10GbE with TCP/IP``; PCI Express if it says nothing."""
    found = re.match(r"(\d+(?:\.\d+)?)\s*G", connection)
    return float(found[1]) * 1e9 / 8 if found else PCIE_BYTES_PER_S
