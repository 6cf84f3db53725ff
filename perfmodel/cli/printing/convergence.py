"""What a task learns in the order of jobs, as tables."""

from __future__ import annotations

from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.tables import print_table
from perfmodel.cli.printing.text import show
from perfmodel.sweeping.convergence import Convergence, Trained


def convergence(result: Convergence) -> None:
    """Print what speed and learning are from, and a line for each job."""
    show(result.title)
    target = f"{result.target:.1%}"
    heads = ["job", "iteration", "staleness", "accuracy", "loss", "training", f"to {target}"]
    rows = []
    for t, row in zip(result.trained, result.rows(), strict=True):
        staleness, scale = row["staleness_mean"], row["noise_scale_samples"]
        rows.append(
            [
                t.name,
                quantity(row["iteration_s"], "s"),
                "-" if staleness is None else f"{staleness:.3g}",
                _accuracy(t),
                f"{row['loss']:.3g}",
                quantity(row["training_s"], "s"),
                _time(t, result),
                "-" if scale is None else f"{scale:.3g} samples",
            ]
        )
    if any(t.noise_scale_samples is not None for t in result.trained):
        heads.append("noise scale")
    print_table(heads, [row[: len(heads)] for row in rows])
    first = result.first
    if first is None:
        show(f"no job reaches {target} with every seed")
    elif len(result.trained) > 1:
        show(f"{first.name} is the first to reach {target} with every seed")
    for t in result.trained:
        divergences = [c.divergence for c in t.curves if c.divergence is not None]
        if divergences:
            update = min(divergence.update for divergence in divergences)
            show(
                f"{t.name}: {len(divergences)} of {result.seeds} trainings diverged, the first "
                f"at update {update}: {divergences[0].reason}"
            )


def _accuracy(t: Trained) -> str:
    if t.diverged:
        return f"diverged ({t.diverged} of {len(t.curves)})"
    mean, spread = t.accuracy
    return f"{mean:.1%}" + (f" ± {spread:.1%}" if spread == spread else "")


def _time(t: Trained, result: Convergence) -> str:
    seconds, spread, reached = t.time_to(result.target)
    if not reached:
        return "not reached"
    text = quantity(seconds, "s") + (f" ± {spread / seconds:.0%}" if spread == spread else "")
    return text + (f" ({reached} of {result.seeds})" if reached < result.seeds else "")
