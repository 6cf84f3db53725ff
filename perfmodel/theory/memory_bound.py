"""Time of operators that are bound by memory: norms, activations, sums, losses.

A kernel takes its launch, and the bytes that it reads and writes over the achieved bandwidth.
"""

from __future__ import annotations

from perfmodel.base.quantities import Quantity

ACHIEVED = 0.85
"""Achieved over nominal bandwidth of large kernels.

From the time by size of sums, quotients and softmax of 40 to 670 MB in NeuSight's measurements
(Lee et al., ASPLOS 2025): 0.80 on A100, 0.71 to 0.90 on H100, 0.90 on V100.
"""


def memory_bound_s(
    moved_bytes: Quantity, kernels: Quantity, bandwidth_bytes_per_s: float, launch_s: Quantity
) -> Quantity:
    """Return the seconds of ``kernels`` that read and write ``moved_bytes`` together.

    >>> round(1e6 * memory_bound_s(0.85e9, 2.0, 1e12, 3e-6), 6)
    1006.0
    """
    return kernels * launch_s + moved_bytes / (ACHIEVED * bandwidth_bytes_per_s)
