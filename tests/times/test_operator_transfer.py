"""What operators achieve on devices with figures, and on others by transfer."""

from __future__ import annotations

import math

import msgspec
import pytest

from perfmodel import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.device import Device
from perfmodel.times.operator_transfer import attention_rates, product_rates, training_rates

KNOWN = {name: catalogue.device(name) for name in catalogue.device_names()}


def with_figures() -> list[Device]:
    return [one for one in KNOWN.values() if one.operators is not None]


def test_devices_with_figures_have_multiprocessors_and_a_covariance() -> None:
    assert len(with_figures()) == 5
    for one in with_figures():
        assert one.operators is not None
        assert one.multiprocessors is not None
        products, attention = one.operators.products.values(), one.operators.attention
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
