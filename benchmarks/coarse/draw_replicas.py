"""Random jobs whose workers are replicas of several devices."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from benchmarks.coarse import draw
from benchmarks.coarse.draw import Cell, Draw
from perfmodel import InputError, Job, Workload, WorkloadLayer, make_job
from perfmodel.inputs.passes import accumulated
from perfmodel.predicting import coarse
from perfmodel.predicting.replicas import stage_jobs

MOST_PASSES, MOST_REPLICAS = 12, 8

SCHEDULES = (
    *("1f1b", "1f1b", "gpipe", "interleaved_1f1b", "looped_bfs", "zb_h1", "zb_v"),
    *("dualpipe", "pipedream", "pipedream_2bw"),
)

CHUNKS = {"interleaved_1f1b": 2, "looped_bfs": 2, "zb_v": 2}
"""Chunks of layers per stage; one with other schedules."""


def cell(seed: int, number: int) -> Cell:
    """Return job ``number`` of a seed. Contradictory jobs are drawn again."""
    known = draw.ways()
    way = list(known)[number % len(known)]
    rng = np.random.default_rng([seed, number])
    while True:
        try:
            job = _job(rng, known[way])
            stage_jobs(job)
            if coarse.leaves_out(job) is None:  # others are never simulated
                job = draw.small(job)
            return Cell(seed, number, job)
        except InputError:
            continue


def _job(rng: Draw, way: draw.Way) -> Job:
    arch, options = way(rng)
    options.pop("no_sync", None)
    if arch == "fsdp":
        options["reshard_after_forward"] = False
    shape = _shape(rng)
    workers = int(rng.integers(1, MOST_REPLICAS + 1))
    if "servers" in options:
        options["servers"] = int(rng.integers(1, min(workers, 4) + 1))
    same = draw.chance(rng, draw.ALIKE)
    devices = workers * shape.get("pipeline", 1) * shape.get("tensor", 1)
    cluster = draw.alike(rng, arch) if same else draw.cluster(rng, devices, arch)
    if shape.get("tensor", 1) > 1:
        cluster = msgspec.structs.replace(cluster, devices_per_node=8, overrides=())
    return make_job(
        workload=_workload(rng, shape),
        cluster=msgspec.structs.replace(cluster, collectives=()),
        workers=workers,
        arch=arch,
        options=options,
        jitter=None if same else draw.jitter(rng),
        stragglers=[] if same else draw.stragglers(rng, workers),
        seed=int(rng.integers(1000)),
        **shape,
    )


def _shape(rng: Draw) -> dict[str, Any]:
    """Return the arguments that define a replica."""
    stages, tensor = int(rng.choice([1, 2, 3, 4], p=[0.1, 0.3, 0.2, 0.4])), 1
    if stages == 1 or draw.chance(rng, 0.25):
        tensor = int(rng.choice([2, 4, 8]))
    shape: dict[str, Any] = {"tensor": tensor}
    if stages == 1:
        return shape
    schedule = str(rng.choice(SCHEDULES))
    return {
        **shape,
        "pipeline": stages,
        "schedule": schedule,
        "virtual_stages": CHUNKS.get(schedule, 1),
        "transfers": str(rng.choice(["torch", "gloo", "blocking", "ahead"])),
        "rank_order": str(rng.choice(["tp-dp-pp", "tp-pp-dp"])),
    }


def _passes(drawn: int, shape: dict[str, Any]) -> int:
    """Return the number of micro-batches next to the drawn one that the schedule can have."""
    schedule, stages = shape.get("schedule"), shape.get("pipeline", 1)
    if schedule == "pipedream":
        return 1
    if schedule == "pipedream_2bw":
        return max(drawn, stages)
    return 2 * stages + drawn // 2 * 2 if schedule == "dualpipe" else drawn


def _workload(rng: Draw, shape: dict[str, Any]) -> Workload:
    """Return layers of times that differ by a third, or as of a language model: all equal."""
    chunks = shape.get("pipeline", 1) * shape.get("virtual_stages", 1)
    count = chunks * int(rng.integers(1, 5)) + (0 if draw.chance(rng, 0.5) else 1)
    passes = _passes(int(rng.integers(1, MOST_PASSES + 1)), shape)
    spread = 0.0 if draw.chance(rng, 0.4) else 0.3
    times, sizes = rng.lognormal(0.0, spread, count), rng.lognormal(0.0, spread, count)
    compute_s = draw.decades(rng, -1.5, 0.0) / passes
    size, sent = draw.decades(rng, 6.5, 8.8), draw.decades(rng, 4.0, 7.0)
    times, sizes = compute_s * times / times.sum(), size * sizes / sizes.sum()
    summed = sent if shape["tensor"] > 1 else 0.0
    layers = [
        WorkloadLayer(
            f"layer{k}",
            float(times[k]) / 3.0,
            float(times[k]) * 2.0 / 3.0,
            draw.tensors(rng, float(sizes[k])),
            sent,
            forward_summed_bytes=summed,
            backward_summed_bytes=summed,
        )
        for k in range(count)
    ]
    optimizer_s = compute_s * passes * float(rng.uniform(0.0, 0.05))
    return accumulated(Workload.of("chain", layers, optimizer_s=optimizer_s), passes)
