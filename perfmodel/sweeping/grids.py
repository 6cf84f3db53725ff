"""Lists of values, and the jobs made of their combinations."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypedDict, TypeVar

import msgspec

from perfmodel.architectures import registry
from perfmodel.base.errors import InputError
from perfmodel.catalogue.documents import OF_DOCUMENTS
from perfmodel.catalogue.job_workload import OF_ONE_DEVICE, OF_WORKLOAD
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Jitter, Job, Start, Straggler
from perfmodel.inputs.job_arguments import in_si, per_worker
from perfmodel.inputs.job_replica import with_passes
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.software import OF_SOFTWARE
from perfmodel.inputs.workload import Workload
from perfmodel.sweeping.arguments import job_of, options_of
from perfmodel.sweeping.labels import Row, distinct, label, shown

MOST_JOBS = 100_000
"""Largest number of jobs in a sweep; catches typing errors."""

T = TypeVar("T")

Several: TypeAlias = T | Sequence[T]
"""A value, or a list of values."""


class GridArguments(TypedDict, total=False):
    """Arguments of :func:`perfmodel.make_job`, and ``global_batch_size``, from the slowest-varying
    to the fastest; each of the ``options`` may be a list as well."""

    model: Several[str | None]
    workload: Several[Workload | Profile | str | Path | None]
    device: Several[str | None]
    precision: Several[str | None]
    global_batch_size: Several[int | None]
    batch_size: Several[int | None]
    sequence_length: Several[int | None]
    document_length: Several[float | None]
    document_spread: Several[float | None]
    document_lengths: Several[str | Path | None]
    activation_checkpointing: Several[bool | None]
    accumulation: Several[int | None]
    recompute: Several[str | None]
    stack: Several[str | None]
    launches: Several[str | None]
    framework: Several[str | None]
    optimizer: Several[str | None]
    precision_policy: Several[str | None]
    lora: Several[str | None]
    offload_optimizer: Several[bool | None]
    one_device_samples_per_s: Several[float | str | None]
    one_device_step_s: Several[float | None]
    one_device_batch_size: Several[int | None]
    cluster: Several[Cluster | str | Path | None]
    bandwidth: Several[float | str | None]
    bandwidth_bytes_per_s: Several[float | None]
    latency: Several[float | str | None]
    latency_s: Several[float | None]
    devices_per_node: Several[int | None]
    jitter: Several[Jitter | float | str | None]
    stragglers: Several[Sequence[Straggler]] | Sequence[Straggler]
    start: Several[Start | None]
    seed: Several[int]
    arch: Several[str]
    options: Mapping[str, object] | None
    island_arch: Several[str | None]
    island_options: Mapping[str, object] | None
    island_devices: Several[int | str | None]
    island_steps: Several[int | str | None]
    tensor: Several[int | None]
    context: Several[int | None]
    context_exchange: Several[str | None]
    context_inside: Several[int | None]
    context_split: Several[str | None]
    pipeline: Several[int | None]
    virtual_stages: Several[int | None]
    schedule: Several[str | None]
    stage_layers: Several[str | tuple[int, ...] | None]
    balance: Several[bool | None]
    sequence_parallel: Several[bool | None]
    overlap_sums: Several[bool | None]
    transfers: Several[str | None]
    rank_order: Several[str | None]
    expert: Several[int | None]
    expert_tensor: Several[int | None]
    expert_skew: Several[float | None]
    expert_capacity: Several[float | None]
    expert_exchange: Several[str | None]
    expert_nodes: Several[int | None]
    expert_overlap: Several[float | None]
    micro_batches: Several[int | None]
    devices: Several[int | None]
    workers: Several[int]


ARGUMENTS = tuple(
    name
    for name in GridArguments.__annotations__
    if name not in ("bandwidth", "latency", "island_options")
)
"""Arguments in SI units that a sweep can vary, from the slowest-varying to the fastest."""

_NUMBER = re.compile(r"[-+]?\d{1,15}(\.\d{1,15})?")


class GridAxis(msgspec.Struct, frozen=True):
    """The values of one argument; ``option`` is True for an option of the architecture."""

    name: str
    values: tuple[object, ...]
    option: bool = False

    @property
    def shown(self) -> list[object]:
        """The values as shown in a table; objects with the same name are numbered."""
        texts = [shown(value) for value in self.values]
        words = [text for text in texts if isinstance(text, str)]
        return [*distinct(words)] if len(words) == len(texts) else texts


class Skipped(msgspec.Struct, frozen=True):
    """An impossible combination: its values and the reason."""

    point: Row
    reason: str


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs and their ``points``: the value of each axis, by name.

    An option that an architecture does not support is None there; ``notes`` list these cases.
    """

    axes: tuple[GridAxis, ...]
    points: tuple[Row, ...]
    jobs: tuple[Job, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]


