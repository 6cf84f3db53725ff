"""Prints the answer of ``perfmodel what-if``."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, methodcaller
from statistics import fmean
from typing import TYPE_CHECKING

from perfmodel.base.units import show as quantity
from perfmodel.calibration.what_if import WORDS
from perfmodel.cli.printing.tables import print_table
from perfmodel.cli.printing.text import bold, show

if TYPE_CHECKING:
    from perfmodel.calibration.what_if import Replayed, WhatIf

MOST_RANKS = 8
"""Ranks in the table of what each does; of more, those that compute longest."""


def show_what_if(result: WhatIf) -> None:
    """Print the replay and its error, before and after, exchanges, and slow ranks."""
    steps = f"{result.steps} step{'s' if result.steps > 1 else ''}"
    formulas = (
        ""
        if result.formula_error is None
        else f"; {result.formula_error:+.1%} with exchanges by formulas"
    )
    show(
        f"replayed from {steps} of {len(result.ranks)} of {result.workers or len(result.ranks)} "
        f"ranks: {quantity(result.traced.step_s, 's')} per step, "
        f"{quantity(result.recorded_s, 's')} recorded ({result.error:+.1%}{formulas})"
    )
    _before_and_after(result)
    _exchanges(result)
    _ranks(result.changed or result.traced)
    for rank, factor in result.slow.items():
        show(
            f"{bold('slow')}: rank {rank} computes {factor:.2f} times as long as others that do "
            f"the same (--as-others {rank})"
        )
    for note in result.notes:
        show(f"{bold('note')}: {note}")


def _before_and_after(result: WhatIf) -> None:
    """What a step consists of, mean of the ranks."""
    causes = {c for r in (result.traced, result.changed) if r for u in r.ranks for c in u.waits_s}
    rows: dict[str, Callable[[Replayed], float]] = {
        "step": attrgetter("step_s"),
        "computing": lambda r: fmean(rank.compute_s for rank in r.ranks),
        **{f"waits: {WORDS.get(c, c)}": methodcaller("mean_s", c) for c in sorted(causes)},
    }
    table = []
    for name, of in rows.items():
        cells = [name, quantity(of(result.traced), "s")]
        if result.changed is not None:
            before, after = of(result.traced), of(result.changed)
            cells += [quantity(after, "s"), f"{after / before - 1.0:+.1%}" if before else ""]
        table.append(cells)
    heads = ["", "replayed", "changed", ""] if result.changed is not None else ["", "replayed"]
    print_table(heads, table, justify="right")


def _exchanges(result: WhatIf) -> None:
    rows = [
        (
            kind.kind,
            ", ".join(kind.operations),
            f"{kind.groups} of {kind.ranks}",
            f"{kind.per_step:.4g}",
            quantity(kind.bytes, "bytes"),
            quantity(kind.seconds, "s"),
            quantity(kind.link.bandwidth_bytes_per_s, "bytes_per_s") if kind.link else "",
        )
        for kind in result.kinds
    ]
    if rows:
        show("")
        heads = ("exchanges", "", "groups", "per step", "size", "time", "links")
        print_table(heads, rows, justify="right")


def _ranks(replayed: Replayed) -> None:
    """Computing and waits of the ranks."""
    longest = sorted(replayed.ranks, key=lambda r: -r.compute_s)[:MOST_RANKS]
    causes = list(dict.fromkeys(cause for rank in longest for cause in rank.waits_s))
    rows = [
        (
            str(rank.rank),
            quantity(rank.compute_s, "s"),
            *(quantity(rank.waits_s.get(cause, 0.0), "s") for cause in causes),
        )
        for rank in sorted(longest, key=lambda r: r.rank)
    ]
    show("")
    heads = ("rank", "computing", *(f"waits: {WORDS.get(c, c)}" for c in causes))
    print_table(heads, rows, justify="right")
