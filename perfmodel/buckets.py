"""How gradient tensors become messages."""

from __future__ import annotations

from collections.abc import Sequence

DDP_BUCKET_BYTES = 25 * 2**20
"""Bucket cap of PyTorch's DistributedDataParallel (25 MiB)."""

DDP_FIRST_BUCKET_BYTES = 2**20
"""Cap of its first bucket (1 MiB), small so that communication starts early."""


def ddp_buckets(
    tensor_bytes: Sequence[float],
    *,
    cap_bytes: float = DDP_BUCKET_BYTES,
    first_cap_bytes: float = DDP_FIRST_BUCKET_BYTES,
) -> list[list[int]]:
    """Group tensors, given in the order they become ready, as DistributedDataParallel does.

    A bucket closes with the tensor that brings it to its cap or beyond, so one large tensor makes
    one large bucket. Returns the indices of each bucket's tensors.

    References
    ----------
    Li et al., "PyTorch Distributed: experiences on accelerating data parallel training",
    PVLDB 13(12), 2020, doi 10.14778/3415478.3415530.

    >>> ddp_buckets([1, 2, 9, 1, 1], cap_bytes=4, first_cap_bytes=2)
    [[0, 1], [2], [3, 4]]
    """
    buckets: list[list[int]] = [[]]
    filled, cap = 0.0, first_cap_bytes
    for index, size in enumerate(tensor_bytes):
        if buckets[-1] and filled >= cap:
            buckets.append([])
            filled, cap = 0.0, cap_bytes
        buckets[-1].append(index)
        filled += size
    return buckets
