"""Mean-value analysis with overlap: exact if a cycle is a sum of stations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel.theory import contention
from perfmodel.theory.contention import EXACT, CycleTime, contended, regularity
from tests.oracles import equal
from tests.queueing import bound, mva
from tests.settings import examples

few = examples(60)


def cycle_of(demands_s: Sequence[Any], think_s: Any) -> CycleTime:
    """A cycle of thinking, then one visit to each station in turn."""

    def cycle(others: Sequence[Any]) -> tuple[Any, list[Any]]:
        held = [(1.0 + found) * demand for found, demand in zip(others, demands_s, strict=True)]
        return think_s + sum(held), held

    return cycle


def throughput(customers: Any, demands_s: Sequence[Any], think_s: Any, **how: Any) -> Any:
    cycle = cycle_of(demands_s, think_s)
    (found,) = contended([customers], demands_s, [cycle], **how)
    return customers / cycle(found)[0]


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[float], float]:
    """Demands of one to four stations, and a think time."""
    demands = draw(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=4))
    return demands, draw(st.sampled_from([0.0, 0.1, 1.0, 10.0, 100.0])) * sum(demands)


# -- one class -------------------------------------------------------------------------------------


@few
@given(network=networks(), customers=st.integers(1, EXACT))
def test_cycles_that_are_sums_are_exact(network: tuple[list[float], float], customers: int) -> None:
    demands, think_s = network
    exact_per_s, residence, _ = mva(customers, demands, think_s)
    equal(throughput(customers, demands, think_s), exact_per_s)
    ((*found,),) = contended([customers], demands, [cycle_of(demands, think_s)])
    for others, demand, seconds in zip(found, demands, residence, strict=True):
        equal((1.0 + others) * demand, float(seconds))


def test_canary_the_oracle_notices_a_wrong_demand() -> None:
    exact_per_s, _, _ = mva(8, [1.0, 0.5], 3.0)
    equal(throughput(8, [1.0, 0.5], 3.0), exact_per_s)
    for wrong in ([1.001, 0.5], [1.0, 0.501]):
        with pytest.raises(AssertionError):
            equal(throughput(8, wrong, 3.0), exact_per_s)


def test_canary_counting_the_customer_itself_is_noticed() -> None:
    """The queue of n customers in place of that of n - 1."""
    exact_per_s, _, _ = mva(8, [1.0, 0.5], 3.0)
    cycle = cycle_of([1.0, 0.5], 3.0)
    (found,) = contended([9], [1.0, 0.5], [cycle])
    with pytest.raises(AssertionError):
        equal(8 / cycle(found)[0], exact_per_s)


def exact_per_s(customers: int, demands_s: Sequence[float], think_s: float) -> float:
    """Throughput by the recursion over queue lengths, which is stable for thousands of
    customers."""
    demands = np.asarray(demands_s)
    queue, rate = np.zeros(len(demands)), 0.0
    for present in range(1, customers + 1):
        residence = demands * (1.0 + queue)
        rate = present / (think_s + float(residence.sum()))
        queue = rate * residence
    return rate


NEAR = [([1.0], 75.0), ([1.0, 0.5, 0.5], 90.0), ([1.0, 1.0], 40.0), ([1.0, 0.1], 200.0)]
"""Networks that saturate where the recursion ends, and slightly later."""


@few
@given(network=st.one_of(networks(), st.sampled_from(NEAR)), customers=st.integers(EXACT + 1, 600))
def test_many_customers_are_within_one_percent(
    network: tuple[list[float], float], customers: int
) -> None:
    demands, think_s = network
    equal(throughput(customers, demands, think_s), exact_per_s(customers, demands, think_s), 0.01)


def fixed_point(customers: int, demands_s: Sequence[float], think_s: float) -> float:
    """Throughput if an arrival finds (n - 1)/n of the customers at a station (Bard, Schweitzer)."""
    demands = np.asarray(demands_s)
    queue, rate = np.full(len(demands), customers / len(demands)), 0.0
    for _ in range(2000):
        residence = demands * (1.0 + queue * (customers - 1) / customers)
        rate = customers / (think_s + float(residence.sum()))
        queue = rate * residence
    return rate


@pytest.mark.parametrize(("demands", "think_s"), NEAR)
def test_canary_an_uncorrected_fixed_point_is_noticed(demands: list[float], think_s: float) -> None:
    """The plain fixed point is further off where a network saturates."""
    knee = round((think_s + sum(demands)) / max(demands))
    exact = exact_per_s(knee, demands, think_s)
    with pytest.raises(AssertionError):
        equal(fixed_point(knee, demands, think_s), exact, 0.01)


@pytest.mark.parametrize(("demands", "think_s"), NEAR)
def test_the_fixed_point_continues_the_recursion(demands: list[float], think_s: float) -> None:
    """One more customer never lowers the throughput by more than the approximation error."""
    rates = [throughput(n, demands, think_s) for n in range(EXACT - 3, EXACT + 8)]
    for before, after in itertools.pairwise(rates):
        assert after >= before * (1.0 - 1e-5)


@pytest.mark.parametrize(
    ("think_s", "least_s"), [(0.0, 87.0), (0.0, 100.0), (80.0, 0.0), (86.0, 0.0)]
)
def test_the_fixed_point_is_found_quickly_close_to_saturation(
    think_s: float, least_s: float
) -> None:
    seen = []

    def cycle(others: Sequence[Any]) -> tuple[Any, list[Any]]:
        seen.append(others)
        held = 1.0 + others[0]
        return max(think_s + held, least_s), [held]

    contended([86], [1.0], [cycle])
    assert len(seen) < 300


SLOW = [
    (201, [2.0, 4.640625, 4.703125], 0.0),
    (232, [1.0, 1.5, 1.5, 1.59375], 55.9375),
    (300, [9.9, 10.0, 10.0], 0.0),
]
"""Stations that are almost equally busy: plain iteration takes thousands of rounds."""


@pytest.mark.parametrize(("customers", "demands", "think_s"), SLOW)
def test_a_fixed_point_that_is_found_slowly(
    customers: int, demands: list[float], think_s: float
) -> None:
    found = throughput(customers, demands, think_s)
    equal(found, exact_per_s(customers, demands, think_s), 0.01)
    assert found <= bound(customers, demands, think_s) * (1.0 + 1e-6)


@pytest.mark.parametrize(("customers", "demands", "think_s"), SLOW)
def test_canary_a_fixed_point_that_has_not_converged_is_noticed(
    customers: int, demands: list[float], think_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    converged = throughput(customers, demands, think_s)
    monkeypatch.setattr("perfmodel.base.roots.MOST_STEPS", 3)
    with pytest.raises(AssertionError):
        equal(throughput(customers, demands, think_s), converged, 1e-6)


def between(
    customers: Sequence[Any], demands: Sequence[float], think_s: Sequence[float], *, bracketed: bool
) -> list[float]:
    """Throughput of classes of which an arrival sees all but a whole customer of its own."""
    cycles = [cycle_of(demands, seconds) for seconds in think_s]
    still = [[0.0] * len(demands) for _ in cycles]
    if bracketed:
        held = contention._lines(cycles, [0.0] * len(demands))
        pace = lambda queued: cycles[0](queued[0])[0]  # noqa: E731
        found = contention._solved(customers, still, still, held=held, pace=pace)
    else:
        shorter = [0.0] * len(demands)
        found = contention._settled(customers, still, still, shorter=shorter, cycles=cycles)
    columns = zip(customers, cycles, found, strict=True)
    return [count / cycle(others)[0] for count, cycle, others in columns]


@pytest.mark.parametrize("think_s", [0.0, 40.0, 170.0, 180.0, 1000.0])
@pytest.mark.parametrize("customers", [*range(EXACT + 1, EXACT + 26, 6), np.arange(65.0, 90.0)])
def test_a_bracketed_fixed_point_is_that_of_iteration(customers: Any, think_s: float) -> None:
    """Both ways to find it agree, with one class, and with two equal classes."""
    demands = [2.87890625, 0.99609375]
    (found,) = between([customers], demands, [think_s], bracketed=True)
    (expected,) = between([customers], demands, [think_s], bracketed=False)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    halves = between([customers / 2.0] * 2, demands, [think_s] * 2, bracketed=False)
    np.testing.assert_allclose(sum(halves), expected, rtol=1e-6)


def test_the_fixed_point_of_classes_is_that_without_extrapolation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Saturated, a round from the wrong side leads away."""
    demands, think_s = [2.87890625, 0.99609375], [0.0, 5.0]
    found = between([40.0, 40.0], demands, think_s, bracketed=False)
    monkeypatch.setattr("perfmodel.theory.contention.EXTRAPOLATED", 100_000)
    monkeypatch.setattr("perfmodel.theory.contention.MOST_ROUNDS", 5000)
    expected = between([40.0, 40.0], demands, think_s, bracketed=False)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("customers", [65, 200, 1001, 100_000])
