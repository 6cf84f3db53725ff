"""Work of packed sequences, and how much longer the slowest of several devices takes.

Documents of random lengths are put into sequences of equal numbers of tokens, one after the other;
what does not fit goes on in the next sequence. Attention stays inside documents, so that its work
is proportional to the sum of their squared lengths, and differs between sequences that have equally
many tokens. All else is proportional to the tokens.

Lengths are lognormal, with a mean and a coefficient of variation (standard deviation over mean), or
those of a list, all equally probable. A sequence begins inside of a document, longer ones more
probably, as at a random token of the data.

Devices that divide a sequence have equal parts of its tokens, and of the attention as much as the
places of their tokens in documents add up to: a part in which a document begins has less.

References
----------
Krell et al., "Efficient sequence packing without cross-contamination", 2021, arXiv 2107.02027;
Cox, "Renewal theory", 1962, section 5.4 (what is left of the interval at a random time).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, number, whole_number

DRAWS = 1 << 15
"""Sequences that are drawn, always the same ones."""

MOST_SPREAD = 10.0
"""Largest coefficient of variation."""

MOST_DOCUMENTS = 4096
"""Most documents in a sequence, on average."""


MOST_LENGTHS = 4096
"""Most lengths of documents that are told apart; more are joined to so many means."""

PART_WORK, PART_DRAWS = 1 << 22, (128, 2048)
"""Places of parts in documents that are computed, about, for divided sequences; least and most of
these that are drawn."""


class Documents(msgspec.Struct, frozen=True):
    """Lengths of documents, in tokens.

    Attributes
    ----------
    mean : of the lengths.
    spread : their coefficient of variation; 0: all are equal.
    lengths : equally probable ones; empty: they are lognormal.
    """

    mean: float
    spread: float = 0.0
    lengths: tuple[float, ...] = ()

    @classmethod
    def of(cls, lengths: Sequence[float]) -> Documents:
        """Return documents of which these are a sample.

        Raises
        ------
        InputError : there is none, or one is below 1 or not finite.
        """
        if not len(lengths):
            raise InputError("document_lengths: expected at least one length")
        for place, one in enumerate(lengths):
            number(f"document_lengths[{place}]", one, at_least=1.0)
        ordered = np.sort(np.asarray(lengths, np.float64))
        many, count = len(ordered), min(len(ordered), MOST_LENGTHS)
        below = np.concatenate([[0.0], ordered.cumsum()])
        sums = np.diff(np.interp(np.linspace(0.0, many, count + 1), np.arange(many + 1), below))
        means = tuple((sums * (count / many)).tolist())
        mean = float(ordered.mean())
        return cls(mean, float(ordered.std()) / mean, means)

    def in_sequences(self, tokens: int) -> Packing:
        """Return sequences of so many tokens that are filled with these documents."""
        return Packing(tokens, self.mean, self.spread, self.lengths)


class Packing(msgspec.Struct, frozen=True):
    """Sequences of ``tokens`` each that are filled with documents.

    Attributes
    ----------
    tokens : of a sequence.
    document_tokens : mean length of a document, in tokens.
    spread : coefficient of variation of the lengths; 0: all are equal.
    lengths : equally probable ones; empty: they are lognormal.
    """

    tokens: int
    document_tokens: float
    spread: float = 0.0
    lengths: tuple[float, ...] = ()


def attention_share(packing: Packing, window: int | None = None) -> float:
    """Return the expected work of attention over that of sequences that are one document each.

    With a ``window`` a token attends to so many at most, in both.

    Raises
    ------
    InputError : a number is out of range.

    >>> round(attention_share(Packing(tokens=8192, document_tokens=1024)), 3)
    0.12
    >>> round(attention_share(Packing(tokens=8192, document_tokens=1e9)), 3)
    1.0
    """
    return float(_shares(_checked(packing), window).mean())


def relative_loads(packing: Packing, sequences: int, window: int | None = None) -> Floats:
    """Return the work of attention of so many sequences together over its mean: equally probable
    values, (draws,), ascending.

    Raises
    ------
    InputError : a number is out of range.

    >>> relative_loads(Packing(8192, 1024.0, spread=1.5), 4)[[0, -1]].round(1).tolist()
    [0.4, 3.2]
    """
    whole_number("sequences", sequences)
    return _loads(_checked(packing), sequences, window)


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


def largest_part(packing: Packing, sequences: int, devices: int, *, zigzag: bool) -> float:
    """Return the expected largest work of attention over its mean among so many ``devices`` that
    divide each of ``sequences``: of twice as many parts each has the k-th first and the k-th last
    (``zigzag``), or each has one.

    Raises
    ------
    InputError : a number is out of range.

    >>> round(largest_part(Packing(8192, 1e9), 1, 4, zigzag=False), 2)  # 7 of 16 blocks
    1.75
    >>> round(largest_part(Packing(8192, 1e9), 1, 4, zigzag=True), 2)
    1.0
    >>> largest_part(Packing(8192, 2000.0, spread=1.0), 1, 4, zigzag=True) > 1.3
    True
    """
    whole_number("sequences", sequences)
    whole_number("devices", devices)
    return _largest_part(_checked(packing), sequences, devices, zigzag)


def _checked(packing: Packing) -> Packing:
    tokens = whole_number("tokens", packing.tokens)
    mean = number("document_tokens", packing.document_tokens, at_least=1.0)
    spread = number("spread", packing.spread, at_most=MOST_SPREAD)
    if tokens > MOST_DOCUMENTS * mean:
        raise InputError(
            f"document_tokens: {mean:g} are less than 1/{MOST_DOCUMENTS} of {tokens} tokens"
        )
    return msgspec.structs.replace(packing, tokens=tokens, document_tokens=mean, spread=spread)


class _Pieces(NamedTuple):
    """The next piece of a document in some sequences: which of those drawn, where it begins, and
    its length, (sequences,) each."""

    which: Ids
    begin: Floats
    length: Floats


def _filled(packing: Packing, draws: int) -> Iterator[_Pieces]:
    """Fill so many sequences, document by document."""
    generator = np.random.Generator(np.random.Philox(packing.tokens))
    whole = float(packing.tokens)
    # a random token is in documents of which each length counts by its tokens
    first = _lengths(packing, generator, draws, by_tokens=True)
    which, filled = np.arange(draws), np.zeros(draws)
    pieces = np.minimum(first * generator.uniform(size=draws), whole)
    while len(which):
        yield _Pieces(which, filled[which], pieces)
        filled[which] += pieces
        which = which[filled[which] < whole * (1.0 - 1e-12)]
        lengths = _lengths(packing, generator, len(which), by_tokens=False)
        pieces = np.minimum(lengths, whole - filled[which])


def _lengths(
    packing: Packing, generator: np.random.Generator, count: int, *, by_tokens: bool
) -> Floats:
    """Draw lengths of documents, each as probable as it is or, ``by_tokens``, as its tokens are."""
    if packing.lengths:
        known = np.array(packing.lengths)
        return np.asarray(
            generator.choice(known, count, p=known / known.sum() if by_tokens else None)
        )
    sigma = math.sqrt(math.log1p(packing.spread**2))
    middle = math.log(packing.document_tokens) + sigma**2 * (0.5 if by_tokens else -0.5)
    return np.asarray(np.exp(middle + sigma * generator.standard_normal(count)))


def _work(length: Floats, window: float) -> Floats:
    """Return the work of attention in documents."""
    return np.where(length <= window, length**2, 2.0 * window * length - window**2)


@functools.lru_cache(maxsize=64)
def _shares(packing: Packing, window: int | None = None) -> Floats:
    """Return the work of drawn sequences over that of one whole document, (draws,)."""
    limit, work = math.inf if window is None else float(window), np.zeros(DRAWS)
    whole = np.array([float(packing.tokens)])
    for which, _, length in _filled(packing, DRAWS):
        work[which] += length**2 if window is None else _work(length, limit)
    return np.asarray(work / (whole**2 if window is None else _work(whole, limit)))


@functools.lru_cache(maxsize=64)
def _loads(packing: Packing, sequences: int, window: int | None = None) -> Floats:
    """Return the work of so many sequences together over its mean, (draws,), ascending."""
    shares = _shares(packing, window)
    generator = np.random.Generator(np.random.Philox(sequences))
    loads = np.zeros(DRAWS)
    # of more sequences than draws the sum has no spread to speak of
    many = min(sequences, DRAWS)
    for _ in range(many):
        loads += generator.permutation(shares)
    loads = np.asarray(np.sort(loads / many) / shares.mean())
    loads.setflags(write=False)
    return loads


def largest_of(loads: Floats, devices: int) -> float:
    """Return the expected largest of so many values, each one of equally probable ``loads``,
    ascending."""
    # the k-th smallest of n draws is the largest of all devices if none is above it
    below = (np.arange(len(loads) + 1) / len(loads)) ** devices
    return float((np.diff(below) * loads).sum())


@functools.lru_cache(maxsize=256)
def _largest(packing: Packing, sequences: int, devices: int) -> float:
    return 1.0 if devices == 1 else largest_of(_loads(packing, sequences), devices)


@functools.lru_cache(maxsize=64)
def _largest_part(packing: Packing, sequences: int, devices: int, zigzag: bool) -> float:
    parts = (2 if zigzag else 1) * devices
    edges = np.linspace(0.0, float(packing.tokens), parts + 1)
    pieces = 1.0 + packing.tokens / packing.document_tokens
    least, most = PART_DRAWS
    draws = int(min(max(PART_WORK / (pieces * parts), least), most))
    before = np.zeros((draws, parts + 1))  # work before each edge
    for which, begin, length in _filled(packing, draws):
        inside = np.clip(edges - begin[:, None], 0.0, length[:, None])
        before[which] += inside**2 / 2.0
    work = np.diff(before, axis=1)
    if zigzag:
        work = work[:, :devices] + work[:, : devices - 1 : -1]
    generator = np.random.Generator(np.random.Philox(sequences))
    loads = np.zeros_like(work)
    for _ in range(min(sequences, draws)):
        loads += work[generator.permutation(draws)]
    return float(loads.max(axis=1).mean() / loads.mean())