def grid(arguments: Mapping[str, object]) -> Grid:
    """Make jobs from all combinations of arguments.

    Parameters
    ----------
    arguments : those of :func:`perfmodel.make_job`; ``global_batch_size`` may replace
        ``batch_size``. Each argument, and each of the ``options``, may be a list of values.

    Raises
    ------
    InputError : no combination is possible, a name fits no combination, a value is given twice, or
        there are more than 100000 combinations.
    """
    varied = _varied(in_si(arguments))
    axes = varied.axes
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_JOBS:
        product = " x ".join(f"{len(axis.values)} {axis.name}" for axis in axes)
        raise InputError(f"sweep: {product} make {count} jobs; at most {MOST_JOBS}")
    texts_of = [(axis.name, axis.shown) for axis in axes]
    workloads: dict[tuple[object, ...], Workload] = {}
    points, jobs, skipped = [], [], []
    fits: set[tuple[str, int]] = set()
    misfits: dict[tuple[str, int], str] = {}
    for chosen in varied.combinations():
        point = {name: texts[chosen[name]] if name in chosen else None for name, texts in texts_of}
        try:
            job = _job(varied.arguments(chosen), workloads)
        except InputError as error:
            misfits = dict.fromkeys(chosen.items(), str(error)) | misfits
            skipped.append(Skipped(point, str(error)))
            continue
        fits |= set(chosen.items())
        options = [axis.name for axis in axes if axis.option and axis.name in chosen]
        points.append(point | {name: getattr(job.options, name) for name in options})
        jobs.append(job)
    if not jobs:
        raise impossible(skipped)
    _one_speed(jobs)
    for axis in axes:
        for index, value in enumerate(axis.values):
            misfit = (axis.name, index) in misfits and (axis.name, index) not in fits
            if misfit and isinstance(value, str) and not _NUMBER.fullmatch(value):
                raise InputError(misfits[axis.name, index])
    return Grid(
        axes=axes,
        points=tuple(points),
        jobs=tuple(jobs),
        skipped=tuple(skipped),
        notes=tuple(varied.notes()),
    )


class _Varied(NamedTuple):
    """Arguments of a grid.

    Attributes
    ----------
    axes : the varied ones, in order.
    fixed, options : the other arguments, and the other options of the architecture.
    supported : if architectures vary, the options that each of them has. An option that none has is
        listed for all, so that it raises an error instead of being ignored.
    """

    axes: tuple[GridAxis, ...]
    fixed: Mapping[str, object]
    options: Mapping[str, object]
    supported: Mapping[object, Collection[str]]

    def combinations(self) -> Iterator[dict[str, int]]:
        """Yield each combination once, as indices of the values on the axes that apply."""
        arch = next((axis for axis in self.axes if axis.name == "arch"), None)
        for indices in itertools.product(*(range(len(axis.values)) for axis in self.axes)):
            chosen = {axis.name: index for axis, index in zip(self.axes, indices, strict=True)}
            if arch is not None:
                supported = self.supported[arch.values[chosen["arch"]]]
                away = {a.name for a in self.axes if a.option and a.name not in supported}
                if any(chosen[name] for name in away):
                    continue
                chosen = {name: index for name, index in chosen.items() if name not in away}
            yield chosen

    def arguments(self, chosen: Mapping[str, int]) -> dict[str, object]:
        """Arguments of make_job for the chosen values, without options that do not apply."""
        outside, options = dict(self.fixed), dict(self.options)
        for axis in self.axes:
            if axis.name in chosen:
                (options if axis.option else outside)[axis.name] = axis.values[chosen[axis.name]]
        supported = self.supported.get(outside.get("arch"), options.keys())
        kept = {name: value for name, value in options.items() if name in supported}
        return per_worker({**outside, "options": kept})

    def notes(self) -> Iterator[str]:
        """The options that some architectures ignore."""
        for name in [*self.options, *(axis.name for axis in self.axes if axis.option)]:
            for arch, supported in self.supported.items():
                if name not in supported:
                    yield f"{name} does not apply to {arch} and is ignored there"