@pytest.mark.parametrize("per_station", [0.3, 0.999, 1.0, 1.001, 3.0])
def test_many_customers_take_few_evaluations(customers: int, per_station: float) -> None:
    """Below saturation, next to it and beyond it."""
    seen = []
    demands = [1.0, 1.0, 0.5]
    cycle = cycle_of(demands, customers / per_station)

    def counted(others: Sequence[Any]) -> tuple[Any, list[Any]]:
        seen.append(others)
        return cycle(others)

    (found,) = contended([customers], demands, [counted])
    assert len(seen) < EXACT + 100
    assert customers / cycle(found)[0] <= 1.0 + 1e-6


# -- one pace for all ------------------------------------------------------------------------------


def test_one_class_at_its_own_pace_is_one_class() -> None:
    cycle = cycle_of([1.0, 0.5], 20.0)
    for customers in (3, 64, 80):
        plain = contended([customers], [1.0, 0.5], [cycle])
        paced = contended([customers], [1.0, 0.5], [cycle], pace=lambda q: cycle(q[0])[0])
        assert plain == paced


def test_two_customers_at_one_pace_by_hand() -> None:
    """Each cycle takes 10 s, of which 1 s at the station, so each finds the other there for 0.1 of
    the time. The fixed point with half a customer of each class has p = 0.1, and that with one has
    p = (1 + p) / 10 = 1/9. With the difference, q = (1 + q) / 10 + 0.1 - 1/9 = 8/81."""
    cycles = [cycle_of([1.0], 3.0), cycle_of([1.0], 7.0)]
    found = contended([1, 1], [1.0], cycles, pace=lambda _: 10.0)
    assert found == [[pytest.approx(8.0 / 81.0)], [pytest.approx(8.0 / 81.0)]]


