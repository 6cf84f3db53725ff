"""Text with units, both ways."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from perfmodel.base.errors import InputError
from perfmodel.base.limits import LIMITS
from perfmodel.base.units import UNITS, dimension_of, parse, show


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("10Gbps", "bytes_per_s", 1.25e9),
        ("10 Gbit/s", "bytes_per_s", 1.25e9),
        ("1.25GB/s", "bytes_per_s", 1.25e9),
        ("1GiB/s", "bytes_per_s", 2.0**30),
        ("300Mbps", "bytes_per_s", 3.75e7),
        ("50us", "s", 5e-5),
        ("1.5ms", "s", 0.0015),
        ("2h", "s", 7200.0),
        ("25MiB", "bytes", 25 * 2.0**20),
        ("1e3B", "bytes", 1000.0),
        ("15.7TFLOPS", "flop_per_s", 15.7e12),
    ],
)
def test_quantities(text: str, dimension: str, value: float) -> None:
    assert parse(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        ("10", "bytes_per_s", "x: a unit is missing in '10' (like 10Gbps or 1.25GB/s)"),
        (
            "10gbps",
            "bytes_per_s",
            "x: unit 'gbps' does not fit in '10gbps'; did you mean 'Gbps'? "
            "(like 10Gbps or 1.25GB/s)",
        ),
        (
            "10MB",
            "bytes_per_s",
            "x: unit 'MB' does not fit in '10MB'; did you mean 'MBps'? (like 10Gbps or 1.25GB/s)",
        ),
        (
            "fast",
            "bytes_per_s",
            "x: cannot read 'fast'; expected a number and a unit, like 10Gbps or 1.25GB/s",
        ),
        ("-1us", "s", "x: must be at least 0, got '-1us'"),
        ("nanus", "s", "x: expected a finite number, got nan"),
    ],
)
def test_unreadable_quantities_are_refused(text: str, dimension: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text, dimension, "x")
    assert str(error.value) == message


@pytest.mark.parametrize("dimension", ["s", "bytes", "bytes_per_s", "flop_per_s"])
@given(value=st.floats(1e-9, 1e15))
def test_shown_quantities_can_be_parsed(dimension: str, value: float) -> None:
    least, most = LIMITS[dimension]
    if value < most and (dimension == "s" or value >= max(least, 1e-3)):
        assert parse(show(value, dimension), dimension) == pytest.approx(value, rel=6e-4)


def test_the_suffix_of_a_name_gives_its_unit() -> None:
    assert {dimension_of(f"x_{d}") for d in UNITS} == set(UNITS)
    assert dimension_of("batch_size") is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60d", 5184000.0), ("90min", 5400.0), ("1.5h", 5400.0), ("30s", 30.0), ("1e3ms", 1.0)],
)
def test_times_may_be_days_hours_or_minutes(text: str, seconds: float) -> None:
    assert parse(text, "s", "--deadline") == seconds


@pytest.mark.parametrize(
    ("name", "dimension", "example"),
    [
        ("--deadline", "s", "90min or 7d"),
        ("aim: time", "s", "90min or 7d"),
        ("--latency", "s", "50us or 1.5ms"),
        ("cluster.toml: nic.latency_s", "s", "50us or 1.5ms"),
        ("--bandwidth", "bytes_per_s", "10Gbps or 1.25GB/s"),
        ("partition_bytes", "bytes", "25MiB or 100MB"),
    ],
)
@pytest.mark.parametrize("text", ["10", "10 apples", "soon"])
def test_errors_name_an_example_of_the_right_kind(
    name: str, dimension: str, example: str, text: str
) -> None:
    with pytest.raises(InputError, match=re.escape(f"like {example}")):
        parse(text, dimension, name)
