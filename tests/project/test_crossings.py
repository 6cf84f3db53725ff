"""A prediction stays in a module before it goes to the next."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

MOST, MOST_UPWARD = 1725, 142
"""Most calls between modules, and most of them upward, in ``perfmodel predict`` of a small job with
its table of assumptions: 22 evaluations of the formulas."""


@pytest.mark.slow
def test_a_prediction_does_not_jump_between_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.crossings"], capture_output=True, text=True, check=True
    )
    between, upward = (int(number) for number in re.findall(r": (\d+)$", done.stdout, re.M))
    assert 500 < between <= MOST
    assert 0 < upward <= MOST_UPWARD
