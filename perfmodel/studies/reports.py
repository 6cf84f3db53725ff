"""Everything about a job in one result, and the page that shows it.

It holds the prediction, the effects of its assumptions, the scaling curve by both routes, and what
would make the job faster. Effects of assumptions come from formulas. Points of the scaling curve
and changes are also simulated if that is quick.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.inputs.job import SCHEMA as JOB_SCHEMA, Jitter, Job, JobFile
from perfmodel.inputs.job_arguments import per_worker
from perfmodel.predicting import job_facts
from perfmodel.predicting.fine import Simulation
from perfmodel.reporting import page
from perfmodel.reporting.contents import (
    INTERVAL,
    Axis,
    Column,
    Page,
    Panel,
    Quantity,
    Section,
    Series,
    Table,
    columns,
    shown,
)
from perfmodel.reporting.panels import colour
from perfmodel.results import sections
from perfmodel.results.prediction import Prediction
from perfmodel.studies.advice import Advice, advise
from perfmodel.studies.sensitivity import Sensitivity, sensitivity
from perfmodel.sweeping.chunks import Progress
from perfmodel.sweeping.sweeps import sweep

SCHEMA = "perfmodel.report/1"

QUICK: Mapping[str, Any] = {"rel_ci": 0.03, "max_ops": 1e6}
"""How points of the scaling curve and changes are simulated: at most about a second each, as their
intervals are much wider than the error of a short simulation."""

OF_THE_RUN = ("dataset_size", "epochs", "iterations", "run_iterations")
"""Arguments of ``predict`` that only the prediction itself takes."""


class Scaled(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of the job with another number of workers, by each route.

    A route without a prediction has None. ``low`` and ``high`` are the ends of the interval, from
    the simulation if there is one.
    """

    workers: int
    fine_samples_per_s: float | None
    coarse_samples_per_s: float | None
    low_samples_per_s: float | None
    high_samples_per_s: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a job.

    Attributes
    ----------
    command : the command that made it; empty for one that a program made.
    job : the job file that describes it; None where it has objects of a program.
    prediction, coarse : the prediction, and that of the formulas where the first is simulated.
    sensitivity : what the assumptions are worth, by formulas.
    scaling : the throughput over the number of workers.
    advice : what would make it faster, simulated where formulas are not exact enough.
    """

    schema: str = SCHEMA
    command: str
    job: dict[str, Any] | None
    prediction: Prediction
    coarse: Prediction | None
    sensitivity: Sensitivity
    scaling: tuple[Scaled, ...]
    advice: Advice

    def __repr__(self) -> str:
        return f"Report({self.prediction!r})"

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values."""
        return {
            "schema": self.schema,
            "command": self.command,
            "job": self.job,
            "prediction": self.prediction.to_dict(),
            "coarse": self.coarse.to_dict() if self.coarse is not None else None,
            "sensitivity": self.sensitivity.rows(),
            "scaling": msgspec.to_builtins(self.scaling),
            "advice": self.advice.rows(),
        }

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def to_html(self, path: str | Path | None = None) -> str:
        """A page of HTML that needs no network, also written to ``path`` (extra ``report``).

        Raises
        ------
        InputError : Bokeh is not installed; the place cannot be written.
        """
        page.check()
        p = self.prediction
        first, *rest = sections.sections(p, assumptions=False)
        code = [("Command", self.command)] if self.command else []
        if self.job is not None:
            code.append(("Job file (--job)", json.dumps(self.job, indent=2)))
        parts = [
            first,
            _sensitivity(self.sensitivity),
            *rest,
            _scaling(self.scaling, p.workers),
            _advice(self.advice),
            sections.reproduce(p, tuple(code)),
        ]
        top = sections.answer(p)
        return page.html(Page(title=sections.title(p), answer=top, sections=parts), path)


