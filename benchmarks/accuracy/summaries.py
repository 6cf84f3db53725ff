"""Summaries of many cases: distributions of errors, and the quality of rankings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.targets import COVERED
from perfmodel.base.uncertainty import COVERAGE, WIDTH
from perfmodel.validation.scores import summarise as distribution

CLOSE = 0.03
"""Runs whose throughputs differ by less than this fraction count as equally fast."""

LEAST = 3
"""Minimum number of runs in a setting for a ranking."""

FEWEST, NEAR = 2, 0.05
"""Minimum number of runs to choose among, and the loss of a good choice."""


def summarise(cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """Return errors by group: count; median, 90th percentile and worst absolute error; mean (bias).

    ``coverage90`` is the fraction of measured values inside the predicted 90 % interval, in groups
    with intervals; ``others`` has the errors of other predictions of the same runs.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        for name in (case.group, *case.pools):
            groups.setdefault(name, []).append(case)
    return {name: _summary(found) for name, found in sorted(groups.items())}


def _summary(cases: Sequence[Case]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(distribution([case.error for case in cases]))
    inside = [c.interval[0] <= c.measured <= c.interval[1] for c in cases if c.interval]
    if inside:
        found["coverage90"] = float(np.mean(inside))
    names = dict.fromkeys(name for case in cases for name in case.others)
    if names:
        found["others"] = {
            name: msgspec.to_builtins(
                distribution([c.error_of(c.others[name]) for c in cases if name in c.others])
            )
            for name in names
        }
    return found


class Coverage(msgspec.Struct, frozen=True):
    """Coverage of a source: the measured step times inside their 90 % intervals.

    ``runs`` counts the runs of all splits, ``inside`` is the fraction inside; ``groups`` counts
    those with at least :data:`MANY` runs, ``right`` those with the right fraction
    (:data:`benchmarks.accuracy.targets.COVERED`), ``attainable`` the number expected if intervals
    knew the :func:`attainable` spreads. ``chance`` is the probability that all runs together have
    the right fraction if each is inside with a probability of 0.9: with few runs it is low.
    """

    runs: int
    inside: float
    groups: int
    right: int
    attainable: float
    chance: float


MANY = 20
"""Minimum number of runs of a group for which the fraction inside is meaningful."""


def coverage(cases: Iterable[Case]) -> Coverage | None:
    """Return how often intervals of step times hold; None without any interval."""
    groups: dict[str, list[bool]] = {}
    splits: dict[str, dict[str, list[float]]] = {}
    for case in cases:
        if case.interval is not None and ":" not in case.group:
            low, high = case.interval
            groups.setdefault(case.group, []).append(low <= case.measured <= high)
            misses = splits.setdefault(case.group.rpartition("/")[0], {})
            miss = math.log(case.measured / case.predicted)
            misses.setdefault(case.group, []).append(miss)
    every = [each for inside in groups.values() for each in inside]
    if not every:
        return None
    large = [float(np.mean(inside)) for inside in groups.values() if len(inside) >= MANY]
    right = sum(COVERED[0] <= part <= COVERED[1] for part in large)
    best = sum(attainable(misses.values()) for misses in splits.values())
    part, chance = float(np.mean(every)), chance_of_right(len(every))
    return Coverage(len(every), part, len(large), right, best, chance)


def chance_of_right(runs: int) -> float:
    """Return the probability that the right fraction of this many runs is inside, if each is inside
    independently with probability :data:`perfmodel.base.uncertainty.COVERAGE`."""
    from scipy.stats import binom

    least, most = math.ceil(COVERED[0] * runs), math.floor(COVERED[1] * runs)
    return float(binom.cdf(most, runs, COVERAGE) - binom.cdf(least - 1, runs, COVERAGE))


def attainable(groups: Iterable[Sequence[float]]) -> float:
    """Return the expected number of groups of a split with the right fraction of runs inside, for
    intervals that know the spread between groups, *b*, and within a group, *w*: as standard
    deviations, they make intervals 1.645 hypot(*b*, *w*) wide on either side.

    A group that is off as a whole has most runs inside or most outside. If groups differ as much as
    runs, at best half of them are right. ``groups`` are logarithms of measured over predicted; only
    those with at least :data:`MANY` runs count.
    """
    from scipy.special import ndtr, ndtri

    large = [np.array(misses) for misses in groups if len(misses) >= MANY]
    off = ndtri((np.arange(1000) + 0.5) / 1000)
    between = math.sqrt(np.mean([misses.mean() ** 2 for misses in large])) if large else 0.0
    found = 0.0
    for misses in large:
        within = max(float(misses.std()), 1e-9)
        ends = WIDTH * math.hypot(between, within) * np.array([[-1.0], [1.0]])
        outer = ndtr((ends - between * off) / within)
        inside = outer[1] - outer[0]
        found += float(np.mean((inside >= COVERED[0]) & (inside <= COVERED[1])))
    return found


class Ranking(msgspec.Struct, frozen=True):
    """How well the predicted throughput orders the runs of one setting.

    ``kendall_tau`` covers ``pairs`` of runs that differ by :data:`CLOSE` or more: 1 if all are in
    order, -1 if none is. ``lost`` is the fraction of the largest measured throughput that is lost
    by choosing the run predicted to be the fastest.
    """

    runs: int
    pairs: int
    kendall_tau: float
    lost: float


def rankings(cases: Iterable[Case]) -> dict[str, Ranking]:
    """Return rankings by split and setting, for settings with at least :data:`LEAST` runs that are
    not all equally fast."""
    settings: dict[str, list[Case]] = {}
    for case in cases:
        if case.setting and ":" not in case.group:
            split = case.group.rpartition("/")[0]
            settings.setdefault(f"{split}/{case.setting}", []).append(case)
    found = {}
    for name, some in sorted(settings.items()):
        ranked = _ranking(some) if len(some) >= LEAST else None
        if ranked is not None:
            found[name] = ranked
    return found


def choices(cases: Iterable[Case]) -> dict[str, Ranking]:
    """Return rankings of the runs of a setting that have the same global batch, of two and more
    that are not all equally fast: the layouts that a user chooses among. Of runs of one layout,
    which have the same prediction, the median counts."""
    settings: dict[str, list[Case]] = {}
    for case in cases:
        if case.setting and ":" not in case.group:
            split = case.group.rpartition("/")[0]
            key = f"{split}/{case.setting}, {case.samples:g} samples"
            settings.setdefault(key, []).append(case)
    found = {}
    for name, some in sorted(settings.items()):
        once = _without_repeats(some)
        ranked = _ranking(once) if len(once) >= FEWEST else None
        if ranked is not None:
            found[name] = ranked
    return found


def _without_repeats(cases: Sequence[Case]) -> list[Case]:
    """Return one case of each prediction, with the median of what was measured."""
    measured: dict[float, list[float]] = {}
    for case in cases:
        measured.setdefault(case.predicted, []).append(case.measured)
    first = {case.predicted: case for case in reversed(cases)}
    return [
        dataclasses.replace(first[predicted], measured=float(np.median(values)))
        for predicted, values in measured.items()
    ]


def choice_summary(found: dict[str, Ranking]) -> dict[str, Any]:
    """Return how good choices are, as JSON-like values: the fraction of settings in which the run
    predicted to be the fastest is within :data:`NEAR` of the fastest, and what is lost."""
    if not found:
        return {}
    lost = np.array([ranking.lost for ranking in found.values()])
    return {
        "settings": len(found),
        "best_within_5_percent": float(np.mean(lost <= NEAR)),
        "median_lost": float(np.median(lost)),
        "worst_lost": float(np.max(lost)),
        "median_kendall_tau": float(np.median([r.kendall_tau for r in found.values()])),
        "by_setting": msgspec.to_builtins(found),
    }


def _ranking(cases: Sequence[Case]) -> Ranking | None:
    samples = np.array([case.samples for case in cases])
    predicted = samples / np.array([case.predicted for case in cases])
    measured = samples / np.array([case.measured for case in cases])
    first, second = np.triu_indices(len(cases), 1)
    ratio = np.log(measured[first] / measured[second])
    apart = np.abs(ratio) >= np.log1p(CLOSE)
    if not apart.any():
        return None
    order = np.sign(np.log(predicted[first] / predicted[second]))
    right = (order * np.sign(ratio))[apart]
    lost = 1.0 - measured[int(np.argmax(predicted))] / measured.max()
    return Ranking(len(cases), int(apart.sum()), float(right.mean()), float(lost))


def ranking_summary(found: dict[str, Ranking]) -> dict[str, Any]:
    """Return the rankings as JSON-like values: the median over settings, and each setting."""
    if not found:
        return {}
    taus = [ranking.kendall_tau for ranking in found.values()]
    lost = [ranking.lost for ranking in found.values()]
    return {
        "settings": len(found),
        "median_kendall_tau": float(np.median(taus)),
        "worst_kendall_tau": float(np.min(taus)),
        "best_within_3_percent": float(np.mean(np.array(lost) <= CLOSE)),
        "median_lost": float(np.median(lost)),
        "worst_lost": float(np.max(lost)),
        "by_setting": msgspec.to_builtins(found),
    }
