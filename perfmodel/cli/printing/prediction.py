"""Tables of predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfmodel.base.provenance import Assumption
from perfmodel.base.units import show as quantity
from perfmodel.cli.printing.text import bold, dim, show, show_rows
from perfmodel.results.prediction import Prediction

SHORT_TRANSIENT = 20
"""Longest transient that is not mentioned (iterations)."""


def prediction(p: Prediction) -> None:
    """Print a prediction: figures, bottleneck and assumptions."""
    show(title(p))
    show_rows(_figures(p))
    show(f"{bold('bottleneck')}: {p.bottleneck.text}")
    for note in p.notes:
        show(f"{bold('note')}: {note}")
    show_assumptions(p.assumptions)


def _figures(p: Prediction) -> Iterator[tuple[str, str, str]]:
    """Name, value and remark of each figure."""
    yield (
        "throughput",
        f"{p.throughput_samples_per_s:.5g} samples/s",
        certainty(p),
    )
    if p.sequence_length is not None:
        tokens = float(f"{p.throughput_samples_per_s * p.sequence_length:.5g}")
        yield ("tokens", f"{tokens:.12g} tokens/s", f"{p.sequence_length} of each sample")
    if p.interval is not None:
        low, high = p.interval.throughput_samples_per_s
        yield (f"{p.interval.coverage:.0%} interval", f"{low:.4g} to {high:.4g}", p.interval.text)
    yield (
        "iteration",
        quantity(p.iteration_s, "s"),
        f"of which {quantity(p.compute_s, 's')} compute",
    )
    if p.iterations is not None:
        yield ("of the start", f"{p.iterations} iterations", "of each worker, at least")
    if p.transient_iterations >= SHORT_TRANSIENT:
        yield (
            "transient",
            f"{p.transient_iterations} iterations",
            "about as long do workers drift apart; the figures are of the time after it",
        )
    if p.training is not None:
        t = p.training
        yield (
            "training",
            _duration(t.training_s),
            f"{t.epochs} x {_duration(t.epoch_s)} of {t.iterations_per_epoch} iterations",
        )
    causes = ", ".join(f"{c} {part:.1%}" for c, part in p.idle_fraction.by_cause.items())
    workers = p.idle_fraction.per_worker
    spread = f"workers {min(workers):.1%} to {max(workers):.1%}"
    yield ("idle", f"{p.idle_fraction.mean:.1%}", "; ".join(filter(None, [causes, spread])))
    yield ("exposed communication", quantity(p.exposed_communication_s, "s"), "per iteration")
    if p.staleness is not None:
        s = p.staleness
        yield (
            "staleness",
            f"{s.mean:.3g} updates",
            f"median {s.p50}, p90 {s.p90}, at most {s.max}",
        )
    if p.model_age is not None:
        age = p.model_age
        text = f"p90 {age.p90}, an exchange every {age.exchange_every:.3g} steps"
        yield ("model age", f"{age.mean:.3g} steps", text)
    phases = ", ".join(f"{name} {quantity(s, 's')}" for name, s in p.phases_s.items())
    if phases:
        yield ("phases", phases, "of an iteration")
    operations = ", ".join(f"{n} {quantity(s, 's')}" for n, s in p.operation_s.items())
    if operations:
        yield ("mean times", operations, f"{p.updates_per_s:.4g} model updates/s")
    busiest = max(p.utilisation.links.items(), key=lambda item: item[1], default=None)
    if busiest is not None:
        yield ("busiest link", f"{busiest[1]:.1%}", busiest[0])
    busiest = max(p.utilisation.cores.items(), key=lambda item: item[1], default=None)
    if busiest is not None:
        yield ("busiest processor", f"{busiest[1]:.1%}", busiest[0])
    memory = f"worker {quantity(p.memory.worker_bytes, 'bytes')}"
    if p.memory.server_bytes is not None:
        memory += f", server {quantity(p.memory.server_bytes, 'bytes')}"
    yield ("memory", memory, "estimated")


def title(p: Prediction) -> str:
    """The job in a line."""
    unit = "island" if p.island_devices else "worker"
    return (
        f"{bold(p.model)} on {workers_of(p)}, {p.architecture}, "
        f"batch {p.batch_size} per {unit} ({p.global_batch_size} in all), "
        f"compute times {bold(p.quality)}"
    )


def workers_of(p: Prediction) -> str:
    """The devices, and how they are grouped."""
    count = _groups(p.island_devices) if p.island_devices else str(p.workers)
    return f"{count} x {p.device}"


def _groups(devices: Sequence[int]) -> str:
    """Islands of so many devices each.

    >>> _groups((8, 8, 8)), _groups((8, 4))
    ('3 islands of 8', 'islands of 8+4')
    """
    if len(set(devices)) == 1:
        return f"{len(devices)} island{'s' * (len(devices) > 1)} of {devices[0]}"
    return f"islands of {'+'.join(map(str, devices))}"


def certainty(p: Prediction) -> str:
    """Uncertainty of a throughput, apart from errors of the model."""
    if p.error_band is not None:
        return p.error_band.text
    ci = p.throughput_ci_fraction
    return f"± {ci:.1%} (95 % confidence)" if ci else "deterministic"


def show_assumptions(assumptions: Sequence[Assumption]) -> None:
    """Print what was assumed, if anything, and where it comes from."""
    if not assumptions:
        return
    show(f"\n{dim('assumed, because not given:')}")
    show_rows((a.name, _value(a), a.source) for a in assumptions)


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
