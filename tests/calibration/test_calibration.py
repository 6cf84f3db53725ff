"""An asynchronous server calibrated on runs whose truth is known: a formula's or a simulation's."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, Source
from perfmodel.calibration import (
    PUBLISHED,
    Published,
    Run,
    Series,
    ServerFit,
    fit_asynchronous_server,
    read_fit,
)
from perfmodel.calibration.servers.asynchronous_model import HALF_UNEVEN

TENSOR_S, BYTE_S, SHARPNESS = 0.1e-3, 1.5e-9, 5.0
NOISE = 0.03
SEEDS = range(12)
MODELS = {
    "a": (50, 2.8e6),
    "b": (104, 7.4e6),
    "c": (216, 11.7e6),
    "d": (216, 105e6),
    "e": (20, 6e7),
}
"""Tensors and bytes, in different proportions."""

Demand = Callable[[int, float], float]


def demand(tensors: int, size_bytes: float) -> float:
    return TENSOR_S * tensors + BYTE_S * size_bytes


def rate(workers: int, step_s: float, demand_s: float, sharpness: float = SHARPNESS) -> float:
    """Steps per second between the bounds workers / step_s and 1 / demand_s."""
    slowest = max(step_s / workers, demand_s)
    smallest = min(step_s / workers, demand_s)
    return (1.0 + (smallest / slowest) ** sharpness) ** (-1.0 / sharpness) / slowest


def measured(
    name: str,
    most: int,
    seed: int | None = 0,
    *,
    model: str = "b",
    steps: float = 4.5,
    truth: Demand = demand,
) -> Series:
    """Runs of 1 to ``most`` workers whose step alone is ``steps`` times the server's part."""
    tensors, size_bytes = MODELS[model]
    took = truth(tensors, size_bytes)
    random = np.random.default_rng(seed)
    noise = np.exp(NOISE * random.standard_normal(most)) if seed is not None else np.ones(most)
    runs = tuple(
        Run(n, rate(n, steps * took, took) * float(off))
        for n, off in zip(range(1, most + 1), noise, strict=True)
    )
    return Series(name=name, model=model, tensors=tensors, parameter_bytes=size_bytes, runs=runs)


def fast_and_slow(most: int, seed: int, truth: Demand = demand) -> list[Series]:
    """Each model on a device that meets the knee at 4.5 workers, and on one that does at 12."""
    return [
        measured(f"{model} {steps}", most, 100 * seed + i, model=model, steps=steps, truth=truth)
        for i, (model, steps) in enumerate((m, s) for m in MODELS for s in (4.5, 12.0))
    ]


# -- what is known is found ------------------------------------------------------------------------


def parameters_are_found(truth: Demand) -> None:
    """At least 80 % of 84 intervals of 90 % hold the true value."""
    held = []
    for seed in SEEDS:
        fit = fit_asynchronous_server(fast_and_slow(8, seed, truth))
        expected = [
            (fit.update_per_tensor_s, TENSOR_S),
            (fit.update_per_byte_s, BYTE_S),
            *((fit.demand_s[model], demand(*MODELS[model])) for model in MODELS),
        ]
        held += [found.low <= true <= found.high for found, true in expected]
    assert np.mean(held) >= 0.8, np.mean(held)


def test_parameters_are_within_their_intervals() -> None:
    parameters_are_found(demand)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda tensors, size_bytes: TENSOR_S * (size_bytes / 1e5) + BYTE_S * (tensors * 1e5),
        lambda tensors, size_bytes: TENSOR_S * tensors + BYTE_S * 1e3 * math.sqrt(size_bytes),
        lambda tensors, size_bytes: 1.3 * demand(tensors, size_bytes),
    ],
    ids=["tensors and bytes swapped", "root of the bytes", "30 % more"],
)
def test_canary_another_server_is_noticed(wrong: Demand) -> None:
    with pytest.raises(AssertionError):
        parameters_are_found(wrong)


def test_exact_runs_are_met() -> None:
    runs = [measured("fast", 8, None), measured("slow", 8, None, steps=12.0)]
    fit = fit_asynchronous_server(runs)
    assert fit.residuals.worst < 0.02
    assert fit.sharpness.low < SHARPNESS < fit.sharpness.high
    took = demand(*MODELS["b"])
    assert fit.demand_s["b"].value == pytest.approx(took, rel=0.02)
    assert fit.step_s["fast"].value == pytest.approx(4.5 * took, rel=0.02)
    assert fit.compute_s["slow"].value == pytest.approx(11.0 * took, rel=0.02)


