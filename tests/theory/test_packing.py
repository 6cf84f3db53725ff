"""Work of packed sequences: by hand, and against sequences that are packed document by document."""

from __future__ import annotations

import math
import random

import pytest

from perfmodel import InputError
from perfmodel.theory.packing import Packing, attention_share, idle_share, largest_attention
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
