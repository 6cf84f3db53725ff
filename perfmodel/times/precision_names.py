"""What people call precisions, and what a device lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from perfmodel.base.errors import InputError, spelling

OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("bf16", "bfloat16", "bf16mixed"), "mixed"),
    **dict.fromkeys(("fp16", "float16", "half", "amp", "fp16mixed", "16mixed"), "mixed"),
    "fp4": "nvfp4",
    **dict.fromkeys(("fp32", "single", "32true"), "float32"),
}
"""What people call precisions elsewhere, as :func:`perfmodel.base.errors.spelling` spells it, and
their names here."""

WITHOUT_BF16 = ("kepler", "maxwell", "pascal", "volta", "turing")
"""Architectures of NVIDIA whose tensor cores, if any, multiply float16 only (NVIDIA, "A100 Tensor
Core GPU Architecture", 2020, table 1)."""


def precision_called(name: str, known: Collection[str], architecture: str | None = None) -> str:
    """Return the precision that people call ``name``: a known one in other words, or the same name.

    Parameters
    ----------
    known : precisions of the device, and those that something was measured at; any may be one if
        there are none.
    architecture : of the device; those before Ampere do not compute with bfloat16.

    >>> precision_called("bf16-mixed", ["float32", "mixed"])
    'mixed'
    >>> precision_called("bf16", ["mixed"], "volta"), precision_called("bf16", ["mixed", "bf16"])
    ('bf16', 'bf16')
    """
    word = spelling(name)
    if name in known or (architecture in WITHOUT_BF16 and word.startswith(("bf16", "bfloat16"))):
        return name
    called = {**OTHER_NAMES, **{spelling(one): one for one in known}}.get(word, name)
    return called if called in known or not known else name


def check_precision(precision: str, device: str, known: tuple[str, ...]) -> None:
    """Refuse a precision that a device, called ``device``, has no rate for.

    Raises
    ------
    InputError : it is not one of those that are ``known``.
    """
    if precision not in known:
        short = OTHER_NAMES.get(spelling(precision)) == "mixed" and "mixed" in known
        hint = "; mixed has float16 there" if short else ""
        has = ", ".join(known)
        raise InputError(f"precision: {device} has no {precision} (it has: {has}){hint}")
