"""Ranges of the numbers in a struct."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
from hypothesis import given, strategies as st

from perfmodel.base.errors import InputError
from perfmodel.base.ranges import COUNT, POSITIVE, Range, Ranged, or_inf, or_none, unchecked
from tests.settings import examples


class Box(Ranged, frozen=True):
    RANGES: ClassVar = {
        "size_bytes": POSITIVE,
        "count": COUNT._replace(at_most=9),
        "limit": or_inf(Range(-1.0)),
        "parts_s": or_none(Range()),
    }
    PLACE: ClassVar = "box {0.name!r}: "

    name: str = "a"
    size_bytes: float = 1.0
    count: int = 1
    limit: float = 1.0
    parts_s: tuple[float, ...] | None = None


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"size_bytes": 0.0}, "box 'a': size_bytes: must be more than 0, got 0"),
        ({"size_bytes": 1e-9}, "box 'a': size_bytes: must be at least 0.001, got 1e-09"),
        ({"size_bytes": 1e19}, r"size_bytes: must be at most 1e\+18, got 1e\+19"),
        ({"size_bytes": None}, "size_bytes: expected a number, got None"),
        ({"count": 10}, "count: must be at most 9, got 10"),
        ({"count": 1.0}, "count: expected a whole number, got 1.0"),
        ({"count": True}, "count: expected a whole number, got True"),
        ({"limit": -2.0}, "limit: must be at least -1, got -2"),
        ({"limit": math.nan}, "limit: expected a finite number, got nan"),
        ({"parts_s": (1.0, -1.0)}, r"parts_s\[1\]: must be at least 0, got -1"),
    ],
)
def test_a_number_out_of_range_is_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        Box(**changes)


@pytest.mark.parametrize(
    "changes", [{"limit": math.inf}, {"parts_s": None}, {"parts_s": (1e-15, 2)}, {"count": 9}]
)
def test_numbers_in_range_are_kept(changes: dict[str, Any]) -> None:
    assert Box(**changes) == Box(**changes)


def test_a_copy_that_needs_no_check_is_not_checked() -> None:
    box = Box(count=3)
    copy = unchecked(box, count=99)
    assert (copy.count, copy.limit, box.count) == (99, box.limit, 3)


@examples(200)
@given(st.floats() | st.integers(), st.sampled_from(["x_bytes", "x_s", "x_bytes_per_s", "x"]))
def test_a_range_holds_what_its_check_lets_pass(value: float, name: str) -> None:
    for limits in (Range(), POSITIVE, Range(-1.0, 1.0), Range(above=0.5), COUNT):
        try:
            limits.check(name, value)
        except InputError:
            assert not limits.holds(name, value)
        else:
            assert limits.holds(name, value)
