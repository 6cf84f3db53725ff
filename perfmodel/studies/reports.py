"""Everything about a job in one result, and the page that shows it.

It holds the prediction, the effects of its assumptions, the scaling curve by both routes, and what
would make the job faster. Effects of assumptions come from formulas. Points of the scaling curve
and changes are also simulated if that is quick.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.catalogue.job_workload import anchored
from perfmodel.inputs.failures import Failures
from perfmodel.inputs.job import Jitter, Job
from perfmodel.inputs.job_arguments import per_worker
from perfmodel.inputs.job_files import SCHEMA as JOB_SCHEMA, JobFile
from perfmodel.predicting import job_facts
from perfmodel.predicting.predicted_job import PredictedJob
from perfmodel.reporting import page
from perfmodel.reporting.contents import (
    INTERVAL,
    Axis,
    Column,
    Page,
    PageTable,
    Panel,
    Section,
    Series,
    UnitValue,
    columns,
    shown,
)
from perfmodel.reporting.panels import colour
from perfmodel.results import sections
from perfmodel.results.prediction import Prediction
from perfmodel.studies.advice import Advice, advise
from perfmodel.studies.fitting import in_words
from perfmodel.studies.sensitivity import Sensitivity, sensitivity
from perfmodel.sweeping.arguments import job_of
from perfmodel.sweeping.chunks import Progress
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.sweeps import sweep

if TYPE_CHECKING:
    from perfmodel.inputs.job import JobArguments

SCHEMA = "perfmodel.report/1"

QUICK_REL_CI, QUICK_MAX_OPS = 0.03, 1e6
"""How points of the scaling curve and changes are simulated: at most about a second each, as their
intervals are much wider than the error of a short simulation."""

PARTS = 5
"""Parts of a report, as its progress counts them."""


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
    job: Row | None
    prediction: Prediction
    coarse: Prediction | None
    sensitivity: Sensitivity
    scaling: tuple[Scaled, ...]
    advice: Advice

    def __repr__(self) -> str:
        return f"Report({self.prediction!r})"

    def to_dict(self) -> Row:
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
        first, *others = sections.sections(p, assumptions=False)
        code = [("Command", self.command)] if self.command else []
        if self.job is not None:
            code.append(("Job file (--job)", json.dumps(self.job, indent=2)))
        parts = [
            first,
            _sensitivity(self.sensitivity),
            *others,
            _scaling(self.scaling, p.workers),
            _advice(self.advice),
            sections.reproduce(p, tuple(code)),
        ]
        top = sections.answer(p)
        return page.html(Page(title=p.title, answer=top, sections=parts), path)


def report(
    source: Prediction | Job | None = None,
    *,
    fidelity: api.Fidelity = "fine",
    tolerance: float = api.TOLERANCE,
    rel_ci: float = api.REL_CI,
    max_ops: float = api.MOST_OPS,
    dataset_size: int | None = None,
    epochs: int | None = None,
    failures: Failures | None = None,
    iterations: int | None = None,
    run_iterations: int | None = None,
    command: str = "",
    progress: Progress | None = None,
    **arguments: Unpack[JobArguments],
) -> Report:
    """Predict a job, and all that a report of it shows.

    There are this many parameters because they are independent; all have a default.

    Parameters
    ----------
    source : a job, or a simulated prediction of one, in the place of ``arguments``.
    fidelity, tolerance, rel_ci, max_ops, dataset_size, epochs, failures, iterations,
        run_iterations : of the prediction, see :func:`perfmodel.predict`.
    command : what to show as the command that made it.
    progress : called with (done, all) after each part.
    arguments : those of :func:`perfmodel.make_job`, ``global_batch_size`` in the place of
        ``batch_size``.

    Raises
    ------
    InputError : the job is impossible; ``source`` comes with arguments, or its job is not known or
        was changed after :func:`perfmodel.make_job` made it.

    >>> result = report(model="resnet18", arch="ring", workers=4, fidelity="coarse")
    >>> [point.workers for point in result.scaling]
    [1, 2, 4, 8]
    """
    if source is not None and arguments:
        raise InputError(f"report: a job, or arguments of one; got {', '.join(arguments)} too")
    settings = arguments if source is None else _arguments_of(source)
    job_arguments = per_worker(settings)
    job = job_of(job_arguments)
    did = progress or (lambda done, parts: None)
    prediction = source
    if not isinstance(prediction, Prediction):
        prediction = api.predict(
            job,
            fidelity=fidelity,
            tolerance=tolerance,
            rel_ci=rel_ci,
            max_ops=max_ops,
            dataset_size=dataset_size,
            epochs=epochs,
            failures=failures,
            iterations=iterations,
            run_iterations=run_iterations,
        )
    did(1, PARTS)
    fine = prediction.fidelity == "fine"
    coarse = api.predict(job, fidelity="coarse") if fine else None
    did(2, PARTS)
    effects = sensitivity(job)
    did(3, PARTS)
    scaling = _scaled(anchored(settings, job.of_devices.workload.batch_size), prediction)
    did(4, PARTS)
    chosen: api.Fidelity = "auto" if fine else "coarse"
    advice = advise(job, fidelity=chosen, rel_ci=QUICK_REL_CI, max_ops=QUICK_MAX_OPS)
    did(5, PARTS)
    return Report(
        command=command,
        job=_job_file(job_arguments),
        prediction=prediction,
        coarse=coarse,
        sensitivity=effects,
        scaling=scaling,
        advice=advice,
    )


def _arguments_of(source: Prediction | Job) -> Mapping[str, object]:
    """The arguments of a job, or of a predicted job."""
    job = source
    if isinstance(job, Prediction):
        if not isinstance(job.predicted_job, PredictedJob):
            raise InputError(
                "report: a prediction read from JSON has no job; give perfmodel.report the job"
            )
        job = job.predicted_job.job
    if job.given is None or job_facts.with_layers(job_of(job.given)) != job_facts.with_layers(job):
        raise InputError(
            "report: not a job as make_job made it; Prediction.report has a page of it alone"
        )
    return job.given


def _scaled(arguments: Mapping[str, Any], prediction: Prediction) -> tuple[Scaled, ...]:
    """Throughput over workers: powers of two up to twice as many, by formulas, and simulated where
    the ``prediction`` of the job itself is."""
    count = arguments.get("workers", 1)
    numbers = sorted({*(2**k for k in range((2 * count).bit_length())), count})
    quick = {"rel_ci": QUICK_REL_CI, "max_ops": QUICK_MAX_OPS}

    def over(fidelity: api.Fidelity, numbers: Sequence[int]) -> dict[int, Prediction]:
        try:
            several = sweep(**{**arguments, **quick, "workers": numbers}, fidelity=fidelity)
        except InputError:  # none of them is a job that can be predicted so
            return {}
        return {p.workers: p for p in several.predictions}

    formulas, simulated = over("coarse", numbers), {}
    if prediction.fidelity == "fine":
        simulated = {count: prediction} if prediction.iterations is None else {}
        simulated |= over("fine", [n for n in numbers if n not in simulated])
    points = []
    for n in numbers:
        fine, coarse = simulated.get(n), formulas.get(n)
        either = fine if fine is not None else coarse
        if either is None:
            continue
        low, high = either.interval.throughput_samples_per_s if either.interval else (None, None)
        points.append(
            Scaled(
                workers=n,
                fine_samples_per_s=fine.throughput_samples_per_s if fine is not None else None,
                coarse_samples_per_s=coarse.throughput_samples_per_s
                if coarse is not None
                else None,
                low_samples_per_s=low,
                high_samples_per_s=high,
            )
        )
    return tuple(points)


def _job_file(arguments: Mapping[str, object]) -> Row | None:
    """The contents of a job file; None where an argument is an object that has no file."""
    values: Row = {"schema": JOB_SCHEMA}
    for name, value in arguments.items():
        if isinstance(value, Jitter):
            values[name] = f"{value.kind}:{value.cv}:{value.scope}"
        elif isinstance(value, Path):
            values[name] = str(value)
        elif value not in (None, (), {}):
            values[name] = value
    try:
        plain: Row = msgspec.to_builtins(values, enc_hook=lambda number: number.item())  # NumPy's
        msgspec.convert(plain, JobFile)
    except (TypeError, ValueError, AttributeError):
        return None
    return plain


def _sensitivity(result: Sensitivity) -> Section:
    heads = ("assumption", "assumed", "instead", "throughput (samples/s)")
    shown_columns = [*columns(*heads, change="ratio"), Column("source")]
    rows: list[tuple[object, ...]] = []
    unvaried: list[tuple[object, ...]] = []
    for effect in result.effects:
        a = effect.assumption
        now = a.name, UnitValue(a.value, a.unit)
        rows += [
            (*now, UnitValue(o.value, a.unit), o.throughput_samples_per_s, o.ratio, a.source)
            for o in effect.alternatives
        ]
        if not effect.alternatives:
            unvaried.append((*now, effect.unvaried, a.source))
    names = columns("assumption", "assumed", "why", "source")
    p = result.prediction
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
        figure=result.figure().rows[0][0],
        tables=[
            PageTable("Effect of each assumption", shown_columns, rows),
            *([PageTable("Assumptions that were not varied", names, unvaried)] if unvaried else []),
        ],
    )


def _scaling(points: Sequence[Scaled], workers: int) -> Section:
    series: list[Series] = []
    routes = (("fine", "simulated", "line"), ("coarse", "formulas", "dashed"))
    for route, name, style in routes:
        rates = {p.workers: getattr(p, f"{route}_samples_per_s") for p in points}
        known = [p for p in points if rates[p.workers] is not None]
        if not known:
            continue
        x, y = [p.workers for p in known], [rates[p.workers] for p in known]
        lows = [p.low_samples_per_s for p in known if p.low_samples_per_s is not None]
        highs = [p.high_samples_per_s for p in known if p.high_samples_per_s is not None]
        if series or len(lows) < len(known):  # only one line has a band
            lows, highs = [], []
        line = colour(len(series))
        series.append(Series(name, x, y, line, style, "o", lows, highs, band=INTERVAL))
    rate = "samples/s"
    heads = ("workers", f"simulated ({rate})", f"formulas ({rate})", "low", "high")
    table = PageTable(
        "Scaling", columns(*heads), [msgspec.structs.astuple(point) for point in points]
    )
    return Section(
        name="scaling",
        title="Scaling",
        text=[
            "Throughput over the number of workers, with the interval that contains 9 of 10 "
            f"measured runs. This job has {workers}."
        ],
        figure=Panel(
            series,
            Axis("workers", log=True, ticks=[point.workers for point in points]),
            Axis(f"throughput ({rate})", log=True),
        ),
        tables=[table],
    )


def _advice(advice: Advice) -> Section:
    heads = ("change", "flags", "speed-up", "low", "high", "sure", "effect on learning")
    names = ("change", "flags", "gain", "low", "high", "recommended", "price")
    rows = [tuple(row[name] for name in names) for row in advice.rows()]
    how = "by formulas" if advice.prediction.fidelity == "coarse" else "by simulation"
    fits = []
    if advice.remedies is not None:
        short = advice.prediction.memory.shortage(advice.prediction.device)
        fits = [f"The job {short}. {in_words(advice.remedies).capitalize()}."]
    text = (
        f"Speed-up of each change, predicted {how}. It is sure where the whole interval is above 1."
    )
    return Section(
        name="advice",
        title="What would make it faster",
        text=[*fits, text if rows else "None of the changes that were tried makes it faster."],
        tables=[PageTable("Changes", columns(*heads), rows)] if rows else [],
    )
