"""Steps of DDP, local SGD and DiLoCo on four GPUs behind shaped links.

``steps.csv`` has ``algorithm`` (ddp, localsgd, diloco), ``period``, ``link_bits_per_s``,
``repeat``, ``workers``, ``parameters``, ``micro_batch``, ``steps`` measured, and the seconds of a
step: ``step_s`` in all, ``compute_s`` of the forward and the backward pass, ``optimizer_s``.
Nothing is fitted. Local SGD is DiLoCo whose outer step takes no time.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import perfmodel as pm
from benchmarks.accuracy.cases import Case, Run, about, predicted
from perfmodel.base.errors import number, unknown_name, whole_number
from perfmodel.theory.shaped_links import ring_efficiency

ABOUT = about("diloco_measured")

TABLE = "steps.csv"

ELEMENT_BYTES = 4
"""Of float32."""

SEGMENT_BYTES, FRAME_BYTES = 8949.0, 9015.0
"""Payload of a TCP segment with time stamps in a frame of EC2 (9001 bytes), and the frame as a
shaper counts it, with its Ethernet header."""

QUEUE_S, BURST_BYTES, CONNECTIONS = 0.05, 65536.0, 2
"""Of the shaper, of which a burst has room for the largest packet that Linux hands over, and on
each link: assumptions."""

TENSORS = 57
"""Of the model, each of which local SGD and DiLoCo all-reduce on its own: nine in each of six
layers, and three."""

LATENCY_S = 50e-6
"""Of a step of a ring: an assumption."""

LAYERS = 6
"""Layers of equal size: DDP has as many buckets as the bytes ask for."""

BUFFER_BYTES = LAYERS * 131072 * 8 * 8.0
"""Of the rotary embeddings, a buffer in each layer: 131072 positions by 8 complex numbers of 8
bytes, half the dimension of a head. The source trains ``debugmodel`` of torchtitan (models/llama3,
models/common/rope.py) in a DistributedDataParallel with default arguments, which broadcasts them
before each forward pass; its local SGD and DiLoCo leave buffers alone."""

ALGORITHMS = ("ddp", "localsgd", "diloco")


def cases(folder: Path) -> list[Case]:
    """The step of each row."""
    return predicted(read(folder / TABLE))


def read(path: Path) -> list[Run]:
    """The rows of the table, as jobs.

    Raises
    ------
    InputError : there is no such file, or a row cannot be read.
    """
    if not path.is_file():
        raise pm.InputError(f"{path}: no such file")
    found = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                found.append(_run(row))
            except (pm.InputError, KeyError, TypeError, ValueError) as error:
                raise pm.InputError(f"{path}: line {reader.line_num}: {error}") from None
    return found


def _run(row: dict[str, str]) -> Run:
    name = row["algorithm"]
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    bytes_per_s = number("bandwidth_bytes_per_s", float(row["link_bits_per_s"]) / 8, above=0.0)
    period = whole_number("period", int(row["period"]))
    averaged = {"period": period, "messages": TENSORS, "algorithm": "ring"}
    options: dict[str, Any] = {} if name == "ddp" else averaged
    job = pm.make_job(
        workload=_workload(row),
        cluster=shaped(bytes_per_s, whole_number("workers", int(row["workers"]))),
        workers=int(row["workers"]),
        arch="ring" if name == "ddp" else "diloco",
        options=options,
    )
    return Run(
        group="diloco_measured/shaped",
        name=f"{name} every {period}, {bytes_per_s * 8e-6:g} Mbit/s, run {row['repeat']}",
        job=job,
        step_s=number("step_s", float(row["step_s"]), above=0.0),
        iterations=whole_number("steps", int(row["steps"])),
        pools=(f"diloco_measured/shaped/{name}",),
    )


def _workload(row: dict[str, str]) -> pm.Workload:
    """Equal layers, whose backward pass takes twice as long as the forward pass."""
    compute_s = number("compute_s", float(row["compute_s"]), above=0.0)
    bytes_ = ELEMENT_BYTES * whole_number("parameters", int(row["parameters"])) / LAYERS
    one_s = compute_s / LAYERS / 3.0
    layers = [pm.WorkloadLayer(f"layer {k}", one_s, 2.0 * one_s, (bytes_,)) for k in range(LAYERS)]
    return pm.Workload.of(
        "language model",
        layers,
        batch_size=whole_number("micro_batch", int(row["micro_batch"])),
        optimizer_s=number("optimizer_s", float(row["optimizer_s"])),
        buffer_bytes=BUFFER_BYTES if row["algorithm"] == "ddp" else 0.0,
    )


def shaped(bytes_per_s: float, nodes: int) -> pm.Cluster:
    """Nodes whose links a shaper limits to a rate."""
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
