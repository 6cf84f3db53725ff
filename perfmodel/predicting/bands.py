"""Errors of formulas against simulations: measured on random jobs, by class of jobs.

``bands.json`` has a tree of classes for each group of jobs, such as asynchronous parameter servers:
each class is split by the trait that best separates small from large errors, while there are enough
jobs on both sides. ``python -m benchmarks.coarse --measure`` writes it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perfmodel.architectures.base import architecture_of
from perfmodel.base import files
from perfmodel.inputs.job import Job
from perfmodel.inputs.options import described
from perfmodel.inputs.workload import expanded
from perfmodel.phases.phases import Phases
from perfmodel.phases.quantities import iteration_cv

SCHEMA = "perfmodel.bands/1"
PATH = Path(__file__).with_name("bands.json")

FEW_WORKERS, FEW_LAYERS = 4, 3
"""Thresholds of the traits of few workers, and few layers with parameters."""

MUCH_JITTER = 0.1
"""Coefficient of variation of an iteration from which jitter is large."""

EXPOSED = (0.05, 0.3)
"""Thresholds of exposed communication, as fractions of an iteration."""

BUSY = 0.6
"""Utilisation from which a link or a server counts as busy."""


class BandClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A class of jobs: errors of the formulas, as fractions of the simulated iteration.

    Attributes
    ----------
    jobs : number of jobs it was measured on.
    median, p90 : of the absolute errors; ``p90`` is meant for jobs that were not measured.
    trait : that it is split by; empty for a leaf.
    with_trait, without_trait : the jobs with and without that trait.
    """

    jobs: int
    median: float
    p90: float
    trait: str = ""
    with_trait: BandClass | None = msgspec.field(default=None, name="having")
    without_trait: BandClass | None = msgspec.field(default=None, name="lacking")


class BandTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The classes of each group of jobs, and the jobs that they were measured on: the first
    ``drawn`` of a ``seed``."""

    schema: str = SCHEMA
    seed: int
    drawn: int
    groups: Mapping[str, BandClass]


@functools.cache
def table() -> BandTable:
    """The measured classes."""
    return files.read(PATH, BandTable, SCHEMA)


def group_of(job: Job) -> str:
    """The group of a job: its architecture, or as the architecture defines it."""
    label = architecture_of(job).group
    return label(job) if label is not None else job.architecture.name


def traits(job: Job, found: Phases) -> frozenset[str]:
    """The traits of a job, and of its phases, by which classes are split."""
    cluster, n = job.cluster, job.workers
    cv = float(iteration_cv(job))
    unequal = job.unequal
    speeds = {job.slowdown(worker) for worker in range(n)} if unequal else set()
    w = expanded(job.workload)
    whole_s = max(float(found.iteration_s), math.ulp(0.0))
    causes = [(part.cause, float(part.seconds) / whole_s) for part in found.parts.values()]
    exposed = sum(share for cause, share in causes if cause in ("network", "server"))
    busy = max((float(seconds) / whole_s for seconds in found.busy_s.values()), default=0.0)
    true = {
        "jitter": cv > 0.0,
        f"jitter of {MUCH_JITTER:.0%} or more": cv >= MUCH_JITTER,
        "unequal speeds": len(speeds) > 1,
        "unequal links": any(each.nic is not None for each in cluster.overrides)
        or (job.options.server_count > 0 and cluster.server_nic is not None),
        "several devices on a node": cluster.fullest(n) > 1,
        "a core that limits": cluster.core_oversubscription is not None,
        f"at most {FEW_WORKERS} workers": n <= FEW_WORKERS,
        f"at most {FEW_LAYERS} layers": sum(bool(a.tensor_bytes) for a in w.layers) <= FEW_LAYERS,
        "several update threads": cluster.update_threads > 1,
        "data loading": w.data_loading_s > 0.0,
        "measured collectives": bool(cluster.collectives),
        **{f"{part:.0%} or more for messages": exposed >= part for part in EXPOSED},
        f"a link or server busy for {BUSY:.0%} or more": busy >= BUSY,
    }
    return frozenset(name for name, holds in true.items() if holds) | _options(job)


def _options(job: Job) -> frozenset[str]:
    """The options with other values than their defaults; of numbers the name alone."""
    options = [(each, getattr(job.options, each.name)) for each in described(type(job.options))]
    return frozenset(
        f"{each.name}={value}".lower() if isinstance(value, (bool, str)) else each.name
        for each, value in options
        if value != each.default
    )


def class_of(job: Job, found: Phases) -> tuple[BandClass, str] | None:
    """The leaf class of a job, and its name; None if its group was not measured."""
    group = group_of(job)
    if group not in table().groups:
        return None
    return narrowest(table().groups[group], group, traits(job, found))


def narrowest(whole: BandClass, group: str, has: frozenset[str]) -> tuple[BandClass, str]:
    """The leaf class of a group for a job with these traits, and its name."""
    one, words = whole, [group]
    while one.with_trait is not None and one.without_trait is not None:
        held = one.trait in has
        words.append(one.trait if held else f"not {one.trait}")
        one = one.with_trait if held else one.without_trait
    return one, ", ".join(words)
