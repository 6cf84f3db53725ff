"""Many layouts of one model on one cluster: :func:`layouts`, by formulas, as arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack, cast

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError, unknown_name, whole_number
from perfmodel.inputs.job import Job
from perfmodel.phases.phases import Phases
from perfmodel.phases.quantities import Quantities
from perfmodel.predicting import coarse
from perfmodel.predicting.memory_bounds import least_allocated, least_kept, states_of
from perfmodel.predicting.replica_arrays import Steps, along
from perfmodel.predicting.replica_bounds import Least, least_steps
from perfmodel.predicting.replica_columns import Known, as_arrays
from perfmodel.predicting.replica_lines import SAME, Value, line_of, on_line
from perfmodel.sweeping.labels import Row
from perfmodel.sweeping.layout_arguments import degrees_of, unused
from perfmodel.sweeping.layout_shapes import OF_DIVISION, Shapes, flat, with_passes
from perfmodel.sweeping.tables import Tabular

BUBBLE = "pipeline bubble"
"""Phase of a step in which stages wait for each other."""

MANY = 8
"""Numbers of micro-batches of single devices from more than which on a line through a few of them
gives the others."""

NUMBERS = (
    *("tensor", "context", "expert", "pipeline", "virtual_stages"),
    *("micro_batches", "micro_batch_size", "workers"),
)
NAMES = ("schedule", "recompute", "arch")


class Layouts(Tabular, frozen=True, eq=False, kw_only=True):
    """Steps of layouts, the fastest per sample first.

    Attributes
    ----------
    job : the job that the layouts are of.
    tensor, context, expert, pipeline, virtual_stages, micro_batches, micro_batch_size, workers : of
        each layout, (layouts,).
    schedule, recompute, arch : names, (layouts,).
    step_s : seconds of a step, (layouts,).
    bubble_fraction : of a step, in which a device waits for other stages, (layouts,).
    samples_per_s : of all replicas, (layouts,).
    skipped : number of combinations that are impossible, by the reason.
    shapes, shape : jobs of one micro-batch, (shapes,), and which of them each layout has,
        (layouts,).
    number : of each layout among all combinations, (layouts,).
    """

    job: Job
    tensor: Ids
    context: Ids
    expert: Ids
    pipeline: Ids
    virtual_stages: Ids
    micro_batches: Ids
    micro_batch_size: Ids
    workers: Ids
    schedule: tuple[str, ...]
    recompute: tuple[str, ...]
    arch: tuple[str, ...]
    step_s: Floats
    bubble_fraction: Floats
    samples_per_s: Floats
    skipped: dict[str, int]
    shapes: Shapes
    shape: Ids
    number: Ids

    def __len__(self) -> int:
        return len(self.step_s)

    @property
    def global_batch_size(self) -> Ids:
        """Samples of a step of all replicas, (layouts,)."""
        return self.workers * self.micro_batches * self.micro_batch_size

    def job_of(self, number: int) -> Job:
        """Return the job of a layout, to simulate it or to look at its memory."""
        return self.job.with_(**self.arguments_of(number))

    def made(self, number: int) -> Job:
        """Return the same job in less time; without the arguments that make it."""
        return with_passes(self.shapes[int(self.shape[number])], int(self.micro_batches[number]))

    def arguments_of(self, number: int) -> dict[str, Any]:
        """Return what :func:`perfmodel.make_job` is given for a layout, besides what ``job`` is."""
        given: dict[str, Any] = {name: int(getattr(self, name)[number]) for name in NUMBERS}
        given["batch_size"] = given.pop("micro_batch_size") * given["micro_batches"]
        given |= {"schedule": self.schedule[number], "devices": None}
        context, expert = given.pop("context"), given.pop("expert")
        given |= degrees_of(self.job, context, expert)
        if expert > 1 and given["tensor"] > 1:
            given["sequence_parallel"] = True
        given |= unused(given["tensor"], given["pipeline"])
        for name, default in (("recompute", self.job.workload.recompute), ("arch", "")):
            if (value := getattr(self, name)[number]) != default:
                given[name] = value
        return given

    def shape_of(self, number: int) -> dict[str, Any]:
        """Return how the devices of a replica divide the model and its batch."""
        shape: dict[str, Any] = {
            name: int(getattr(self, name)[number]) for name in NUMBERS if name != "workers"
        }
        shape["schedule"] = self.schedule[number] if shape["pipeline"] > 1 else None
        return shape | {"recompute": self.recompute[number]}

    def rows(self) -> list[Row]:
        """The layouts, in SI units."""
        return [
            {
                **{name: int(getattr(self, name)[k]) for name in NUMBERS},
                **{name: getattr(self, name)[k] for name in NAMES},
                "step_s": float(self.step_s[k]),
                "bubble_fraction": float(self.bubble_fraction[k]),
                "throughput_samples_per_s": float(self.samples_per_s[k]),
            }
            for k in range(len(self))
        ]

    def to_dict(self) -> Row:
        """The layouts and what was left out as JSON-like values."""
        return {"layouts": self.rows(), "skipped": self.skipped}


class LayoutAxes(TypedDict, total=False):
    """The varied arguments of :func:`layouts`."""

    tensor: Sequence[int]
    context: Sequence[int]
    expert: Sequence[int]
    pipeline: Sequence[int]
    micro_batches: Sequence[int]
    virtual_stages: Sequence[int]
    schedule: Sequence[str]
    micro_batch_size: Sequence[int]
    recompute: Sequence[str]
    arch: Sequence[str]
    global_batch_size: Sequence[int]


def layouts(job: Job, **axes: Unpack[LayoutAxes]) -> Layouts:
    """Evaluate all combinations of these numbers on the devices of a job, by formulas.

    There are as many replicas as the job's devices allow. Beyond a few micro-batches, as many more
    as there are stages take a step the same time longer, whatever their number; that time is
    evaluated and checked for each combination of the other numbers, and where it varies, all
    numbers are evaluated one by one. So thousands of them cost no more than a few. Combinations
    with the same stages and schedule are evaluated at once, as arrays. With several chunks per
    stage only multiples of the stages are evaluated. Left out are memory (:meth:`Layouts.job_of`),
    and what the formulas leave out.

    Parameters
    ----------
    job : with a pipeline, tensor or context parallelism, and all else that layouts have in common.
    axes : lists of values of the following arguments.
    tensor, pipeline, micro_batches, virtual_stages : by default 1.
    context, expert : by default those of ``job``.
    schedule : names; by default that of ``job`` with one chunk per stage, and ``interleaved_1f1b``
        with several.
    micro_batch_size, recompute, arch : by default those of ``job``.
    global_batch_size : samples of a step of all replicas, instead of ``micro_batches``, which
        follow from them; others than whole micro-batches of all replicas are left out.

    Raises
    ------
    InputError : an unknown argument; a number is not whole or below 1; the job has single devices;
        nothing is possible.
    """
    return combinations(job, **axes).evaluated()


def combinations(job: Job, **axes: Unpack[LayoutAxes]) -> Combinations:
    """Return all combinations of these numbers, to be evaluated; see :func:`layouts`."""
    if job.replica is None:
        raise InputError("layouts: the job has single devices (give tensor or pipeline above 1)")
    given = cast("Mapping[str, Sequence[int] | Sequence[str]]", axes)
    for name, values in given.items():
        if name not in LayoutAxes.__annotations__:
            raise unknown_name("argument", name, LayoutAxes.__annotations__)
        for value in () if name in NAMES else values:
            whole_number(name, value)
    experts = job.replica.experts
    defaults: dict[str, Sequence[int] | Sequence[str]] = {
        "context": (job.replica.context,), "expert": (experts.degree if experts else 1,),
        "micro_batch_size": (job.workload.batch_size // job.workload.accumulation,),
        "recompute": (job.workload.recompute,), "arch": ("",), "schedule": ("",),
    }  # fmt: skip
    choices = {name: given.get(name) or default for name, default in defaults.items()}
    for name in ("tensor", "pipeline", "virtual_stages"):
        choices[name] = given.get(name, (1,))
    passes = sorted(set(axes.get("micro_batches", (1,))))
    return Combinations(job, choices, passes, sorted(set(axes.get("global_batch_size", ()))))


def _formulas(job: Job, q: Quantities) -> Phases:
    return coarse.phases(job, among=q)


class Combinations:
    """Combinations of numbers, of which all or some are evaluated.

    ``shape`` and ``micro_batches`` (layouts,) are the shape of each, a place in ``shapes``, and its
    number of micro-batches; ``step_s`` and ``bubble_s`` (layouts,) are NaN until it is evaluated.
    """

    def __init__(
        self,
        job: Job,
        choices: Mapping[str, Sequence[int] | Sequence[str]],
        passes: list[int],
        batches: list[int],
    ) -> None:
        self.job, self.known = job, Known()
        self.shapes = Shapes(job, choices, passes, batches, self.known)
        self.skipped = self.shapes.skipped
        self.shape, self.micro_batches = flat(self.shapes)
        self.step_s = np.full(len(self.shape), np.nan)
        self.bubble_s = self.step_s.copy()
        self.impossible: set[int] = set()

    def _different(self) -> tuple[Least, Ids, Ids]:
        """Return what is different but for the architecture, a shape of each, and which of them
        each shape has, (shapes,)."""
        shapes, kinds = self.shapes, self.shapes.kinds()
        of_stages = ("pipeline", "virtual_stages", "schedule")
        firsts, inverse = shapes.of((*OF_DIVISION, *of_stages), kinds)
        columns, of_column = shapes.of(OF_DIVISION, kinds, shapes.single)
        replicas, of_replica = shapes.of(of_stages, shapes.single)
        least = Least(
            [shapes[k] for k in columns.tolist()],
            [shapes[k].replica for k in replicas.tolist()],
            of_column[firsts],
            of_replica[firsts],
        )
        return least, firsts, inverse

    def bounded(self) -> Layouts:
        """Return all with the least times of their steps in place of their times, and no bubbles.

        Raises
        ------
        InputError : none is possible.
        """
        least, firsts, inverse = self._different()
        shape, number = np.nonzero(self.shapes.passes)
        least_s = least_steps(least, self.shapes.passes[firsts], self.known)
        rows = np.arange(len(shape))
        return self._sorted(rows, least_s[inverse[shape], number], np.zeros(len(rows)))

    def least_allocated(self) -> Floats:
        """Return the least that a device of the first stage allocates (bytes), (layouts,)."""
        shapes, kinds = self.shapes, self.shapes.kinds()
        least, firsts, inverse = self._different()
        shape, number = np.nonzero(shapes.passes)
        tensors, kept = least_kept(least, shapes.passes[firsts], self.known)
        several, of_states = shapes.of(("arch", "context", "expert"), shapes.workers, kinds)
        work = shapes[0].workload
        jobs = [msgspec.structs.replace(shapes[k], workload=work) for k in several.tolist()]
        states = [states_of(job, self.known) for job in jobs]
        kept_bytes = kept[inverse[shape], number]
        return least_allocated(
            tensors[inverse[shape]], kept_bytes, self.micro_batches, states, of_states[shape]
        )

    def evaluated(self, wanted: Iterable[int] | None = None) -> Layouts:
        """Evaluate some, by their numbers, or all, and return them sorted.

        Raises
        ------
        InputError : none of them is possible.
        """
        several = range(len(self.shape)) if wanted is None else sorted(set(wanted))
        rows = np.array(several, np.int64)
        new: dict[int, list[int]] = defaultdict(list)
        for row in rows[np.isnan(self.step_s[rows])].tolist():
            new[int(self.shape[row])].append(row)
        arrays = [k for k in new if k not in self.impossible and as_arrays(self.shapes[k])]
        passes = {k: self.micro_batches[new[k]] for k in new}
        jobs = [self.shapes[k] for k in arrays]
        results = along(jobs, [passes[k] for k in arrays], _formulas, self.known)
        steps = dict(zip(arrays, results, strict=True))
        for k in new.keys() - steps.keys() - self.impossible:
            steps[k] = self._one_by_one(self.shapes[k], passes[k])
        for k, result in steps.items():
            if isinstance(result, InputError):
                self.impossible.add(k)
                text, count = str(result), int((self.shape == k).sum())
                self.skipped[text] = self.skipped.get(text, 0) + count
            else:
                self.step_s[new[k]], self.bubble_s[new[k]] = result
        rows = rows[~np.isnan(self.step_s[rows])]
        return self._sorted(rows, self.step_s[rows], self.bubble_s[rows])

    def _one_by_one(self, job: Job, passes: Ids) -> Steps | InputError:
        """Return the steps of layouts that differ in the number of micro-batches. Of single devices
        they are on a line, if the largest one is as well: formulas are sums of maxima of lines."""
        line, known = line_of(passes, 1), dict[int, Value]()
        alone = job.replica is None and job.jitter is None and len(line.rest) > MANY
        last = int(passes[-1])
        try:
            for count in [*line.anchors, last] if alone else []:
                known[count] = self._step_of(job, count)
            beyond = on_line(line, known) if alone else None
            if beyond is not None and not np.allclose(beyond[-1], known[last], rtol=SAME, atol=0.0):
                beyond = None
            few = passes if beyond is None else line.few
            values = [known.get(count) or self._step_of(job, count) for count in few.tolist()]
        except InputError as error:
            return error
        table = np.array(values).reshape(-1, 2)
        return Steps(*(table if beyond is None else np.concatenate([table, beyond])).T)

    def _step_of(self, job: Job, passes: int) -> Value:
        """Return the seconds of a step, and of its bubble, with so many micro-batches."""
        phases = coarse.phases(with_passes(job, passes))
        bubble = phases.parts.get(BUBBLE)
        return float(phases.iteration_s), 0.0 if bubble is None else float(bubble.seconds)

    def _sorted(self, rows: Ids, step_s: Floats, bubble_s: Floats) -> Layouts:
        """Return layouts, by their numbers, the fastest first."""
        if not len(rows):
            why = next(iter(self.skipped), "no combination was given")
            raise InputError(f"layouts: none is possible: {why}")
        column, shape, micro_batches = (
            self.shapes.columns,
            self.shape[rows],
            self.micro_batches[rows],
        )
        per_pass = column["workers"] * column["micro_batch_size"]
        known = step_s > 0.0  # else nothing is known of the least time
        batch = per_pass[shape] * micro_batches
        rate = np.divide(batch, step_s, out=np.full(len(step_s), np.inf), where=known)
        order = np.argsort(-rate, kind="stable")
        shape = shape[order]
        columns: dict[str, Any] = {
            name: column[name][shape] for name in NUMBERS if name != "micro_batches"
        }
        columns |= {name: tuple(column[name][shape].tolist()) for name in NAMES}
        return Layouts(
            job=self.job,
            **columns,
            micro_batches=micro_batches[order],
            step_s=step_s[order],
            bubble_fraction=np.divide(bubble_s, step_s, out=bubble_s.copy(), where=known)[order],
            samples_per_s=rate[order],
            skipped=dict(self.skipped),
            shapes=self.shapes,
            shape=shape,
            number=rows[order],
        )