def report(
    source: Prediction | Job | None = None,
    *,
    fidelity: api.Fidelity = "fine",
    tolerance: float = api.TOLERANCE,
    rel_ci: float = api.REL_CI,
    max_ops: float = api.MOST_OPS,
    command: str = "",
    progress: Progress | None = None,
    **arguments: Any,
) -> Report:
    """Predict a job, and all that a report of it shows.

    Parameters
    ----------
    source : a job, or a simulated prediction of one, in the place of ``arguments``.
    fidelity, tolerance, rel_ci, max_ops : of the prediction, see :func:`perfmodel.predict`.
    command : what to show as the command that made it.
    progress : called with (done, all) after each part.
    arguments : those of :func:`perfmodel.make_job`, ``global_batch_size`` in the place of
        ``batch_size``, and ``dataset_size``, ``epochs``, ``iterations`` and ``run_iterations`` of
        :func:`perfmodel.predict`.

    Raises
    ------
    InputError : the job is impossible; ``source`` comes with arguments, or its job is not known or
        was changed after :func:`perfmodel.make_job` made it.

    >>> found = report(model="resnet18", arch="ring", workers=4, fidelity="coarse")
    >>> [each.workers for each in found.scaling]
    [1, 2, 4, 8]
    """
    run = {name: arguments.pop(name) for name in OF_THE_RUN if name in arguments}
    if source is not None:
        if arguments:
            raise InputError(f"report: a job, or arguments of one; got {', '.join(arguments)} too")
        arguments = _arguments_of(source)
    given = per_worker(arguments)
    asked: dict[str, Any] = {"tolerance": tolerance, "rel_ci": rel_ci, "max_ops": max_ops}
    job = api.make_job(**given)

    def did(parts: int) -> None:
        if progress is not None:
            progress(parts, 5)

    if isinstance(source, Prediction):
        found = source
    else:
        found = api.predict(job, fidelity=fidelity, **asked, **run)
    return _around(found, job, given, arguments, command, did)


def _arguments_of(source: Prediction | Job) -> dict[str, Any]:
    """The arguments of a job, or of a predicted job.

    Raises
    ------
    InputError : they are not known.
    """
    job = source
    if isinstance(job, Prediction):
        if not isinstance(job.simulation, Simulation):
            raise InputError(
                "report: only a simulated prediction has its job; give perfmodel.report the job"
            )
        job = job.simulation.job
    if job.given is None or job_facts.with_layers(api.make_job(**job.given)) != (
        job_facts.with_layers(job)
    ):
        raise InputError(
            "report: not a job as make_job made it; Prediction.report has a page of it alone"
        )
    return job.given


def _around(
    found: Prediction,
    job: Job,
    given: Mapping[str, Any],
    scaled: Mapping[str, Any],
    command: str,
    did: Callable[[int], None],
) -> Report:
    """The report around a prediction of a job.

    Parameters
    ----------
    given, scaled : arguments of the job, and those of jobs with other numbers of workers.
    did : called with the number of parts that are done.
    """
    did(1)
    fine = found.fidelity == "fine"
    coarse = api.predict(job, fidelity="coarse") if fine else None
    did(2)
    effects = sensitivity(**given)
    did(3)
    at = job.of_devices.workload.batch_size
    scaling = _scaled(api.anchored(scaled, at), found)
    did(4)
    advice = advise(**given, fidelity="auto" if fine else "coarse", **QUICK)
    did(5)
    return Report(
        command=command,
        job=_job_file(given),
        prediction=found,
        coarse=coarse,
        sensitivity=effects,
        scaling=scaling,
        advice=advice,
    )


def _scaled(arguments: Mapping[str, Any], found: Prediction) -> tuple[Scaled, ...]:
    """Throughput over workers: powers of two up to twice as many, by formulas, and simulated where
    the prediction ``found`` of the job itself is."""
    count = arguments.get("workers", 1)
    numbers = sorted({*(2**k for k in range((2 * count).bit_length())), count})
    rest = {name: value for name, value in arguments.items() if name != "workers"}

    def over(fidelity: api.Fidelity, numbers: Sequence[int]) -> list[Prediction]:
        try:
            found = sweep(**rest, workers=list(numbers), fidelity=fidelity, **QUICK)
            return [*found.predictions]
        except InputError:  # none of them is a job that can be predicted so
            return []

    formulas = {p.workers: p for p in over("coarse", numbers)}
    simulated = {}
    if found.fidelity == "fine":
        known = [found] if found.iterations is None else []
        others = [n for n in numbers if n not in [p.workers for p in known]]
        simulated = {p.workers: p for p in (*over("fine", others), *known)}
    return tuple(
        _point(n, simulated.get(n), formulas.get(n))
        for n in numbers
        if n in simulated or n in formulas
    )


def _point(workers: int, fine: Prediction | None, coarse: Prediction | None) -> Scaled:
    shown = fine if fine is not None else coarse
    interval = shown.interval if shown is not None else None
    low, high = interval.throughput_samples_per_s if interval is not None else (None, None)
    return Scaled(
        workers=workers,
        fine_samples_per_s=fine.throughput_samples_per_s if fine is not None else None,
        coarse_samples_per_s=coarse.throughput_samples_per_s if coarse is not None else None,
        low_samples_per_s=low,
        high_samples_per_s=high,
    )


