"""Work of packed sequences: by hand, and against sequences that are packed document by document."""

from __future__ import annotations

import math
import random

import pytest

from perfmodel import InputError
from perfmodel.theory.packing import (
    MOST_LENGTHS,
    Documents,
    Packing,
    attention_share,
    idle_share,
    largest_attention,
    largest_part,
    relative_loads,
)
from tests.settings import thinned


def test_equal_documents_by_hand() -> None:
    """Documents of 512 of 1024 tokens, cut at a random place u: pieces of u, 512 and 512 - u have
    u^2 + 512^2 + (512 - u)^2, on average 512^2 (1 + 2 / 3)."""
    share = (1 + 2 / 3) / 4
    assert attention_share(Packing(1024, 512.0)) == pytest.approx(share, rel=0.005)
    assert attention_share(Packing(1024, 1e9)) == pytest.approx(1.0, rel=1e-4)


def test_the_largest_of_equal_documents_by_hand() -> None:
    """The work of a sequence is 512^2 (1 + v^2 + (1 - v)^2) with v uniform: 1 + (1 + w^2) / 2 with
    w uniform, whose largest of d has a mean of w^2 of d / (d + 2)."""
    for devices in (1, 2, 8):
        largest = (1.5 + 0.5 * devices / (devices + 2)) / (1.5 + 0.5 / 3)
        found = largest_attention(Packing(1024, 512.0), 1, devices)
        assert found == pytest.approx(largest, rel=0.005)
    longer = 0.25 * (found - 1)
    assert idle_share(Packing(1024, 512.0), 1, 8, 0.25) == pytest.approx(longer / (1 + longer))


def packed(tokens: int, mean: float, spread: float, sequences: int, seed: int) -> list[float]:
    """The work of sequences that a stream of documents fills, (sequences,)."""
    draw = random.Random(seed)
    sigma = math.sqrt(math.log(1 + spread**2))
    work, here, found = 0.0, 0.0, []
    while len(found) < sequences:
        left = draw.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
        while left > 0 and len(found) < sequences:
            piece = min(left, tokens - here)
            work, here, left = work + piece**2, here + piece, left - piece
            if here >= tokens:
                found.append(work / tokens**2)
                work = here = 0.0
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mean", "spread", "sequences", "devices"),
    thinned(
        [(300.0, 0.5, 1, 8), (1000.0, 1.5, 1, 16), (1000.0, 1.5, 4, 8), (3000.0, 1.0, 2, 4)], 4, 2
    ),
)
def test_a_stream_of_documents_has_the_same_work(
    mean: float, spread: float, sequences: int, devices: int
) -> None:
    """A Monte Carlo that packs document by document."""
    work = packed(4096, mean, spread, 40_000, seed=7)
    packing = Packing(4096, mean, spread)
    assert attention_share(packing) == pytest.approx(sum(work) / len(work), rel=0.01)
    random.Random(8).shuffle(work)  # sequences in a row share a document
    loads = [sum(work[k : k + sequences]) / sequences for k in range(0, len(work), sequences)]
    steps = [max(loads[k : k + devices]) for k in range(0, len(loads) - devices, devices)]
    largest = sum(steps) / len(steps) / (sum(work) / len(work))
    found = largest_attention(packing, sequences, devices)
    assert found == pytest.approx(largest, rel=0.015)
    assert found > 1.02


def test_more_sequences_even_out() -> None:
    found = [largest_attention(Packing(4096, 500.0, 1.0), k, 16) for k in (1, 4, 16)]
    assert found == sorted(found, reverse=True)


def test_the_variance_of_equal_documents_by_hand() -> None:
    """1 + (1 + w^2) / 2 with w uniform has the variance 1 / 45, and of four a quarter of it."""
    for sequences in (1, 4):
        loads = relative_loads(Packing(1024, 512.0), sequences)
        expected = (1 / 45 / sequences) ** 0.5 / (5 / 3)
        assert float(loads.std()) == pytest.approx(expected, rel=0.02)
        assert (loads[1:] >= loads[:-1]).all()


def test_a_window_limits_the_work_of_long_documents() -> None:
    """Documents of 1000 tokens with a window of 100: 2 x 100 x 1000 - 100^2 each, and without
    documents 2 x 100 x 1000 for as many tokens."""
    found = attention_share(Packing(30_000, 1000.0), window=100)
    assert found == pytest.approx(0.95, rel=0.01)
    assert attention_share(Packing(3000, 50.0), window=100) == pytest.approx(0.25, rel=0.02)


def test_listed_lengths() -> None:
    """Equal ones are those of the spread 0; two in equal numbers, of which the longer has 3 of 4
    tokens, cut as rarely as sequences are long."""
    assert attention_share(Documents.of([512] * 9).in_sequences(1024)) == pytest.approx(
        attention_share(Packing(1024, 512.0)), rel=0.01
    )
    two = Documents.of([10, 30])
    assert (two.mean, two.spread) == (20.0, 0.5)
    found = attention_share(two.in_sequences(4000)) * 4000
    assert found == pytest.approx((10**2 + 30**2) / (10 + 30), rel=0.01)
    many = Documents.of([float(k) for k in range(1, 20_001)])
    assert len(many.lengths) == MOST_LENGTHS
    assert many.mean == pytest.approx(10_000.5)
    assert sum(many.lengths) / MOST_LENGTHS == pytest.approx(many.mean)


def test_parts_of_one_document_by_hand() -> None:
    """Of c contiguous parts the last has 2 c - 1 of c^2 blocks; zigzag parts are equal."""
    whole = Packing(4096, 1e9)
    for devices in (2, 4, 8):
        found = largest_part(whole, 1, devices, zigzag=False)
        assert found == pytest.approx((2 * devices - 1) / devices, rel=1e-3)
        assert largest_part(whole, 1, devices, zigzag=True) == pytest.approx(1.0, rel=1e-3)
    assert largest_part(Packing(4096, 500.0, 1.0), 1, 1, zigzag=True) == 1.0


def largest_by_tokens(tokens: int, mean: float, spread: float, devices: int, parts: int) -> float:
    """The expected largest part over the mean of a stream of documents, token by token."""
    draw = random.Random(5)
    sigma = math.sqrt(math.log(1 + spread**2))
    left, largest, total, many = 0, 0.0, 0.0, 2500
    for _ in range(many):
        work, start = [0.0] * devices, 0
        for token in range(tokens):
            if left == 0:
                left = max(round(draw.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)), 1)
                start = token
            left -= 1
            part = token * parts // tokens
            work[min(part, parts - 1 - part) if parts > devices else part] += token - start + 0.5
        largest, total = largest + max(work), total + sum(work)
    return largest / (total / devices)


@pytest.mark.parametrize("zigzag", [True, False])
def test_parts_of_sequences_token_by_token(zigzag: bool) -> None:
    drawn = largest_by_tokens(256, 80.0, 1.0, 4, 8 if zigzag else 4)
    found = largest_part(Packing(256, 80.0, 1.0), 1, 4, zigzag=zigzag)
    assert found == pytest.approx(drawn, rel=0.02)
    assert found > 1.3


@pytest.mark.parametrize(
    ("packing", "text"),
    [
        (Packing(0, 5.0), "tokens"),
        (Packing(100_000, 2.0), "document_tokens"),
        (Packing(1024, 5.0, 11.0), "spread"),
    ],
)
def test_numbers_out_of_range(packing: Packing, text: str) -> None:
    with pytest.raises(InputError, match=text):
        attention_share(packing)
