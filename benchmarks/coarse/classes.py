"""Classes of jobs with similar errors of the formulas: a tree of traits for each group."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from perfmodel.predicting.bands import BandClass

FEWEST = 24
"""Minimum number of measuring jobs in a class."""

DEEPEST = 4
"""Maximum number of traits of a class."""

GAIN = 0.1
"""Minimum amount by which a split has to narrow the mean band, on a logarithmic scale."""

LEAST = 0.002
"""Bands narrower than this count as this: simulations of random jobs are not more precise."""

WITHIN = 0.9


class Known(msgspec.Struct, frozen=True):
    """A job's traits, and the error of the formulas."""

    traits: frozenset[str]
    error: float


def band(errors: Sequence[float]) -> float:
    """Return the error that nine in ten further jobs are within.

    It is the k-th smallest of n errors, with k = 0.9 (n + 1) rounded up: one more job from the same
    source is within it with a probability of at least 0.9, for any distribution (Vovk, Gammerman,
    Shafer, "Algorithmic Learning in a Random World", 2005, ch. 2; Lei et al., JASA 113, 2018, doi
    10.1080/01621459.2017.1307116).

    >>> band([0.01] * 8 + [0.02])
    0.02
    """
    rank = min(math.ceil(WITHIN * (len(errors) + 1)), len(errors))
    return float(np.sort(np.abs(errors))[rank - 1])


def grown(jobs: Sequence[Known]) -> BandClass:
    """Return the classes of a group.

    Every other job selects the traits, the rest measure the bands. So no band is measured on a job
    that took part in a choice.
    """
    return _grown(jobs[::2], jobs[1::2], DEEPEST)


def _grown(choosing: Sequence[Known], measuring: Sequence[Known], depth: int) -> BandClass:
    size = np.abs([job.error for job in measuring])
    here = BandClass(
        jobs=len(measuring),
        median=_up(float(np.median(size))),
        p90=max(_up(band([job.error for job in measuring])), LEAST),
    )
    trait = _best(choosing, measuring) if depth else None
    if trait is None:
        return here
    having, others = (
        _grown(
            [job for job in choosing if (trait in job.traits) == held],
            [job for job in measuring if (trait in job.traits) == held],
            depth - 1,
        )
        for held in (True, False)
    )
    return msgspec.structs.replace(here, trait=trait, with_trait=having, without_trait=others)


def _up(value: float) -> float:
    """Round up to ten thousandths."""
    return math.ceil(value * 1e4 - 1e-9) / 1e4


def _best(choosing: Sequence[Known], measuring: Sequence[Known]) -> str | None:
    """Return the trait that narrows the bands of all jobs most, with enough jobs on both sides."""
    errors = np.array([job.error for job in choosing])
    before = _width(errors)
    found: list[tuple[float, str]] = []
    for trait in sorted(set().union(*(job.traits for job in choosing))):
        has = np.array([trait in job.traits for job in choosing])
        there = sum(trait in job.traits for job in measuring)
        fewest = min(has.sum(), (~has).sum(), there, len(measuring) - there)
        if fewest >= FEWEST:
            after = has.mean() * _width(errors[has]) + (~has).mean() * _width(errors[~has])
            found.append((float(after), trait))
    if not found or before - min(found)[0] < GAIN:
        return None
    return min(found)[1]


def _width(errors: np.ndarray) -> float:  # type: ignore[type-arg]
    return math.log(max(band(errors.tolist()), LEAST))
