"""Lists of values, and the jobs made of their combinations."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from perfmodel import api
from perfmodel.architectures import registry
from perfmodel.base.errors import InputError
from perfmodel.base.units import dimension_of, show
from perfmodel.inputs.cluster import Cluster
from perfmodel.inputs.job import Jitter, Job, Straggler
from perfmodel.inputs.job_arguments import in_si, per_worker
from perfmodel.inputs.profile import Profile
from perfmodel.inputs.workload import Workload

MOST_JOBS = 100_000
"""Largest number of jobs in a sweep; catches typing errors."""

ARGUMENTS = (
    "model",
    "workload",
    "device",
    "precision",
    "global_batch_size",
    "batch_size",
    "sequence_length",
    "activation_checkpointing",
    "accumulation",
    "one_device_samples_per_s",
    "one_device_step_s",
    "one_device_batch_size",
    "cluster",
    "bandwidth_bytes_per_s",
    "latency_s",
    "jitter",
    "stragglers",
    "start",
    "seed",
    "arch",
    "options",
    "island_arch",
    "island_devices",
    "island_steps",
    "workers",
)
"""Arguments that a sweep can vary, from the slowest-varying to the fastest."""

NAMED = (
    *("model", "workload", "device", "precision", "cluster", "arch", "architecture"),
    *("sync", "start", "algorithm", "fidelity", "island_arch"),
)
"""Axes whose values are shown without the axis name."""

Row = dict[str, Any]

_NUMBER = re.compile(r"[-+]?\d{1,15}(\.\d{1,15})?")


class Axis(msgspec.Struct, frozen=True):
    """The values of one argument; ``option`` is True for an option of the architecture."""

    name: str
    values: tuple[Any, ...]
    option: bool = False

    @property
    def shown(self) -> list[Any]:
        """The values as shown in a table; objects with the same name are numbered."""
        texts = [shown(value) for value in self.values]
        return distinct(texts) if all(isinstance(text, str) for text in texts) else texts


class Skipped(msgspec.Struct, frozen=True):
    """An impossible combination: its values and the reason."""

    point: Row
    reason: str


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs and their ``points``: the value of each axis, by name.

    An option that an architecture does not support is None there; ``notes`` list these cases.
    """

    axes: tuple[Axis, ...]
    points: tuple[Row, ...]
    jobs: tuple[Job, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]


def grid(arguments: Mapping[str, Any]) -> Grid:
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
    axes, fixed = _axes(in_si(arguments))
    sizes = [(len(axis.values), axis.name) for axis in axes]
    count = math.prod(size for size, _ in sizes)
    if count > MOST_JOBS:
        product = " x ".join(f"{size} {name}" for size, name in sizes)
        raise InputError(f"sweep: {product} make {count} jobs; at most {MOST_JOBS}")
    has = _options_by_architecture(axes, fixed)
    texts_of = [(axis.name, axis.shown) for axis in axes]
    workloads: dict[tuple[Any, ...], Workload] = {}
    points, jobs, skipped = [], [], []
    fits: set[tuple[str, int]] = set()
    misfits: dict[tuple[str, int], str] = {}
    for chosen in _combinations(axes, has):
        point = {name: texts[chosen[name]] if name in chosen else None for name, texts in texts_of}
        try:
            job = _job(_arguments(axes, chosen, fixed, has), workloads)
        except InputError as error:
            misfits = dict.fromkeys(chosen.items(), str(error)) | misfits
            skipped.append(Skipped(point, str(error)))
            continue
        fits |= set(chosen.items())
        own = [axis.name for axis in axes if axis.option and axis.name in chosen]
        points.append(point | {name: getattr(job.options, name) for name in own})
        jobs.append(job)
    if not jobs:
        raise impossible(skipped)
    _one_speed(jobs)
    for axis in axes:
        for index, value in enumerate(axis.values):
            wrong = (axis.name, index) in misfits and (axis.name, index) not in fits
            if wrong and isinstance(value, str) and not _NUMBER.fullmatch(value):
                raise InputError(misfits[axis.name, index])
    notes = (
        f"{name} does not apply to {arch} and is ignored there"
        for name in [*fixed["options"], *(axis.name for axis in axes if axis.option)]
        for arch in has
        if name not in has[arch]
    )
    return Grid(
        axes=tuple(axes),
        points=tuple(points),
        jobs=tuple(jobs),
        skipped=tuple(skipped),
        notes=tuple(notes),
    )


