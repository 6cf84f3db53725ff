"""Converts a trace to a workload file, and reports the parts of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from perfmodel.base import formats
from perfmodel.base.errors import InputError, number, plain, whole_number
from perfmodel.base.provenance import Source
from perfmodel.inputs.profile import Gradients, Layer, Profile, Seconds, Timing, total_s
from perfmodel.traces import deepspeed, events, gradients
from perfmodel.traces.attribution import Attribution, HostPass, attribute
from perfmodel.traces.collectives import TracedCollective, collectives
from perfmodel.traces.deepspeed import FlopsProfile
from perfmodel.traces.events import Trace
from perfmodel.traces.steps import PARTS, TraceStep, find_steps

PHASES = ("forward", "backward", "optimizer", "buckets", "other")
SEEN_FRACTION = 0.01
"""Smaller fractions of a step are not reported, and shorter waits for data are ignored."""

SCHEMA = "perfmodel.trace/1"
"""Schema of the JSON of an :class:`ImportedTrace`."""


class GradientReport(msgspec.Struct, frozen=True, kw_only=True):
    """Gradients per step in a trace, from two sources that should agree.

    Attributes
    ----------
    tensors : gradients of a step: those that backward accumulates or, where a cut trace has fewer
        of these, the parameters of the layers.
    bytes, source : their total size and its origin; None if no shapes were recorded.
    messages : collectives in backward that reduce gradients.
    message_bytes : their total size; None if no sizes are known.
    """

    tensors: int
    bytes: float | None = None
    source: str | None = None
    messages: int = 0
    message_bytes: float | None = None


class ImportedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """An imported trace: means over ``steps`` steps.

    Attributes
    ----------
    steps_by : kind of events that mark the steps.
    step_s, step_std_s : mean length of a step, and its standard deviation (None for a single step).
    parts_s : the step by device activity (see :data:`perfmodel.traces.steps.PARTS`).
    parts_per_step_fraction : the sum of these over the step's length.
    compute_s : computing (with hidden communication) by phase.
    timing_per_step_fraction : the sum of the workload's times over the step without exposed
        communication; None without a workload.
    workload : the profile; None if something is missing, which ``lacks`` names.
    rank, ranks : of the job; None if the trace does not tell.
    collectives : of all steps, in the order of their launch, without those of unknown size.
    """

    trace: str
    device: str
    steps: int
    steps_by: str
    step_s: float
    step_std_s: float | None
    parts_s: dict[str, float]
    parts_per_step_fraction: float
    compute_s: dict[str, float]
    layers: int
    gradients: GradientReport
    batch_size: int | None
    precision: str
    accumulation: int
    timing_per_step_fraction: float | None = None
    notes: tuple[str, ...] = ()
    lacks: str | None = None
    workload: Profile | None = None
    rank: int | None = None
    ranks: int | None = None
    collectives: tuple[TracedCollective, ...] = ()


def import_trace(
    path: str | Path,
    *,
    name: str | None = None,
    device_name: str | None = None,
    batch_size: int | None = None,
    precision: str | None = None,
    gradient_bytes: float | None = None,
    pid: str | None = None,
    gpu: int | None = None,
) -> ImportedTrace:
    """Import a trace written by ``torch.profiler``, or the output of DeepSpeed's flops profiler.

    Parameters
    ----------
    path : a file with ``traceEvents``, or with the text that DeepSpeed prints, plain or compressed
        with gzip.
    name, device_name, precision : for the workload; by default from the file's name and contents.
        Control characters in names are escaped.
    batch_size : samples per step; by default the first dimension of the first layer's input.
    gradient_bytes : total of all gradients, if the trace does not contain it.
    pid, gpu : see :func:`perfmodel.traces.events.decode`.

    Raises
    ------
    InputError : the file is not a trace, or has no event with a time.
    """
    if batch_size is not None:
        whole_number("--batch-size", batch_size)
    if gradient_bytes is not None:
        number("--gradient-bytes", gradient_bytes, above=0.0)
    data = events.unpacked(Path(path))
    format_ = formats.recognise(data)
    if format_ is not None and format_.name == formats.DEEPSPEED:
        summary = deepspeed.parse(formats.text_of(data[: formats.MOST_BYTES]) or "", str(path))
        summary = summary._replace(
            batch_size=batch_size or summary.batch_size,
            gradient_bytes=gradient_bytes or summary.gradient_bytes,
        )
        observed = _of_summary(summary, precision)
    else:
        trace = events.decode(data, path, pid=pid, gpu=gpu)
        try:
            observed = _of_trace(trace, batch_size, precision, gradient_bytes)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    return _report(observed, Path(path), name, device_name)


class _Gradients(msgspec.Struct):
    """The gradients of a workload: by layer, in total, or unknown."""

    report: GradientReport
    precision: str | None = None
    layers: tuple[Layer, ...] = ()
    coarse: Gradients | None = None


class _Observed(msgspec.Struct, kw_only=True):
    """The steps of a trace or of a summary, and what is known about them.

    ``origin`` says how they were found, ``has_parts`` whether idle time and waits were seen, and
    ``serial`` whether the training thread loads the data.
    """

    steps: list[TraceStep]
    steps_by: str
    origin: str
    device_name: str
    gradients: _Gradients
    batch_size: int | None
    precision: str
    accumulation: int = 1
    serial: bool = False
    has_parts: bool = True
    notes: list[str]
    lacks: str | None = None
    rank: int | None = None
    ranks: int | None = None
    collectives: tuple[TracedCollective, ...] = ()


def _of_trace(
    trace: Trace, batch_size: int | None, precision: str | None, gradient_bytes: float | None
) -> _Observed:
    """Find the steps of a trace, the gradients, the batch size, and what a workload lacks."""
    work = attribute(trace)
    steps, by = find_steps(trace, work.works, work.loading)
    notes = list(trace.notes)
    if len(steps) > 1 and steps[0].unlaunched_s > SEEN_FRACTION * steps[0].length_s:
        notes.append("first step left out: part of its work was launched before the trace")
        del steps[0]
    passes = [p for p in work.passes if any(_holds(step, p.at_s) for step in steps)]
    accumulation = _accumulation(steps, passes, notes)
    sizes = _gradients(work, passes, steps, gradient_bytes, notes)
    if batch_size is None:
        batch_size = _batch_size(passes, accumulation, notes)
    precision = _precision(precision, sizes.precision, notes)
    parted = gradients.model_parallel(work, trace.device, [step.host_s for step in steps])
    return _Observed(
        steps=steps,
        steps_by=by,
        origin=f"steps: {len(steps)} ({by}), communication removed",
        device_name=trace.device_name,
        gradients=sizes,
        batch_size=batch_size,
        precision=precision,
        accumulation=accumulation,
        serial=any("SingleProcess" in h.name for h in work.loading),
        notes=notes,
        lacks=_lacking(steps, bool(trace.host), sizes, batch_size, parted),
        rank=trace.rank,
        ranks=trace.ranks,
        collectives=collectives(trace, work, [step.host_s for step in steps]),
    )


def _of_summary(summary: FlopsProfile, precision: str | None) -> _Observed:
    """Take a summary of a step as a trace of one step, whose parts it gives."""
    by = "summary of DeepSpeed's flops profiler"
    size, tensors = summary.gradient_bytes, summary.tensors
    report = GradientReport(tensors=tensors, bytes=size, source="number of parameters")
    notes = list(summary.notes)
    return _Observed(
        steps=[summary.step],
        steps_by=by,
        origin=by,
        device_name="gpu",
        gradients=_Gradients(report, coarse=Gradients(bytes=size, tensors=tensors)),
        batch_size=summary.batch_size,
        precision=_precision(precision, None, notes),
        has_parts=False,
        notes=notes,
    )


def _report(
    observed: _Observed, path: Path, name: str | None, device_name: str | None
) -> ImportedTrace:
    """Report the steps, with a workload if it lacks nothing."""
    steps, sizes = observed.steps, observed.gradients
    step_s = fmean([step.length_s for step in steps])
    parts_s = {part: fmean([step.parts_s[part] for step in steps]) for part in PARTS}
    report = ImportedTrace(
        trace=str(path),
        device=plain(device_name or observed.device_name),
        steps=len(steps),
        steps_by=observed.steps_by,
        step_s=step_s,
        step_std_s=_std([step.length_s for step in steps]),
        parts_s=parts_s,
        parts_per_step_fraction=sum(parts_s.values()) / step_s,
        compute_s={phase: fmean([step.of_s(phase) for step in steps]) for phase in PHASES},
        layers=len(sizes.layers),
        gradients=sizes.report,
        batch_size=observed.batch_size,
        precision=observed.precision,
        accumulation=observed.accumulation,
        notes=tuple(observed.notes),
        lacks=observed.lacks,
        rank=observed.rank,
        ranks=observed.ranks,
        collectives=observed.collectives,
    )
    if observed.has_parts:
        notes = (*report.notes, *_part_notes(report, observed.serial))
        report = msgspec.structs.replace(report, notes=notes)
    if observed.lacks is not None or observed.batch_size is None:
        return report
    source = Source("measured", f"imported from {path.name}, {observed.origin}")
    timing = _timing(report, observed, observed.batch_size, source)
    profile = Profile(
        name=plain(name or _stem(path)),
        source=source,
        timings=(timing,),
        layers=sizes.layers,
        gradients=sizes.coarse,
    )
    alone_s = step_s - parts_s["communication_exposed"]
    fraction = max(timing.total_s, timing.data_loading_s) / alone_s if alone_s > 0.0 else None
    return msgspec.structs.replace(report, timing_per_step_fraction=fraction, workload=profile)


def _stem(path: Path) -> str:
    """Derive a workload's name from a file name.

    >>> _stem(Path("runs/resnet50.pt.trace.json.gz"))
    'resnet50'
    """
    return path.name.split(".")[0].strip("<>") or "trace"


def _holds(step: TraceStep, host_s: float) -> bool:
    """Return whether a moment on the host lies in a step."""
    return step.host_s[0] <= host_s < step.host_s[1]


def _accumulation(steps: Sequence[TraceStep], passes: Sequence[HostPass], notes: list[str]) -> int:
    """Number of equal forward and backward passes per step."""
    trained = [p for p in passes if math.isfinite(p.backward_s)]
    counts = {sum(_holds(step, p.at_s) for p in trained) for step in steps}
    count = counts.pop() if len(counts) == 1 else 1
    if count <= 1:
        return 1
    if len({tuple(p.names) for p in trained}) > 1:
        notes.append(f"{count} backward passes per step of different models: treated as one")
        return 1
    notes.append(f"{count} forward and backward passes per step: gradient accumulation")
    return count


def _gradients(
    work: Attribution,
    passes: Sequence[HostPass],
    steps: Sequence[TraceStep],
    gradient_bytes: float | None,
    notes: list[str],
) -> _Gradients:
    """Find the sizes: from shapes by layer, else as given, else totals of shapes or messages."""
    sent = [m for m in gradients.messages(work) if any(_holds(step, m.host_s) for step in steps)]
    sent_bytes = sum(m.bytes for m in sent) / len(steps) or None
    trained = [p for p in passes if p.accumulated]
    if not trained:  # a cut trace may lack all events of accumulation
        trained = [p for p in passes if math.isfinite(p.backward_s)]
    alike = all(tuple(p.names) == work.names for p in trained)
    # if passes are equal, the fullest has all gradients; if models differ, each has its own
    if alike:
        trained.sort(key=lambda p: (len(p.accumulated), len(gradients.gradients_of(p)[0])))
        trained = trained[-1:]
    else:
        trained = [p for p in trained if _holds(steps[0], p.at_s)]
    sizes = [g for p in trained for g in gradients.gradients_of(p)[0]]
    source = gradients.gradients_of(trained[0])[1] if sizes else ""
    total_bytes = float(sum(g.bytes for g in sizes)) or None
    accumulated = sum(len(p.accumulated) for p in trained)
    report = GradientReport(
        tensors=max(accumulated, len(sizes)),
        bytes=total_bytes,
        source=source or None,
        messages=round(len(sent) / len(steps)),
        message_bytes=sent_bytes,
    )
    result = _Gradients(
        report, gradients.precision([g.kind for g in sizes] + [m.kind for m in sent])
    )
    agree = total_bytes == sent_bytes or sent_bytes is None
    if total_bytes and not agree:
        notes.append(
            f"{source} give {total_bytes:.0f} bytes, but messages that reduce them {sent_bytes:.0f}"
        )
    if not alike:
        notes.append("passes differ in their layers: the workload has no layers")
    elif sizes and (agree or "gradients" in source) and all(g.layer is not None for g in sizes):
        result.layers = gradients.layers(work, sizes)
    if sizes and len(sizes) < accumulated:
        notes.append(f"sizes are known for {len(sizes)} of {accumulated} gradients ({source})")
    parameters = sum(len(gradients.parameters_of(p)) for p in trained)
    if accumulated < parameters and (total_bytes != sent_bytes):
        counted = "all" if len(sizes) == parameters else "only these"
        notes.append(
            f"backward accumulates {accumulated} of {parameters} parameters of layers, and "
            f"{counted} are counted: the trace is cut, or layers share parameters, or some are not "
            "trained (--gradient-bytes)"
        )
    if result.layers and gradient_bytes:
        notes.append("--gradient-bytes is ignored: the trace has the size of each gradient")
    if not result.layers and (total := gradient_bytes or (total_bytes if agree else sent_bytes)):
        result.coarse = Gradients(
            bytes=total,
            tensors=max(1, report.tensors),
            largest_bytes=max(g.bytes for g in sizes) if sizes and total == total_bytes else None,
        )
        if alike:
            notes.append("gradient sizes are not known by layer: the workload has no layers")
    return result


def _batch_size(passes: Sequence[HostPass], accumulation: int, notes: list[str]) -> int | None:
    """Samples per step, from the shapes of inputs."""
    samples = next((n for p in passes if (n := gradients.samples(p))), None)
    if samples is None:
        return None
    size = samples * accumulation
    notes.append(f"batch size {size}: from the first layer's input (--batch-size)")
    return size


def _precision(option: str | None, recorded: str | None, notes: list[str]) -> str:
    """The precision that is given or recorded, else float32."""
    if option is not None:
        return option
    source = "from the gradients" if recorded else "assumed"
    notes.append(f"precision {recorded or 'float32'}: {source} (--precision)")
    return recorded or "float32"


def _std(values: Sequence[float]) -> float | None:
    """Standard deviation, None of a single value."""
    return stdev(values) if len(values) > 1 else None


def _part_notes(report: ImportedTrace, serial: bool) -> list[str]:
    """Remarks on the parts of a step."""
    loading = (
        "on the training thread: included in other_s"
        if serial
        else "so loading takes as long as the step"
    )
    shares = {
        "the device idles for {:.1%} of the step, not waiting for communication or data: included "
        "in other_s": report.parts_s["idle"],
        "copies of gradients to and from buckets: {:.1%} of the step, in other_s": report.compute_s[
            "buckets"
        ],
        f"the device waits for data for {{:.1%}} of the step, {loading}": report.parts_s[
            "data_loading"
        ],
    }
    std_s, step_s = report.step_std_s or 0.0, report.step_s
    notes = [text.format(s / step_s) for text, s in shares.items() if s > SEEN_FRACTION * step_s]
    if std_s > 0.25 * step_s:
        notes.append(f"steps vary a lot: standard deviation {std_s / step_s:.0%}")
    return notes


PARTED = {
    "all_to_all": "experts or embedding tables are spread over devices",
    "send": "a pipeline or a long sequence is spread over devices",
    "recv": "a pipeline or a long sequence is spread over devices",
}
"""What a collective that data parallel workers do not have is for."""


def _lacking(
    steps: Sequence[TraceStep],
    operators: bool,
    sizes: _Gradients,
    batch_size: int | None,
    parted: str | None,
) -> str | None:
    """Return what a workload needs but the trace lacks."""
    if parted is not None:
        return (
            f"the whole model on one device: its steps have {parted}, as where {PARTED[parted]}; "
            "trace a step of the whole model, on one device or data parallel"
        )
    if not operators:
        return (
            "operators of the host, which tell forward from backward; trace with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    if not any(step.of_s("backward") for step in steps):
        return "a backward pass, so it has no training step"
    missing = []
    if not sizes.layers and not sizes.coarse:
        missing.append("gradient sizes, from shapes or messages: --gradient-bytes")
    if batch_size is None:
        missing.append("the shape of an input: --batch-size")
    return f"{'; '.join(missing)}; or trace with record_shapes=True" if missing else None


def _timing(report: ImportedTrace, observed: _Observed, batch_size: int, source: Source) -> Timing:
    """The times of a step: means, with the spread by layer if there is more than one step."""
    steps, layers = observed.steps, report.layers
    mean: dict[str, Seconds] = {}
    spread: dict[str, Seconds | None] = {}
    for phase in ("forward", "backward"):
        if layers:
            values = [[s.compute_s.get((phase, i), 0.0) for s in steps] for i in range(layers)]
            mean[phase] = tuple(map(fmean, values))
            spread[phase] = tuple(map(stdev, values)) if len(steps) > 1 else None
        else:
            mean[phase] = report.compute_s[phase]
            spread[phase] = _std([step.of_s(phase) for step in steps])
    parts_s, compute_s = report.parts_s, report.compute_s
    layered = sum(map(total_s, mean.values()))
    optimizer_s, copy_s, waiting_s = compute_s["optimizer"], parts_s["copies"], 0.0
    other_s = parts_s["idle"] + compute_s["buckets"] + compute_s["other"]
    other_s += compute_s["forward"] + compute_s["backward"] - layered
    if observed.serial or parts_s["data_loading"] <= SEEN_FRACTION * report.step_s:
        other_s += parts_s["data_loading"]
    else:  # loading limits the step
        waiting_s = parts_s["data_loading"]
    busy_s = layered + optimizer_s + copy_s + other_s
    return Timing(
        device=report.device,
        batch_size=batch_size,
        source=source,
        precision=report.precision,
        forward_s=mean["forward"],
        backward_s=mean["backward"],
        forward_std_s=spread["forward"],
        backward_std_s=spread["backward"],
        optimizer_s=optimizer_s,
        data_loading_s=busy_s + waiting_s if waiting_s else 0.0,
        copy_s=copy_s,
        other_s=max(0.0, other_s),
        step_std_s=_std([s.length_s - s.parts_s["communication_exposed"] for s in steps]),
        accumulation=report.accumulation,
    )
