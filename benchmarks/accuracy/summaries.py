"""What many cases say together: distributions of errors, and whether the ranking is right."""

from __future__ import annotations

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
"""Runs that a setting needs to be ranked."""


def summarise(cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """Errors by group: count; median, 90th percentile and worst of their size; mean (bias).

    ``coverage90`` is the part of measured values inside the predicted interval of 90 %, in groups
    that have intervals; ``others`` has the errors of other predictions of the same runs.
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
    """The part of measured steps of a source inside their intervals of 90 %.

    ``runs`` of all splits, ``inside`` of them; ``groups`` of at least :data:`MANY` runs, in how
    many of those the part was right (:data:`benchmarks.accuracy.targets.COVERED`), and in how many
    it is expected to be if intervals know the :func:`attainable` spreads. ``chance`` is that of the
    right part of all runs, if each is inside with a probability of 0.9: few can hardly have it.
    """

    runs: int
    inside: float
    groups: int
    right: int
    attainable: float
    chance: float


MANY = 20
"""Runs of a group for which a part of them says something."""


def coverage(cases: Iterable[Case]) -> Coverage | None:
    """How often intervals of step times hold; None without any interval."""
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
    """Probability that the right part of so many runs is inside, if each one is with that of
    :data:`perfmodel.base.uncertainty.COVERAGE`, whatever the others are."""
    from scipy.stats import binom

    least, most = math.ceil(COVERED[0] * runs), math.floor(COVERED[1] * runs)
    return float(binom.cdf(most, runs, COVERAGE) - binom.cdf(least - 1, runs, COVERAGE))


def attainable(groups: Iterable[Sequence[float]]) -> float:
    """In how many groups of a split the right part of runs is expected inside of intervals that
    know how far groups differ, and the runs of each: with *b* and *w* of their standard deviations
    they are 1.645 hypot(*b*, *w*) wide on either side.

    A group that is off as a whole has most runs inside or most outside. Where groups differ as much
    as runs, half of them are right at best. ``groups`` are logarithms of measured over predicted;
    only those with at least :data:`MANY` count.
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
    """How well runs of one setting are ordered by their predicted throughput.

    ``kendall_tau`` is over ``pairs`` of runs that differ by :data:`CLOSE` or more: 1 if all are in
    order, -1 if none is. ``lost`` is the part of the greatest measured throughput that is lost by
    taking the run predicted to be the fastest.
    """

    runs: int
    pairs: int
    kendall_tau: float
    lost: float


def rankings(cases: Iterable[Case]) -> dict[str, Ranking]:
    """By split and setting, of those with at least :data:`LEAST` runs, some of them unlike."""
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
    """The rankings as JSON-like values: the median over settings, and each of them."""
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
