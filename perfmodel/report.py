"""What the command line prints: tables for people."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perfmodel import architectures, catalogue
from perfmodel.comparison import WORDS, Comparison, differences
from perfmodel.crossovers import Crossover, Explanation, words
from perfmodel.errors import unknown_name
from perfmodel.formulas import Formula
from perfmodel.job import Job
from perfmodel.prediction import Prediction
from perfmodel.profile import Profile
from perfmodel.provenance import Assumption
from perfmodel.sweeps import Sweep, figures
from perfmodel.units import dimension_of
from perfmodel.units import show as quantity


def _console() -> Console:
    # a file or a pipe has no width: leave lines whole there
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def _table(*columns: str) -> Table:
    """A table without lines; headers only where there are names."""
    table = Table(box=None, pad_edge=False, show_header=any(columns), header_style="dim")
    for i, column in enumerate(columns):
        table.add_column(column, style="bold" if i == 0 else "", overflow="fold")
    return table


SHORT_TRANSIENT = 20
"""Iterations of a transient that goes unmentioned."""

HEADS = {
    "throughput_samples_per_s": "samples/s",
    "iteration_s": "iteration",
    "idle_fraction": "idle",
    "staleness_mean": "staleness",
    "scaling_efficiency": "scaling",
}
"""What figures are called in a table."""

ASIDE = (
    *("throughput_ci_fraction", "of_best_fraction", "busiest_link_fraction"),
    *("error_p90_fraction", "low_samples_per_s", "high_samples_per_s"),
)
"""Figures that a table shows beside others, or not at all."""


def sweep(s: Sweep) -> None:
    """Print a sweep: what its jobs have in common, and a line for each."""
    out = _console()
    if s.title:
        out.print(f"[bold]{escape(s.title)}[/]")
    rows = s.rows()
    columns = [name for name in rows[0] if name not in ASIDE]
    table = _table(*map(_head, columns))
    for row in rows:
        table.add_row(*(escape(_cell(name, row)) for name in columns))
    out.print(table)


def comparison(c: Comparison) -> None:
    """Print a comparison: a column for each job, and why one is faster than another."""
    out = _console()
    if c.title:
        out.print(f"[bold]{escape(c.title)}[/]")
    rows = c.rows()
    table = _table("", *c.names)
    for name in rows[0]:
        if name not in (*ASIDE, "job"):
            table.add_row(_head(name), *(escape(_cell(name, row)) for row in rows))
    out.print(table)
    for sentence in c.text:
        out.print(f"\n{escape(sentence)}")


def _head(name: str) -> str:
    """The words for a column.

    >>> _head("bandwidth_bytes_per_s"), _head("idle_network_s"), _head("idle_fraction")
    ('bandwidth', 'waiting for the network', 'idle')
    """
    if name in HEADS:
        return HEADS[name]
    name = name.removesuffix(f"_{dimension_of(name)}")
    cause = name.removeprefix("idle_")
    return WORDS[cause] if cause in WORDS and name != cause else name.replace("_", " ")


def _cell(name: str, row: Mapping[str, Any]) -> str:
    """A value of a row the way people write it.

    >>> row = {"idle_fraction": 0.25, "iteration_s": 0.1, "servers": None}
    >>> [_cell(name, row) for name in row]
    ['25.0%', '100 ms', '-']
    """
    value = row[name]
    if value is None:
        return "-"
    if name == "fidelity":
        return f"{value}{_error(row['error_p90_fraction'])}" if value == "coarse" else str(value)
    if name == "busiest_link":
        return f"{value}, {row['busiest_link_fraction']:.1%}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if name == "throughput_samples_per_s":
        ci = row.get("throughput_ci_fraction")
        return f"{value:.5g} ± {ci:.1%}" if ci else f"{value:.5g}"
    if name.endswith("_fraction") or name == "scaling_efficiency":
        return f"{value:.1%}"
    unit = dimension_of(name)
    return quantity(value, unit) if unit and math.isfinite(value) else f"{value:.4g}"


def _error(p90: float | None) -> str:
    """What follows the word coarse."""
    if p90 is None:
        return ", error unknown"
    return f" ± {p90:.1%}" if p90 else ", exact"


def prediction(p: Prediction) -> None:
    """Print a prediction: the answer, why, and what was assumed."""
    out = _console()
    out.print(_title(p))
    table = _table("", "", "")
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
    out = _console()
    out.print(_title(fine))
    table = _table("", "fine", "coarse", "difference")
    rows = figures(fine), figures(coarse)
    for name, part in differences(fine, coarse).items():
        table.add_row(
            _head(name), *(_cell(name, row) for row in rows), _change(part, name == "idle_fraction")
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
    """How sure the throughput of a job is, its model being right."""
    if p.error_band is not None:
        return p.error_band.text
    ci = p.throughput_ci_fraction
    return f"± {ci:.1%} (95 % confidence)" if ci else "deterministic"


def _assumptions(assumptions: Sequence[Assumption]) -> Table:
    table = _table("", "", "")
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


def explanation(found: Explanation, job: Job, others: Sequence[Crossover]) -> None:
    """Print what rules, and where it stops."""
    out = _console()
    out.print(
        f"[bold]{escape(job.workload.name)}[/] on {job.workers} x {escape(job.workload.device)}, "
        f"{job.architecture}, by its formulas: {escape(found.error_band.text)}"
    )
    table = _table("phase", "time", "part")
    for name, seconds in found.phases_s.items():
        table.add_row(name, quantity(seconds, "s"), f"{seconds / found.iteration_s:.1%}")
    out.print(table)
    for line in words(found, job, others):
        out.print(escape(line))


def formula(found: Formula) -> None:
    """Print a coarse model to read, and to typeset."""
    out = _console()
    out.print(f"[bold]{escape(found.architecture)}[/]: seconds of an iteration of one of N workers")
    out.print(f"\n{escape(found.text)}\n", soft_wrap=True)
    table = _table("phase", "seconds")
    for term in found.phases:
        table.add_row(term.name, escape(term.text))
    out.print(table)
    out.print("\n[dim]where[/]")
    table = _table("", "", "")
    for entry in found.legend:
        table.add_row(entry.symbol, escape(entry.meaning), entry.unit)
    out.print(table)
    out.print(
        "\n[dim]of what overlaps the longer hides the shorter here; with layers it is worked out "
        "layer by layer[/]"
    )
    out.print("\n[dim]LaTeX[/]")
    out.print(found.latex, markup=False, soft_wrap=True)


def listing(kinds: Sequence[str]) -> None:
    """Print what there is of each kind."""
    out = _console()
    rows: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "architectures": lambda: [
            (", ".join([a.name, *a.aliases]), a.title) for a in architectures.all_architectures()
        ],
        "models": lambda: [(n, _model_line(catalogue.model(n))) for n in catalogue.model_names()],
        "devices": lambda: [(n, catalogue.device(n).title) for n in catalogue.device_names()],
        "clusters": lambda: [(n, catalogue.cluster(n).title) for n in catalogue.cluster_names()],
    }
    for kind in kinds:
        if len(kinds) > 1:
            out.print(f"[dim]{kind}[/]")
        table = _table("", "")
        for name, text in rows[kind]():
            table.add_row(f"  {name}" if len(kinds) > 1 else name, escape(text))
        out.print(table)


def _model_line(profile: Profile) -> str:
    measured = dict.fromkeys(t.device for t in profile.timings if t.source.kind == "measured")
    others = [d for d in profile.devices if d not in measured]
    line = f"{profile.title}; measured on {', '.join(measured) or 'no device'}"
    return line + (f"; published for {', '.join(others)}" if others else "")


def show(name: str) -> None:
    """Print all there is to know of an architecture, model, device or cluster.

    Raises
    ------
    InputError : nothing has that name.
    """
    aliases = [alias for a in architectures.all_architectures() for alias in a.aliases]
    known: list[tuple[Sequence[str], Callable[[str], None]]] = [
        ([*architectures.names(), *aliases], _show_architecture),
        (catalogue.model_names(), _show_model),
        (catalogue.device_names(), lambda n: _show_struct(catalogue.device(n))),
        (catalogue.cluster_names(), lambda n: _show_struct(catalogue.cluster(n))),
    ]
    for names, printer in known:
        if name in names:
            printer(name)
            return
    raise unknown_name("name", name, [n for names, _ in known for n in names])


def _show_architecture(name: str) -> None:
    out = _console()
    architecture, preset = architectures.find(name)
    out.print(f"[bold]{name}[/]: {architecture.title}")
    if preset:
        meaning = ", ".join(f"{k}={v}" for k, v in preset.items())
        out.print(f"short for {architecture.name} with {meaning}")
    out.print("\n[dim]options (--option NAME=VALUE)[/]")
    table = _table("option", "default", "")
    defaults = architecture.options()
    for field, meaning in architecture.option_help.items():
        table.add_row(field, str(getattr(defaults, field)), escape(meaning))
    out.print(table)
    out.print("\n[dim]assumptions[/]")
    for assumption in architecture.assumptions:
        out.print(f"- {assumption}")
    out.print(f"\n[dim]source[/] {architecture.source}")


def _show_model(name: str) -> None:
    out = _console()
    profile = catalogue.model(name)
    tensors = sum(len(layer.tensors) for layer in profile.layers)
    out.print(f"[bold]{name}[/]: {escape(profile.title)}")
    out.print(
        f"{len(profile.layers)} layers, {tensors} tensors, "
        f"{quantity(profile.parameter_bytes, 'bytes')} of parameters (float32)"
    )
    out.print(f"[dim]{escape(profile.source.text)}[/]\n")
    table = _table("device", "precision", "batch", "samples/s", "", "source")
    for t in sorted(profile.timings, key=lambda t: (t.device, t.precision, t.batch_size)):
        kind = "measured per layer" if t.per_layer and t.source.kind == "measured" else "estimated"
        rate = f"{t.batch_size / t.total_s:.4g}"
        source = f"{t.source.kind}: {t.source.text}"
        table.add_row(t.device, t.precision, str(t.batch_size), rate, kind, escape(source))
    out.print(table)
    out.print("[dim]estimated: the layers' times are shares, by roofline, of the published step[/]")


def _show_struct(value: msgspec.Struct) -> None:
    import json

    _console().print(
        json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False), markup=False
    )


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, shown once the work has taken a second."""
    from time import monotonic

    from rich.progress import Progress

    begin = monotonic()
    bar: Any = None
    task: Any = None

    def advance(done: int, of: int) -> None:
        nonlocal bar, task
        if bar is None and monotonic() - begin > 1.0:
            bar = Progress(console=Console(stderr=True), transient=True)
            bar.start()
            task = bar.add_task("simulating", total=of)
        if bar is not None:
            bar.update(task, completed=done, total=of)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()
