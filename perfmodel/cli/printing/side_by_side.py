"""A fine and a coarse prediction of one job."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.cli.printing.console import cell_text, head_text, print_table
from perfmodel.cli.printing.prediction import assumed, certainty, title
from perfmodel.cli.printing.text import bold, show
from perfmodel.results.prediction import Prediction
from perfmodel.studies.sensitivity import Effect
from perfmodel.sweeping.comparison import differences
from perfmodel.sweeping.tables import quantity_columns


def both(fine: Prediction, coarse: Prediction, worth: Sequence[Effect]) -> None:
    """Print a fine and a coarse prediction of the same job side by side."""
    show(title(fine))
    columns = quantity_columns(fine), quantity_columns(coarse)
    rows = [
        (
            *(head_text(name), *(cell_text(name, column) for column in columns)),
            _change(difference, name == "idle_fraction"),
        )
        for name, difference in differences(fine, coarse).items()
    ]
    print_table(("", "fine", "coarse", "difference"), rows)
    show(f"{bold('coarse')}: {certainty(coarse)}")
    for name, p in (("fine", fine), ("coarse", coarse)):
        show(f"{bold(f'bottleneck, {name}')}: {p.bottleneck.text}")
    for note in dict.fromkeys((*fine.notes, *coarse.notes)):
        show(f"{bold('note')}: {note}")
    assumed(worth)


def _change(difference: float | None, points: bool) -> str:
    """A difference as a percentage, or in percentage points.

    >>> _change(-0.0001, False), _change(0.05, True), _change(None, False)
    ('+0.0%', '+5.0 points', '-')
    """
    if difference is None:
        return "-"
    percent = round(100.0 * difference, 1) + 0.0  # which turns -0.0 into 0.0
    return f"{percent:+.1f} points" if points else f"{percent:+.1f}%"
