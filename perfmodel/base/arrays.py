"""Types of the arrays that a graph and its measures are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Refs = NDArray[np.int32]
"""Ids as a graph stores them."""
Floats = NDArray[np.float64]

NONE = -1
"""No slot, no link, no group, no counter, no stream."""