def test_canary_classes_with_paces_of_their_own_differ() -> None:
    cycles = [cycle_of([1.0], 3.0), cycle_of([1.0], 7.0)]
    paced = contended([30, 30], [1.0], cycles, pace=lambda q: cycles[1](q[1])[0])
    apart = contended([30, 30], [1.0], cycles)
    assert abs(paced[0][0] / apart[0][0] - 1.0) > 0.01


@few
@given(
    network=networks(),
    counts=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    slower=st.sampled_from([1.0, 1.5, 5.0]),
)
def test_classes_at_one_pace_settle(
    network: tuple[list[float], float], counts: tuple[int, int], slower: float
) -> None:
    """The pace is never above what the busiest station allows, or what the slowest class does."""
    demands, think_s = network
    cycles = [cycle_of(demands, think_s), cycle_of(demands, slower * think_s)]

    def pace(queued: Sequence[Sequence[Any]]) -> Any:
        return max(cycle(others)[0] for cycle, others in zip(cycles, queued, strict=True))

    found = contended(counts, demands, cycles, pace=pace)
    cycle_s, (first, second) = pace(found), found
    assert cycle_s == cycles[1](second)[0]
    assert sum(counts) / cycle_s <= bound(sum(counts), demands, slower * think_s) * (1.0 + 1e-6)
    assert first == pytest.approx(second)  # their times at the stations are the same


@pytest.mark.parametrize("customers", [1000, 100_000])
def test_very_many_customers_saturate_the_busiest_station(customers: int) -> None:
    equal(throughput(customers, [1.0, 0.5], 100.0), 1.0, 1e-3)


@few
@given(network=networks(), customers=st.integers(1, 300))
def test_never_above_the_asymptotic_bound(
    network: tuple[list[float], float], customers: int
) -> None:
    """With random arrivals. With even arrivals, a cycle is no shorter than that of a single
    customer, and is below the bound of the busiest station by less than two services."""
    demands, think_s = network
    rounding = 1.0 + (1e-9 if customers <= EXACT else 1e-6)
    most = bound(customers, demands, think_s) * rounding
    assert throughput(customers, demands, think_s) <= most
    even = throughput(customers, demands, think_s, even=[1.0] * len(demands))
    assert even <= customers / (think_s + sum(demands)) * rounding
    if customers <= EXACT:
        assert customers / even > (customers - 2.0) * max(demands)