def predictions_hold(most: int, narrower: float = 1.0) -> None:
    """Of the intervals of 90 % for more workers than calibrated on, 82 to 99 % hold a new run."""
    held = []
    for seed in SEEDS:
        fit = fit_asynchronous_server(fast_and_slow(most, seed))
        random = np.random.default_rng(seed)
        for one in fit.series:
            took = demand(one.tensors, one.parameter_bytes)
            steps = float(one.name.split()[1])
            for workers in (6, 8, 12):
                found = fit.predict(one.name, workers)
                run = rate(workers, steps * took, took) * math.exp(NOISE * random.standard_normal())
                low, high = (
                    found.steps_per_s + narrower * (end - found.steps_per_s)
                    for end in (found.low_steps_per_s, found.high_steps_per_s)
                )
                held.append(low <= run <= high)
    assert 0.82 <= np.mean(held) <= 0.99, np.mean(held)


@pytest.mark.parametrize("most", [3, 5])
def test_predictions_are_within_their_intervals(most: int) -> None:
    predictions_hold(most)
    with pytest.raises(AssertionError):
        predictions_hold(most, narrower=0.4)


def simulated(
    workers: int, compute_s: float, demand_s: float, cv: float, random: np.random.Generator
) -> float:
    """Steps per second of workers that compute and then queue for one server, times of gamma."""

    def draw(mean: float) -> float:
        return float(random.gamma(cv**-2, mean * cv**2))

    ready = [(float(random.random()) * (compute_s + demand_s), i) for i in range(workers)]
    heapq.heapify(ready)
    free = started = 0.0
    warmup, steps = 500, 3000
    for step in range(steps):
        time, worker = heapq.heappop(ready)
        free = max(time, free) + draw(demand_s)
        heapq.heappush(ready, (free + draw(compute_s), worker))
        if step == warmup:
            started = free
    return (steps - 1 - warmup) / (free - started)


def test_a_simulated_queue_is_extrapolated() -> None:
    random = np.random.default_rng(0)
    errors, held = [], []
    for model, (tensors, size_bytes) in MODELS.items():
        took = demand(tensors, size_bytes)
        rates = {n: simulated(n, 3.5 * took, took, 0.2, random) for n in (1, 2, 3, 4, 6, 8)}
        series = Series(
            name=model,
            model=model,
            tensors=tensors,
            parameter_bytes=size_bytes,
            runs=tuple(Run(n, rates[n]) for n in (1, 2, 3, 4)),
        )
        fit = fit_asynchronous_server([series])
        for workers in (6, 8):
            found = fit.predict(model, workers)
            held.append(found.low_steps_per_s < rates[workers] < found.high_steps_per_s)
            errors.append(abs(found.steps_per_s / rates[workers] - 1.0))
    assert all(held)
    assert np.median(errors) < 0.06


# -- what is not known is said ---------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_without_a_plateau_the_interval_is_wide(factor: float) -> None:
    """Few slow workers: as much as the published figures leave open, up to linear scaling."""

    def truth(tensors: int, size_bytes: float) -> float:
        tensor, byte = (figure.demand_s for figure in PUBLISHED)
        return factor * (tensor * tensors + byte * size_bytes)

    took = truth(*MODELS["b"])
    step_s = 12.0 * took / factor
    series = measured("slow", 3, None, steps=12.0 / factor, truth=truth)
    fit = fit_asynchronous_server([series])
    found = fit.predict("slow", 24)
    assert found.low_steps_per_s < rate(24, step_s, took) < found.high_steps_per_s
    assert found.high_steps_per_s > 2.5 * found.low_steps_per_s
    assert found.high_steps_per_s < 24 / step_s * 1.1
    assert "no plateau of b was seen by 3 workers" in found.note


def test_with_a_plateau_it_is_narrow() -> None:
    fit = fit_asynchronous_server([measured("fast", 8)])
    found = fit.predict("fast", 24)
    assert found.high_steps_per_s < 1.3 * found.low_steps_per_s
    assert found.note == "24 workers, calibrated on up to 8"


