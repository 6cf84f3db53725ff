"""Measure how many configurations per second the coarse models evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time
from typing import Any

import numpy as np

from benchmarks.coarse.draw import DEVICE
from perfmodel import make_job
from perfmodel.phases.quantities import quantities_of
from perfmodel.predicting import coarse, variants

CONFIGURATIONS = 200_000
MOST_WORKERS = 64
REPEATS = 5

CASES: tuple[tuple[str, str, dict[str, Any], float | None], ...] = (
    ("ps bsp, no overlap", "bsp", {"overlap": False}, None),
    ("ring, one bucket, no overlap", "ring", {"overlap": False, "bucketing": "one"}, None),
    ("ring, as a whole", "ring", {}, float("inf")),
    ("ps bsp, per layer", "bsp", {}, None),
    ("ring, ddp buckets", "ring", {}, None),
    ("ring, per layer", "ring", {"bucketing": "layer"}, None),
    ("p2p, per layer", "p2p", {}, None),
    ("ps asp, queueing", "asp", {"overlap": False}, None),
    ("ps asp, queueing, as a whole", "asp", {}, float("inf")),
    ("ps asp, queueing, per layer", "asp", {}, None),
    ("ps ssp, queueing", "ssp", {"overlap": False}, None),
    ("ps ssp, queueing, per layer", "ssp", {}, None),
    ("easgd, queueing", "easgd", {}, None),
    ("ad_psgd, queueing", "ad_psgd", {}, None),
)
"""Name, architecture, options, and sharpness."""


def speeds(configurations: int = CONFIGURATIONS) -> Iterator[tuple[str, float, float]]:
    """Yield, for each case, its name, configurations per second of CPU time in one call, and the
    seconds of a scalar call.

    The number of workers (up to 64) and the bandwidth are random; the model is ResNet-50.
    """
    generator = np.random.default_rng(0)
    workers = generator.integers(1, MOST_WORKERS + 1, configurations)
    rates = 10.0 ** generator.uniform(8.0, 10.5, configurations)
    for name, arch, options, sharpness in CASES:
        job = make_job(model="resnet50", device=DEVICE, arch=arch, options=options, workers=8)
        q = quantities_of(job)
        count = configurations
        some = {"workers": workers[:count], "bandwidth_bytes_per_s": rates[:count]}
        call_s = min(_seconds(lambda: variants.evaluate(job, **some, sharpness=sharpness)))  # noqa: B023
        one_s = min(_seconds(lambda: coarse.phases(job, among=q, sharpness=sharpness).iteration_s))  # noqa: B023
        yield name, count / call_s, one_s


def _seconds(call: Any) -> Iterator[float]:
    for _ in range(REPEATS):
        begin = process_time()
        call()
        yield process_time() - begin
