"""Steady state of a simulation: periods, warm-ups, and confidence intervals."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from perfmodel.engine import library, simulation as engine, warmup
from perfmodel.engine.simulation import makespan, simulate
from perfmodel.engine.steady import AT_EACH_LOOK, BatchMeans, ci_fraction, warmup_rounds
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph

needs_library = pytest.mark.skipif(
    bool(library.compiled()[1]), reason=f"there is no compiled code: {library.compiled()[1]}"
)

# -- periods -----------------------------------------------------------------------------------


def now_and_then(*every: int) -> OpGraph:
    """A loop of 1 s with an extra op of 2 s every n-th iteration, for each given n."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    loop = b.ops("loop", (1,), seconds=1.0, slot=device[0])
    before = loop
    for count in every:
        extra = b.ops("extra", (1,), seconds=2.0, slot=device[0])
        b.active(extra, every=count, phase=count - 1)
        b.edge(before, extra)
        before = extra
    b.edge(before, loop, lag=1)
    return b.build(device=device, mark=before)


@pytest.mark.parametrize(
    ("every", "rounds", "seconds"),
    [((1,), 1, 3.0), ((3,), 3, 5.0), ((2, 3), 6, 16.0), ((4, 5), 20, 38.0)],
)
def test_a_period_may_span_several_rounds(
    every: tuple[int, ...], rounds: int, seconds: float
) -> None:
    graph = now_and_then(*every)
    found = simulate(graph, compiled=False)
    assert found.periodic
    assert found.ci_fraction == 0.0
    assert found.rounds == rounds
    assert found.elapsed_s == pytest.approx(seconds, rel=1e-12)
    assert found.iterations_per_s == pytest.approx([rounds / seconds], rel=1e-12)
    assert found.busy_fraction == pytest.approx([1.0], rel=1e-12)
    assert makespan(graph, iterations=10 * rounds, compiled=False) == 10 * seconds


def coupled(first_s: float, second_s: float) -> OpGraph:
    """Two workers that take turns at a server and share the link to it."""
    b = GraphBuilder()
    devices, server = b.slots("device", (2,)), b.slots("server", (1,))
    link = b.links("link", [1.0])
    compute = b.ops("compute", (2,), seconds=[first_s, second_s], slot=devices)
    push = b.ops("push", (2,), bytes=[0.3, 0.45], path=link)
    update = b.ops("update", (2,), seconds=0.25, slot=server[0])
    b.edge(compute, push)
    b.edge(push, update)
    b.edge(update, compute, lag=1)
    # neither may be more than three iterations ahead of the other
    b.edge(update, compute[::-1], lag=4)
    return b.build(device=devices, mark=update)


@pytest.mark.parametrize(("first_s", "second_s"), [(1.0, 1.0), (1.1, 1.7), (0.5, 2.0)])
def test_coupled_cycles_settle_at_the_pace_of_a_long_run(first_s: float, second_s: float) -> None:
    graph = coupled(first_s, second_s)
    found = simulate(graph, compiled=False)
    assert found.periodic
    n = 60 * found.rounds
    stretch = [makespan(graph, iterations=k, compiled=False) for k in (n, 2 * n)]
    assert n / (stretch[1] - stretch[0]) == pytest.approx(found.iterations_per_s[0], rel=1e-9)
    assert found.iterations_per_s[0] == pytest.approx(found.iterations_per_s[1], rel=1e-12)


def test_cycles_that_never_meet_again_are_averaged_over() -> None:
    """Periods of 1 s and of the golden ratio have no common multiple."""
    b = GraphBuilder()
    golden = (1 + 5**0.5) / 2
    devices = b.slots("device", (2,))
    ops = b.ops("op", (2,), seconds=[1.0, golden], slot=devices)
    found = simulate(b.build(device=devices, mark=ops), compiled=False)
    assert not found.periodic
    assert found.iterations_per_s == pytest.approx([1.0, 1 / golden], rel=1e-9)


def test_a_period_is_found_after_a_transient() -> None:
    """Four tokens circulate at first; eventually the slowest op sets the pace."""
    b = GraphBuilder()
    devices = b.slots("device", (2,))
    ops = b.ops("op", (2,), seconds=[2.5, 3.0], slot=devices)
    b.chain(ops)
    b.edge(ops[1], ops[0], lag=7)
    found = simulate(b.build(device=devices, mark=ops), compiled=False)
    assert found.periodic
    assert found.iterations_per_s == pytest.approx([1 / 3, 1 / 3], rel=1e-12)


# -- warm-ups ----------------------------------------------------------------------------------


def test_a_constant_series_has_no_warm_up() -> None:
    assert warmup_rounds([2.0] * 32) == 0


