"""Launches of a host that is slower than most."""

from __future__ import annotations

from perfmodel.inputs.software import LAUNCH_S, launch_s

SLOW_HOST = 3.0
"""How many times longer than :data:`perfmodel.inputs.software.LAUNCH_S` a slow host takes: 20 us
for each operator, of a processor with half the speed of others, in a framework that launches half
as many again."""


def slowest_launch_s(launches: str) -> float:
    """Return the time per kernel of a slow host; if it was measured, the measured one.

    >>> round(slowest_launch_s("eager"), 6), slowest_launch_s("80us")
    (9e-05, 8e-05)
    """
    return launch_s(launches) * (SLOW_HOST if launches in LAUNCH_S else 1.0)


def slowest_s(launches: str, kernels: int, most: int) -> float:
    """Return the time of a slow host for ``kernels``, or for ``most`` of them if it launches
    products of groups one after the other; if its time per kernel was measured, for ``kernels``.

    >>> round(slowest_s("eager", 100, 150), 6), round(slowest_s("80us", 100, 150), 6)
    (0.0135, 0.008)
    """
    return slowest_launch_s(launches) * (most if launches in LAUNCH_S else kernels)
