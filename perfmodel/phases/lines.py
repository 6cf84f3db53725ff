"""Layer-by-layer overlap for many values at once: the longest of all paths through the layers.

The length of each path is linear in the times that vary, such as the time per byte on a link. Few
of the paths are ever the longest, and these are found once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.quantities import Quantity
from perfmodel.phases.cumulative import Parts
from perfmodel.theory.fronts import Lines, largest, needed

MOST_LINES = 64
"""Number of lines above which going through the layers is as fast."""

MOST_STAGES = 2

FEW = 32
"""Number of lines up to which no unneeded lines are looked for."""


class StageService(NamedTuple):
    """Constants of a stage: seconds per tensor and per byte, and unscaled seconds per byte."""

    per_tensor_s: float
    per_byte_s: float
    alone_per_byte_s: float


class Backward(NamedTuple):
    """The backward pass: seconds and bytes of each layer, in forward order, its parts, and seconds
    of the layers before the first one with parameters."""

    seconds: tuple[float, ...]
    bytes: tuple[float, ...]
    parts: Parts
    last_s: float


class CriticalPaths(NamedTuple):
    """For each of several ends, the paths that may be the longest, as rows of coefficients of the
    quantities numbered in ``columns``."""

    columns: tuple[int, ...]
    lines: tuple[Lines, ...]

    def ends_s(self, values: Sequence[Quantity]) -> list[Quantity]:
        """Return each end: the longest path to it at ``values`` of all quantities."""
        return largest(self.lines, [values[k] for k in self.columns])


@functools.lru_cache(maxsize=256)
def pull(first_s: float, forward_s: tuple[float, ...], parts: Parts) -> CriticalPaths | None:
    """Return the paths to the end of the forward pass, if each layer waits for its parameters.

    The quantities are the factor on computation, and seconds per byte.
    """
    return _critical_paths([pulling(first_s, forward_s, parts)])


def pulling(first_s: float, forward_s: tuple[float, ...], parts: Parts) -> Lines:
    """Return all paths to the end of the forward pass, needed or not; see :func:`pull`."""
    rest_s = np.cumsum(forward_s[::-1])[::-1].tolist()
    lengths, arrived = [(first_s + rest_s[0], 0.0)], dict[int, float]()
    for seconds, layer in zip(rest_s, parts, strict=True):
        for place, size, _ in layer:
            arrived[place] = arrived.get(place, 0.0) + size
            lengths.append((seconds, arrived[place]))
    return np.array(lengths)


@functools.lru_cache(maxsize=256)
def send(
    backward: Backward, stages: tuple[StageService, ...], *, overlap: bool, encoded: bool
) -> CriticalPaths | None:
    """Return the paths from the start of the backward pass until all gradients are computed, until
    they have passed the first stage, and until each further one; None if there are too many.

    The quantities are the factor on computation, seconds to encode a byte, 1, and the factor on
    each stage. With more than two stages there are too many paths for this to pay off.
    """
    if len(stages) > MOST_STAGES:
        return None
    made = np.zeros((len(backward.bytes), 3 + len(stages)))
    made[:, 0] = np.cumsum(backward.seconds[::-1])
    made[:, 1] = np.cumsum(backward.bytes[::-1]) if encoded else 0.0
    computed = made[-1].copy()
    computed[0] += backward.last_s
    ends: list[list[Lines]] = [[computed[None]] for _ in range(len(stages) + 1)]
    for place in sorted({place for layer in backward.parts for place, _, _ in layer}):
        last = [np.zeros((0, made.shape[1])) for _ in stages]
        for ready, layer in zip(made, backward.parts[::-1], strict=True):
            for _, size, tensors in (part for part in layer if part[0] == place):
                end = (ready if overlap else computed)[None]
                for k, stage in enumerate(stages):
                    busy = np.zeros(made.shape[1])
                    busy[2] = stage.alone_per_byte_s * size
                    busy[3 + k] = stage.per_tensor_s * tensors + stage.per_byte_s * size
                    end = last[k] = _fewer(np.vstack([last[k], end])) + busy
                    if len(end) > 2 * MOST_LINES:
                        return None
        for paths, end in zip(ends[1:], last, strict=True):
            paths.append(end)
    return _critical_paths([np.vstack(paths) for paths in ends])


def _fewer(lines: Lines) -> Lines:
    return needed(lines) if len(lines) > FEW else lines


def _critical_paths(ends: Sequence[Lines]) -> CriticalPaths | None:
    """Return the paths that may be the longest; None if there are too many."""
    few = [needed(lines) for lines in ends]
    columns = tuple(np.flatnonzero(np.vstack(few).any(0)).tolist())
    rows = tuple(np.ascontiguousarray(lines[:, columns]) for lines in few)
    return CriticalPaths(columns, rows) if max(map(len, few)) <= MOST_LINES else None