def test_a_plateau_is_seen_by_workers_on_another_device() -> None:
    """The server is the same: the slow device's interval is narrow although it is far from it."""
    alone = fit_asynchronous_server([measured("slow", 4, steps=12.0)]).predict("slow", 24)
    both = fit_asynchronous_server([measured("slow", 4, steps=12.0), measured("fast", 8)])
    found = both.predict("slow", 24)
    ratio = found.high_steps_per_s / found.low_steps_per_s
    assert ratio < 0.5 * (alone.high_steps_per_s / alone.low_steps_per_s)
    assert "plateau" not in found.note


def test_what_was_measured_has_no_note() -> None:
    fit = fit_asynchronous_server([measured("fast", 4)])
    assert fit.predict("fast", 4).note == ""
    assert "calibrated on up to 4" in fit.predict("fast", 5).note
    assert "no run with 2 servers" in fit.predict("fast", 4, 2).note


def test_one_worker_alone_never_shows_a_plateau() -> None:
    """However much slower one run is than the other."""
    one = measured("slow", 1, None, steps=12.0)
    slower = Run(1, 0.8 * one.runs[0].steps_per_s)
    fit = fit_asynchronous_server([msgspec.structs.replace(one, runs=(slower, *one.runs))])
    assert "no plateau of b was seen by 1 worker:" in fit.predict("slow", 2).note


def test_a_bad_run_hardly_matters() -> None:
    good = measured("fast", 8)
    first, *rest = good.runs
    bad = msgspec.structs.replace(
        good, runs=(msgspec.structs.replace(first, steps_per_s=0.8 * first.steps_per_s), *rest)
    )
    moved = fit_asynchronous_server([bad]).predict("fast", 12).steps_per_s
    assert moved == pytest.approx(
        fit_asynchronous_server([good]).predict("fast", 12).steps_per_s, rel=0.03
    )


def test_a_rough_run_counts_less() -> None:
    def moved(spread_fraction: float) -> float:
        one = measured("fast", 2)
        rough = Run(1, 1.1 * one.runs[0].steps_per_s, spread_fraction=spread_fraction)
        fit = fit_asynchronous_server([msgspec.structs.replace(one, runs=(*one.runs, rough))])
        return fit.step_s["fast"].value

    without = fit_asynchronous_server([measured("fast", 2)]).step_s["fast"].value
    assert moved(0.0) < moved(0.1) < without


# -- servers, devices, models ----------------------------------------------------------------------


def test_two_servers_less_than_double_the_plateau_where_no_run_tells() -> None:
    """One of them may have more of the bytes than its share."""
    fit = fit_asynchronous_server([measured("fast", 8)])
    plateau = 1.0 / fit.demand_s["b"].value
    assert fit.predict("fast", 500, 1).steps_per_s == pytest.approx(plateau, rel=1e-3)
    found = fit.predict("fast", 500, 2)
    assert plateau * 2.0 / (1.0 + HALF_UNEVEN) < found.steps_per_s < 2.0 * plateau
    assert found.high_steps_per_s > 1.9 * plateau
    assert found.low_steps_per_s < 1.6 * plateau


def test_runs_with_two_servers_tell_what_is_exposed() -> None:
    """A step of one worker that is not shortened by a second server hides the server's work."""
    hidden = measured("fast", 8, None)
    took = demand(*MODELS["b"])

    def exposed(fraction: float) -> float:
        step_s = (4.5 - fraction / 2.0) * took
        runs = tuple(Run(n, rate(n, step_s, took / 2.0), servers=2) for n in range(1, 9))
        fit = fit_asynchronous_server(
            [msgspec.structs.replace(hidden, runs=(*hidden.runs, *runs))], run_spread=0.005
        )
        return fit.predict("fast", 1, 3).steps_per_s * 4.5 * took

    assert exposed(0.0) == pytest.approx(1.0, abs=0.02)
    assert exposed(1.0) == pytest.approx(4.5 / (4.5 - 2.0 / 3.0), abs=0.02)


def test_the_link_is_a_bound() -> None:
    link_bytes_per_s = 0.2e9
    fit = fit_asynchronous_server([measured("fast", 2)], link_bytes_per_s=link_bytes_per_s)
    most = link_bytes_per_s / MODELS["b"][1]
    assert 1.0 / fit.demand_s["b"].value > most
    assert fit.predict("fast", 500).steps_per_s == pytest.approx(most, rel=1e-3)
    two = 2.0 * most / (1.0 + HALF_UNEVEN)
    assert fit.predict("fast", 500, 2).steps_per_s == pytest.approx(two, rel=1e-3)