def _one_speed(jobs: Iterable[Job]) -> None:
    """Check that the given speed of one device is that of all jobs.

    Raises
    ------
    InputError : they differ in what it depends on.
    """
    given = [job for job in jobs if any((job.given or {}).get(n) for n in api.OF_ONE_DEVICE)]
    names = ("name", *api.OF_WORKLOAD[2 : -len(api.OF_ONE_DEVICE)])
    anchored = any(job.given and "one_device_batch_size" in job.given for job in given)
    workloads = [job.of_devices.workload for job in given]
    differ = [name for name in names if len({getattr(w, name) for w in workloads}) > 1]
    if anchored and "batch_size" in differ:
        differ.remove("batch_size")
    if differ:
        words = ", ".join(differ).replace("name", "model")
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
    found: list[str] = []
    pattern: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        first, dots, end = item.partition("..") if ranges else (item, "", "")
        if not item or (dots and not (first and end)):
            raise InputError(f"{name}: a value is missing in {text!r}")
        found.append(first)
        pattern.append(first)
        if dots:
            found += _continued(pattern, end, f"{name}: {text!r}")
            pattern = []
    return found


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
    ratios = {b / a for a, b in itertools.pairwise(known) if a} if len(known) > 2 else set()
    if min(steps) <= 0:
        raise InputError(f"{name}: the numbers before '..' do not increase")
    if len(steps) == 1:
        step = steps.pop()
        count = int((stop - last) / step)
        _few(count, name)
        return [_written(last + step * (k + 1)) for k in range(count)]
    if len(ratios) != 1 or known[0] <= 0:
        raise InputError(f"{name}: the numbers before '..' have no common difference or ratio")
    ratio = ratios.pop()
    _few(math.log(stop / last) / math.log(ratio), name)
    return [
        _written(value)
        for value in itertools.takewhile(
            lambda value: value <= stop, (last * ratio ** (k + 1) for k in itertools.count())
        )
    ]


def _few(count: float, name: str) -> None:
    if count > MOST_JOBS:
        raise InputError(f"{name}: {count:.0f} values; at most {MOST_JOBS}")


