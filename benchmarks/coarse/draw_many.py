"""Random jobs of hundreds of asynchronous workers around parameter servers."""

from __future__ import annotations

import msgspec
import numpy as np

from benchmarks.coarse import draw
from benchmarks.coarse.draw import Cell, Draw
from perfmodel import InputError, Job, build_graph, make_job
from perfmodel.architectures.ps import MANY, MANY_WORKERS
from perfmodel.predicting import bands, coarse

FEWEST, MOST = MANY_WORKERS, 1500
"""Workers of a job; their number is log-uniform."""

MOST_OPS = 150_000
"""Maximum number of ops per iteration, so that a job takes a few seconds."""

SERVERS = (1, 1, 2, 4, 8, 16)

KNEE = 0.4
"""Decades by which the load of the busiest link is at most above or below the knee, in half of the
jobs."""

SLOWEST, FASTEST = 1e9 / 8.0, 3.2e12 / 8.0
"""Limits of links (bytes/s)."""

UNEQUAL = 8
"""Number of workers or nodes, the first ones, of which some are slower in jobs with such."""


def cell(seed: int, number: int) -> Cell:
    """Return job ``number`` of a seed. Jobs that are contradictory or too large, whose bound makes
    them synchronous, or that the formulas leave something out of, are drawn again."""
    rng = np.random.default_rng([seed, number])
    while True:
        try:
            job = _job(rng)
            job = _at_the_knee(rng, job) if draw.chance(rng, 0.5) else job
        except InputError:
            continue
        fits = coarse.leaves_out(job) is None and bands.group_of(job) in MANY.values()
        if fits and build_graph(job).n_ops <= MOST_OPS:
            return Cell(seed, number, job)


def _job(rng: Draw) -> Job:
    arch, options = draw.WAYS[f"ps {rng.choice(list(MANY))}"](rng)
    options["servers"] = int(rng.choice(SERVERS))
    same = draw.chance(rng, draw.ALIKE)
    return make_job(
        workload=draw.workload(rng),
        cluster=draw.alike(rng, arch) if same else draw.cluster(rng, UNEQUAL, arch),
        workers=round(float(np.exp(rng.uniform(np.log(FEWEST), np.log(MOST))))),
        arch=arch,
        options=options,
        jitter=None if same else draw.jitter(rng),
        stragglers=[] if same else draw.stragglers(rng, UNEQUAL),
        seed=int(rng.integers(1000)),
    )


def _at_the_knee(rng: Draw, job: Job) -> Job:
    """Return the job with links of other speed: all workers together keep the busiest link, server
    links mostly, busy for 0.4 to 2.5 times as long as a worker computes."""
    found = coarse.phases(job)
    load = max(map(float, found.busy_s.values())) / max(float(found.compute_s), 1e-9)
    nic = job.cluster.nic
    rate = nic.bandwidth_bytes_per_s * load / 10.0 ** rng.uniform(-KNEE, KNEE)
    nic = msgspec.structs.replace(nic, bandwidth_bytes_per_s=min(max(rate, SLOWEST), FASTEST))
    return msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, nic=nic))
