"""What operators achieve on devices with figures, and on others by transfer."""

from __future__ import annotations

import math

import msgspec
import pytest

from perfmodel import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.device import Device
from perfmodel.times.operator_transfer import (
    attention_rates,
    product_rates,
    stack_of,
    training_rates,
)

KNOWN = {name: catalogue.device(name) for name in catalogue.device_names()}


def with_figures() -> list[Device]:
    return [one for one in KNOWN.values() if one.operators is not None and one.operators.attention]


def test_devices_with_figures_have_multiprocessors_and_a_covariance() -> None:
    assert len(with_figures()) == 5
    for one in with_figures():
        assert one.operators is not None
        assert one.multiprocessors is not None
        products, attention = one.operators.products.values(), one.operators.attention
        assert attention is not None
        assert 0.045 < attention.error_fraction < 0.4
        assert all(0.05 < figures.error_fraction < 0.4 for figures in products)
        for figures in (*products, attention):
            assert all(figures.covariance[i][i] > 0.0 for i in range(len(figures.covariance)))


def test_own_figures_count() -> None:
    h100 = KNOWN["h100"]
    assert h100.operators is not None
    figures = h100.operators.products["mixed"]
    rates = product_rates(h100, "mixed", KNOWN)
    assert (rates.flop_per_s, rates.launch_s) == (figures.flop_per_s, figures.launch_s)
    assert rates.cast_bytes_per_s is None
    assert product_rates(h100, "fp8", KNOWN).cast_bytes_per_s is not None


def test_8_bits_reach_the_share_of_the_peak_that_16_bits_reach_in_training() -> None:
    for name, precision in (("h100", "fp8"), ("h100", "fp8_block"), ("b200", "mxfp8")):
        mixed = product_rates(KNOWN[name], "mixed", KNOWN)
        short = training_rates(KNOWN[name], precision, KNOWN)
        assert short.flop_per_s == pytest.approx(2 * mixed.flop_per_s, rel=1e-3)
        assert (short.element_bytes, short.launch_s) == (1.0, mixed.launch_s)
        assert training_rates(KNOWN[name], "mixed", KNOWN) == mixed


def test_a_device_of_the_same_architecture_lends_its_efficiencies() -> None:
    """H200 has the multiprocessors of H100, and memory that is 4800 / 3350 times as fast."""
    h100, h200 = (product_rates(KNOWN[name], "mixed", KNOWN) for name in ("h100", "h200"))
    assert h200.flop_per_s == pytest.approx(h100.flop_per_s)
    assert h200.bytes_per_s == pytest.approx(h100.bytes_per_s * 4800 / 3350)
    assert h200.tile_s == pytest.approx(h100.tile_s)
    one, other = (attention_rates(KNOWN[name], KNOWN) for name in ("h100", "h200"))
    assert (one.softmax, one.queries) == pytest.approx((other.softmax, other.queries))


def test_a_chip_with_factors_of_its_own_lends_them_to_none_with_the_same_rates() -> None:
    """GB300 has the rates of GB200 and more power: 1.17 and 1.41 times the operators. B300 has the
    rates of B200, whose factors count. As found each has its own, times the ratio of both levels
    on A100 and H100: sqrt(1.20 x 1.37 / (1.21 x 1.27))."""
    tuned = {name: stack_of(KNOWN[name], "tuned", KNOWN) for name in ("gb200", "gb300", "b300")}
    assert [one.products for one in tuned.values()] == pytest.approx([1.41, 1.17, 1.32])
    assert tuned["gb300"].devices == ("gb300",)
    assert tuned["b300"].devices == ("b200",)
    assert all(one.alike for one in tuned.values())
    ratio = math.sqrt(1.20 * 1.37 / (1.21 * 1.27))
    for name, factor in (("b200", 1.32), ("gb200", 1.41)):
        assert stack_of(KNOWN[name], "as_found", KNOWN).products == pytest.approx(factor * ratio)


def test_a_device_with_factors_only_has_the_operators_of_its_architecture() -> None:
    """B200's products reach 1622.34 of 2250 TFLOP/s, GB200's as large a part of 2500."""
    rates = product_rates(KNOWN["gb200"], "mixed", KNOWN)
    assert rates.flop_per_s == pytest.approx(1622.34e12 * 2500 / 2250)
    b200, gb200 = (attention_rates(KNOWN[name], KNOWN) for name in ("b200", "gb200"))
    assert gb200.flop_per_s == pytest.approx(b200.flop_per_s * 2500 / 2250)
    assert gb200.softmax == pytest.approx(b200.softmax)


def test_others_get_the_geometric_mean_of_all() -> None:
    v100 = KNOWN["v100"]
    shares = []
    for one in with_figures():
        assert one.operators is not None
        shares.append(one.operators.products["mixed"].flop_per_s / one.peak("mixed"))
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    rates = product_rates(v100, "mixed", KNOWN)
    assert rates.flop_per_s == pytest.approx(mean * v100.peak("mixed"))


def test_what_cannot_be_known_is_named() -> None:
    with pytest.raises(InputError, match=r"precision 'fp9'.*fp8"):
        product_rates(KNOWN["h100"], "fp9", KNOWN)
    bare = msgspec.structs.replace(KNOWN["h100"], operators=None)
    with pytest.raises(InputError, match="h100: no device has figures of attention"):
        attention_rates(bare, {})