def _written(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else repr(float(value))


def label(point: Mapping[str, Any]) -> str:
    """The label of a point: its values, with names where the value alone is not clear.

    >>> label({"arch": "ring", "bandwidth_bytes_per_s": 1.25e9, "servers": None, "workers": 8})
    'ring, 10 Gbps, 8 workers'
    >>> label({"batch_size": 32, "bucket_cap_bytes": 1e6, "overlap": True})
    'batch 32, bucket cap 1 MB, overlap=True'
    """
    return ", ".join(_label(name, v) for name, v in point.items() if v is not None)


def _label(name: str, value: Any) -> str:
    if name in ("workers", "servers"):
        return f"{value} {name if value != 1 else name.removesuffix('s')}"
    if name in ("batch_size", "global_batch_size"):
        return f"{name.removesuffix('_size').replace('_', ' ')} {value}"
    if name == "island_devices":
        return f"islands of {value}"
    if name == "island_steps":
        return f"{value} steps"
    unit = dimension_of(name)
    if unit is not None and isinstance(value, (int, float)) and math.isfinite(value):
        what = name.removesuffix(f"_{unit}").replace("_", " ")
        return show(value, unit) if what == "bandwidth" else f"{what} {show(value, unit)}"
    if name in ("jitter", "seed", "stragglers"):
        return f"{name} {value}"
    return str(value) if name in NAMED else f"{name}={value}"


def shown(value: Any) -> Any:
    """A value of an axis as shown in a table: a number or text."""
    if isinstance(value, (Workload, Profile, Cluster)):
        return value.name
    if isinstance(value, Jitter):
        parts = [value.kind] + [f"{value.cv:g}"] * (value.kind != "measured")
        plain = (value.kind, value.scope) == ("lognormal", "iteration")
        return value.cv if plain else ":".join([*parts, *["op"] * (value.scope == "op")])
    if isinstance(value, (list, tuple)):
        return " ".join(f"{s.worker}:{s.factor:g}" for s in value) or "none"
    return str(value) if isinstance(value, Path) else value


def distinct(names: Iterable[str]) -> list[str]:
    """Make names unique by numbering duplicates; an empty name becomes ``job``.

    >>> distinct(["ring", "ps", "ring"])
    ['ring', 'ps', 'ring (2)']
    """
    found: list[str] = []
    for name in names:
        base = name or "job"
        tried = (base if k == 1 else f"{base} ({k})" for k in range(1, len(found) + 2))
        found.append(next(name for name in tried if name not in found))
    return found


def reasons(skipped: Iterable[Skipped]) -> list[str]:
    """One line per reason why jobs were skipped, most frequent first.

    >>> reasons([Skipped({"workers": 3}, "too few"), Skipped({"workers": 5}, "too few")])
    ['skipped 2 jobs (the first: 3 workers): too few']
    """
    by_reason: dict[str, list[Row]] = {}
    for wrong in skipped:
        by_reason.setdefault(wrong.reason, []).append(wrong.point)
    lines = []
    for reason, points in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        first = label(points[0])
        which = (
            f"{len(points)} jobs (the first: {first})" if len(points) > 1 else f"1 job ({first})"
        )
        lines.append(f"skipped {which}: {reason}")
    return lines


def impossible(skipped: Sequence[Skipped]) -> InputError:
    """Build the error that explains why none of several jobs is possible."""
    counts = Counter(wrong.reason for wrong in skipped)
    if len(counts) == 1:
        return InputError(skipped[0].reason)
    why = "; ".join(f"{reason} ({count})" for reason, count in counts.most_common(3))
    return InputError(f"none of {len(skipped)} jobs is possible: {why}")


def _axes(arguments: Mapping[str, Any]) -> tuple[list[Axis], dict[str, Any]]:
    """Split arguments into the axes, in order, and the fixed arguments."""
    axes: list[Axis] = []
    fixed: dict[str, Any] = {name: v for name, v in arguments.items() if name not in ARGUMENTS}
    fixed["options"] = {}
    for name in (name for name in ARGUMENTS if name in arguments):
        inside = name == "options"
        given = sorted((arguments[name] or {}).items()) if inside else [(name, arguments[name])]
        for key, value in given:
            several = _several(key, value)
            if several is not None:
                axes.append(Axis(key, several, inside))
            else:
                (fixed["options"] if inside else fixed)[key] = value
    return axes, fixed


def _several(name: str, value: Any) -> tuple[Any, ...] | None:
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


def _combinations(
    axes: Sequence[Axis], has: Mapping[str, Collection[str]]
) -> Iterator[dict[str, int]]:
    """Yield each combination once, as indices of the values on the axes that apply."""
    arch = next((axis for axis in axes if axis.name == "arch"), None)
    for indices in itertools.product(*(range(len(axis.values)) for axis in axes)):
        chosen = {axis.name: index for axis, index in zip(axes, indices, strict=True)}
        own = has[arch.values[chosen["arch"]]] if arch is not None else None
        away = {a.name for a in axes if a.option and own is not None and a.name not in own}
        if not any(chosen[name] for name in away):
            yield {name: index for name, index in chosen.items() if name not in away}


def _arguments(
    axes: Iterable[Axis],
    chosen: Mapping[str, int],
    fixed: Mapping[str, Any],
    has: Mapping[str, Collection[str]],
) -> dict[str, Any]:
    """Arguments of make_job for the chosen values, without options that do not apply."""
    taken = {axis.name: axis.values[chosen[axis.name]] for axis in axes if axis.name in chosen}
    inside = {axis.name for axis in axes if axis.option}
    options = {**fixed["options"], **{k: v for k, v in taken.items() if k in inside}}
    own = has.get(taken.get("arch", ""), options.keys())
    outside = {name: value for name, value in taken.items() if name not in inside}
    kept = {name: value for name, value in options.items() if name in own}
    return per_worker({**fixed, **outside, "options": kept})


def _options_by_architecture(axes: Iterable[Axis], fixed: Mapping[str, Any]) -> dict[str, set[str]]:
    """Names of the options that each of several architectures supports.

    An option that no architecture supports is listed for all, so that it raises an error instead of
    being ignored.
    """
    archs = next((axis.values for axis in axes if axis.name == "arch"), ())
    own = {arch: {*registry.find(arch)[0].options.__struct_fields__} for arch in archs}
    given = {*fixed["options"], *(axis.name for axis in axes if axis.option)}
    unknown = given.difference(*own.values())
    return {arch: names | unknown for arch, names in own.items()}


def _job(arguments: dict[str, Any], workloads: dict[tuple[Any, ...], Workload]) -> Job:
    """Make a job; models and files are read once, and jobs share the resulting workload."""
    of = api.OF_WORKLOAD
    key = tuple(arguments.get(name) for name in of)
    if not all(value is None or isinstance(value, (str, int, float, Path)) for value in key):
        return api.make_job(**arguments)
    if key in workloads:
        rest = {name: value for name, value in arguments.items() if name not in of}
        job = api.make_job(workload=workloads[key], **rest)
        return msgspec.structs.replace(job, given=api.arguments_given(arguments))
    job = api.make_job(**arguments)
    if not job.islands:
        workloads[key] = job.workload
    return job
