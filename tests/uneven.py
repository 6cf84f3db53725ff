"""Random jobs of unequal workers that do not synchronise at every step."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.inputs.cluster import Link, NodeOverride, Server
from perfmodel.inputs.job import Jitter, Job, Straggler
from tests.jobs import cluster, job, workload

SYSTEMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("asp", {}),
    ("asp", {"overlap": False}),
    ("asp", {"duplex": True}),
    ("asp", {"softsync": 3}),
    ("ssp", {"staleness_bound": 1}),
    ("ssp", {"staleness_bound": 3}),
    ("ssp", {"staleness_bound": 10}),
    ("ssp", {"staleness_bound": 4, "duplex": True}),
    ("easgd", {"period": 1}),
    ("easgd", {"period": 4}),
    ("gosgd", {"probability": 0.3, "queue": 2}),
    ("gosgd", {}),
    ("ad_psgd", {}),
    ("ad_psgd", {"overlap": False}),
)
"""Every kind of asynchronous training, with and without a bound on drift between workers."""


MIB = 2.0**20
"""Bytes of a model, and a scale of bandwidths."""


def uneven_job(seed: int) -> Job:
    """A random job: 2 to 8 workers, at least one of a different speed, and 1 to 4 layers."""
    rng = np.random.default_rng(seed)
    arch, options = SYSTEMS[seed % len(SYSTEMS)]
    n = int(rng.integers(2, 9))
    layers = int(rng.integers(1, 5))
    compute = rng.dirichlet(np.ones(2 * layers))
    sizes = rng.dirichlet(np.ones(layers))
    overrides = ()
    if rng.random() < 0.3:
        overrides = (NodeOverride(int(rng.integers(n)), Link(MIB * float(rng.uniform(0.3, 1.0)))),)
    slow = rng.choice(n, int(rng.integers(1, max(n // 2, 1) + 1)), replace=False)
    spread = Jitter(float(rng.choice([0.02, 0.1, 0.3])), str(rng.choice(["lognormal", "gamma"])))
    return job(
        workload(compute[:layers].tolist(), compute[layers:].tolist(), (MIB * sizes).tolist()),
        cluster(
            MIB * float(np.exp(rng.uniform(np.log(1.0), np.log(100.0)))),
            float(rng.choice([0.0, 0.01])),
            server=Server(update_per_tensor_s=float(rng.choice([0.0, 0.02]))),
            overrides=overrides,
        ),
        n,
        arch,
        options,
        jitter=spread if rng.random() < 0.7 else None,
        stragglers=tuple(Straggler(int(worker), float(rng.uniform(1.02, 2.0))) for worker in slow),
        start="staggered" if rng.random() < 0.85 else "together",
        seed=seed,
    )
