"""How gradient tensors are grouped into messages."""

from __future__ import annotations

from collections.abc import Sequence

DDP_BUCKET_BYTES = 25 * 2**20
"""Bucket cap of PyTorch's DistributedDataParallel (25 MiB)."""

DDP_FIRST_BUCKET_BYTES = 2**20
"""Cap of its first bucket (1 MiB), which is small so that communication starts early."""

HOROVOD_THRESHOLD_BYTES = 64 * 2**20
"""Default fusion threshold of Horovod (64 MiB), from its tensor fusion documentation; 128 MiB since
release 0.21."""

HOROVOD_CYCLE_S = 1e-3
"""Period at which Horovod fuses tensors: HOROVOD_CYCLE_TIME, 1 ms since release 0.21."""


def ddp_buckets(
    tensor_bytes: Sequence[float],
    *,
    cap_bytes: float = DDP_BUCKET_BYTES,
    first_cap_bytes: float = DDP_FIRST_BUCKET_BYTES,
) -> list[list[int]]:
    """Group tensors, given in the order they become ready, as DistributedDataParallel does.

    A tensor that brings a bucket to its cap or beyond closes it, so one large tensor makes one
    large bucket. Returns the indices of each bucket's tensors.

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


def mg_wfbp_buckets(
    ready_s: Sequence[float],
    size_bytes: Sequence[float],
    *,
    startup_s: float,
    per_byte_s: float,
) -> list[list[int]]:
    """Merge a layer with the next one if waiting for it costs less than the start-up time saved.

    Layers are given in the order in which backward produces their gradients, at ``ready_s``.
    Collectives run one after the other; one of n bytes takes ``startup_s`` + n ``per_byte_s``. A
    layer is merged with the next one if its collective would still be running when the next layer
    is ready, and would have begun less than one start-up time before. Returns the indices of each
    message's layers.

    References
    ----------
    Shi, Chu, Li, "MG-WFBP: efficient data communication for distributed synchronous SGD
    algorithms", INFOCOM 2019, doi 10.1109/INFOCOM.2019.8737367.

    >>> mg_wfbp_buckets([1.0, 2.0, 9.0], [1.0, 1.0, 1.0], startup_s=2.0, per_byte_s=1.0)
    [[0, 1], [2]]
    """
    buckets: list[list[int]] = [[]]
    free = merged = 0.0
    for index, (ready, size) in enumerate(zip(ready_s, size_bytes, strict=True)):
        buckets[-1].append(index)
        merged += size
        begin = max(free, ready)
        end = begin + startup_s + merged * per_byte_s
        if index + 1 == len(ready_s):
            break
        following = ready_s[index + 1]
        if not (following < end and following - begin < startup_s):
            buckets.append([])
            free, merged = end, 0.0
    return buckets
