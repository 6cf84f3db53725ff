"""Figures of studies and schedules: readable, and showing the numbers of their results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel import Straggler, advise, explain, predict, require, sensitivity
from perfmodel.cli import cli
from perfmodel.replay.curve import Curve
from perfmodel.reporting.ticks import decades
from tests.jobs import cluster, job, workload
from tests.results.readable import bars, check

pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
pytestmark = pytest.mark.draws

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)
JOB: dict[str, Any] = {"workload": WORK, "cluster": cluster(), "workers": 4, "arch": "ps"}
V100: dict[str, Any] = {
    "model": "resnet50", "device": "v100", "workers": 8, "cluster": "ethernet-100g",
}  # fmt: skip


def curve() -> Curve:
    steps = np.arange(5)
    return Curve(
        task="mixture", seed=3, evaluated="centre", samples=16 * steps, updates=steps,
        time_s=0.5 * steps, loss=1.0 / (1.0 + steps), accuracy=steps / 5.0,
        batch_loss=1.0 / (1.0 + steps), noise=(), divergence=None,
    )  # fmt: skip


def scheduled(arch: str, workers: int = 4, **more: Any) -> Any:
    return predict(job(WORK, cluster(), workers, arch, **more)).schedule(200)


FIGURES: dict[str, Callable[[], Any]] = {
    "aim, a fraction": lambda: require("bandwidth", "scaling>0.9", **V100, arch="ring"),
    "aim, a rate": lambda: require("batch-size", "throughput>2000", **V100, arch="ring"),
    "aim, hours": lambda: require(
        "workers", "time<24h", **V100, arch="ring", dataset_size=1_281_167, epochs=90
    ),
    "aim, never": lambda: require("bandwidth", "scaling>0.9", **V100 | {"workers": 64}, arch="ps"),
    "aim, updates": lambda: require("workers", "staleness<5", **JOB | {"arch": "asp"}),
    "gains": lambda: advise(model="vgg16", device="v100", arch="ps", workers=8, fidelity="coarse"),
    "no gains": lambda: advise(**JOB | {"workers": 1}, fidelity="coarse"),
    "sensitivity": lambda: sensitivity(model="vgg16", device="v100", arch="ring", workers=8),
    "sensitivity, alone": lambda: sensitivity(**V100 | {"workers": 1}),
    "phases": lambda: explain(job(WORK, cluster(), 4, "ps")),
    "phases, one variable": lambda: explain(
        job(WORK, cluster(), 4, "ring", stragglers=(Straggler(1, 1.5),))
    ),
    "schedule": lambda: scheduled("asp", start="staggered"),
    "schedule, nothing stale": lambda: scheduled("ring"),
    "schedule, many workers": lambda: scheduled("asp", 40, start="staggered"),
    "curve": curve,
}


LONG = {
    *("aim, a rate", "aim, hours", "aim, never", "aim, updates", "sensitivity, alone"),
    *("phases, one variable", "schedule, many workers", "curve"),
}
"""Figures of parts that others have as well."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in FIGURES]
)
def test_figures_can_be_read(name: str) -> None:
    check(FIGURES[name]().plot())


def lines(axes: Any) -> dict[str, Any]:
    """The lines of a figure's part by their labels."""
    return {line.get_label(): line for line in axes.get_lines()}


def test_the_curve_of_an_aim_crosses_it_where_the_answer_is() -> None:
    result = require("bandwidth", "scaling>0.9", **V100, arch="ring")
    (axes,) = result.plot().axes
    predicted = lines(axes)["predicted"]
    xs, ys = predicted.get_xdata(), predicted.get_ydata()
    assert np.interp(result.values.low, xs, ys) == pytest.approx(0.9, rel=1e-6)
    assert (np.diff(xs) > 0.0).all()
    assert xs[0] < result.now < xs[-1]
    assert lines(axes)["the job now"].get_xdata()[0] == result.now


@pytest.mark.slow
def test_times_are_drawn_in_hours() -> None:
    result = require("workers", "time<24h", **V100, arch="ring", dataset_size=1_281_167, epochs=90)
    (axes,) = result.plot().axes
    assert axes.get_ylabel() == "training time (h)"
    assert lines(axes)["aim"].get_ydata()[0] == pytest.approx(24.0)


def test_gains_have_their_bars_and_intervals() -> None:
    result = advise(model="vgg16", device="v100", arch="ps", workers=8, fidelity="coarse")
    (axes,) = result.plot().axes
    gains = [each.gain for each in (*result.recommended, *result.unsure)]
    ends = sorted(end for *_, end in bars(result))
    assert ends == pytest.approx(sorted(gain.ratio for gain in gains))
    drawn = [tuple(line.get_xdata()) for line in axes.get_lines() if len(line.get_xdata()) == 2]
    assert {gain.interval for gain in gains} <= set(drawn)


def test_bars_of_a_tornado_end_at_the_ratios() -> None:
    result = sensitivity(**V100, arch="asp")
    drawn = bars(result)
    assert {start for _, start, _ in drawn} == {1.0}
    largest = result.effects[0]
    ends = {end for row, _, end in drawn if round(row) == 0}
    assert ends == {ratio for value, ratio in largest.sides if value}
    assert largest.swing == pytest.approx(max(abs(np.log(end)) for end in ends))


def test_phases_add_up_and_cross_where_they_are_said_to() -> None:
    result = explain(job(WORK, cluster(), 4, "ps"))
    _, *panels = result.plot().axes
    assert max(end for *_, end in bars(result)) == pytest.approx(result.iteration_s)
    assert len(panels) == 3
    marked = {
        line.get_xdata()[0]
        for axes in panels
        for line in axes.get_lines()
        if line.get_label() == "longest phase changes"
    }
    assert marked == {crossover.value for crossover in result.crossovers}
    assert marked


def test_an_explanation_without_a_job_has_its_phases() -> None:
    import msgspec

    result = msgspec.structs.replace(explain(job(WORK, cluster(), 4, "ps")), job=None)
    assert len(result.plot().axes) == 1


def test_a_schedule_has_the_mean_staleness_and_all_gradients() -> None:
    result = scheduled("asp", start="staggered")
    stale, _ = result.plot().axes
    mean = lines(stale)["mean"].get_ydata()
    counts = [len(part) for part in np.array_split(result.staleness(), len(mean))]
    assert np.average(mean, weights=counts) == pytest.approx(result.staleness().mean())
    assert sum(end for *_, end in bars(result)) == result.gradients == 200


def test_synchronous_schedules_have_no_staleness_to_draw() -> None:
    result = scheduled("ring")
    assert len(result.plot().axes) == 1
    assert {end for *_, end in bars(result)} == {50}


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "require bandwidth --to scaling>0.9 --model resnet50 --device v100 --workers 8",
        "advise --model resnet50 --device v100 --workers 2 --fidelity coarse",
        "explain --model resnet50 --device v100 --arch ps --workers 8",
    ],
)
def test_commands_write_the_picture(line: str, tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    done = CliRunner().invoke(cli, [*line.split(), "--plot", str(picture)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(b"<?xml")
    refused = CliRunner().invoke(cli, [*line.split(), "--plot", str(tmp_path / "a.doc")])
    assert "cannot write 'doc' files" in str(refused.exception)


def test_ticks_are_round_and_as_many_as_fit() -> None:
    for low, high in ((0.97, 1.02), (0.7, 1.4), (3.0, 80.0), (1e-3, 1e5), (1.0, 1e12)):
        for most in (4, 7):
            result = decades(low, high, most)
            assert 1 < len(result) <= most
            assert low <= result[0] <= result[-1] <= high
