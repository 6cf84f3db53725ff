"""Errors of the formulas against the simulation, measured on random jobs and grouped by class.

``bands.json`` holds a tree of classes for each group of jobs, such as asynchronous parameter
servers. Each class is split by the trait that best separates small errors from large ones, as long
as both sides have enough jobs. ``python -m benchmarks.coarse --measure`` writes the file.
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
from perfmodel.phases.phases import BETWEEN_STAGES, Phases
from perfmodel.phases.quantities import classes_of_workers, iteration_cv

SCHEMA = "perfmodel.bands/1"
PATH = Path(__file__).with_name("bands.json")

FEW_WORKERS, FEW_LAYERS = 4, 3
"""Limits of the traits for few workers and for few layers with parameters."""

MUCH_JITTER = 0.1
"""Coefficient of variation of an iteration at which jitter counts as large."""

EXPOSED = (0.05, 0.3)
"""Thresholds of exposed communication, as fractions of an iteration."""

BUSY = 0.6
"""Utilisation at which a link or a server counts as busy."""


CROSSED = (0.05, 0.2)
"""Utilisations of links between stages at which they count as used."""

REPLICAS = "replicas"
"""Group of jobs whose workers are replicas of several devices."""


class BandClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A class of jobs and its errors: formula against simulation, as fractions of an iteration.

    Attributes
    ----------
    jobs : number of jobs the errors were measured on.
    median, p90 : of the absolute errors; ``p90`` is meant to hold for jobs that were not measured.
    trait : the trait that splits this class; empty for a leaf.
    with_trait, without_trait : the subclasses of jobs with and without that trait.
    """

    jobs: int
    median: float
    p90: float
    trait: str = ""
    with_trait: BandClass | None = msgspec.field(default=None, name="having")
    without_trait: BandClass | None = msgspec.field(default=None, name="lacking")


class BandTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The class tree of each group, and the jobs it was measured on: the first ``drawn`` jobs drawn
    with ``seed``."""

    schema: str = SCHEMA
    seed: int
    drawn: int
    groups: Mapping[str, BandClass]


@functools.cache
def table() -> BandTable:
    """Read the measured classes."""
    return files.read(PATH, BandTable, SCHEMA)


def group_of(job: Job) -> str:
    """Return the group of a job: its architecture's name, unless the architecture defines one, or
    that of all jobs whose workers are replicas of several devices."""
    if job.replica is not None:
        return REPLICAS
    label = architecture_of(job).group
    return label(job) if label is not None else job.architecture.name


def traits(job: Job, coarse_phases: Phases) -> frozenset[str]:
    """Return the traits of a job and its phases that classes are split by."""
    cluster, n = job.cluster, job.workers
    cv = float(iteration_cv(job))
    unequal = job.unequal
    speeds = {kind.scale for kind in classes_of_workers(job)} if unequal else set()
    w = expanded(job.workload)
    whole_s = max(float(coarse_phases.iteration_s), math.ulp(0.0))
    causes = [(part.cause, float(part.seconds) / whole_s) for part in coarse_phases.parts.values()]
    exposed = sum(share for cause, share in causes if cause in ("network", "server"))
    busy = max((float(seconds) / whole_s for seconds in coarse_phases.busy_s.values()), default=0.0)
    crossed = float(coarse_phases.busy_s.get(BETWEEN_STAGES, 0.0)) / whole_s
    true = {
        "jitter": cv > 0.0,
        f"jitter of {MUCH_JITTER:.0%} or more": cv >= MUCH_JITTER,
        "unequal speeds": len(speeds) > 1,
        "unequal links": any(override.nic is not None for override in cluster.overrides)
        or (
            job.options.server_count > 0
            and (cluster.server_nic is not None or cluster.nics_per_process > 1)
        ),
        "several devices on a node": cluster.fullest(n) > 1,
        "an oversubscribed core": cluster.core_oversubscription is not None,
        f"at most {FEW_WORKERS} workers": n <= FEW_WORKERS,
        f"at most {FEW_LAYERS} layers": sum(bool(a.tensor_bytes) for a in w.layers) <= FEW_LAYERS,
        "several update threads": cluster.update_threads > 1,
        "data loading": w.data_loading_s > 0.0,
        "measured collectives": bool(cluster.collectives),
        **{f"links between stages at least {part:.0%} busy": crossed >= part for part in CROSSED},
        **{f"at least {part:.0%} exposed communication": exposed >= part for part in EXPOSED},
        f"a link or server at least {BUSY:.0%} busy": busy >= BUSY,
    }
    own = frozenset(name for name, holds in true.items() if holds)
    if job.replica is not None:  # options of a dozen architectures would split too finely
        return own | _of_replicas(job)
    return own | _options(job)


def _of_replicas(job: Job) -> frozenset[str]:
    """Return the traits of jobs whose workers are replicas of several devices."""
    replica = job.replica
    true = {
        "asynchronous": job.options.asynchronous,
        "one replica": job.workers == 1,
        "several stages": replica is not None and replica.pipeline > 1,
        "several chunks": replica is not None and replica.virtual_stages > 1,
        "transfers ahead": replica is not None and replica.transfers == "ahead",
    }
    return frozenset(name for name, holds in true.items() if holds)


def _options(job: Job) -> frozenset[str]:
    """Return the options that differ from their defaults; numeric options by name only."""
    options = [
        (option, getattr(job.options, option.name)) for option in described(type(job.options))
    ]
    return frozenset(
        f"{option.name}={value}".lower() if isinstance(value, (bool, str)) else option.name
        for option, value in options
        if value != option.default
    )


def class_of(job: Job, coarse_phases: Phases) -> tuple[BandClass, str] | None:
    """Return the leaf class of a job and its name; None if its group was not measured."""
    group = group_of(job)
    if group not in table().groups:
        return None
    return narrowest(table().groups[group], group, traits(job, coarse_phases))


def narrowest(whole: BandClass, group: str, has: frozenset[str]) -> tuple[BandClass, str]:
    """Return the leaf class, and its name, of a job in this group with these traits."""
    one, words = whole, [group]
    while one.with_trait is not None and one.without_trait is not None:
        held = one.trait in has
        words.append(one.trait if held else f"not {one.trait}")
        one = one.with_trait if held else one.without_trait
    return one, ", ".join(words)
