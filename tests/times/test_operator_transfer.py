"""What operators achieve on devices with figures, and on others by transfer."""

from __future__ import annotations

import math

import msgspec
import pytest

from perfmodel import InputError
from perfmodel.catalogue import catalogue
from perfmodel.inputs.device import Device
from perfmodel.theory.kernel_choice import DEPTHS, WAVES
from perfmodel.theory.products import product_s
from perfmodel.times.operator_transfer import (
    attention_rates,
    grouped_rates,
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


def test_4_bits_reach_the_share_of_the_peak_too() -> None:
    """B200 has 9 PFLOP/s with 4 bits, twice those with 8 and four times those with 16; B300 has
    13.5, three times and six times, and half the bytes of 8 bits."""
    for name, of_eight in (("b200", 2.0), ("b300", 3.0)):
        mixed, eight = (product_rates(KNOWN[name], one, KNOWN) for one in ("mixed", "fp8"))
        four = product_rates(KNOWN[name], "nvfp4", KNOWN)
        assert four.flop_per_s == pytest.approx(of_eight * eight.flop_per_s)
        assert (four.element_bytes, four.kernel_choice) == (0.5, ())
        trained = training_rates(KNOWN[name], "nvfp4", KNOWN)
        assert trained.flop_per_s == pytest.approx(2.0 * of_eight * mixed.flop_per_s)
        assert (trained.element_bytes, trained.launch_s) == (0.5, mixed.launch_s)
        groups = [grouped_rates(KNOWN[name], one, KNOWN).rates for one in ("fp8", "nvfp4")]
        assert groups[1].flop_per_s == pytest.approx(of_eight * groups[0].flop_per_s)
        assert (groups[1].element_bytes, groups[1].launch_s) == (0.5, groups[0].launch_s)


def test_a_device_of_the_same_architecture_lends_its_efficiencies() -> None:
    """H200 has the multiprocessors of H100, and memory that is 4800 / 3350 times as fast."""
    h100, h200 = (product_rates(KNOWN[name], "mixed", KNOWN) for name in ("h100", "h200"))
    assert h200.flop_per_s == pytest.approx(h100.flop_per_s)
    assert h200.bytes_per_s == pytest.approx(h100.bytes_per_s * 4800 / 3350)
    assert h200.tile_s == pytest.approx(h100.tile_s)
    one, other = (attention_rates(KNOWN[name], KNOWN) for name in ("h100", "h200"))
    assert (one.softmax, one.queries) == pytest.approx((other.softmax, other.queries))


def test_a_chip_with_factors_of_its_own_lends_them_to_none_with_the_same_rates() -> None:
    """GB300 has the rates of GB200 and more power: 1.16 and 1.40 times the operators. B300 has the
    rates of B200, whose factors count. As found each has its own, times the ratio of both levels
    on A100 and H100: sqrt(1.25 x 1.34 / (1.25 x 1.26))."""
    tuned = {name: stack_of(KNOWN[name], "tuned", KNOWN) for name in ("gb200", "gb300", "b300")}
    assert [one.products for one in tuned.values()] == pytest.approx([1.4, 1.16, 1.31])
    assert tuned["gb300"].devices == ("gb300",)
    assert tuned["b300"].devices == ("b200",)
    assert all(one.alike for one in tuned.values())
    ratio = math.sqrt(1.25 * 1.34 / (1.25 * 1.26))
    for name, factor in (("b200", 1.31), ("gb200", 1.4)):
        assert stack_of(KNOWN[name], "as_found", KNOWN).products == pytest.approx(factor * ratio)


def test_a_device_with_factors_only_has_the_operators_of_its_architecture() -> None:
    """B200's products reach 1622.33 of 2250 TFLOP/s, GB200's as large a part of 2500."""
    rates = product_rates(KNOWN["gb200"], "mixed", KNOWN)
    assert rates.flop_per_s == pytest.approx(1622.33e12 * 2500 / 2250)
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


def having(choice: float | None, name: str, architecture: str) -> Device:
    """An H100 with this factor of the choice of kernels everywhere, or with a bad grid."""
    h100 = KNOWN["h100"]
    assert h100.operators is not None
    grid = ((1.0, 1.0),) if choice is None else ((choice,) * DEPTHS.points,) * WAVES.points
    figures = msgspec.structs.replace(h100.operators.products["mixed"], kernel_choice=grid)
    operators = msgspec.structs.replace(h100.operators, products={"mixed": figures})
    return msgspec.structs.replace(h100, name=name, architecture=architecture, operators=operators)


def test_only_devices_of_the_same_architecture_lend_their_choice_of_kernels() -> None:
    """Two of them lend the geometric mean, of 1.6 and 0.9 here."""
    bare = msgspec.structs.replace(KNOWN["h100"], operators=None)
    one, other = (having(f, str(f), str(bare.architecture)) for f in (1.6, 0.9))
    for known, factor in (({"a": one}, 1.6), ({"a": one, "b": other}, 1.2)):
        choice = product_rates(bare, "mixed", known).kernel_choice
        assert [len(row) for row in choice] == [DEPTHS.points] * WAVES.points
        assert [value for row in choice for value in row] == pytest.approx([factor] * 114)
    assert product_rates(bare, "mixed", {"a": having(1.6, "a", "ampere")}).kernel_choice == ()
    assert product_rates(KNOWN["v100"], "mixed", KNOWN).kernel_choice == ()
    own = product_rates(KNOWN["h100"], "mixed", KNOWN).kernel_choice
    assert own == product_rates(KNOWN["h200"], "mixed", KNOWN).kernel_choice != ()
    assert training_rates(KNOWN["h100"], "fp8", KNOWN).kernel_choice == own


def test_factors_off_the_grid_are_named() -> None:
    message = r"off: operators.products.mixed.kernel_choice: needs 19 rows of 6"
    with pytest.raises(InputError, match=message):
        product_rates(having(None, "off", "hopper"), "mixed", {})
    with pytest.raises(InputError, match=r"kernel_choice\[0\]\[0\]: must be at least 0.1"):
        having(0.0, "none", "hopper")


def test_what_cannot_be_known_is_named() -> None:
    with pytest.raises(InputError, match=r"precision 'fp9'.*fp8"):
        product_rates(KNOWN["h100"], "fp9", KNOWN)
    bare = msgspec.structs.replace(KNOWN["h100"], operators=None)
    with pytest.raises(InputError, match="h100: no device has figures of attention"):
        attention_rates(bare, {})


def largest_product_flop_per_s(name: str, sustained: float) -> float:
    """Operations per second of the product that AMD measured, in 16 bits."""
    device = msgspec.structs.replace(KNOWN[name], sustained=sustained)
    m, n, k = 4096.0, 4864.0, 32896.0
    seconds = product_s(m, n, k, product_rates(device, "mixed", KNOWN), 304.0)
    return 2.0 * m * n * k / float(seconds)


@pytest.mark.parametrize(("name", "measured"), [("mi300x", 708e12), ("mi325x", 843e12)])
def test_the_largest_products_of_amd_take_what_it_measured(name: str, measured: float) -> None:
    # AMD, "Measuring max-achievable FLOPs, part 2", February 2025: bfloat16
    reached = largest_product_flop_per_s(name, KNOWN[name].sustained)
    assert reached == pytest.approx(measured, rel=0.1)
    assert largest_product_flop_per_s(name, 1.0) > 1.1 * measured
