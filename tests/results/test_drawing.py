"""Figures: labels with units, nothing cut off, legends beside the data, file formats."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, compare, predict, sweep
from perfmodel.base.provenance import Source
from perfmodel.calibration.figures import fit
from perfmodel.calibration.network.fit import fit_network
from perfmodel.calibration.servers.costs import ServerCosts
from perfmodel.calibration.statistics import Fitted, RunError
from perfmodel.cli.options import check_files, write_files
from perfmodel.measuring.measurements import Measurement, Measurements
from perfmodel.measuring.training.run import MeasuredRun, RunResults
from perfmodel.planning.plans import trade
from perfmodel.replay.curve import accuracy_of
from perfmodel.reporting import images
from perfmodel.reporting.contents import Axis, Bars, Figure, Panel, Ranges, Series, Span
from perfmodel.results.sections import MOST_ROWS
from perfmodel.validation.scores import Score
from perfmodel.validation.validate import CaseScores, Validation
from tests.jobs import cluster, job, workload
from tests.results.readable import check
from tests.settings import thinned

pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
pytestmark = pytest.mark.draws

WORK = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0], batch_size=4)


def network() -> Measurements:
    def times(operation: Any, ranks: int, latency_s: float) -> list[Measurement]:
        return [
            Measurement(
                operation=operation,
                ranks=ranks,
                bytes=float(4**k),
                seconds=tuple((latency_s + 4**k / 1e9) * f for f in (0.9, 1.0, 1.3)),
            )
            for k in range(2, 14)
        ]

    result = times("ping_pong", 2, 5e-5) + times("all_reduce", 2, 1e-4)
    result += times("all_reduce", 4, 2e-4) + times("duplex", 2, 6e-5)
    return Measurements(
        name="lab",
        backend="tcp",
        measurements=tuple(result),
        source=Source("measured", "made up"),
        nodes=(0, 1, 2, 3),
    )


ESTIMATES = (
    Fitted(name="latency_s", unit="s", was=2e-4, value=1e-4, low=5e-5, high=2e-4),
    Fitted(name="efficiency", unit="", was=0.9, value=0.6, low=0.0, high=99.0),
    Fitted(name="jitter", unit="", was=0.0, value=0.0, low=0.0, high=1.0, status="not identified"),
)


def trained(workers: int = 4) -> MeasuredRun:
    return MeasuredRun(
        name="run",
        workload="unit",
        batch_size=4,
        workers=workers,
        arch="asp",
        options={},
        measured=RunResults(
            iterations=50,
            warmup=5,
            iteration_s=9.0,
            iteration_std_s=0.1,
            worker_iteration_s=(9.0,) * workers,
            samples_per_s=1.8,
            compute_s=4.0,
            idle_fraction=0.5,
            staleness={"0": 5, "3": 15},
        ),
        source=Source("measured", "made up"),
    )


def asynchronous() -> Any:
    return predict(job(WORK, cluster(), 4, "ps", {"sync": "asp"}, start="staggered"))


def curve(scale: float) -> Mapping[str, Any]:
    xs, half = np.linspace(0.0, 40.0 * scale, 20), np.full(20, 0.05)
    return {"time_s": (xs, half), "samples": (xs, half), "accuracy": (1 - np.exp(-xs), half)}


def case(group: str, step_s: float) -> CaseScores:
    score = Score(1.1 * step_s, step_s, True, (step_s, 2 * step_s))
    return CaseScores(name="case", group=group, scores={"step_s": score}, source="made up")


SWEPT: dict[str, Any] = {"workload": WORK, "cluster": cluster()}

FIGURES: dict[str, Callable[[], Any]] = {
    "prediction": lambda: asynchronous().plot(),
    "coarse prediction": lambda: predict(job(WORK, cluster(), 4, "ring"), fidelity="coarse").plot(),
    "sweep over workers": lambda: sweep(**SWEPT, arch=["ring", "ps"], workers=[1, 2, 4, 8]).plot(),
    "sweep over words": lambda: sweep(**SWEPT, arch=["ring", "ps", "p2p"], workers=4).plot(),
    "comparison": lambda: compare(
        [job(WORK, cluster(), 4, arch) for arch in ("ring", "ps")], ["a", "b"]
    ).plot(),
    "validation": lambda: Validation(
        outcomes=(case("one", 0.3), case("one", 0.5), case("two", 2.0)), fidelity="fine"
    ).plot(),
    "convergence": lambda: images.draw(
        accuracy_of({"a": curve(1.0), "b": curve(3.0)}, 0.9, "mixture")
    ),
    "plan": lambda: images.draw(
        trade(
            [(1.0, 90.0, "a", "ring"), (5.0, 60.0, "b", "ring")],
            [(5.0, 60.0, "b", "ring"), (6.0, 61.0, "b", "ps")],
            "b, ring, 4 workers",
        )
    ),
    "measured network": lambda: network().plot(),
    "fitted network": lambda: fit_network([network()]).plot(),
    "fitted runs": lambda: images.draw(
        fit(
            ESTIMATES,
            [RunError(f"runs.csv, line {k}", "ps", k, 0.01 * k, -0.02 * k) for k in range(70)],
            "70 runs (allreduce, ps, workers 1 to 16, batch_size 32, gradient_bytes 102.2 MB, "
            "bandwidth_bytes_per_s 10 Gbps, servers 1 to 4)",
        )
    ),
    "server costs": lambda: ServerCosts(estimates=ESTIMATES, seen="of 3 runs").plot(),
    "measured run": lambda: trained().plot(asynchronous()),
    "measured run alone": lambda: trained(1).plot(),
}


LONG = {"measured network", "fitted runs", "measured run", "coarse prediction", "comparison"}
"""Figures made of parts that other figures share."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in FIGURES]
)
def test_figures_are_readable(name: str) -> None:
    check(FIGURES[name]())


