"""What a task learns in the order of jobs, as tables."""

from __future__ import annotations

from rich.markup import escape

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.console import new_console, new_table
from perfmodel.sweeping.convergence import Convergence, Trained


def convergence(found: Convergence) -> None:
    """Print what speed and learning are from, and a line for each job."""
    out = new_console()
    out.print(escape(found.title))
    noisy = any(t.noise_scale_samples is not None for t in found.trained)
    table = new_table(
        "job",
        "iteration",
        "staleness",
        "accuracy",
        "loss",
        "training",
        f"to {found.target:.1%}",
        *(["noise scale"] if noisy else []),
    )
    for t, row in zip(found.trained, found.rows(), strict=True):
        scale = row["noise_scale_samples"]
        table.add_row(
            escape(t.name),
            quantity(row["iteration_s"], "s"),
            "-" if row["staleness_mean"] is None else f"{row['staleness_mean']:.3g}",
            _accuracy(t),
            f"{row['loss']:.3g}",
            quantity(row["training_s"], "s"),
            _time(t, found),
            *([f"{scale:.3g} samples" if scale is not None else "-"] if noisy else []),
        )
    out.print(table)
    first = found.first
    if first is None:
        out.print(f"no job reaches {found.target:.1%} with every seed")
    elif len(found.trained) > 1:
        out.print(f"{escape(first.name)} is the first to reach {found.target:.1%} with every seed")
    for t in found.trained:
        diverged = [c.divergence for c in t.curves if c.divergence is not None]
        if diverged:
            at = min(each.update for each in diverged)
            out.print(
                f"{escape(t.name)}: {len(diverged)} of {found.seeds} trainings diverged, the first "
                f"at update {at}: {escape(diverged[0].reason)}"
            )


def _accuracy(t: Trained) -> str:
    if t.diverged:
        return f"diverged ({t.diverged} of {len(t.curves)})"
    mean, spread = t.accuracy
    return f"{mean:.1%}" + (f" ± {spread:.1%}" if spread == spread else "")


def _time(t: Trained, found: Convergence) -> str:
    seconds, spread, reached = t.time_to(found.target)
    if not reached:
        return "not reached"
    said = quantity(seconds, "s") + (f" ± {spread / seconds:.0%}" if spread == spread else "")
    return said + (f" ({reached} of {found.seeds})" if reached < found.seeds else "")
