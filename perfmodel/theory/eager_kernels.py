"""Time of kernels that are slow for a reason which their operations and bytes do not tell."""

from __future__ import annotations

from perfmodel.base.quantities import Quantity

ODD_S_PER_FLOP = 6.85e-15
"""Additional seconds per operation of products with rows of an odd number of 16-bit values, on
chips of the kind of H100: 146 TFLOP/s at most, a seventh of the peak.

Asynchronous copies to shared memory move 4, 8 or 16 bytes (NVIDIA, PTX ISA, ``cp.async``), so that
rows that begin at odd multiples of 2 bytes are loaded value by value. GPT-2's vocabulary of 50,257
is the usual case. Fitted as :mod:`perfmodel.times.eager_estimate` says.
"""

CHANNEL_S_PER_BYTE = 0.126e-9
"""Seconds per byte of a channel in batch norms of 16 bits: 7.9 GB/s of a thread block.

cuDNN has no batch norms of ``bfloat16`` in PyTorch (``aten/src/ATen/native/Normalization.cpp``,
``_select_batch_norm_backend``). PyTorch's own kernels sum a channel in one block, so a layer with
32 channels uses 32 of a device's 132 multiprocessors.
"""


def odd_product_s(flop: Quantity) -> Quantity:
    """Return the seconds that products with odd rows take longer.

    >>> round(1e3 * odd_product_s(1e12), 6)
    6.85
    """
    return ODD_S_PER_FLOP * flop


def channel_sums_s(moved_bytes: Quantity, channels: Quantity) -> Quantity:
    """Return the seconds that batch norms take longer which move so many bytes of all channels.

    >>> round(1e3 * channel_sums_s(64e6, 64.0), 6)
    0.126
    """
    return CHANNEL_S_PER_BYTE * moved_bytes / channels