def cut(figure: Any) -> None:
    figure.set_layout_engine("none")
    figure.axes[0].set_position((0.0, 0.2, 0.5, 0.6))


CANARIES: dict[str, Callable[[Any], Any]] = {
    "no unit": lambda f: f.axes[0].set_xlabel("cost"),
    "axis without a label": lambda f: f.axes[0].set_xlabel(""),
    "legend over the data": lambda f: f.axes[0].legend(loc="center"),
    "tick labels overlap": lambda f: f.axes[0].set_xticks([1.0, 1.01], ["long label"] * 2),
    "cut off": cut,
    "title over others": lambda f: f.suptitle("x" * 200, x=0.5, y=0.5),
}


@pytest.mark.parametrize("error", thinned(CANARIES))
def test_canary_the_check_notices_each_violation(error: str) -> None:
    """A canary for each rule."""
    figure = FIGURES["plan"]()
    check(figure)
    CANARIES[error](figure)
    with pytest.raises(AssertionError, match=error):
        check(figure)


def test_intervals_are_drawn_if_available() -> None:
    result = predict(job(WORK, cluster(), 4, "ps"))
    ends = result.interval.iteration_s
    (line,) = result.plot().axes[0].get_lines()
    assert tuple(line.get_xdata()) == ends
    answer = sweep(**SWEPT, arch="ps", workers=[1, 2, 4])
    band = answer.plot().axes[0].collections[0]
    highest = max(p.interval.throughput_samples_per_s[1] for p in answer.predictions)
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(highest)


def test_a_fitted_network_is_drawn_through_its_points() -> None:
    fitted = fit_network([network()])
    assert "measured" not in fitted.to_dict()
    for axes in fitted.plot().axes:
        total = [line for line in axes.get_lines() if len(line.get_xdata()) == 12]
        points = {line.get_color(): line for line in total if line.get_marker() == "o"}
        fitted_lines = [line for line in total if line.get_linestyle() == "-"]
        assert len(fitted_lines) == len(points) >= 1
        for line in fitted_lines:
            measured = np.asarray(points[line.get_color()].get_ydata(), np.float64)
            np.testing.assert_allclose(line.get_ydata(), measured, rtol=0.2)


def test_a_timeline_shows_the_window_and_its_labels() -> None:
    result = predict(job(WORK, cluster(), 2, "ps"))
    timeline = result.plot().axes[1]
    shown = result.timeline()
    assert timeline.get_xlim() == pytest.approx((0.0, shown.end_s - shown.begin_s))
    assert timeline.get_xlabel() == f"time (s), {shown.text}"
    kinds = [text.get_text() for text in timeline.get_legend().get_texts()]
    assert kinds == ["forward", "backward", "push", "pull"]


def test_with_many_resources_whole_nodes_and_servers_are_drawn() -> None:
    result = predict(job(WORK, cluster(update_per_tensor_s=0.1), 20, "ps", {"sync": "asp"}))
    timeline = result.plot().axes[1]
    rows = [text.get_text() for text in timeline.get_yticklabels()]
    assert timeline.get_title() == f"{MOST_ROWS} of 63 resources"
    assert rows[0] == "worker 0"
    assert "updates of server 0" in rows
    assert "worker 19" not in rows


