"""Steps of DDP, local SGD and DiLoCo on four GPUs behind shaped links.

``steps.csv`` has ``algorithm`` (ddp, localsgd, diloco), ``period``, ``link_bits_per_s``,
``repeat``, ``workers``, ``parameters``, ``micro_batch``, measured ``steps``, and the seconds of a
step: ``step_s`` in total, ``compute_s`` for the forward and the backward pass, ``optimizer_s``.
Nothing is fitted. Local SGD is DiLoCo with an outer step of zero time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

import perfmodel as pm
from benchmarks.accuracy import rows
from benchmarks.accuracy.cases import Case, Run, about, predicted
from benchmarks.accuracy.shaped_links import ring_efficiency
from perfmodel.base.errors import number, unknown_name, whole_number

ABOUT = about("diloco_measured")

TABLE = "steps.csv"

ELEMENT_BYTES = 4
"""Bytes of a float32."""

SEGMENT_BYTES, FRAME_BYTES = 8949.0, 9015.0
"""Payload of a TCP segment with timestamps in an EC2 frame (9001 bytes), and the frame size that a
shaper counts, which includes the Ethernet header."""

QUEUE_S, BURST_BYTES, CONNECTIONS = 0.05, 65536.0, 2
"""Queue of the shaper, its burst (the largest packet that Linux hands over), and connections per
link: assumptions."""

TENSORS = 57
"""Tensors of the model, which local SGD and DiLoCo all-reduce separately: nine in each of six
layers, and three more."""

LATENCY_S = 50e-6
"""Latency of a step of a ring: an assumption."""

LAYERS = 6
"""Number of equal layers; the number of DDP's buckets follows from the bytes."""

BUFFER_BYTES = LAYERS * 131072 * 8 * 8.0
"""Bytes of the rotary embeddings, one buffer per layer: 131072 positions times 8 complex numbers of
8 bytes, half the dimension of a head. The source trains ``debugmodel`` of torchtitan
(models/llama3, models/common/rope.py) in a DistributedDataParallel with default arguments, which
broadcasts them before each forward pass; its local SGD and DiLoCo do not exchange buffers."""

ALGORITHMS = ("ddp", "localsgd", "diloco")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    algorithm: str
    period: int
    link_bits_per_s: float
    repeat: int
    workers: int
    parameters: int
    micro_batch: int
    steps: int
    step_s: float
    compute_s: float
    optimizer_s: float

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise unknown_name("algorithm", self.algorithm, ALGORITHMS)
        for name in ("period", "workers", "parameters", "micro_batch", "steps"):
            whole_number(name, getattr(self, name))
        number("bandwidth_bytes_per_s", self.link_bits_per_s / 8, above=0.0)
        for name in ("step_s", "compute_s"):
            number(name, getattr(self, name), above=0.0)
        number("optimizer_s", self.optimizer_s)


def cases(folder: Path) -> list[Case]:
    """Return the step time of each row."""
    return predicted(_run(row) for row in rows.read(folder / TABLE, Row))


def _run(row: Row) -> Run:
    name, period, bytes_per_s = row.algorithm, row.period, row.link_bits_per_s / 8
    averaged = {"period": period, "messages": TENSORS, "algorithm": "ring"}
    options: dict[str, Any] = {} if name == "ddp" else averaged
    job = pm.make_job(
        workload=_workload(row),
        cluster=shaped(bytes_per_s, row.workers),
        workers=row.workers,
        arch="ring" if name == "ddp" else "diloco",
        options=options,
    )
    return Run(
        group="diloco_measured/shaped",
        name=f"{name} every {period}, {bytes_per_s * 8e-6:g} Mbit/s, run {row.repeat}",
        job=job,
        step_s=row.step_s,
        iterations=row.steps,
        pools=(f"diloco_measured/shaped/{name}",),
    )


def _workload(row: Row) -> pm.Workload:
    """Return equal layers whose backward pass takes twice as long as the forward pass."""
    bytes_ = ELEMENT_BYTES * row.parameters / LAYERS
    one_s = row.compute_s / LAYERS / 3.0
    layers = [pm.WorkloadLayer(f"layer {k}", one_s, 2.0 * one_s, (bytes_,)) for k in range(LAYERS)]
    return pm.Workload.of(
        "language model",
        layers,
        batch_size=row.micro_batch,
        optimizer_s=row.optimizer_s,
        buffer_bytes=BUFFER_BYTES if row.algorithm == "ddp" else 0.0,
    )


def shaped(bytes_per_s: float, nodes: int) -> pm.Cluster:
    """Return nodes whose links a shaper limits to a rate."""
    passing = ring_efficiency(
        bytes_per_s,
        queue_s=QUEUE_S,
        burst_bytes=BURST_BYTES,
        links=nodes,
        connections=CONNECTIONS,
        segment_bytes=SEGMENT_BYTES,
    )
    nic = pm.Link(bytes_per_s, LATENCY_S, efficiency=passing * SEGMENT_BYTES / FRAME_BYTES)
    return pm.Cluster(
        name="shaped", nic=nic, source=pm.Source("estimated", "nominal rates behind a shaper")
    )
