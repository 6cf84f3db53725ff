"""Tables of predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfmodel.base.provenance import Assumption
from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.text import bold, dim, show, show_rows
from perfmodel.cli.verbosity import verbosity
from perfmodel.results.effects import MATTERS, Effect, that_matter, unknown
from perfmodel.results.memory import Memory
from perfmodel.results.prediction import ErrorBand, Prediction
from perfmodel.results.training import Training

Row = tuple[str, str, str]
"""Name, value and remark of a figure."""

SHORT_TRANSIENT = 20
"""Transients up to this length are not printed (iterations)."""

MOST_VALUES = 3
"""Most other values of an assumption that are printed."""

LONGEST_VALUE = 24
"""Values up to this many characters are printed in a column of their own."""

MOST_PARTS = 4
"""Most components of the memory of a stage that are printed."""

LEAST = 0.0005
"""Smallest relative change of the throughput that is printed."""


def prediction(p: Prediction, worth: Sequence[Effect], remedy: str = "") -> None:
    """Print whether the job fits, the answer in eight lines, notes, and assumptions that matter.

    With --verbose all figures and all assumptions; with --quiet no assumptions. ``remedy`` says
    what makes a job fit that does not.
    """
    show(title(p))
    shortage = p.memory.shortage(p.device)
    if shortage:
        show(bold(shortage))
        show(remedy)
    show_rows(_rows(p, verbose=verbosity() > 0))
    show(f"{bold('bottleneck')}: {p.bottleneck.text}")
    for note in p.notes:
        if note != shortage:
            show(f"{bold('note')}: {note}")
    assumed(worth)


def _rows(p: Prediction, *, verbose: bool) -> Iterator[Row]:
    """Yield the figures that answer the question, or all."""
    rate = f"{p.throughput_samples_per_s:.5g} samples/s"
    if p.interval is None:
        yield "throughput", rate, certainty(p) if verbose else ""
    else:
        low, high = p.interval.throughput_samples_per_s
        name, ends = f"{p.interval.coverage:.0%} interval", f"{low:.4g} to {high:.4g}"
        short = f"{name} {ends}: {p.interval.text}"
        yield "throughput", rate, certainty(p) if verbose else short
    if p.sequence_length is not None:
        tokens = float(f"{p.throughput_samples_per_s * p.sequence_length:.5g}")
        yield "tokens", f"{tokens:.12g} tokens/s", f"{p.sequence_length} per sample"
    if p.interval is not None and verbose:
        yield name, ends, p.interval.text
    if p.error_band is not None and not verbose:
        yield "by formulas", _error(p.error_band), p.error_band.text
    communication = f"exposed communication {quantity(p.exposed_communication_s, 's')}"
    iteration = f"compute {quantity(p.compute_s, 's')}, {communication}"
    if p.iterations is not None:
        first = "iteration" if p.iterations == 1 else f"{p.iterations} iterations"
        iteration += f", mean of each worker's first {first}"
    yield "iteration", quantity(p.iteration_s, "s"), iteration
    if verbose and p.transient_iterations >= SHORT_TRANSIENT:
        after = "until workers have drifted apart; the figures are of the time after it"
        yield "transient", f"{p.transient_iterations} iterations", after
    if p.training is not None:
        yield from _training(p.training, verbose=verbose)
    yield _idle(p)
    if p.idle_fraction.by_stage and verbose:
        parts = enumerate(p.idle_fraction.by_stage)
        yield "- by stage", "", ", ".join(f"stage {k} {part:.1%}" for k, part in parts)
    yield from _staleness(p) if verbose else _staleness_in_a_row(p)
    if p.staleness is not None and p.staleness.by_stage:
        means = enumerate(p.staleness.by_stage)
        yield "- by stage", "", ", ".join(f"stage {k} {mean:.3g}" for k, mean in means)
    if verbose:
        yield from _details(p)
    yield _memory(p)
    if verbose:
        yield from components(p.memory)


def _training(t: Training, *, verbose: bool) -> Iterator[Row]:
    """Yield the time of the training, and what failures make of it."""
    epochs = (
        f"{t.epochs} x {_duration(t.epoch_s)} of {quantity(t.iterations_per_epoch, 'iterations')}"
    )
    run = t.with_failures
    if run is None:
        yield "training", _duration(t.training_s), epochs
        return
    low, high = map(_duration, run.interval_s)
    every = f"a checkpoint every {_duration(run.checkpoint_interval_s)}"
    counts = quantity(run.failures, "failures")
    if run.present_fraction < 1.0:
        counts += f", {quantity(run.interruptions, 'nodes')} taken away"
    text = f"90% interval {low} to {high}: {counts}, {every}"
    yield "training", _duration(run.median_s), f"{text}, goodput {run.goodput_fraction:.1%}"
    if verbose:
        yield "- without failures", _duration(t.training_s), epochs
        size = quantity(run.checkpoint_bytes, "bytes")
        yield "- checkpoint", size, f"training pauses for {_duration(run.pause_s)}"
        if run.interruptions:
            there = f"{run.present_fraction:.1%} of the nodes there, on average"
            yield "- interruptions", f"{run.interruptions:.4g}", there
        for cause, lost_s in run.lost_s.items():
            yield f"- {cause}", _duration(lost_s), f"{lost_s / run.expected_s:.1%} of the time"
        doubled = (f"{name} {change:+.1%}" for name, change in run.sensitivity.items())
        yield "- if it doubles", "", ", ".join(doubled)


def _details(p: Prediction) -> Iterator[Row]:
    """Yield what else is known of an iteration."""
    phases = ", ".join(f"{name} {quantity(s, 's')}" for name, s in p.phases_s.items())
    if phases:
        yield "phases", phases, "of an iteration"
    operations = ", ".join(f"{n} {quantity(s, 's')}" for n, s in p.operation_s.items())
    if operations:
        yield "mean times", operations, f"{p.updates_per_s:.4g} model updates/s"
    for name, used in (("link", p.utilisation.links), ("processor", p.utilisation.cores)):
        if used:
            busiest = max(used, key=used.__getitem__)
            yield f"busiest {name}", f"{used[busiest]:.1%}", busiest


def _error(band: ErrorBand) -> str:
    """Return the error of the formulas in a word."""
    if band.p90 is None:
        return "error unknown"
    return f"± {band.p90:.1%}" if band.p90 else "exact"


def _idle(p: Prediction) -> Row:
    causes = ", ".join(f"{c} {part:.1%}" for c, part in p.idle_fraction.by_cause.items())
    least, most = (f"{end(p.idle_fraction.per_worker):.1%}" for end in (min, max))
    spread = f"workers {least} to {most}" if least != most else ""
    return "idle", f"{p.idle_fraction.mean:.1%}", "; ".join(filter(None, [causes, spread]))


def _staleness(p: Prediction) -> Iterator[Row]:
    if p.staleness is not None:
        s = p.staleness
        row = f"median {s.p50}, p90 {s.p90}, at most {s.max}"
        mean = f"{s.mean:.3g}" if s.mean < 1000.0 else f"{s.mean:.0f}"
        yield "staleness", f"{mean} update{'s' * (mean != '1')}", row
    if p.model_age is not None:
        age = p.model_age
        every, mean = f"{age.exchange_every:.3g} steps", f"{age.mean:.3g}"
        row = f"p90 {age.p90}, an exchange every {'step' if every == '1 steps' else every}"
        yield "model age", f"{mean} step{'s' * (mean != '1')}", row


def _staleness_in_a_row(p: Prediction) -> Iterator[Row]:
    """Yield staleness and model age in one row."""
    rows = list(_staleness(p))
    if len(rows) == 2:
        (name, value, spread), (age_name, age, more) = rows
        rows = [(name, value, f"{spread}; {age_name} {age}, {more}")]
    yield from rows


def _memory(p: Prediction) -> Row:
    stage = p.memory.fullest_stage
    process = "worker" if stage is None else "device"
    memory = f"{process} {quantity(p.memory.worker_bytes, 'bytes')}"
    if p.memory.server_bytes is not None:
        memory += f", server {quantity(p.memory.server_bytes, 'bytes')}"
    many = len(p.memory.stages)
    fullest = f", the fullest of {many} stages: {stage}" if many > 1 else ""
    return "memory", memory, f"estimated{fullest}"


def components(memory: Memory) -> Iterator[Row]:
    """Yield a row for each component that a worker has, what its process reserves, and a row for a
    device of each stage."""
    worker = memory.worker
    details = {
        "activations": worker.activations_bytes,
        "copies of the model": worker.model_copies_bytes,
    }
    for name, size in worker.tensors.items():
        if size != 0.0:
            yield f"- {name}", quantity(size, "bytes"), _listed(details.get(name, {}))
    if worker.host_bytes > 0.0:
        yield "- on the host", quantity(worker.host_bytes, "bytes"), "offloaded"
    if worker.reserved_bytes is not None:
        low, high = worker.reserved_bytes.p5, worker.reserved_bytes.p95
        remark = f"90% interval {quantity(low, 'bytes')} to {quantity(high, 'bytes')}"
        if worker.library_bytes > 0.0:
            remark += f", {quantity(worker.library_bytes, 'bytes')} of them by libraries"
        yield "- reserved", quantity(worker.reserved_bytes.median, "bytes"), remark
    if len(memory.stages) > 1:
        for number, stage in enumerate(memory.stages):
            allocated = quantity(stage.allocated_bytes, "bytes")
            yield f"- stage {number}", allocated, _listed(stage.at_peak, MOST_PARTS)


def _listed(sizes: dict[str, float], most: int | None = None) -> str:
    """Return several sizes by name, the largest first, at ``most`` so many."""
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{name} {quantity(size, 'bytes')}" for name, size in largest)


def title(p: Prediction) -> str:
    """Return the job in a line."""
    batch = f"batch {p.batch_size} per {'island' if p.island_devices else 'worker'} "
    batch += f"({p.global_batch_size} in all)"
    if p.global_batch_size != p.batch_size * p.workers:  # that of the first is not that of all
        batch = f"batch {p.global_batch_size} in all"
    return (
        f"{bold(p.model)} on {workers_of(p)}, {p.architecture}, "
        f"{p.layout.text + ', ' if p.layout is not None else ''}"
        f"{batch}, "
        f"compute times {bold(p.quality)}"
    )


def workers_of(p: Prediction) -> str:
    """Return the devices, and how they are grouped and placed on nodes."""
    return f"{p.counted} x {p.device}{_nodes(p)}"


def _nodes(p: Prediction) -> str:
    """Return the number of nodes, and the devices on each if there are several."""
    if p.nodes is None or (p.workers == 1 and p.layout is None):
        return ""
    devices = p.devices_per_node
    several = f" of {devices}" if devices is not None and devices > 1 else ""
    return f" ({p.nodes} node{'s' * (p.nodes > 1)}{several})"


def certainty(p: Prediction) -> str:
    """Return the uncertainty of a throughput, apart from model errors."""
    if p.error_band is not None:
        return p.error_band.text
    ci = p.throughput_ci_fraction
    return f"± {ci:.1%} (95 % confidence)" if ci else "deterministic"


def assumed(worth: Sequence[Effect], of: str = "", *, everything: bool = False) -> None:
    """Print the assumptions that matter and count the others; print nothing with --quiet.

    Parameters
    ----------
    worth : the effect of each assumption, the largest first.
    of : appended to the heading, such as " of the fastest job".
    everything : print all of them, as with --verbose.
    """
    if not worth or verbosity() < 0:
        return
    everything = everything or verbosity() > 0
    shown = list(worth) if everything else that_matter(worth)
    if shown:
        title = f"assumed (and how other values change the throughput{of}):"
        show(f"\n{dim(title)}")
        least = LEAST if everything else MATTERS
        show_rows(assumption_row(e.assumption, _changes(e, least)) for e in shown)
    unlisted = [effect for effect in worth if effect not in shown]
    unjudged = unknown(unlisted)
    unvaried = sum(not effect.alternatives for effect in unlisted) - unjudged
    more = f"; formulas cannot judge {unjudged} more" if unjudged else ""
    more += f"; {unvaried} {'is' if unvaried == 1 else 'are'} not varied" if unvaried else ""
    small = len(unlisted) - unjudged - unvaried
    uncounted(small, f"change it by less than {MATTERS:.0%}{more}", first=not shown)


def uncounted(number: int, effect: str, *, first: bool) -> None:
    """Print how many assumptions are not listed, if any, and their effect."""
    if number:
        more = "" if first else "other "
        line = f"{number} {more}default{'s' * (number > 1)} {effect}; --verbose lists them"
        show(("\n" if first else "") + dim(line))


def assumption_row(a: Assumption, effect: str) -> Row:
    """Return the row of an assumption; a long value goes to the remark."""
    value = quantity_text(a.value, a.unit)
    long = len(value) > LONGEST_VALUE
    return a.name, "" if long else value, "; ".join(filter(None, [value * long, effect, a.source]))


def _changes(effect: Effect, least: float) -> str:
    """Return the changes of the throughput by other values that exceed ``least``."""
    if effect.left_out:
        return effect.unvaried
    unit = effect.assumption.unit
    return ", ".join(
        f"{alternative.ratio - 1.0:+.1%} with {quantity_text(alternative.value, unit)}"
        for alternative in effect.largest(MOST_VALUES, least)
    )


def quantity_text(value: int | float | str | None, unit: str) -> str:
    """Return a value with its unit.

    >>> quantity_text(1.25e9, "bytes_per_s"), quantity_text(0.5, "of bandwidth")
    ('10 Gbps', '0.5 of bandwidth')
    >>> quantity_text(8e-10, "s/byte"), quantity_text(100_000, "samples")
    ('0.8 ns/byte', '100000 samples')
    """
    if isinstance(value, (str, bool)) or value is None:
        return str(value)
    return quantity(value, unit)


def _duration(seconds: float) -> str:
    """Return seconds in a readable unit.

    >>> _duration(90), _duration(7200), _duration(2.5)
    ('1.5 min', '2 h', '2.5 s')
    """
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return quantity(seconds, "s")
