"""Measures matrix products and causal attention of random shapes on a device, with PyTorch.

The tables are those that ``perfmodel calibrate operators`` reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfmodel.base.errors import InputError, number, whole_number
from perfmodel.foreign.pytorch import check_device, import_torch

if TYPE_CHECKING:
    from torch import Tensor

HEADS = (64, 128)
"""Widths of heads."""

LEAST_SIZE = 64
"""The smallest dimension of a product, and multiples of which all are."""

LEAST_LENGTH = 128
"""The shortest sequence."""

MOST_VALUES = 2**28
"""Values of the largest matrix, and of queries, keys and values together."""

WARM_UP, LEAST_S, MOST_RUNS = 3, 0.02, 100
"""Unmeasured runs of a shape; then it runs for at least so long, but at most so often."""


class OperatorTables(NamedTuple):
    """Measured shapes: rows of m, n, k, type of values and milliseconds; rows of sequences, their
    length, heads, heads of keys, width of a head and milliseconds."""

    products: list[tuple[int, int, int, str, float]]
    attention: list[tuple[int, int, int, int, int, float]]

    def products_csv(self) -> str:
        """The products as a table."""
        return _csv("m,n,k,dtype,ms", self.products)

    def attention_csv(self) -> str:
        """Attention as a table."""
        return _csv("batch_size,sequence_length,heads,kv_heads,head_dim,ms", self.attention)


def measure(
    device: str = "cuda",
    *,
    shapes: int = 400,
    largest: int = 16384,
    seconds: float = 600.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> OperatorTables:
    """Measure ``shapes`` products in 16 bits, and half as many of attention.

    Parameters
    ----------
    device : *cuda*, *cuda:N*, or *cpu*.
    largest : the largest dimension of a product, and the longest sequence.
    seconds : no further shape is measured after this time.
    seed : of the shapes, which are drawn evenly by their logarithm.
    progress : called with the number of shapes done and the total.

    Raises
    ------
    InputError : PyTorch or the device is missing, or a number is out of range.
    """
    whole_number("shapes", shapes)
    whole_number("largest", largest, at_least=LEAST_LENGTH)
    end_s = time.monotonic() + number("seconds", seconds, above=0.0)
    check_device(device)
    torch = import_torch()
    draw = np.random.default_rng(seed)
    tables = OperatorTables([], [])
    total = shapes + shapes // 2
    with torch.no_grad():
        for done in range(total):
            if time.monotonic() > end_s:
                break
            if done % 3 < 2:  # both kinds, whenever time runs out
                shape = _product(draw, largest)
                tables.products.append((*shape, "bfloat16", 1e3 * _product_s(shape, device)))
            else:
                sequences = _sequences(draw, largest)
                tables.attention.append((*sequences, 1e3 * _attention_s(sequences, device)))
            if progress is not None:
                progress(done + 1, total)
    if not tables.attention:
        raise InputError(f"seconds: {seconds:g} are too few to measure a shape of each kind")
    return tables


def _size(draw: np.random.Generator, least: int, most: int) -> int:
    """Return a multiple of ``least`` up to ``most``, drawn evenly by its logarithm."""
    return least * max(1, round(float(np.exp(draw.uniform(0.0, np.log(most / least))))))


def _product(draw: np.random.Generator, largest: int) -> tuple[int, int, int]:
    while True:
        m, n, k = (_size(draw, LEAST_SIZE, largest) for _ in range(3))
        if max(m * n, m * k, n * k) <= MOST_VALUES:
            return m, n, k


def _sequences(draw: np.random.Generator, largest: int) -> tuple[int, int, int, int, int]:
    while True:
        width = int(draw.choice(HEADS))
        kv_heads, group = (2 ** int(draw.integers(0, most)) for most in (6, 4))
        length, count = _size(draw, LEAST_LENGTH, largest), _size(draw, 1, 64)
        if count * length * width * kv_heads * (group + 2) <= MOST_VALUES:
            return count, length, kv_heads * group, kv_heads, width


def _product_s(shape: tuple[int, int, int], device: str) -> float:
    m, n, k = shape
    left, right = _random((m, k), device), _random((k, n), device)
    return _seconds(lambda: left @ right, device)


def _attention_s(sequences: tuple[int, int, int, int, int], device: str) -> float:
    count, length, heads, kv_heads, width = sequences
    query = _random((count, heads, length, width), device)
    key, value = (_random((count, kv_heads, length, width), device) for _ in range(2))
    attend = import_torch().nn.functional.scaled_dot_product_attention
    grouped = heads != kv_heads
    return _seconds(lambda: attend(query, key, value, is_causal=True, enable_gqa=grouped), device)


def _random(shape: tuple[int, ...], device: str) -> Tensor:
    torch = import_torch()
    made: Tensor = torch.randn(shape, device=device, dtype=torch.bfloat16)
    return made


def _seconds(run: Callable[[], object], device: str) -> float:
    """Return the mean seconds of a run, of many in a row."""
    for _ in range(WARM_UP):
        run()
    once_s = _batch_s(run, 1, device)
    runs = min(MOST_RUNS, max(1, round(LEAST_S / max(once_s, 1e-9))))
    return _batch_s(run, runs, device) / runs


def _batch_s(run: Callable[[], object], runs: int, device: str) -> float:
    """Return the seconds of so many runs in a row, on the clock of the device.

    On a GPU they are a CUDA graph: launched one by one, small shapes would take as long as the host
    needs to launch them.
    """
    if device == "cpu":
        start_s = time.perf_counter()
        for _ in range(runs):
            run()
        return time.perf_counter() - start_s
    cuda = import_torch().cuda
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        for _ in range(runs):
            run()
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()  # the first replay also copies the graph to the device
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e-3 * float(start.elapsed_time(end))


def _csv(heads: str, rows: Sequence[Sequence[object]]) -> str:
    lines = (
        ",".join(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row)
        for row in rows
    )
    return "\n".join([heads, *lines]) + "\n"
