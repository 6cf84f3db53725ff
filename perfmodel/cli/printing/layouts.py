"""Layouts side by side as text."""

from __future__ import annotations

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.tables import print_table
from perfmodel.cli.printing.text import bold, dim, show
from perfmodel.cli.verbosity import verbosity
from perfmodel.planning.layout_comparison import ComparedLayout, LayoutComparison

MOST, OUTSIDE = 12, 3
"""Rows of layouts that fit, and that do not; --verbose prints all."""


def comparison(found: LayoutComparison) -> None:
    """Print layouts, those that fit first."""
    best = found.best
    inside = [one for one in found.layouts if one.fits]
    outside = [one for one in found.layouts if not one.fits]
    show(bold(f"{found.title}: {best.label}"))
    has = "unknown" if found.device_bytes is None else quantity(found.device_bytes, "bytes")
    show(
        f"{found.evaluated} layouts evaluated by formulas; memory with {found.confidence:.0%}, a "
        f"device has {has}\n"
    )
    everything = verbosity() > 0
    rows = inside if everything else inside[:MOST]
    rows += outside if everything or not inside else outside[:OUTSIDE]
    heads = ("", "layout", "samples/s", "of best", "memory", "fits", "bubble", "exposed")
    print_table(heads, [_row(k, one, best) for k, one in enumerate(rows, 1)])
    show(f"\n{dim('*')} no other that fits is as fast with less memory")
    if len(rows) < len(found.layouts):
        show(f"{dim('note')}: --verbose lists {len(found.layouts) - len(rows)} more")
    for reason, count in found.skipped.items() if everything else ():
        show(f"{dim('skipped')}: {count} ({reason})")


def _row(rank: int, one: ComparedLayout, best: ComparedLayout) -> tuple[str, ...]:
    chance = one.fits_probability
    return (
        f"{rank}{'*' if one.pareto else ''}",
        one.label,
        f"{one.throughput_samples_per_s:.4g}",
        f"{one.throughput_samples_per_s / best.throughput_samples_per_s:.1%}",
        quantity(one.needed_bytes, "bytes"),
        "-" if chance is None else f"{chance:.0%}",
        f"{one.bubble_fraction:.1%}",
        f"{one.exposed_fraction:.1%}",
    )
