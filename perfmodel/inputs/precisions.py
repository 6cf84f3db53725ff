"""Names of precisions, by the bits of the values that they compute with."""

from __future__ import annotations

from collections.abc import Mapping

SIXTEEN_BITS = ("mixed", "bf16", "fp16")
"""Products have 16 bits; *mixed* and *bf16* differ in what is stored, not in time."""

EIGHT_BITS = ("fp8", "mxfp8")
"""Products with weights have 8 bits, with a scale for each tensor or each block of 32 values
(Micikevicius et al., 2022, arXiv 2209.05433; Rouhani et al., 2023, arXiv 2310.10537); all else has
16, also the output layer."""

SHORT = (*SIXTEEN_BITS, *EIGHT_BITS)
"""Activations have 16 bits."""

WIDE_BYTES: Mapping[str, float] = {"float32": 4.0, "tf32": 4.0}
"""All else: precisions with the bytes of a value."""
