"""Jobs of TensorFlow's asynchronous parameter servers on a public cloud, shared by two sources."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from benchmarks.accuracy import dnns
from perfmodel import make_job
from perfmodel.base.provenance import Source
from perfmodel.calibration.servers.asynchronous import AsynchronousFit, Series
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.job import Job, Straggler
from perfmodel.inputs.workload import Workload, WorkloadLayer

CLUSTER = Cluster(
    name="cloud",
    nic=Link(1e9),
    losses="none",
    source=Source("published", "2 Gbit/s for each of 4 virtual CPUs (cloud.google.com)"),
)

OPTIONS = {"sync": "asp", "sharding": "hash", "split_above_bytes": math.inf}
"""TensorFlow places whole variables on the servers in turn."""

JITTER = 0.1
"""Coefficient of variation of a worker's compute time: an assumption."""

SPREAD = 0.03
"""Relative standard deviation of equal runs."""

BATCH, BYTES, LAYERS = 128, 4, 8
"""Samples per worker and step, bytes per parameter, and the number of equal layers that represent a
model."""

Sizes = Mapping[str, tuple[int, int]]
"""Tensors and parameters by model."""

SIZES: Sizes = {
    "resnet15": (50, 693_818),
    "resnet32": (104, 1_857_722),
    "shakesmall": (216, 2_926_986),
}

DEVICES = re.compile(
    r"(?<![a-z0-9])(?:(\d+)\s*[x*]?\s*)?([a-z]+\d+)(?:\s*(?:[x*:]|=)\s*(\d+)(?![a-z0-9]))?"
)
"""A kind of device, with its number before or after it."""


def mix_of(text: str, workers: int) -> dict[str, int]:
    """Return the number of workers by device: of one kind, or of several as in ``2k80+1p100``."""
    kinds = DEVICES.findall(text.lower())
    if len(kinds) < 2 and not any(before or after for before, _, after in kinds):
        return {text.lower(): workers}
    mix: dict[str, int] = {}
    for before, device, after in kinds:
        mix[device] = mix.get(device, 0) + int(before or after or 1)
    return mix


def model_of(name: str) -> str:
    """Return one name for ``Res15`` and ``resnet15``, and for ``shakebig`` and ``shake_big``."""
    return re.sub(r"^res(?=\d)", "resnet", dnns.plain(name))


def job_of(
    fit: AsynchronousFit,
    model: str,
    mix: Mapping[str, int],
    servers: int = 1,
    sizes: Sizes = SIZES,
) -> Job:
    """Return the job of workers on several kinds of devices; all but the first kind are modelled as
    stragglers."""
    first, *others = (device for device, count in mix.items() for _ in range(count))
    times = {device: fit.compute_s[f"{device}/{model}"] for device in mix}
    return make_job(
        workload=fit.workload(_workload(first, model, sizes)),
        cluster=fit.cluster(CLUSTER),
        workers=sum(mix.values()),
        arch="ps",
        options={**OPTIONS, "servers": servers},
        jitter=JITTER,
        stragglers=[
            Straggler(i, times[device] / times[first])
            for i, device in enumerate(others, 1)
            if device != first
        ],
    )


def series(
    device: str, model: str, runs: Sequence[tuple[int, float, float]], sizes: Sizes = SIZES
) -> Series:
    """Return runs with one server: workers, step time of a worker, and its spread."""
    workers, step_s, spread = zip(*sorted(runs), strict=True)
    # with many workers, most of a step is waiting
    computing_s = step_s[0] / max(workers[0] / 3.0, 1.0)
    job = make_job(
        workload=_workload(device, model, sizes).scaled("compute_s", computing_s),
        cluster=CLUSTER,
        arch="ps",
        options=OPTIONS,
        jitter=JITTER,
    )
    return Series(job=job, workers=workers, step_s=step_s, spread=spread)


def _workload(device: str, model: str, sizes: Sizes) -> Workload:
    """Return a model of equal layers with a compute time of one second per step."""
    tensors, parameters = sizes[model]
    each = BYTES * parameters / tensors
    layers = [
        WorkloadLayer(
            f"block{i}",
            1.0 / 3.0 / LAYERS,
            2.0 / 3.0 / LAYERS,
            (each,) * (tensors // LAYERS + (i < tensors % LAYERS)),
        )
        for i in range(LAYERS)
    ]
    return Workload.of(model, layers, batch_size=BATCH, device=device)