def test_a_transient_is_dropped() -> None:
    rng = np.random.default_rng(1)
    steady = rng.normal(1.0, 0.01, 64)
    for length, dropped in ((1, 1), (4, 4), (7, 8), (16, 16)):
        series = steady.copy()
        series[:length] += 1.0
        assert warmup_rounds(series.tolist()) == dropped


def test_a_decaying_transient_is_dropped() -> None:
    rng = np.random.default_rng(2)
    series = 1.0 + np.exp(-np.arange(128) / 4.0) + rng.normal(0.0, 0.02, 128)
    assert 8 <= warmup_rounds(series.tolist()) <= 32


def test_a_stationary_series_loses_little() -> None:
    """Of 200 series of pure noise, less than an eighth is dropped on average."""
    rng = np.random.default_rng(3)
    dropped = [warmup_rounds(rng.normal(1.0, 0.1, 64).tolist()) for _ in range(200)]
    assert np.median(dropped) <= 1
    assert np.mean(dropped) < 8
    assert max(dropped) <= 32


def test_a_drifting_series_drops_half_and_needs_more_rounds() -> None:
    assert warmup_rounds(np.linspace(1.0, 2.0, 64).tolist()) == 32


# -- confidence intervals ----------------------------------------------------------------------


def filled(rates: NDArray[np.float64]) -> BatchMeans:
    """A series of rounds of 1 s each."""
    series = BatchMeans()
    for rate in rates.tolist():
        series.add(rate, 1.0)
    return series


def independent(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return 10.0 + rng.standard_normal(n)


def autoregressive(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """A stationary AR(1) series with coefficient 0.8."""
    from scipy.signal import lfilter

    values = lfilter([0.6], [1.0, -0.8], rng.standard_normal(n + 100))
    return 10.0 + np.asarray(values[100:], np.float64)


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "n"), [(independent, 1024), (autoregressive, 8192)])
def test_the_interval_has_its_stated_coverage(
    draw: Callable[[np.random.Generator, int], NDArray[np.float64]], n: int
) -> None:
    """Of 200 intervals about 95 % cover: within 4 standard errors, sqrt(0.95 * 0.05 / 200).

    Infinite intervals, due to apparently correlated batches, are rare and do not count.
    """
    rng = np.random.default_rng(4)
    covered = []
    for _ in range(200):
        rates = draw(rng, n)
        half, mean = filled(rates).ci_fraction(), rates.mean()
        if np.isfinite(half):
            covered.append(abs(mean - 10.0) <= half * mean)
    assert len(covered) >= 180
    assert abs(np.mean(covered) - 0.95) <= 4 * np.sqrt(0.95 * 0.05 / len(covered))


def test_correlated_batches_are_not_trusted() -> None:
    rng = np.random.default_rng(5)
    drifting = 10.0 + np.cumsum(rng.standard_normal(2048)) / 50.0
    assert filled(drifting).ci_fraction() == np.inf


def test_too_few_batches_are_not_trusted() -> None:
    rng = np.random.default_rng(6)
    assert filled(independent(rng, 15)).ci_fraction() == np.inf
    assert filled(independent(rng, 16)).ci_fraction() < 0.1


def interval_of_batches(rounds: NDArray[np.float64], batch_rounds: int) -> float:
    """Relative half-width from the rates of equally long batches, (rounds, 2)."""
    batches = rounds.reshape(-1, batch_rounds, 2).sum(axis=1)
    return ci_fraction((batches[:, 0] / batches[:, 1]).tolist(), AT_EACH_LOOK)


def test_merging_keeps_all_rounds_and_bounds_the_number_of_batches() -> None:
    rng = np.random.default_rng(7)
    rounds = rng.integers((1, 1), (100, 10), (1 << 14, 2)).astype(float)
    series = BatchMeans()
    looks = trusted = 0
    for done, (iterations, seconds) in enumerate(rounds.tolist(), 1):
        series.add(iterations, seconds)
        assert done < 64 * series.batch_rounds
        if done >= 16 and done % series.batch_rounds == 0:  # no batch is incomplete
            found = series.ci_fraction()
            looks += 1
            if np.isfinite(found):  # batches do not seem correlated
                trusted += 1
                expected = interval_of_batches(rounds[:done], series.batch_rounds)
                assert found == pytest.approx(expected, rel=1e-12)
    assert trusted > 0.8 * looks > 200
    assert series.batch_rounds == 512


def test_an_interval_needs_two_values_and_shrinks_with_more() -> None:
    assert ci_fraction([1.0]) == np.inf
    # half-width of Student's interval: 12.706 * 0.7071 / sqrt(2) for a mean of 1.5
    assert ci_fraction([1.0, 2.0]) == pytest.approx(12.7062 * 0.5 / 1.5, rel=1e-5)
    assert ci_fraction([1.0, 2.0] * 8) < ci_fraction([1.0, 2.0] * 4)


# -- long runs ---------------------------------------------------------------------------------


