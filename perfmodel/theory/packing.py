"""Work of packed sequences, and how much longer the slowest of several devices takes.

Documents of random lengths are put into sequences of equal numbers of tokens, one after the other;
what does not fit goes on in the next sequence. Attention stays inside documents, so that its work
is proportional to the sum of their squared lengths, and differs between sequences that have equally
many tokens. All else is proportional to the tokens.

Lengths are lognormal, with a mean and a coefficient of variation (standard deviation over mean). A
sequence begins inside of a document, longer ones more probably, as at a random token of the data.

References
----------
Krell et al., "Efficient sequence packing without cross-contamination", 2021, arXiv 2107.02027;
Cox, "Renewal theory", 1962, section 5.4 (what is left of the interval at a random time).
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError, number, whole_number

DRAWS = 1 << 15
"""Sequences that are drawn, always the same ones."""

MOST_SPREAD = 10.0
"""Largest coefficient of variation."""

MOST_DOCUMENTS = 4096
"""Most documents in a sequence, on average."""


class Packing(NamedTuple):
    """Sequences of ``tokens`` each that are filled with documents.

    Attributes
    ----------
    tokens : of a sequence.
    document_tokens : mean length of a document, in tokens.
    spread : coefficient of variation of the lengths; 0: all are equal.
    """

    tokens: int
    document_tokens: float
    spread: float = 0.0


def attention_share(packing: Packing) -> float:
    """Return the expected work of attention over that of sequences that are one document each.

    Raises
    ------
    InputError : a number is out of range.

    >>> round(attention_share(Packing(tokens=8192, document_tokens=1024)), 3)
    0.12
    >>> round(attention_share(Packing(tokens=8192, document_tokens=1e9)), 3)
    1.0
    """
    return float(_shares(_checked(packing)).mean())


def largest_attention(packing: Packing, sequences: int, devices: int) -> float:
    """Return the expected largest work of attention over its mean, among so many ``devices`` that
    have ``sequences`` each.

    Raises
    ------
    InputError : a number is out of range.

    >>> largest_attention(Packing(8192, 1024.0, spread=1.5), sequences=1, devices=1)
    1.0
    >>> largest_attention(Packing(8192, 1024.0, spread=1.5), sequences=1, devices=64) > 2.0
    True
    """
    whole_number("sequences", sequences)
    whole_number("devices", devices)
    return _largest(_checked(packing), sequences, devices)


def idle_share(packing: Packing, sequences: int, devices: int, attention: float) -> float:
    """Return the part of the time that devices wait for the one with most work, if ``attention`` is
    the part of attention in the mean work of a device.

    Raises
    ------
    InputError : a number is out of range.
    """
    number("attention", attention, at_most=1.0)
    longer = attention * (largest_attention(packing, sequences, devices) - 1.0)
    return longer / (1.0 + longer)


def _checked(packing: Packing) -> Packing:
    tokens = whole_number("tokens", packing.tokens)
    mean = number("document_tokens", packing.document_tokens, at_least=1.0)
    spread = number("spread", packing.spread, at_most=MOST_SPREAD)
    if tokens > MOST_DOCUMENTS * mean:
        raise InputError(
            f"document_tokens: {mean:g} are less than 1/{MOST_DOCUMENTS} of {tokens} tokens"
        )
    return Packing(tokens, mean, spread)


@functools.lru_cache(maxsize=64)
def _shares(packing: Packing) -> Floats:
    """Return the work of drawn sequences over that of one whole document, (draws,)."""
    generator = np.random.Generator(np.random.Philox(packing.tokens))
    sigma = math.sqrt(math.log1p(packing.spread**2))
    middle = math.log(packing.document_tokens) - sigma**2 / 2.0
    whole = float(packing.tokens)
    # a random token is in documents of which each length counts by its tokens
    first = np.exp(middle + sigma**2 + sigma * generator.standard_normal(DRAWS))
    pieces = np.minimum(first * generator.uniform(size=DRAWS), whole)
    filled, work = pieces.copy(), pieces**2
    open_ones = np.flatnonzero(filled < whole)
    while len(open_ones):
        lengths = np.exp(middle + sigma * generator.standard_normal(len(open_ones)))
        pieces = np.minimum(lengths, whole - filled[open_ones])
        work[open_ones] += pieces**2
        filled[open_ones] += pieces
        open_ones = open_ones[filled[open_ones] < whole * (1.0 - 1e-12)]
    return np.asarray(work / whole**2)


@functools.lru_cache(maxsize=256)
def _largest(packing: Packing, sequences: int, devices: int) -> float:
    shares = _shares(packing)
    if devices == 1:
        return 1.0
    generator = np.random.Generator(np.random.Philox(sequences))
    loads = np.zeros(DRAWS)
    for _ in range(min(sequences, DRAWS)):
        loads += generator.permutation(shares)
    # of more sequences than draws the sum has no spread to speak of
    loads = np.sort(loads / min(sequences, DRAWS))
    # the k-th smallest of n draws is the largest of all devices if none is above it
    below = (np.arange(DRAWS + 1) / DRAWS) ** devices
    return float((np.diff(below) * loads).sum() / shares.mean())