def _varied(arguments: Mapping[str, object]) -> _Varied:
    axes: list[GridAxis] = []
    fixed = {name: value for name, value in arguments.items() if name not in ARGUMENTS}
    options: dict[str, object] = {}
    for name in (name for name in ARGUMENTS if name in arguments):
        option = name == "options"
        values = sorted(options_of(arguments).items()) if option else [(name, arguments[name])]
        for key, value in values:
            several = _several(key, value)
            if several is not None:
                axes.append(GridAxis(key, several, option))
            else:
                (options if option else fixed)[key] = value
    archs = next((axis.values for axis in axes if axis.name == "arch"), ())
    supported = {a: {*registry.find(str(a))[0].options.__struct_fields__} for a in archs}
    names = {*options, *(axis.name for axis in axes if axis.option)}
    unknown = names.difference(*supported.values())
    return _Varied(tuple(axes), fixed, options, {a: s | unknown for a, s in supported.items()})


def _several(name: str, value: object) -> tuple[object, ...] | None:
    """The values of a list, or None for a single value."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        return None
    if name == "stragglers" and all(isinstance(item, Straggler) for item in value):
        return None
    if not value:
        raise InputError(f"{name}: the list is empty")
    twice = [text for text, count in Counter(map(repr, value)).items() if count > 1]
    if twice:
        raise InputError(f"{name}: {twice[0]} is given twice")
    return tuple(value)


def _job(arguments: dict[str, object], workloads: dict[tuple[object, ...], Workload]) -> Job:
    """Make a job; models and files are read once, and jobs share the resulting workload."""
    passes, _ = with_passes(arguments)
    key = tuple(passes.get(name) for name in OF_WORKLOAD)
    divided = any(arguments.get(name) is not None for name in ("tensor", "context", "expert"))
    if divided or not all(
        value is None or isinstance(value, (str, int, float, Path)) for value in key
    ):
        return job_of(arguments)
    job = job_of(arguments, workloads.get(key))
    if not job.islands:
        workloads[key] = job.workload
    return job


def _one_speed(jobs: Iterable[Job]) -> None:
    """Check that the given speed of one device is that of all jobs."""
    measured = [job for job in jobs if any((job.given or {}).get(n) for n in OF_ONE_DEVICE)]
    of_job = OF_WORKLOAD[2 : -len(OF_ONE_DEVICE)]
    left_out = {*OF_SOFTWARE, *OF_DOCUMENTS}
    names = ["name", *(name for name in of_job if name not in left_out), "packing"]
    anchored = any(job.given and "one_device_batch_size" in job.given for job in measured)
    workloads = [job.of_devices.workload for job in measured]
    differ = [name for name in names if len({getattr(w, name) for w in workloads}) > 1]
    if anchored and "batch_size" in differ:
        differ.remove("batch_size")
    if differ:
        words = ", ".join(differ).replace("name", "model").replace("packing", "documents")
        hint = "; give the batch size of the measurement as one_device_batch_size"
        raise InputError(
            f"one-device speed: is one measurement, but the jobs differ in {words}"
            + hint * (differ == ["batch_size"])
        )


def values(text: str, name: str, *, ranges: bool = True) -> list[str]:
    """Parse a list such as ``1,2,4..64``, in which ``..`` continues a pattern of numbers.

    The step is 1 after one number, the difference after two, and the common difference or ratio
    after three or more. The number behind ``..`` is an upper bound that need not be reached.
    Without ``ranges``, ``..`` has no special meaning (as in file names).

    >>> values("1,2,4..20", "--workers"), values("2,4..9", "--workers")
    (['1', '2', '4', '8', '16'], ['2', '4', '6', '8'])
    >>> values("0,0.1..0.3,gamma:0.2", "--jitter")
    ['0', '0.1', '0.2', '0.3', 'gamma:0.2']

    Raises
    ------
    InputError : an empty value, a decreasing range, no pattern, or more than 100000 values.
    """
    result: list[str] = []
    pattern: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        first, dots, end = item.partition("..") if ranges else (item, "", "")
        if not item or (dots and not (first and end)):
            raise InputError(f"{name}: a value is missing in {text!r}")
        result.append(first)
        pattern.append(first)
        if dots:
            result += _continued(pattern, end, f"{name}: {text!r}")
            pattern = []
    return result


def _continued(pattern: Sequence[str], end: str, name: str) -> list[str]:
    """The numbers that follow ``pattern``, up to ``end``, in exact arithmetic: 3 x 0.1 is 0.3."""
    for text in (*pattern, end):
        if not _NUMBER.fullmatch(text):
            raise InputError(f"{name}: '..' can only continue plain numbers, as in 1,2,4..64")
    *before, last, stop = map(Fraction, (*pattern, end))
    known = [*before, last]
    if stop < last:
        raise InputError(f"{name}: the range decreases from {pattern[-1]} to {end}")
    steps = {b - a for a, b in itertools.pairwise(known)} or {Fraction(1)}
    if min(steps) <= 0:
        raise InputError(f"{name}: the numbers before '..' do not increase")
    if len(steps) == 1:
        step = steps.pop()
        count = (stop - last) / step
        numbers = (last + step * k for k in itertools.count(1))
    else:
        ratios = {b / a for a, b in itertools.pairwise(known) if a}
        if len(ratios) != 1 or known[0] <= 0:
            raise InputError(f"{name}: the numbers before '..' have no common difference or ratio")
        ratio = ratios.pop()
        count = Fraction(math.log(stop / last) / math.log(ratio))
        numbers = (last * ratio**k for k in itertools.count(1))
    if int(count) > MOST_JOBS:
        raise InputError(f"{name}: {float(count):.0f} values; at most {MOST_JOBS}")
    return [
        str(value) if value.denominator == 1 else repr(float(value))
        for value in itertools.takewhile(lambda value: value <= stop, numbers)
    ]


def reasons(skipped: Iterable[Skipped]) -> list[str]:
    """One line per reason why jobs were skipped, most frequent first.

    >>> reasons([Skipped({"workers": 3}, "too few"), Skipped({"workers": 5}, "too few")])
    ['skipped 2 jobs (the first: 3 workers): too few']
    """
    by_reason: dict[str, list[Row]] = {}
    for skip in skipped:
        by_reason.setdefault(skip.reason, []).append(skip.point)
    lines = []
    for reason, points in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        first = label(points[0])
        many = f"{len(points)} jobs (the first: {first})"
        lines.append(f"skipped {many if len(points) > 1 else f'1 job ({first})'}: {reason}")
    return lines


def impossible(skipped: Sequence[Skipped]) -> InputError:
    """Build the error that explains why none of several jobs is possible."""
    counts = Counter(skip.reason for skip in skipped)
    if len(counts) == 1:
        return InputError(skipped[0].reason)
    why = "; ".join(f"{reason} ({count})" for reason, count in counts.most_common(3))
    return InputError(f"none of {len(skipped)} jobs is possible: {why}")
