"""Colours of figures are distinguishable with any kind of colour blindness."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.reporting.colours import CAUSE_COLOURS, KIND_COLOURS, PALETTE

LEAST = 12.0
"""Smallest distance of two colours in CIELAB; about 2 is just distinguishable side by side."""

SEEN = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    ),
    "deuteranopia": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    ),
    "tritanopia": np.array(
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]
    ),
}
"""Perceived linear RGB: Machado, Oliveira and Fernandes, IEEE TVCG 2009, full severity."""

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIELAB of a colour as perceived."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255.0
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(TO_XYZ @ np.clip(seen @ linear, 0.0, 1.0) / (TO_XYZ @ np.ones(3)))
    return np.array([116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)])


def closest(colours: tuple[str, ...], kind: str) -> float:
    """Distance of the two most similar colours."""
    seen = [lab(colour, SEEN[kind]) for colour in colours]
    return min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))


@pytest.mark.parametrize("kind", SEEN)
def test_colours_are_distinguishable(kind: str) -> None:
    assert closest(PALETTE, kind) > LEAST
    assert len(set(CAUSE_COLOURS.values())) == len(CAUSE_COLOURS)
    assert set(KIND_COLOURS.values()) <= set(PALETTE)


def test_canary_red_and_green_are_too_similar_for_some() -> None:
    pair = ("#b04a3a", "#7a6a3a")
    assert closest(pair, "none") > 2.0 * closest(pair, "deuteranopia")
    assert closest(pair, "protanopia") < closest(pair, "none")
