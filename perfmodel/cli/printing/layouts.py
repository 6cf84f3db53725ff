"""Layouts side by side as text."""

from __future__ import annotations

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.tables import print_table
from perfmodel.cli.printing.text import bold, dim, show
from perfmodel.cli.verbosity import verbosity
from perfmodel.planning.layout_comparison import ComparedLayout, LayoutComparison

MOST, OUTSIDE = 12, 3
"""Rows of layouts that fit, and that do not; --verbose prints all."""


def comparison(result: LayoutComparison) -> None:
    """Print layouts, those that fit first."""
    best = result.best
    inside = [layout for layout in result.layouts if layout.fits]
    outside = [layout for layout in result.layouts if not layout.fits]
    show(bold(f"{result.title}: {best.label}"))
    has = "unknown" if result.device_bytes is None else quantity(result.device_bytes, "bytes")
    show(
        f"{result.evaluated} layouts evaluated by formulas; memory with {result.confidence:.0%}, a "
        f"device has {has}\n"
    )
    everything = verbosity() > 0
    rows = inside if everything else inside[:MOST]
    rows += outside if everything or not inside else outside[:OUTSIDE]
    heads = ("", "layout", "samples/s", "of best", "memory", "fits", "bubble", "exposed")
    print_table(heads, [_row(k, layout, best) for k, layout in enumerate(rows, 1)])
    show(f"\n{dim('*')} no other that fits is as fast with less memory")
    if len(rows) < len(result.layouts):
        show(f"{dim('note')}: --verbose lists {len(result.layouts) - len(rows)} more")
    for reason, count in result.skipped.items() if everything else ():
        show(f"{dim('skipped')}: {count} ({reason})")


def _row(rank: int, layout: ComparedLayout, best: ComparedLayout) -> tuple[str, ...]:
    chance = layout.fits_probability
    return (
        f"{rank}{'*' if layout.pareto else ''}",
        layout.label,
        f"{layout.throughput_samples_per_s:.4g}",
        f"{layout.throughput_samples_per_s / best.throughput_samples_per_s:.1%}",
        quantity(layout.needed_bytes, "bytes"),
        "-" if chance is None else f"{chance:.0%}",
        f"{layout.bubble_fraction:.1%}",
        f"{layout.exposed_fraction:.1%}",
    )
