"""How many examples and cases a test has: more of them in longer profiles and in slow tests, and
a part of them where ``--drawn`` says so."""

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


SOURCE_TESTS = "tests/validation"
"""Tests of measured sources: one family, of which a file is drawn as a whole, as its tests share
the predictions of a source."""


def family(item: pytest.Item, by: str) -> tuple[str, str]:
    """The family of cases among which ``--drawn`` draws, and the unit that is drawn as a whole.

    The cases of one test are a family. So are the tests of one kind that have the mark ``family``
    with the same name; those that share what takes long have the same ``unit``."""
    file = item.nodeid.partition("::")[0]
    mark = item.get_closest_marker("family")
    if by == "file":
        return file, item.nodeid
    if mark is not None:
        return mark.args[0], mark.kwargs.get("unit", item.nodeid)
    if file.startswith(f"{SOURCE_TESTS}/"):
        return SOURCE_TESTS, file
    return item.nodeid.partition("[")[0], item.nodeid


def drawn(items: Iterable[pytest.Item], share: int, seed: str, by: str = "rule") -> set[str]:
    """Identifiers of one in ``share`` of the units of each family, and at least one of each; by
    ``half``, of about every second family only."""
    families: dict[str, dict[str, list[str]]] = {}
    for item in items:
        name, unit = family(item, by)
        families.setdefault(name, {}).setdefault(unit, []).append(item.nodeid)
    if by == "half" and share > 1:
        names = [name for name in families if Random(f"{seed} half {name}").random() < 0.5]
        families = {name: families[name] for name in names}
    return {
        identifier
        for name, units in families.items()
        for unit in Random(f"{seed} {name}").sample(list(units), -(-len(units) // share))
        for identifier in units[unit]
    }
