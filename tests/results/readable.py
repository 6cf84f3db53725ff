"""What makes a figure readable."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

from perfmodel.reporting.contents import Bars

PLAIN = {
    "workers",
    "idle fraction",
    "share of updates",
    "relative to the fitted value",
    "servers",
    "scaling efficiency",
}
"""Labels of numbers without a unit."""


def boxes(figure: Any, artists: Any) -> list[Any]:
    renderer = figure.canvas.get_renderer()
    result = [artist.get_window_extent(renderer) for artist in artists]
    return [box for box in result if box.width * box.height > 0.0]


def bars(result: Any, column: int | None = None) -> list[tuple[float, float, float]]:
    """Row, start and end of each bar of a result's figure, or of one column of its panels."""
    return [
        ((low + high) / 2.0, start, end)
        for row in result.figure().rows
        for number, panel in enumerate(row)
        if column in (None, number)
        for mark in panel.marks
        if isinstance(mark, Bars)
        for start, end, low, high in mark.sides
    ]


def check(figure: Any) -> None:
    """Raise AssertionError if a figure cannot be read."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            words = axis.label.get_text()
            named = [t.get_text() for t in axis.get_ticklabels() if t.get_visible()]
            numbers = any(text.replace(".", "").isdecimal() for text in named if text)
            assert words or not numbers, "axis without a label"
            at_ticks = named and all(text[-1:].isalpha() for text in named if text)
            assert (
                not words
                or words in PLAIN
                or at_ticks
                or "(" in words
                or "accuracy" in words
                or "samples" in words
            ), "no unit"
            shown = [t for t in axis.get_ticklabels() if t.get_text() and t.get_visible()]
            spans = sorted(
                (b.x0, b.x1) if axis is axes.xaxis else (b.y0, b.y1) for b in boxes(figure, shown)
            )
            assert all(a[1] <= b[0] for a, b in pairwise(spans)), "tick labels overlap"
        outer = axes.get_tightbbox(figure.canvas.get_renderer())
        total = figure.bbox.padded(1.0)
        assert total.x0 <= outer.x0, "cut off"
        assert outer.x1 <= total.x1, "cut off"
        assert total.y0 <= outer.y0, "cut off"
        assert outer.y1 <= total.y1, "cut off"
    legends = [*figure.legends, *(a.get_legend() for a in figure.axes if a.get_legend())]
    beside = boxes(figure, legends)
    data = [axes.get_window_extent() for axes in figure.axes]
    assert not any(box.overlaps(of) for box in beside for of in data), "legend over the data"
    for axes in figure.axes:
        texts = boxes(figure, axes.texts)
        assert not any(a.overlaps(b) for a, b in combinations(texts, 2)), "texts overlap"
        inside = axes.get_window_extent().padded(1.0)
        assert all(inside.x0 <= b.x0 and b.x1 <= inside.x1 for b in texts), "text outside"
    titles = boxes(figure, [figure._suptitle] if figure._suptitle else [])
    assert not any(a.overlaps(b) for a in titles for b in [*beside, *data]), "title over others"