def test_mixed_devices() -> None:
    fit = fit_asynchronous_server([measured("fast", 8), measured("slow", 8, steps=12.0)])
    alike = fit.predict_mixed({"fast": 3})
    assert alike == fit.predict("fast", 3)
    few = fit.predict_mixed({"fast": 1, "slow": 1}).steps_per_s
    alone = fit.predict("fast", 1).steps_per_s + fit.predict("slow", 1).steps_per_s
    assert few == pytest.approx(alone, rel=0.01)
    many = fit.predict_mixed({"fast": 300, "slow": 200}).steps_per_s
    assert many == pytest.approx(1.0 / fit.demand_s["b"].value, rel=1e-3)


def test_a_new_model_is_predicted_from_one_worker() -> None:
    fit = fit_asynchronous_server([one for one in fast_and_slow(8, 0) if one.model != "d"])
    truth = demand(*MODELS["d"])
    more = fit.with_series(measured("new", 8, None, model="d"))
    assert more.series[-1].runs == ((1, 1),)
    old, same = fit.predict("a 4.5", 20), more.predict("a 4.5", 20)
    assert same.steps_per_s == old.steps_per_s
    assert same.high_steps_per_s == pytest.approx(old.high_steps_per_s, rel=1e-9)
    found = more.predict("new", 20)
    assert found.low_steps_per_s < 1.0 / truth < found.high_steps_per_s
    assert found.steps_per_s == pytest.approx(1.0 / truth, rel=0.25)
    assert "calibrated on up to 1; no plateau of d was seen by 1 worker" in found.note


def test_a_new_device_has_the_deviation_of_its_model() -> None:
    fit = fit_asynchronous_server([measured("fast", 8)])
    more = fit.with_series(measured("slow", 1, None, steps=12.0))
    assert len(more.estimates) == len(fit.estimates) + 1
    assert "plateau" not in more.predict("slow", 24).note


# -- laws ------------------------------------------------------------------------------------------


def test_all_times_twice_as_long_are_rates_half_as_high() -> None:
    def slower(factor: float) -> ServerFit:
        runs = [
            msgspec.structs.replace(
                one, runs=tuple(Run(r.workers, r.steps_per_s / factor) for r in one.runs)
            )
            for one in fast_and_slow(4, 1)
        ]
        figures = [msgspec.structs.replace(p, demand_s=p.demand_s * factor) for p in PUBLISHED]
        return fit_asynchronous_server(runs, published=figures, link_bytes_per_s=1e9 / factor)

    once, twice = slower(1.0), slower(2.0)
    for name in ("a 4.5", "d 12.0"):
        for workers in (1, 4, 9):
            a, b = once.predict(name, workers), twice.predict(name, workers)
            assert b.steps_per_s == pytest.approx(a.steps_per_s / 2.0, rel=1e-4)
            assert b.low_steps_per_s == pytest.approx(a.low_steps_per_s / 2.0, rel=1e-3)


def test_the_order_of_the_series_does_not_matter() -> None:
    series = fast_and_slow(4, 2)
    there, back = fit_asynchronous_server(series), fit_asynchronous_server(series[::-1])
    for one in series:
        assert back.predict(one.name, 9).steps_per_s == pytest.approx(
            there.predict(one.name, 9).steps_per_s, rel=1e-4
        )


def test_more_workers_and_more_servers_are_never_slower() -> None:
    fit = fit_asynchronous_server(fast_and_slow(4, 3))
    rates = np.array(
        [[fit.predict("c 4.5", n, p).steps_per_s for p in (1, 2, 4)] for n in range(1, 20)]
    )
    assert (np.diff(rates, axis=0) > 0.0).all()
    assert (np.diff(rates, axis=1) > 0.0).all()


def test_a_fit_is_read_back(tmp_path: Path) -> None:
    fit = fit_asynchronous_server([measured("fast", 4)])
    path = tmp_path / "fit.json"
    path.write_text(fit.to_json(), encoding="utf-8")
    again = read_fit(path)
    assert again == fit
    assert again.predict("fast", 9) == fit.predict("fast", 9)
    assert repr(again).startswith("ServerFit(1 series: ")


