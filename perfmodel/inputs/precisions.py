"""Names of precisions, by the bits of the values that they compute with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SIXTEEN_BITS = ("mixed", "bf16", "fp16")
"""Products have 16 bits; *mixed* and *bf16* differ in what is stored, not in time."""

SCALES_OF_BLOCK, SCALES_OF_SQUARE, SCALES_OF_32 = 4.0 / 128.0, 4.0 / 128.0**2, 1.0 / 32.0
SCALES_OF_16, HALF_BYTE = 1.0 / 16.0, 0.5
"""Bytes of scales per value: 32 bits for 128 values of a row, or for 128 x 128 values, or 8 bits
for 32 values, or for 16; and bytes of a value of 4 bits."""


class Recipe(NamedTuple):
    """How training computes products with weights in 8 or 4 bits, forward and backward; all else
    has 16, also the output layer.

    Tensor cores before Blackwell multiply values of 8 bits along rows of both matrices only, so
    that casts are stored twice, the second time transposed; scales along rows need that too.

    Attributes
    ----------
    scale_bytes : of the scales of a cast value.
    weight_bytes : of the casts of a weight, which exist during both passes.
    input_bytes : of an input of a product that is kept for backward.
    reads : bytes read of a value of 16 bits to cast it.
    by_rows : whether there are several scales in a row.
    fused : whether norms cast what they make, so that it is not read again.
    dispatches : whether tokens are cast before they are sent to experts, and gradients before they
        are sent back to them; results, and the gradients of tokens, have 16 bits.
    peak : name of the peak rate.
    value_bytes : of a value.
    """

    scale_bytes: float
    weight_bytes: float
    input_bytes: float
    reads: float = 2.0
    by_rows: bool = False
    fused: bool = False
    dispatches: bool = False
    peak: str = "fp8"
    value_bytes: float = 1.0

    def twice(self, architecture: str | None) -> bool:
        """Return whether casts are stored twice on an architecture."""
        return self.by_rows or architecture not in ANY_LAYOUT

    def cast_bytes(self, architecture: str | None) -> float:
        """Return the bytes read and written to cast a value of 16 bits on an architecture."""
        copies = 2.0 if self.twice(architecture) else 1.0
        return self.reads + copies * (self.value_bytes + self.scale_bytes)

    def cast_in_norm_bytes(self, architecture: str | None) -> float:
        """Return the bytes read and written in backward to transpose a value that a norm cast."""
        return 0.0 if self.by_rows or not self.twice(architecture) else 2.0


ANY_LAYOUT = ("blackwell",)
"""Architectures whose tensor cores multiply values of 8 bits in any layout."""

RECIPES: Mapping[str, Recipe] = {
    "fp8": Recipe(0.0, 2.0, 2.0, fused=True),
    "fp8_current": Recipe(0.0, 2.0, 1.0, reads=4.0),
    "fp8_block": Recipe(
        SCALES_OF_BLOCK,
        2.0 + 2.0 * SCALES_OF_SQUARE,
        1.0 + SCALES_OF_BLOCK,
        by_rows=True,
        dispatches=True,
    ),
    "mxfp8": Recipe(
        SCALES_OF_32,
        2.0 + 2.0 * SCALES_OF_32,
        1.0 + SCALES_OF_32,
        by_rows=True,
        fused=True,
        peak="mxfp8",
    ),
    "nvfp4": Recipe(
        SCALES_OF_16,
        2.0 * (HALF_BYTE + SCALES_OF_16),
        HALF_BYTE + SCALES_OF_16,
        reads=4.0,
        by_rows=True,
        peak="nvfp4",
        value_bytes=HALF_BYTE,
    ),
}
"""Recipes by precision.

*fp8* has a scale for each tensor, of earlier steps, and keeps inputs in 16 bits, as torchao does;
*fp8_current* has that of the tensor itself, which is read once more for it; *fp8_block* has scales
for 128 values, and for squares of them in weights; *mxfp8* has scales for 32. All but the first
keep inputs in 8 bits, as Transformer Engine does. *nvfp4* has 4 bits, with scales for 16 values and
one for the tensor, which is read once more for it; the few layers that recipes leave in 16 bits
are not left out here.

References
----------
Micikevicius et al., 2022, arXiv 2209.05433 (*fp8*); DeepSeek-AI, "DeepSeek-V3", 2024, arXiv
2412.19437, section 3.3 (*fp8_block*); Rouhani et al., 2023, arXiv 2310.10537 (*mxfp8*);
NVIDIA, "Pretraining large language models with NVFP4", 2025, arXiv 2509.25149 (*nvfp4*);
Transformer Engine, ``transformer_engine/common/recipe`` (``Float8CurrentScaling``,
``Float8BlockScaling``, ``MXFP8BlockScaling``) and ``pytorch/module/layernorm_linear.py``
(``with_quantized_norm``); NVIDIA, cuBLAS documentation, ``cublasLtMatmul``, on layouts of 8 bits.
"""

EIGHT_BITS = tuple(name for name, recipe in RECIPES.items() if recipe.value_bytes == 1.0)
FOUR_BITS = tuple(name for name in RECIPES if name not in EIGHT_BITS)


def sent_share(precision: str) -> float:
    """Return the part of their bytes that values are sent with to a product that has 8 or 4 bits:
    they are cast before, and scales go with them; 1 in other precisions."""
    if precision not in RECIPES:
        return 1.0
    recipe = RECIPES[precision]
    return (recipe.value_bytes + recipe.scale_bytes) / 2.0


def dispatched_share(precision: str) -> float:
    """Return the part of their bytes that tokens are sent to experts with; 1 in 16 bits."""
    dispatches = precision in RECIPES and RECIPES[precision].dispatches
    return sent_share(precision) if dispatches else 1.0


SHORT = (*SIXTEEN_BITS, *RECIPES)
"""Activations have 16 bits."""

WIDE_BYTES: Mapping[str, float] = {"float32": 4.0, "tf32": 4.0}
"""All else: precisions with the bytes of a value."""
