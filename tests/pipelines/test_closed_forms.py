"""Formulas of schedules equal their timelines, for equal stages."""

from __future__ import annotations

import numpy as np
import pytest
import sympy
from hypothesis import given, strategies as st

from perfmodel import InputError
from perfmodel.pipelines import schedule, timeline
from perfmodel.pipelines.closed_forms import (
    bubble_fraction,
    dualpipe_bubble_s,
    flush_s,
    interleaved_s,
    zb_h1_bubble_s,
    zb_h2_bubble_s,
)
from tests.settings import examples

SECONDS = st.floats(0.125, 4.0, width=16)


@examples(60)
@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 6), st.integers(1, 12), SECONDS, SECONDS)
def test_gpipe_and_1f1b(name: str, p: int, m: int, forward: float, backward: float) -> None:
    line = timeline(schedule(name, p, m), forward, backward)
    assert line.makespan_s == pytest.approx(flush_s(p, m, forward, backward))
    idle = line.idle_s / line.makespan_s
    assert idle == pytest.approx(np.full(p, bubble_fraction(p, m)))


@examples(60)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), SECONDS, SECONDS)
def test_interleaved(p: int, rounds: int, v: int, forward: float, backward: float) -> None:
    m = p * rounds
    line = timeline(schedule("interleaved_1f1b", p, m, chunks=v), forward / v, backward / v)
    assert line.makespan_s == pytest.approx(interleaved_s(p, m, v, forward, backward))
    assert (line.idle_s / line.makespan_s).max() == pytest.approx(bubble_fraction(p, m, v))


@examples(60)
@given(st.integers(1, 6), st.integers(0, 9), SECONDS, SECONDS, SECONDS)
def test_zero_bubble(p: int, more: int, forward: float, input_: float, weight: float) -> None:
    weight = min(weight, forward)
    m, times = 2 * p - 1 + more, (forward, None, input_, weight)
    work = m * (forward + input_ + weight)
    line = timeline(schedule("zb_h1", p, m), *times)
    bubble = zb_h1_bubble_s(p, forward, input_, weight)
    assert line.makespan_s == pytest.approx(work + bubble)
    assert line.idle_s == pytest.approx(np.full(p, bubble))
    line = timeline(schedule("zb_h2", p, m), *times)
    bubble = zb_h2_bubble_s(p, forward, input_, weight)
    assert line.bubble_s.max() == pytest.approx(bubble)
    assert line.makespan_s == pytest.approx(work + max(bubble, (p - 1) * forward))


@examples(40)
@given(st.integers(1, 4), st.integers(2, 4), SECONDS, SECONDS, st.sampled_from([0.0, 0.5, 1.0]))
def test_dualpipe(half: int, rounds: int, forward: float, weight: float, overlap: float) -> None:
    p, m, weight = 2 * half, 4 * half * rounds, min(weight, forward)
    backward = forward + weight
    pair = forward + backward - overlap * forward
    line = timeline(schedule("dualpipe", p, m), forward, backward, forward, weight, overlap=overlap)
    expected = dualpipe_bubble_s(p, pair, backward, weight)
    assert line.idle_s.max() == pytest.approx(expected)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_zb_v_has_no_bubble_with_equal_times(p: int) -> None:
    m = 2 * p - 1
    line = timeline(schedule("zb_v", p, m), 1.0, None, 1.0, 1.0)
    assert line.bubble_s.tolist() == [0.0] * p
    assert line.makespan_s == 6 * m + p - 1


def test_published_figures() -> None:
    """Bubbles of Qi et al. 2023 with F = I = W: a third of 1F1B's with ZB-H1, none with ZB-H2."""
    assert zb_h1_bubble_s(8, 1.0, 1.0, 1.0) * 3 == flush_s(8, 4, 1.0, 2.0) - 4 * 3.0
    assert zb_h2_bubble_s(8, 1.0, 1.0, 1.0) == 0.0
    assert bubble_fraction(4, 8) / (1 - bubble_fraction(4, 8)) == pytest.approx(3 / 8)


def test_arrays_and_symbols() -> None:
    p, m = np.array([2, 4]), np.array([[4], [8]])
    assert flush_s(p, m, 1.0, 2.0).tolist() == [[15.0, 21.0], [27.0, 33.0]]
    assert zb_h2_bubble_s(p, 1.0, np.array([1.0, 2.0]), 1.0).tolist() == [0.0, 3.0]
    assert zb_h1_bubble_s(p, 1.0, 1.0, np.array([1.0, 0.5])).tolist() == [1.0, 4.5]
    symbols = sympy.symbols("p m v F B W", positive=True)
    p_, m_, v_, f, b, w = symbols
    assert sympy.simplify(interleaved_s(p_, m_, v_, f, b) - (m_ + (p_ - 1) / v_) * (f + b)) == 0
    assert zb_h1_bubble_s(p_, f, b, w).subs({p_: 4, f: 1, b: 2, w: 1}) == 6
    assert zb_h2_bubble_s(p_, f, b, w).subs({p_: 4, f: 1, b: 3, w: 1}) == 6
    assert dualpipe_bubble_s(p_, f, b, w).subs({p_: 8, f: 3, b: 2, w: 1}) == 6
    assert sympy.limit(bubble_fraction(p_, m_), m_, sympy.oo) == 0


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: flush_s(0, 4, 1.0, 1.0), "ranks: must be at least 1, got 0"),
        (lambda: flush_s(2, 1.5, 1.0, 1.0), "micro_batches: expected a whole number, got 1.5"),
        (lambda: bubble_fraction(2, 2, 0), "chunks: must be at least 1, got 0"),
        (lambda: flush_s(2, 2, -1.0, 1.0), "seconds: must be at least 0, got -1"),
        (
            lambda: flush_s(np.array([2, 3]), np.array([1, 2, 3]), 1.0, 1.0),
            "ranks, micro_batches, chunks, seconds: arrays of shapes",
        ),
    ],
)
def test_wrong_arguments(call: object, expected: str) -> None:
    with pytest.raises(InputError) as error:
        call()  # type: ignore[operator]
    assert str(error.value).startswith(expected)


def test_canary_another_number_of_ranks_is_noticed() -> None:
    line = timeline(schedule("1f1b", 4, 8), 1.0, 2.0)
    assert line.makespan_s != pytest.approx(flush_s(5, 8, 1.0, 2.0))
