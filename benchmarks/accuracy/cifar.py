"""Layers of networks for CIFAR-10, whose stages of three sizes compute for as long as each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfmodel.inputs.workload import Workload, WorkloadLayer

BYTES = 4
BLOCKS = 4
"""Blocks in a stage of Shake-Shake 26 2x32d and wider ones (Gastaldi, 2017, arXiv 1705.07485)."""

SHAKES = {"shakesmall": 32, "shakebig": 96, "shakemid": 64}
"""Width of the first stage, by name."""


def workload(name: str, device: str, batch_size: int, tensors: int, size_bytes: float) -> Workload:
    """A network of so many tensors and bytes, which computes for one second in a step.

    ``resnetN`` and Shake-Shake have the blocks that they are described with, in proportion to the
    bytes given; others have equal tensors.
    """
    blocks = list(_blocks(name, tensors)) or [(1.0,) * n for n in _even(tensors, 16) if n]
    times = size_bytes / sum(map(sum, blocks))
    layers = [
        WorkloadLayer(
            f"block{i}",
            1.0 / 3.0 / len(blocks),
            2.0 / 3.0 / len(blocks),
            tuple(size * times for size in reversed(sizes)),
        )
        for i, sizes in enumerate(blocks)
    ]
    return Workload.of(name, layers, batch_size=batch_size, device=device)


def _blocks(name: str, tensors: int) -> Iterator[tuple[float, ...]]:
    """Elements of the tensors of each block, in the order in which TensorFlow makes them."""
    if name in SHAKES:
        small = tensors // (3 * BLOCKS) - 4
        inputs = float(SHAKES[name])
        for width in (SHAKES[name] * 2.0**stage for stage in range(3)):
            for _ in range(BLOCKS):
                branch = (9.0 * inputs * width, width, 9.0 * width**2, width)
                yield (*branch, *branch, *(width,) * (small - 4))
                inputs = width
    elif found := re.fullmatch(r"resnet(\d+)", name):
        inputs = 32.0
        yield 27.0 * inputs, inputs, inputs
        for width in (32.0, 64.0, 128.0):
            for block in range((int(found[1]) - 2) // 6):
                projection = () if block else (inputs * width, width, width)
                first = (9.0 * inputs * width, width, width)
                yield (*projection, *first, 9.0 * width**2, width, width)
                inputs = width
        yield 10.0 * inputs, 10.0


def _even(count: int, parts: int) -> list[int]:
    return [count // parts + (i < count % parts) for i in range(parts)]