def test_even_arrivals_by_hand() -> None:
    """Two customers, 1 s of service and 3 s of thinking: each is served a quarter of the time, and
    half of its service is over when the other arrives."""
    cycle = cycle_of([1.0], 3.0)
    assert contended([2], [1.0], [cycle]) == [[0.25]]
    assert contended([2], [1.0], [cycle], even=[1.0]) == [[0.125]]
    assert contended([2], [1.0], [cycle], even=[0.5]) == [[0.1875]]


def test_a_cycle_with_overlap_by_hand() -> None:
    """A worker that computes for 3 s during a transfer of 1 s does not wait, whatever it finds."""

    def cycle(others: Sequence[Any]) -> tuple[Any, list[Any]]:
        held = 1.0 + others[0]
        return max(3.0, held), [held]

    assert contended([1], [1.0], [cycle]) == [[0.0]]
    ((found,),) = contended([2], [1.0], [cycle])
    equal(found, 1.0 / 3.0)
    ((found,),) = contended([3], [1.0], [cycle])
    equal(found, 2.0 / 3.0 * (1.0 + 1.0 / 3.0))


def test_a_single_customer_finds_an_empty_station() -> None:
    assert contended([1], [2.0, 3.0], [cycle_of([2.0, 3.0], 1.0)]) == [[0.0, 0.0]]


# -- several classes -------------------------------------------------------------------------------


def exact_of_two(
    customers: tuple[int, int], demands_s: Sequence[float], think_s: tuple[float, float]
) -> float:
    """Throughput of both classes: an arrival finds the network without itself."""
    demands = np.asarray(demands_s)
    rate = 0.0
    queue = {(0, 0): np.zeros(len(demands))}
    for here in itertools.product(*(range(n + 1) for n in customers)):
        rate, queue[here] = 0.0, np.zeros(len(demands))
        for kind, count in enumerate(here):
            if count:
                fewer = (here[0] - (kind == 0), here[1] - (kind == 1))
                residence = demands * (1.0 + queue[fewer])
                cycles_per_s = count / (think_s[kind] + float(residence.sum()))
                rate += cycles_per_s
                queue[here] += cycles_per_s * residence
    return rate


@examples(40)
@given(
    network=networks(),
    customers=st.tuples(st.integers(1, 15), st.integers(1, 15)),
    slower=st.sampled_from([1.0, 1.5, 5.0]),
)
def test_two_classes_are_close_to_the_exact_analysis(
    network: tuple[list[float], float], customers: tuple[int, int], slower: float
) -> None:
    """Within 3 %, and within 1 % if they are equal, which is the analysis of one class."""
    demands, think_s = network
    times = think_s, slower * think_s
    cycles = [cycle_of(demands, seconds) for seconds in times]
    found = contended(customers, demands, cycles)
    cycles_s = [cycle(others)[0] for cycle, others in zip(cycles, found, strict=True)]
    rate = sum(count / seconds for count, seconds in zip(customers, cycles_s, strict=True))
    exact = exact_of_two(customers, demands, times)
    equal(rate, exact, 0.01 if slower == 1.0 else 0.03)
    if slower == 1.0:
        equal(exact, mva(sum(customers), demands, think_s)[0])


def test_canary_two_classes_taken_for_one_are_noticed() -> None:
    """The mean think time for both."""
    exact = exact_of_two((4, 4), [1.0], (2.0, 30.0))
    with pytest.raises(AssertionError):
        equal(throughput(8, [1.0], 16.0), exact, 0.03)


def test_one_of_each_class() -> None:
    """Two customers at one station: each finds the other for the fraction of time that the other
    is there by itself: 1 s of 8 s, and 1 s of 4 s."""
    cycles = [cycle_of([1.0], 3.0), cycle_of([1.0], 7.0)]
    (first,), (second,) = contended([1, 1], [1.0], cycles)
    assert first == pytest.approx(0.125, abs=0.02)
    assert second == pytest.approx(0.25, abs=0.02)


def test_arrays_of_several_classes() -> None:
    """Think times are arrays."""
    think_s = np.array([1.0, 5.0, 20.0])
    cycles = [cycle_of([1.0, 0.5], think_s), cycle_of([1.0, 0.5], 2.0 * think_s)]
    found = contended([2, 3], [1.0, 0.5], cycles)
    for k, seconds in enumerate(think_s.tolist()):
        alone = [cycle_of([1.0, 0.5], seconds), cycle_of([1.0, 0.5], 2.0 * seconds)]
        single = contended([2, 3], [1.0, 0.5], alone)
        for row, expected in zip(found, single, strict=True):
            assert [others[k] for others in row] == pytest.approx(expected, rel=1e-6)


