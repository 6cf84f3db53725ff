"""Jobs of TensorFlow's asynchronous parameter servers on a public cloud, shared by two sources."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.accuracy import dnns
from perfmodel import make_job
from perfmodel.base.provenance import Source
from perfmodel.calibration import Observation, ServersFit, serve_others
from perfmodel.calibration.servers.priors import ASYNCHRONOUS
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
    fit: ServersFit,
    model: str,
    mix: Mapping[str, int],
    servers: int = 1,
    sizes: Sizes = SIZES,
) -> Job:
    """Return the job of workers on several kinds of devices; all but the first kind are modelled as
    stragglers."""
    first, *others = (device for device, count in mix.items() for _ in range(count))
    times = {device: fit.workloads[f"{device}/{model}"].compute_s for device in mix}
    served = fit.workloads[f"{first}/{model}"]
    return make_job(
        workload=served.workload(_workload(first, model, sizes)),
        cluster=served.cluster(CLUSTER),
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


def observations(
    name: str, runs: Sequence[tuple[int, float, float]], sizes: Sizes = SIZES
) -> list[Observation]:
    """Return runs with one server of a device/model: workers, step time of a worker, and its
    spread, at least that of equal runs."""
    device, model = name.split("/")
    workers, step_s, _ = min(runs)
    # with many workers, most of a step is waiting
    computing_s = step_s / max(workers / 3.0, 1.0)
    workload, usual = _workload(device, model, sizes), ASYNCHRONOUS.run_spread
    found = []
    for workers, step_s, spread in sorted(runs):
        job = make_job(
            workload=workload.scaled("compute_s", computing_s),
            cluster=CLUSTER,
            workers=workers,
            arch="ps",
            options=OPTIONS,
            jitter=JITTER,
        )
        more = math.sqrt(max(spread**2 - usual**2, 0.0))
        found.append(Observation(job, step_s, more))
    return found


def extended(fit: ServersFit, series: Sequence[Sequence[Observation]]) -> ServersFit:
    """Return a fit with further workloads, of which only the compute times are fitted."""
    runs = [run for some in series for run in some]
    return msgspec.structs.replace(fit, workloads=fit.workloads | serve_others(fit, runs))


def without(fit: ServersFit, device: str) -> ServersFit:
    """Return a fit without the workloads on a device."""
    kept = {n: w for n, w in fit.workloads.items() if not n.startswith(f"{device}/")}
    return msgspec.structs.replace(fit, workloads=kept)


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
