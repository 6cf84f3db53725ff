"""Names of precisions, by the bits of the values that they compute with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SIXTEEN_BITS = ("mixed", "bf16", "fp16")
"""Products have 16 bits; *mixed* and *bf16* differ in what is stored, not in time."""

SCALES_OF_BLOCK, SCALES_OF_SQUARE, SCALES_OF_32 = 4.0 / 128.0, 4.0 / 128.0**2, 1.0 / 32.0
"""Bytes of scales per value: 32 bits for 128 values of a row, or for 128 x 128 values, or 8 bits
for 32 values."""


class Recipe(NamedTuple):
    """How training computes products with weights in 8 bits, forward and backward; all else has 16,
    also the output layer.

    Attributes
    ----------
    cast_bytes : read and written to cast a value of 16 bits, and its transpose with it.
    weight_bytes : of the casts of a weight, which exist during both passes.
    input_bytes : of an input of a product that is kept for backward.
    peak : name of the peak rate.
    """

    cast_bytes: float
    weight_bytes: float
    input_bytes: float
    peak: str = "fp8"


RECIPES: Mapping[str, Recipe] = {
    "fp8": Recipe(4.0, 2.0, 2.0),
    "fp8_current": Recipe(6.0, 2.0, 1.0),
    "fp8_block": Recipe(
        4.0 + 2.0 * SCALES_OF_BLOCK, 2.0 + 2.0 * SCALES_OF_SQUARE, 1.0 + SCALES_OF_BLOCK
    ),
    "mxfp8": Recipe(
        4.0 + 2.0 * SCALES_OF_32, 2.0 + 2.0 * SCALES_OF_32, 1.0 + SCALES_OF_32, "mxfp8"
    ),
}
"""Recipes by precision.

*fp8* has a scale for each tensor, of earlier steps, and keeps inputs in 16 bits, as torchao does;
*fp8_current* has that of the tensor itself, which is read once more for it; *fp8_block* has scales
for 128 values, and for squares of them in weights; *mxfp8* has scales for 32. All but the first
keep inputs in 8 bits, as Transformer Engine does.

References
----------
Micikevicius et al., 2022, arXiv 2209.05433 (*fp8*); DeepSeek-AI, "DeepSeek-V3", 2024, arXiv
2412.19437, section 3.3 (*fp8_block*); Rouhani et al., 2023, arXiv 2310.10537 (*mxfp8*);
Transformer Engine, ``transformer_engine/common/recipe`` (``Float8CurrentScaling``,
``Float8BlockScaling``, ``MXFP8BlockScaling``).
"""

EIGHT_BITS = tuple(RECIPES)

SHORT = (*SIXTEEN_BITS, *EIGHT_BITS)
"""Activations have 16 bits."""

WIDE_BYTES: Mapping[str, float] = {"float32": 4.0, "tf32": 4.0}
"""All else: precisions with the bytes of a value."""
