"""How many examples and cases a test has: more of them in longer profiles and in slow tests."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

FEW, FIXED, MORE, LONG = "few", "fixed", "more", "long"
"""Profiles: a tenth of the examples, for runs of many mutants; the same examples each time; four
times as many, also the same each time; forty times as many, different each time."""

FIXED_EXAMPLES = 50

settings.register_profile(
    FIXED,
    max_examples=FIXED_EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=set(Phase) - {Phase.explain},  # it traces every line: tests would take twice as long
)
settings.register_profile(FEW, settings.get_profile(FIXED), max_examples=FIXED_EXAMPLES // 10)
settings.register_profile(MORE, settings.get_profile(FIXED), max_examples=4 * FIXED_EXAMPLES)
settings.register_profile(
    LONG, settings.get_profile(FIXED), max_examples=40 * FIXED_EXAMPLES, derandomize=False
)


def examples(count: int) -> settings:
    """Settings of a test that draws ``count`` examples where others draw 100, and at least one."""
    return settings(max_examples=max(1, count * settings().max_examples // 100))


def thinned(cases: Iterable[Any], kept: int = 2, first: int = 0) -> list[Any]:
    """Parameters of a test of which one in ``kept`` runs every time; the others are slow."""
    return [
        case
        if number % kept == first
        else pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def mark_unsampled(items: Iterable[pytest.Item]) -> None:
    """Of the cases of each test with the mark ``sampled(n)`` that are not slow, leave one in ``n``
    and mark the others as slow.

    Cases are drawn at random, so that products of parameters lose no value of one of them in all
    tests, but always the same ones."""
    cases: dict[str, list[pytest.Item]] = {}
    kept: dict[str, int] = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and item.get_closest_marker("slow") is None:
            name = item.nodeid.partition("[")[0]
            cases.setdefault(name, []).append(item)
            kept[name] = mark.args[0]
    for name, all_ in cases.items():
        drawn = Random(name).sample(range(len(all_)), -(-len(all_) // kept[name]))
        for number in set(range(len(all_))).difference(drawn):
            all_[number].add_marker(pytest.mark.slow)
