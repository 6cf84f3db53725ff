"""Panels of pages: each mark is drawn by Bokeh where it says, on axes with its units."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.reporting.contents import INK, Axis, Bars, Mark, Panel, Ranges, Series, Span

pytest.importorskip("bokeh", reason="needs the extra 'report'")
pytestmark = pytest.mark.draws


def drawn(*marks: Mark, x: Axis | None = None, y: Axis | None = None) -> Any:
    from perfmodel.reporting import plots

    return plots.drawn(Panel(marks, x or Axis("x (s)"), y or Axis("y (s)")))


def data(plot: Any, glyph: str) -> dict[str, list[Any]]:
    """The columns of the first glyph of a kind."""
    result = next(r for r in plot.renderers if type(r.glyph).__name__ == glyph)
    return {name: list(column) for name, column in result.data_source.data.items()}


def test_a_series_has_its_line_its_points_and_its_band() -> None:
    plot = drawn(Series("a", [1.0, 2.0], [3.0, 4.0], marker="o", low=[2.0, 3.0], high=[5.0, 7.0]))
    assert data(plot, "Line")["y"] == data(plot, "Scatter")["y"] == [3.0, 4.0]
    assert data(plot, "VArea") == {"x": [1.0, 2.0], "low": [2.0, 3.0], "high": [5.0, 7.0]}
    assert [item.label.value for item in plot.legend[0].items] == ["a"]


@pytest.mark.parametrize(
    ("along", "start", "end"), [("x", "left", "right"), ("y", "bottom", "top")]
)
def test_bars_go_from_start_to_end(along: Any, start: str, end: str) -> None:
    plot = drawn(Bars("a", [3.0, 0.5], "#0072b2", start=[1.0, 1.0], along=along, tips=["p", "q"]))
    columns, glyph = data(plot, "Quad"), plot.renderers[0].glyph
    assert columns[getattr(glyph, start)] == [1.0, 1.0]
    assert columns[getattr(glyph, end)] == [3.0, 0.5]
    assert columns["tip"] == ["p", "q"]


def test_ranges_have_an_outline_only_in_ink() -> None:
    for colour, count in ((INK, 2), ("#0072b2", 1)):
        plot = drawn(Ranges("a", [5.0], [1.0], [2.0], colour=colour))
        assert len(plot.renderers) == count
        assert data(plot, "Segment") == {"x0": [1.0], "x1": [2.0], "y0": [5.0], "y1": [5.0]}


def test_spans_are_areas_or_lines() -> None:
    area, line = (drawn(mark).center[-1] for mark in (Span("a", 1.0, 2.0), Span("a", 4.0)))
    assert (area.left, area.right) == (1.0, 2.0)
    assert (line.location, line.dimension) == (4.0, "height")


def test_rows_are_named_from_the_top_and_logarithmic_ticks_have_units() -> None:
    bars = Bars("a", [1e-3, 1.0], "#0072b2", start=[1e-4, 1e-4])
    plot = drawn(bars, x=Axis("time", "s", log=True), y=Axis(names=["first", "second"]))
    assert plot.y_range.start > plot.y_range.end
    assert plot.yaxis[0].major_label_overrides == {0.0: "first", 1.0: "second"}
    assert "100 ms" in plot.xaxis[0].major_label_overrides.values()