# -- arrays and symbols ----------------------------------------------------------------------------


@examples(10)
@given(network=networks(), seed=st.integers(0, 2**32))
def test_arrays_equal_scalars(network: tuple[list[float], float], seed: int) -> None:
    """Arrays of customers, demands and think times; for many customers up to the fixed point's
    tolerance."""
    demands, think_s = network
    rng = np.random.default_rng(seed)
    for most, rounding in ((EXACT, 1e-12), (200, 1e-7)):
        customers = rng.integers(1, most + 1, 6)
        each = [demand * rng.uniform(0.5, 2.0, 6) for demand in demands]
        thinking = think_s * rng.uniform(0.5, 2.0, 6)
        rates = throughput(customers, each, thinking, even=[0.5] * len(demands))
        for k in range(6):
            alone = throughput(
                int(customers[k]),
                [float(demand[k]) for demand in each],
                float(thinking[k]),
                even=[0.5] * len(demands),
            )
            equal(float(rates[k]), alone, rounding)


def test_symbols_have_the_names_of_the_stations() -> None:
    import sympy

    n = sympy.Symbol("N", positive=True, integer=True)
    cycle = cycle_of([1.0, 2.0], 3.0)
    ((ask, answer),) = contended([n], [1.0, 2.0], [cycle], stations=("ask", "answer"))
    assert (str(ask), str(answer)) == ("Q_ask", "Q_answer")
    assert ask.is_positive


# -- regularity of arrivals ------------------------------------------------------------------------


def test_regularity_lies_between_random_and_even() -> None:
    assert regularity(0.0, 1.0) == 0.0
    assert regularity(1.0, 1.0) == regularity(5.0, 1.0) == 1.0
    assert regularity(1.0, 0.0) == 0.0
    parts = regularity(np.linspace(0.0, 1.5, 50), np.full(50, 1.0))
    assert (np.diff(parts) >= 0.0).all()
    assert parts[25] == pytest.approx(regularity(float(np.linspace(0.0, 1.5, 50)[25]), 1.0))


def test_classes_that_overlap_fill_a_server_by_hand() -> None:
    """1,024 customers compute for 1 or 2 s while a server of 10 ms, which arrivals find with half
    of a service left, is busy. It is always, so a cycle takes 10.24 s. The link of 1 ms is busy for
    U = 0.1, so U / (1 - U) customers are there, and all others at the server but one half."""
    demands = [0.001, 0.01]

    def cycle_of(compute_s: float) -> CycleTime:
        def cycle(others: Sequence[Any]) -> tuple[Any, list[Any]]:
            link, server = ((1.0 + found) * one for found, one in zip(others, demands, strict=True))
            return np.maximum(compute_s + link, link + server), [link, server]

        return cycle

    for found in contended([1023, 1], demands, [cycle_of(1.0), cycle_of(2.0)], even=[0.0, 1.0]):
        assert found == pytest.approx([0.1 / 0.9, 1022.5 - 0.1 / 0.9], rel=1e-3)


def test_classes_settle_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of full and of partly filled nodes: an extrapolation of each value alone takes 2000
    rounds for these bandwidths."""
    from perfmodel import evaluate, make_job

    rounds = []
    original = contention._off
    monkeypatch.setattr(contention, "_off", lambda *tables: rounds.append(1) or original(*tables))
    job = make_job(model="resnet50", device="v100", arch="asp", workers=8)
    evaluate(job, workers=60, bandwidth_bytes_per_s=np.geomspace(1e8, 1e10, 200))
    assert 0 < len(rounds) < 400


@pytest.mark.parametrize(
    ("fifo_s", "shared_s", "expected"),
    [(0.5, 2.0, 0.578125), (3.0, 2.0, 1.0), (0.0, 2.0, 0.0), (0.5, 0.0, 0.0)],
)
def test_regularity_depends_on_the_ratio_of_services(
    fifo_s: float, shared_s: float, expected: float
) -> None:
    """By hand: 1 - (3/4)^3 where a server takes a quarter of a transfer."""
    assert contention.regularity(fifo_s, shared_s) == pytest.approx(expected)
