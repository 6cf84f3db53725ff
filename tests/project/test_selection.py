"""Which cases of a test run every time: the marks ``sampled`` and ``family``, and ``--drawn``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import conftest
from tests.settings import SOURCE_TESTS, drawn, mark_unsampled


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


# -- cases that are drawn anew ------------------------------------------------------------------


def cases(**counts: int) -> list[Any]:
    """As many cases of each test, all of one file."""
    return [Case(f"a.py::{test}", n, None) for test, count in counts.items() for n in range(count)]


def counted(names: set[str]) -> dict[str, int]:
    tests = [name.removeprefix("a.py::").partition("[")[0] for name in names]
    return {test: tests.count(test) for test in sorted(set(tests))}


def test_one_case_in_n_of_each_test_is_drawn_and_at_least_one() -> None:
    made = cases(many=12, more=13, few=2, single=1)
    assert counted(drawn(made, 4, "s")) == {"few": 1, "many": 3, "more": 4, "single": 1}
    assert len(drawn(made, 1, "s")) == len(made)


def test_the_same_seed_draws_the_same_cases_and_others_draw_all() -> None:
    made = cases(many=12)
    assert drawn(made, 4, "s") == drawn(made, 4, "s")
    assert drawn(made, 4, "s") == drawn(made, 4, "s") & drawn(made + cases(more=5), 4, "s")
    assert set().union(*(drawn(made, 4, str(seed)) for seed in range(40))) == drawn(made, 1, "s")


def test_a_family_has_the_cases_of_several_tests() -> None:
    made = cases(one=1, two=1, three=2, other=1)
    for case in made[:4]:
        case.add_marker(pytest.mark.family("fits"))
    found = drawn(made, 4, "s")
    assert len(found) == 2
    assert "a.py::other[0]" in found


def test_units_are_drawn_as_a_whole() -> None:
    made = cases(first=1, second=1, alone=1)
    for case, unit in zip(made, ("shared", "shared", "own"), strict=True):
        case.add_marker(pytest.mark.family("fits", unit=unit))
    found = [sorted(drawn(made, 2, str(seed))) for seed in range(20)]
    assert {len(names) for names in found} == {1, 2}
    assert all(names in (["a.py::alone[0]"], ["a.py::first[0]", "a.py::second[0]"])
               for names in found)  # fmt: skip


def test_files_of_measured_sources_are_drawn_as_a_whole() -> None:
    tests = [f"{SOURCE_TESTS}/test_{file}.py::test_{n}" for file in "abcd" for n in range(3)]
    found = drawn([Case(test, 0, None) for test in tests], 4, "s")
    assert len(found) == 3
    assert len({name.partition("::")[0] for name in found}) == 1


def test_a_file_can_be_the_family() -> None:
    assert len(drawn(cases(one=1, two=1, three=6), 4, "s", "file")) == 2


def test_half_of_the_rules_can_be_drawn() -> None:
    rules = [f"test_{n}" for n in range(100)]
    made = cases(**dict.fromkeys(rules, 4))
    found = drawn(made, 4, "s", "half")
    assert 30 < len(found) < 70
    assert found == drawn(made, 4, "s", "half")
    assert found < drawn(made, 4, "s")
    assert drawn(made[:200], 4, "s", "half") < found
    several = (counted(drawn(made, 4, str(seed), "half")) for seed in range(20))
    assert set().union(*several) == set(rules)
    assert len(drawn(made, 1, "s", "half")) == len(made)


class Recorder:
    """A plugin that keeps the names of collected tests."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = [item.name for item in session.items]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-m", "slow"], {"test_one": 8, "test_other": 3}),
        (["-m", "slow", "--drawn=4", "--seed=a"], {"test_one": 2, "test_other": 1}),
        (["-m", "not slow", "--drawn=4", "--seed=a"], {"test_one": 1}),
        (["--drawn=12", "--seed=a"], {"test_one": 1, "test_other": 1}),
    ],
)
def test_the_options_draw_of_the_selected_cases(
    words: list[str], expected: dict[str, int], tmp_path: Path
) -> None:
    """Of twelve cases of which one in three is fast, and of three slow ones."""
    made = tmp_path / f"test_{tmp_path.name}.py"
    made.write_text(
        "import pytest\n"
        "slow = pytest.mark.slow\n"
        "cases = [n if n % 3 == 0 else pytest.param(n, marks=slow) for n in range(12)]\n"
        "@pytest.mark.parametrize('n', cases)\n"
        "def test_one(n): pass\n"
        "@slow\n"
        "@pytest.mark.parametrize('n', range(3))\n"
        "def test_other(n): pass\n"
    )
    recorder = Recorder()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-o", "markers=slow"]
    pytest.main([*options, "--rootdir", str(tmp_path), *words, str(made)], [conftest, recorder])
    names = [name.partition("[")[0] for name in recorder.names]
    assert {name: names.count(name) for name in names} == expected