def noisy(cv: float = 0.5) -> OpGraph:
    """One op in a loop, 1 s on average."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    op = b.ops("op", (1,), seconds=1.0, slot=device[0], noise=b.streams((1,), cv=cv))
    return b.build(device=device, mark=op)


@pytest.mark.parametrize("rel_ci", [0.05, 0.02])
def test_a_random_run_continues_until_its_interval_is_narrow(rel_ci: float) -> None:
    found = simulate(noisy(), rel_ci=rel_ci, compiled=False)
    assert 0.0 < found.ci_fraction <= rel_ci
    assert found.iterations_per_s[0] == pytest.approx(1.0, rel=2 * rel_ci)
    # about (1.96 * 0.5 / rel_ci) ** 2 rounds are needed
    assert 0.3 < found.rounds / (1.96 * 0.5 / rel_ci) ** 2 < 3.0


@pytest.mark.family("many draws")
@pytest.mark.slow
def test_most_intervals_of_short_runs_cover_the_truth() -> None:
    """Runs that stop once the interval is narrow are slightly overconfident."""
    graph = noisy(0.3)
    covered = []
    for seed in range(200):
        found = simulate(graph, seed=seed, rel_ci=0.05, compiled=False)
        rate = float(found.iterations_per_s[0])
        covered.append(abs(rate - 1.0) <= found.ci_fraction * rate)
    assert np.mean(covered) > 0.9 - 4 * np.sqrt(0.9 * 0.1 / 200)


@pytest.mark.parametrize("pilot_rounds", [32, 256])
def test_all_batches_are_of_the_same_length(
    monkeypatch: pytest.MonkeyPatch, pilot_rounds: int
) -> None:
    """Even after a warm-up of more rounds than a series has batches."""
    added: list[tuple[float, float]] = []
    made: list[BatchMeans] = []

    class Watched(BatchMeans):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def add(self, iterations: float, seconds: float) -> None:
            super().add(iterations, seconds)
            added.append((iterations, seconds))

    monkeypatch.setattr(engine, "BatchMeans", Watched)
    monkeypatch.setattr(warmup, "PILOT_ROUNDS", pilot_rounds)
    found = simulate(noisy(), rel_ci=0.03, compiled=False)
    (series,) = made
    assert series.batch_rounds >= 8
    batched = len(added) // series.batch_rounds * series.batch_rounds
    assert found.rounds - series.batch_rounds < batched <= found.rounds
    expected = interval_of_batches(np.array(added[:batched]), series.batch_rounds)
    assert series.ci_fraction() == pytest.approx(expected, rel=1e-9)
    assert found.ci_fraction == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_iterations() -> None:
    graph = noisy(1.0)

    def peak(rel_ci: float) -> tuple[int, int]:
        tracemalloc.start()
        rounds = simulate(graph, rel_ci=rel_ci, compiled=False).rounds
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return rounds, most

    peak(0.2)
    short, long = peak(0.2), peak(0.025)
    assert long[0] > 20 * short[0]
    assert long[1] < 1.2 * short[1]


@pytest.mark.slow
def test_a_long_run_reports_progress() -> None:
    calls: list[tuple[int, int]] = []
    found = simulate(
        noisy(), rel_ci=0.02, progress=lambda *call: calls.append(call), compiled=False
    )
    done = [call[0] for call in calls]
    assert len(calls) > 50
    assert done == sorted(done)
    assert all(0 <= now <= expected for now, expected in calls)
    assert done[-1] <= found.rounds + 32
    # the forecast is about right towards the end
    assert calls[-1][1] == pytest.approx(found.rounds, rel=0.3)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_library)])
@pytest.mark.parametrize("graph", [noisy(), now_and_then(4, 5)], ids=["random", "periodic"])
def test_an_interrupted_graph_can_be_simulated_again(graph: OpGraph, compiled: bool) -> None:
    def interrupt(done: int, expected: int) -> None:
        if done >= 7:
            raise KeyboardInterrupt

    before = simulate(graph, rel_ci=0.05, compiled=compiled)
    with pytest.raises(KeyboardInterrupt):
        simulate(graph, rel_ci=0.05, progress=interrupt, compiled=compiled)
    after = simulate(graph, rel_ci=0.05, compiled=compiled)
    assert after.rounds == before.rounds
    assert after.elapsed_s == before.elapsed_s
    assert after.iterations_per_s.tolist() == before.iterations_per_s.tolist()


def test_rates_that_differ_by_rounding_have_no_warm_up() -> None:
    """Exactly the transient is dropped, whatever the last bits are."""
    rounding = np.random.default_rng(0).uniform(-1e-14, 1e-14, 24)
    assert warmup_rounds((3.0 + rounding).tolist(), 8) == 8
    settling = np.concatenate([np.full(16, 2.0), np.full(32, 3.0)])
    assert warmup_rounds(settling.tolist(), 8) == 16