MARKS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "line": (
        Series("a", [1.0, 2.0], [3.0, 4.0]),
        lambda axes: axes.get_lines()[0].get_xydata().tolist() == [[1.0, 3.0], [2.0, 4.0]],
    ),
    "band": (
        Series("a", [1.0, 2.0], [3.0, 4.0], low=[2.0, 3.0], high=[5.0, 7.0]),
        lambda axes: axes.collections[0].get_paths()[0].vertices[:, 1].max() == 7.0,
    ),
    "bars": (
        Bars("a", [3.0, 0.5], "#0072b2", start=[1.0, 1.0]),
        lambda axes: (
            [tuple(path.get_extents().intervalx) for path in axes.collections[0].get_paths()]
            == [(1.0, 3.0), (0.5, 1.0)]
        ),
    ),
    "columns": (
        Bars("a", [3.0], "#0072b2", along="y"),
        lambda axes: axes.collections[0].get_paths()[0].get_extents().y1 == 3.0,
    ),
    "range": (
        Ranges("a", [5.0], [1.0], [2.0], along="y"),
        lambda axes: axes.get_lines()[0].get_xydata().tolist() == [[5.0, 1.0], [5.0, 2.0]],
    ),
    "area": (
        Span("a", 1.0, 2.0),
        lambda axes: (axes.patches[0].get_x(), axes.patches[0].get_width()) == (1.0, 1.0),
    ),
    "rule": (
        Span("a", 4.0, along="y", style="dashed"),
        lambda axes: set(axes.get_lines()[0].get_ydata()) == {4.0},
    ),
}


@pytest.mark.parametrize("name", MARKS)
def test_each_mark_is_drawn_where_it_says_and_named_once(name: str) -> None:
    mark, right = MARKS[name]
    panel = Panel([mark], Axis("x (s)"), Axis("y (s)"))
    figure = images.draw(Figure([[panel]]))
    assert right(figure.axes[0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a"]


def test_without_matplotlib_every_figure_names_the_extra_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in (lambda: network().plot(), lambda: trained().plot(), FIGURES["plan"]):
        with pytest.raises(InputError, match=r"^plots need matplotlib: pip install 'perfmodel"):
            draw()


@pytest.mark.parametrize(
    ("ending", "begin"),
    [("png", b"\x89PNG"), ("svg", b"<?xml"), pytest.param("pdf", b"%PDF", marks=pytest.mark.slow)],
)
def test_figure_files_are_written_completely_or_not_at_all(
    ending: str, begin: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"network.{ending}"
    data = network().to_image(ending)
    check_files(str(path))
    write_files([(str(path), data, "")])
    assert path.read_bytes() == data
    assert data.startswith(begin)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(InputError, match="full"):
        write_files([(str(path), b"other", "")])
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_other_formats_are_refused_before_the_work() -> None:
    with pytest.raises(InputError, match=r"cannot write 'doc' files \(known: .*png"):
        images.check("doc")


NAMES = ("a$b$", "$x_{", "\\$ $\\frac{", "\u96c6\u7fa4 \U0001f600", "very " * 80 + "long")


def named(name: str) -> list[Any]:
    """Results whose figures show the name of a model, a device or a cluster."""
    work = msgspec.structs.replace(WORK, name=name, device=name)
    where = msgspec.structs.replace(cluster(nodes=8), name=name)
    given = {"workload": work, "cluster": where}
    return [
        predict(job(work, where, 2, "ring")),
        sweep(**given, arch=["ring", "ps"], workers=[1, 2]),
        compare([job(work, where, 2, "ring"), job(work, where, 2, "ps")]),
        msgspec.structs.replace(trained(), name=name, workload=name),
        fit_network([msgspec.structs.replace(network(), name=name)]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_names_are_drawn_as_they_are(name: str) -> None:
    """A dollar sign begins no formula, and nobody hears of letters that a font lacks (warnings are
    errors here)."""
    for result in named(name):
        for ending in ("png", "svg"):
            assert result.to_image(ending)


def test_a_dollar_sign_is_shown(tmp_path: Path) -> None:
    """In an svg file, text that is drawn is also in a comment."""
    panel = Panel((), Axis("x"), Axis(names=["$c$ and $d$"]))
    figure = images.draw(Figure([[panel]], "a$b$ per $"))
    figure.savefig(tmp_path / "x.svg")
    image = (tmp_path / "x.svg").read_text("utf-8")
    for text in ("a$b$ per $", "$c$ and $d$"):
        assert f"<!-- {text} -->" in image


@pytest.mark.parametrize("date", ["abc", "1e99", "-5", "1.5", "9" * 30, "\u0663"])
def test_a_date_for_reproducible_builds_that_is_none_is_refused_before_the_work(
    date: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
    for act in (lambda: images.check("pdf"), lambda: images.image(images.empty(1, 1), "svg")):
        with pytest.raises(InputError, match=r"^SOURCE_DATE_EPOCH: expected the whole seconds"):
            act()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert b"1970-01-01" in images.image(images.empty(1, 1), "svg")
