"""The maximum of lines is unchanged without the lines that are dropped."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.theory.fronts import largest, needed


@pytest.mark.sampled(2)
@pytest.mark.parametrize("quantities", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_no_needed_line_is_dropped(quantities: int, seed: int) -> None:
    """At points in all directions, including points with zeros."""
    draw = np.random.default_rng(seed)
    lines = draw.lognormal(0.0, 1.0, (80, quantities)) * (draw.random((80, quantities)) < 0.8)
    points = 10.0 ** draw.uniform(-6.0, 6.0, (quantities, 2000))
    points *= draw.random(points.shape) < 0.9
    few = needed(lines)
    assert len(few) < len(lines)
    before, now = largest([lines, few], list(points))
    assert now == pytest.approx(before, rel=1e-13)


def test_in_two_dimensions_the_hull_remains() -> None:
    """All points on a quarter circle are needed, and none inside it."""
    angle = np.linspace(0.0, np.pi / 2.0, 20)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    inside = 0.9 * circle
    assert len(needed(np.concatenate([circle, inside]))) == len(circle)


def test_lines_equal_up_to_rounding_count_once() -> None:
    """Repeated layers give many points on one edge."""
    along = np.linspace(0.0, 1.0, 50)[:, None]
    edge = along * np.array([3.0, 0.1]) + (1.0 - along) * np.array([0.7, 2.9])
    assert len(needed(edge)) == 2


def test_canary_a_missing_line_is_noticed() -> None:
    lines = needed(np.array([[0.0, 4.0], [3.0, 3.0], [4.0, 0.0]]))
    values = [np.array([1.0, 1.0]), np.array([1.0, 9.0])]
    before, now = largest([lines, np.delete(lines, 1, axis=0)], values)
    assert before.tolist() == [6.0, 36.0]
    assert now.tolist() == [4.0, 36.0]
