"""Scaling laws by hand, and what they refuse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from perfmodel import InputError
from perfmodel.theory.scaling_laws import LAWS, ScalingLaw
from tests.settings import examples

CHINCHILLA = LAWS["chinchilla"]


def test_chinchilla_by_hand() -> None:
    """10^10 parameters: A / N^alpha = 482.01 / 10^3.478 = 482.01 / 3006.1 = 0.16034.

    10^12 tokens: B / D^beta = 2085.43 / 10^4.3896 = 2085.43 / 24525 = 0.08503.
    """
    assert CHINCHILLA.lowest_loss(1e10) == pytest.approx(1.8172 + 0.16034, abs=1e-5)
    loss = 1.8172 + 0.16034 + 0.08503
    assert CHINCHILLA.loss(1e10, 1e12) == pytest.approx(loss, abs=2e-5)
    assert CHINCHILLA.tokens(1e10, loss) == pytest.approx(1e12, rel=1e-3)


def test_a_simple_law_by_hand() -> None:
    """1 + 4 / sqrt(16) + 6 / sqrt(D) = 2.5 at 144 tokens."""
    law = ScalingLaw(
        irreducible_loss=1.0, parameters_factor=4.0, parameters_exponent=0.5, tokens_factor=6.0,
        tokens_exponent=0.5,
    )  # fmt: skip
    assert law.lowest_loss(16.0) == 2.0
    assert law.tokens(16.0, 2.5) == pytest.approx(144.0)
    assert law.loss(16.0, 144.0) == 2.5


def test_the_best_use_of_operations_is_about_twenty_tokens_per_parameter() -> None:
    """As the reanalysis says, and its fit of the same runs before does not: 6 N D = 5.76e23."""
    budget = 5.76e23
    sizes = [10.0 ** (10.0 + k / 100.0) for k in range(150)]
    best = min(sizes, key=lambda n: CHINCHILLA.loss(n, budget / 6.0 / n))
    assert 15.0 < budget / 6.0 / best / best < 30.0


@given(size=st.floats(1e6, 1e13), tokens=st.floats(1e6, 1e16))
@examples(30)
def test_tokens_and_loss_are_inverse(size: float, tokens: float) -> None:
    loss = CHINCHILLA.loss(size, tokens)
    assert CHINCHILLA.tokens(size, loss) == pytest.approx(tokens, rel=1e-6)
    assert CHINCHILLA.loss(size, 2.0 * tokens) < loss


@pytest.mark.parametrize("loss", [1.5, 1.8172, 1.97])
def test_a_loss_out_of_reach_names_the_lowest(loss: float) -> None:
    with pytest.raises(InputError, match=r"out of reach: .* above 1\.9775, .* above 1\.8172"):
        CHINCHILLA.tokens(1e10, loss)


def test_a_loss_that_takes_forever_is_infinitely_far() -> None:
    slow = ScalingLaw(
        irreducible_loss=1.0, parameters_factor=0.0, parameters_exponent=1.0, tokens_factor=1.0,
        tokens_exponent=1e-3,
    )  # fmt: skip
    assert math.isinf(slow.tokens(1e9, 1.0 + 1e-9))
    with pytest.raises(InputError, match="tokens_exponent: must be more than 0"):
        ScalingLaw(
            irreducible_loss=1.0, parameters_factor=0.0, parameters_exponent=1.0,
            tokens_factor=1.0, tokens_exponent=0.0,
        )  # fmt: skip
