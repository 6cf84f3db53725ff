"""Tables of predictions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from perfmodel.base.provenance import Assumption
from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.console import cell_text, head_text, new_console, new_table
from perfmodel.results.prediction import Prediction
from perfmodel.studies.comparison import differences
from perfmodel.studies.sweeps import figures

SHORT_TRANSIENT = 20
"""Longest transient that is not mentioned (iterations)."""


def prediction(p: Prediction) -> None:
    """Print a prediction: figures, bottleneck and assumptions."""
    out = new_console()
    out.print(_title(p))
    table = new_table("", "", "")
    table.add_row(
        "throughput",
        f"{p.throughput_samples_per_s:.5g} samples/s",
        _certainty(p),
    )
    if p.interval is not None:
        low, high = p.interval.throughput_samples_per_s
        table.add_row(
            f"{p.interval.coverage:.0%} interval", f"{low:.4g} to {high:.4g}", p.interval.text
        )
    table.add_row(
        "iteration", quantity(p.iteration_s, "s"), f"of which {quantity(p.compute_s, 's')} compute"
    )
    if p.iterations is not None:
        table.add_row("of the start", f"{p.iterations} iterations", "of each worker, at least")
    if p.transient_iterations >= SHORT_TRANSIENT:
        table.add_row(
            "transient",
            f"{p.transient_iterations} iterations",
            "about as long do workers drift apart; the figures are of the time after it",
        )
    if p.training is not None:
        t = p.training
        table.add_row(
            "training",
            _duration(t.training_s),
            f"{t.epochs} x {_duration(t.epoch_s)} of {t.iterations_per_epoch} iterations",
        )
    causes = ", ".join(f"{c} {part:.1%}" for c, part in p.idle_fraction.by_cause.items())
    workers = p.idle_fraction.per_worker
    spread = f"workers {min(workers):.1%} to {max(workers):.1%}"
    table.add_row("idle", f"{p.idle_fraction.mean:.1%}", "; ".join(filter(None, [causes, spread])))
    table.add_row(
        "exposed communication", quantity(p.exposed_communication_s, "s"), "per iteration"
    )
    if p.staleness is not None:
        s = p.staleness
        table.add_row(
            "staleness", f"{s.mean:.3g} updates", f"median {s.p50}, p90 {s.p90}, at most {s.max}"
        )
    if p.model_age is not None:
        age = p.model_age
        text = f"p90 {age.p90}, an exchange every {age.exchange_every:.3g} steps"
        table.add_row("model age", f"{age.mean:.3g} steps", text)
    phases = ", ".join(f"{name} {quantity(s, 's')}" for name, s in p.phases_s.items())
    if phases:
        table.add_row("phases", phases, "of an iteration")
    operations = ", ".join(f"{n} {quantity(s, 's')}" for n, s in p.operation_s.items())
    if operations:
        table.add_row("mean times", operations, f"{p.updates_per_s:.4g} model updates/s")
    busiest = max(p.utilisation.links.items(), key=lambda item: item[1], default=None)
    if busiest is not None:
        table.add_row("busiest link", f"{busiest[1]:.1%}", busiest[0])
    busiest = max(p.utilisation.cores.items(), key=lambda item: item[1], default=None)
    if busiest is not None:
        table.add_row("busiest processor", f"{busiest[1]:.1%}", busiest[0])
    memory = f"worker {quantity(p.memory.worker_bytes, 'bytes')}"
    if p.memory.server_bytes is not None:
        memory += f", server {quantity(p.memory.server_bytes, 'bytes')}"
    table.add_row("memory", memory, "estimated")
    out.print(table)
    out.print(f"[bold]bottleneck[/]: {escape(p.bottleneck.text)}")
    for note in p.notes:
        out.print(f"[bold]note[/]: {escape(note)}")
    out.print("\n[dim]assumed, because not given:[/]")
    out.print(_assumptions(p.assumptions))


def both(fine: Prediction, coarse: Prediction) -> None:
    """Print a fine and a coarse prediction of the same job side by side."""
    out = new_console()
    out.print(_title(fine))
    table = new_table("", "fine", "coarse", "difference")
    rows = figures(fine), figures(coarse)
    for name, part in differences(fine, coarse).items():
        table.add_row(
            head_text(name),
            *(cell_text(name, row) for row in rows),
            _change(part, name == "idle_fraction"),
        )
    out.print(table)
    out.print(f"[bold]coarse[/]: {escape(_certainty(coarse))}")
    for name, p in (("fine", fine), ("coarse", coarse)):
        out.print(f"[bold]bottleneck, {name}[/]: {escape(p.bottleneck.text)}")
    for note in dict.fromkeys((*fine.notes, *coarse.notes)):
        out.print(f"[bold]note[/]: {escape(note)}")
    out.print("\n[dim]assumed, because not given:[/]")
    out.print(_assumptions(fine.assumptions))


def _change(part: float | None, points: bool) -> str:
    """A difference as a percentage, or in percentage points.

    >>> _change(-0.0001, False), _change(0.05, True), _change(None, False)
    ('+0.0%', '+5.0 points', '-')
    """
    if part is None:
        return "-"
    percent = round(100.0 * part, 1) + 0.0  # which turns -0.0 into 0.0
    return f"{percent:+.1f} points" if points else f"{percent:+.1f}%"


def _title(p: Prediction) -> str:
    return (
        f"[bold]{escape(p.model)}[/] on {p.workers} x {escape(p.device)}, {p.architecture}, "
        f"batch {p.batch_size} per worker ({p.global_batch_size} in all), "
        f"compute times [bold]{p.quality}[/]"
    )


def _certainty(p: Prediction) -> str:
    """Uncertainty of a throughput, apart from errors of the model."""
    if p.error_band is not None:
        return p.error_band.text
    ci = p.throughput_ci_fraction
    return f"± {ci:.1%} (95 % confidence)" if ci else "deterministic"


def _assumptions(assumptions: Sequence[Assumption]) -> Table:
    table = new_table("", "", "")
    for a in assumptions:
        table.add_row(a.name, escape(_value(a)), f"[dim]{escape(a.source)}[/]")
    return table


def _value(a: Assumption) -> str:
    if isinstance(a.value, (int, float)) and a.unit in ("s", "bytes", "bytes_per_s", "flop_per_s"):
        return quantity(a.value, a.unit)
    return str(a.value) if a.value == "inf" else f"{a.value} {a.unit}".strip()


def _duration(seconds: float) -> str:
    """Seconds in the unit people would use.

    >>> _duration(90), _duration(7200), _duration(2.5)
    ('1.5 min', '2 h', '2.5 s')
    """
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return quantity(seconds, "s")