def _job_file(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The contents of a job file; None where an argument is an object that has no file."""
    values: dict[str, Any] = {"schema": JOB_SCHEMA}
    for name, value in given.items():
        if value in (None, (), {}):
            continue
        if isinstance(value, Jitter):
            values[name] = f"{value.kind}:{value.cv}:{value.scope}"
        elif isinstance(value, Path):
            values[name] = str(value)
        else:
            values[name] = value
    try:
        plain: dict[str, Any] = msgspec.to_builtins(values, enc_hook=_item)
        msgspec.convert(plain, JobFile)
    except (TypeError, ValueError, msgspec.ValidationError):
        return None
    return plain


def _item(value: Any) -> Any:
    """A NumPy number as one of Python."""
    return value.item()


def _sensitivity(found: Sensitivity) -> Section:
    heads = ("assumption", "assumed", "instead", "throughput (samples/s)")
    shown_columns = [*columns(*heads, change="ratio"), Column("source")]
    rows: list[tuple[Any, ...]] = []
    unvaried = []
    for each in found.effects:
        a = each.assumption
        now = a.name, Quantity(a.value, a.unit)
        rows += [
            (*now, Quantity(o.value, a.unit), o.throughput_samples_per_s, o.ratio, a.source)
            for o in each.alternatives
        ]
        if not each.alternatives:
            unvaried.append((*now, each.unvaried, a.source))
    names = columns("assumption", "assumed", "why", "source")
    p = found.prediction
    how = "predicted by formulas" if p.fidelity == "coarse" else "simulated"
    rate = shown(p.throughput_samples_per_s, "samples/s")
    return Section(
        name="assumptions",
        title="Assumptions and their effect",
        text=[
            "Throughput when each number is halved and doubled, each switch is flipped, and each "
            f"choice is replaced by another, relative to {rate}. All values are {how}. The largest "
            "effects come first."
        ],
        figure=found.figure().rows[0][0],
        tables=[
            Table("Effect of each assumption", shown_columns, rows),
            *([Table("Assumptions that were not varied", names, unvaried)] if unvaried else []),
        ],
    )


def _scaling(points: Sequence[Scaled], workers: int) -> Section:
    series: list[Series] = []
    for name, style in (("fine", "line"), ("coarse", "dashed")):
        key = f"{name}_samples_per_s"
        known = [each for each in points if getattr(each, key) is not None]
        if not known:
            continue
        band = name == "fine" or not series
        ends = [(each.low_samples_per_s, each.high_samples_per_s) for each in known]
        whole = band and all(low is not None for low, _ in ends)
        series.append(
            Series(
                {"fine": "simulated", "coarse": "formulas"}[name],
                [each.workers for each in known],
                [getattr(each, key) for each in known],
                colour(len(series)),
                style,
                "o",
                low=[low or 0.0 for low, _ in ends] if whole else (),
                high=[high or 0.0 for _, high in ends] if whole else (),
                band=INTERVAL,
            )
        )
    rate = "samples/s"
    heads = ("workers", f"simulated ({rate})", f"formulas ({rate})", "low", "high")
    table = Table("Scaling", columns(*heads), [msgspec.structs.astuple(each) for each in points])
    return Section(
        name="scaling",
        title="Scaling",
        text=[
            "Throughput over the number of workers, with the interval that contains 9 of 10 "
            f"measured runs. This job has {workers}."
        ],
        figure=Panel(
            series,
            Axis("workers", log=True, ticks=[each.workers for each in points]),
            Axis(f"throughput ({rate})", log=True),
        ),
        tables=[table],
    )


def _advice(found: Advice) -> Section:
    heads = ("change", "flags", "speed-up", "low", "high", "sure", "effect on learning")
    names = ("change", "flags", "gain", "low", "high", "recommended", "price")
    rows = [tuple(row[name] for name in names) for row in found.rows()]
    how = "by formulas" if found.prediction.fidelity == "coarse" else "by simulation"
    text = (
        f"Speed-up of each change, predicted {how}. It is sure where the whole interval is above 1."
    )
    return Section(
        name="advice",
        title="What would make it faster",
        text=[text if rows else "None of the changes that were tried makes it faster."],
        tables=[Table("Changes", columns(*heads), rows)] if rows else [],
    )
