"""Convolutions as matrix products: what libraries do to the images before and after.

Tensor cores need the channels of a pixel next to each other. Images that have them apart are
transposed before and after a product, but for kernels of one pixel whose columns are multiples of
16 bytes; then each image is a product of its own, read as it is.

In 32 bits without tensor cores, a kernel of 3 x 3 may be computed by Winograd's algorithm for tiles
of 2 x 2 or 4 x 4 pixels: images are transformed to 4 or 2.25 times as many values, 16 or 36
products need 2.25 or 4 times fewer multiplications, and the result is transformed back. Libraries
choose the fastest.

References
----------
NVIDIA, "Convolutional layers user's guide", on layouts and tensor cores; Lavin, Gray, "Fast
algorithms for convolutional neural networks", CVPR 2016, arXiv 1509.09308, sections 4 and 5.
"""

from __future__ import annotations

from perfmodel.base.quantities import Quantity, minimum
from perfmodel.theory.memory_bound import memory_bound_s
from perfmodel.theory.products import ProductRates, product_s

WIDE_LOAD_BYTES = 16.0
"""Bytes that a thread loads at once."""

WINOGRAD = (2.0, 4.0)
"""Pixels along a side of a tile."""

KERNEL = 3.0
"""Pixels along a side of a kernel that Winograd's algorithm is used for."""


def transposing_s(
    values: Quantity, element_bytes: float, bandwidth_bytes_per_s: float, launch_s: Quantity
) -> Quantity:
    """Return the seconds of transposing images of so many values together: each is read and
    written."""
    return memory_bound_s(2.0 * element_bytes * values, 2.0, bandwidth_bytes_per_s, launch_s)


def winograd_s(
    m: Quantity,
    n: Quantity,
    k: Quantity,
    values: Quantity,
    rates: ProductRates,
    multiprocessors: float,
    bandwidth_bytes_per_s: float,
    *,
    of_weights: bool = False,
) -> Quantity:
    """Return the seconds of a pass by Winograd's algorithm, with the better size of tiles.

    The product is that of the channels: pixels x leaving x entering channels of forward, or
    entering x leaving channels x pixels for the gradient ``of_weights``. ``values`` are those of
    both images together.
    """
    candidates: list[Quantity] = []
    for side in WINOGRAD:
        points = (side + KERNEL - 1.0) ** 2
        rows, depth = (m, k / side**2) if of_weights else (m / side**2, k)
        product = product_s(rows, n, depth, rates, multiprocessors, count=points)
        moved = rates.element_bytes * (1.0 + points / side**2) * values
        moving = memory_bound_s(moved, 2.0, bandwidth_bytes_per_s, rates.launch_s)
        candidates.append(product + moving)
    return minimum(*candidates)
