"""Which cases of a test run every time: the mark ``sampled``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.settings import mark_unsampled


class Case:
    """The part of a collected test that the selection uses."""

    def __init__(self, test: str, number: int, kept: int | None, *, slow: bool = False) -> None:
        self.nodeid = f"{test}[{number}]"
        self.marks: dict[str, Any] = {}
        if kept is not None:
            self.add_marker(pytest.mark.sampled(kept))
        if slow:
            self.add_marker(pytest.mark.slow)

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)

    def add_marker(self, decorator: pytest.MarkDecorator) -> None:
        self.marks[decorator.name] = decorator.mark


def fast(cases: list[Any]) -> list[str]:
    mark_unsampled(cases)
    return [case.nodeid for case in cases if "slow" not in case.marks]


@pytest.mark.parametrize(
    ("cases", "kept", "expected"), [(12, 4, 3), (13, 4, 4), (3, 4, 1), (1, 4, 1), (5, 1, 5)]
)
def test_one_case_in_n_runs_every_time(cases: int, kept: int, expected: int) -> None:
    def drawn(test: str) -> list[str]:
        return fast([Case(test, number, kept) for number in range(cases)])

    assert len(drawn("a.py::test_a")) == expected
    assert drawn("a.py::test_a") == drawn("a.py::test_a")


def test_tests_draw_different_cases() -> None:
    names = {
        name[name.index("[") :]
        for test in "abcdefgh"
        for name in fast([Case(test, number, 10) for number in range(10)])
    }
    assert len(names) > 3


def test_slow_cases_and_other_tests_are_left_alone() -> None:
    cases = [Case("a", number, 2, slow=number > 1) for number in range(6)]
    cases += [Case("b", number, None) for number in range(3)]
    found = fast(cases)
    assert len([name for name in found if name.startswith("a")]) == 1
    assert len([name for name in found if name.startswith("b")]) == 3