def test_a_fit_keeps_no_measurement() -> None:
    series = measured("fast", 4)
    text = fit_asynchronous_server([series]).to_json()
    assert [run for run in series.runs if str(run.steps_per_s) in text] == []


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Run(0, 1.0), "workers: must be at least 1, got 0"),
        (lambda: Run(1, -1.0), "steps_per_s: must be more than 0, got -1"),
        (lambda: Run(1, math.nan), "steps_per_s: expected a finite number, got nan"),
        (lambda: Run(1, 1.0, servers=0), "servers: must be at least 1, got 0"),
        (
            lambda: Run(1, 1.0, spread_fraction=-0.1),
            "spread_fraction: must be at least 0, got -0.1",
        ),
        (
            lambda: Series(name="x", model="x", tensors=1, parameter_bytes=1.0, runs=()),
            "x: runs: at least one is needed",
        ),
        (
            lambda: Series(
                name="x", model="x", tensors=0, parameter_bytes=1.0, runs=(Run(1, 1.0),)
            ),
            "x: tensors: must be at least 1, got 0",
        ),
        (
            lambda: Published(
                tensors=0, parameter_bytes=0.0, demand_s=1.0, factor=2.0, source=PUBLISHED[0].source
            ),
            "published: needs tensors or parameter_bytes",
        ),
        (lambda: fit_asynchronous_server([]), "series: at least one is needed"),
        (
            lambda: fit_asynchronous_server([measured("x", 1), measured("x", 2)]),
            "series: 'x' is given twice",
        ),
        (
            lambda: fit_asynchronous_server(
                [measured("x", 1), msgspec.structs.replace(measured("y", 1), tensors=9)]
            ),
            "y: b has 9 tensors and 7.4e+06 bytes here, 104 and 7.4e+06 in x",
        ),
        (
            lambda: fit_asynchronous_server([measured("x", 1)], published=()),
            "published: neither these figures nor the runs tell what the server takes per tensor "
            "and per byte",
        ),
        (
            lambda: fit_asynchronous_server([measured("x", 1)], run_spread=0.0),
            "run_spread: must be more than 0, got 0",
        ),
        (
            lambda: fit_asynchronous_server([measured("x", 1)], link_bytes_per_s=math.inf),
            "link_bytes_per_s: expected a finite number, got inf",
        ),
    ],
)
def test_what_cannot_be_fitted(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value) == message


def test_what_cannot_be_predicted() -> None:
    fit = fit_asynchronous_server([measured("k80", 2), measured("p100", 2, model="a")])
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: fit.predict("p10", 2), "unknown series 'p10'; did you mean 'p100'?"),
        (lambda: fit.predict("k80", 0), "workers: must be at least 1, got 0"),
        (lambda: fit.predict("k80", 2, 0), "servers: must be at least 1, got 0"),
        (lambda: fit.predict_mixed({}), "workers: must all train one model, got none at all"),
        (
            lambda: fit.predict_mixed({"k80": 1, "p100": 1}),
            "workers: must all train one model, got a, b",
        ),
        (lambda: fit.with_series(measured("k80", 1)), "series: 'k80' is given twice"),
        (
            lambda: fit.with_series(
                msgspec.structs.replace(measured("v100", 1), runs=(Run(2, 1.0),))
            ),
            "v100: runs: one with 1 worker is needed",
        ),
    ]
    for call, message in wrong:
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema", "perfmodel.fit/0", "schema: expected 'perfmodel.server-fit/1', got"),
        ("covariance", [[1.0]], "covariance: must have 6 rows and columns"),
        ("covariance", [[0.0] * 6] * 6, "covariance: must be positive definite"),
        ("estimates", {}, "estimates: 'step_s fast' is missing"),
        ("more", 1, "unknown key 'more'"),
    ],
)
def test_what_is_no_fit(key: str, value: object, message: str, tmp_path: Path) -> None:
    fit = fit_asynchronous_server([measured("fast", 2)])
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({**fit.to_dict(), key: value}), encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_fit(path)
    assert str(error.value).startswith(f"{path}: {message}")


def test_every_published_figure_has_its_source() -> None:
    for figure in PUBLISHED:
        assert isinstance(figure.source, Source)
        assert figure.source.url
