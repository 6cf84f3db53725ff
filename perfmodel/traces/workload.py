"""Converts a trace to a workload file, and reports the parts of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec

from perfmodel.base import formats
from perfmodel.base.errors import InputError, number, plain, whole_number
from perfmodel.base.provenance import Source
from perfmodel.inputs.profile import Gradients, Layer, Profile, Seconds, Timing
from perfmodel.traces import attribution, deepspeed, events, gradients
from perfmodel.traces.attribution import Attribution, HostPass
from perfmodel.traces.deepspeed import FlopsProfile
from perfmodel.traces.events import Trace
from perfmodel.traces.steps import PARTS, TraceStep, find_steps

PHASES = ("forward", "backward", "optimizer", "buckets", "other")
SEEN_FRACTION = 0.01
"""Smaller fractions of a step are not reported, and shorter waits for data are ignored."""


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
    known_as = formats.recognise(data)
    if known_as is not None and known_as.name == formats.DEEPSPEED:
        summary = deepspeed.parse(formats.text_of(data[: formats.MOST_BYTES]) or "", str(path))
        summary = summary._replace(
            batch_size=batch_size or summary.batch_size,
            gradient_bytes=gradient_bytes or summary.gradient_bytes,
        )
        return _of_summary(summary, path, name, device_name, precision)
    trace = events.decode(data, path, pid=pid, gpu=gpu)
    return _of_trace(trace, path, name, device_name, batch_size, precision, gradient_bytes)


def _of_trace(
    trace: Trace,
    path: str | Path,
    name: str | None,
    device_name: str | None,
    batch_size: int | None,
    precision: str | None,
    gradient_bytes: float | None,
) -> ImportedTrace:
    """Report a trace, with its workload if it lacks nothing."""
    found = attribution.attribute(trace)
    try:
        steps, by = find_steps(trace, found.works, found.loading)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    notes = list(trace.notes)
    steps = _without_a_broken_first(steps, notes)
    inside = [p for p in found.passes if any(_holds(step, p.at_s) for step in steps)]
    accumulation = _accumulation(steps, inside, notes)
    known = _gradients(found, inside, steps, gradient_bytes, notes)
    if batch_size is None:
        batch_size = _batch_size(inside, accumulation, notes)
    if precision is None:
        precision = known.precision or "float32"
        source = "from the gradients" if known.precision else "assumed"
        notes.append(f"precision {precision}: {source} (--precision)")
    serial = any("SingleProcess" in h.name for h in found.loading)
    report = ImportedTrace(
        trace=str(path),
        device=plain(device_name or trace.device_name),
        steps=len(steps),
        steps_by=by,
        layers=len(known.layers),
        gradients=known.report,
        batch_size=batch_size,
        precision=precision,
        accumulation=accumulation,
        **_means(steps),
    )
    _note_parts(report, serial, notes)
    parted = gradients.model_parallel(found, trace.device, [step.host_s for step in steps])
    lacks = _lacking(report, bool(trace.host), bool(known.layers or known.coarse), parted)
    report = msgspec.structs.replace(report, notes=tuple(notes), lacks=lacks)
    if lacks is not None or batch_size is None:
        return report
    text = f"imported from {Path(path).name}, steps: {len(steps)} ({by}), communication removed"
    measured = Source("measured", text)
    timing = _timing(report, steps, len(known.layers), serial, batch_size, measured)
    profile = Profile(
        name=plain(name or _stem(path)),
        source=measured,
        timings=(timing,),
        layers=known.layers,
        gradients=known.coarse,
    )
    whole = max(timing.total_s, timing.data_loading_s)
    own_s = report.step_s - report.parts_s["communication_exposed"]
    fraction = whole / own_s if own_s > 0.0 else None
    return msgspec.structs.replace(report, timing_per_step_fraction=fraction, workload=profile)


def _of_summary(
    summary: FlopsProfile,
    path: str | Path,
    name: str | None,
    device_name: str | None,
    precision: str | None,
) -> ImportedTrace:
    """Report a summary of a step as a trace of one step, whose parts it gives."""
    by = "summary of DeepSpeed's flops profiler"
    notes = list(summary.notes)
    if precision is None:
        notes.append("precision float32: assumed (--precision)")
    text = f"imported from {Path(path).name}, {by}"
    device = plain(device_name or "gpu")
    profile = deepspeed.profile_of(
        summary,
        plain(name or _stem(path)),
        device,
        precision or "float32",
        Source("measured", text),
    )
    parts = dict.fromkeys(PARTS, 0.0)
    parts |= {"computing": summary.computing_s, "idle": summary.step_s - summary.computing_s}
    compute = dict.fromkeys(PHASES, 0.0) | {
        "forward": summary.forward_s,
        "backward": summary.backward_s,
        "optimizer": summary.optimizer_s,
    }
    return ImportedTrace(
        trace=str(path),
        device=device,
        steps=1,
        steps_by=by,
        step_s=summary.step_s,
        step_std_s=None,
        parts_s=parts,
        parts_per_step_fraction=1.0,
        compute_s=compute,
        layers=0,
        gradients=GradientReport(
            tensors=summary.tensors, bytes=summary.gradient_bytes, source="number of parameters"
        ),
        batch_size=summary.batch_size,
        precision=precision or "float32",
        accumulation=1,
        timing_per_step_fraction=profile.timings[0].total_s / summary.step_s,
        notes=tuple(notes),
        workload=profile,
    )


def _means(steps: Sequence[TraceStep]) -> dict[str, Any]:
    """Means over all steps, as fields of :class:`ImportedTrace`."""
    step_s = fmean(s.length_s for s in steps)
    parts = {part: fmean(s.parts_s[part] for s in steps) for part in PARTS}
    return {
        "step_s": step_s,
        "step_std_s": stdev(s.length_s for s in steps) if len(steps) > 1 else None,
        "parts_s": parts,
        "parts_per_step_fraction": sum(parts.values()) / step_s,
        "compute_s": {phase: fmean(s.of_s(phase) for s in steps) for phase in PHASES},
    }


def _stem(path: str | Path) -> str:
    """Derive a workload's name from a file name.

    >>> _stem("runs/resnet50.pt.trace.json.gz")
    'resnet50'
    """
    return Path(path).name.split(".")[0].strip("<>") or "trace"


def _holds(step: TraceStep, host_s: float) -> bool:
    """Return whether a moment on the host lies in a step."""
    return step.host_s[0] <= host_s < step.host_s[1]


def _without_a_broken_first(steps: list[TraceStep], notes: list[str]) -> list[TraceStep]:
    """Drop a first step in which the device still runs work launched before the trace."""
    if len(steps) > 1 and steps[0].unlaunched_s > SEEN_FRACTION * steps[0].length_s:
        notes.append("first step left out: part of its work was launched before the trace")
        return steps[1:]
    return steps


def _accumulation(steps: Sequence[TraceStep], passes: Sequence[HostPass], notes: list[str]) -> int:
    """Number of equal forward and backward passes per step."""
    trained = [p for p in passes if math.isfinite(p.backward_s)]
    counts = {sum(_holds(step, p.at_s) for p in trained) for step in steps}
    each = counts.pop() if len(counts) == 1 else 1
    if each <= 1:
        return 1
    if len({tuple(p.names) for p in trained}) > 1:
        notes.append(f"{each} backward passes per step of different models: treated as one")
        return 1
    notes.append(f"{each} forward and backward passes per step: gradient accumulation")
    return each


class _Gradients(msgspec.Struct):
    """The gradients of a workload: by layer, in total, or unknown."""

    report: GradientReport
    precision: str | None
    layers: tuple[Layer, ...] = ()
    coarse: Gradients | None = None


def _gradients(
    found: Attribution,
    passes: Sequence[HostPass],
    steps: Sequence[TraceStep],
    given: float | None,
    notes: list[str],
) -> _Gradients:
    """Find the sizes: from shapes by layer, else as given, else totals of shapes or messages."""
    sent = [m for m in gradients.messages(found) if any(_holds(step, m.host_s) for step in steps)]
    sent_bytes = sum(m.bytes for m in sent) / len(steps) or None
    trained = [p for p in passes if p.accumulated]
    if not trained:  # a cut trace may lack all events of accumulation
        trained = [p for p in passes if math.isfinite(p.backward_s)]
    alike = all(tuple(p.names) == found.names for p in trained)
    # if passes are equal, the fullest has all gradients; if models differ, each has its own
    if alike:
        trained = sorted(trained, key=_completeness)[-1:]
    else:
        trained = [p for p in trained if _holds(steps[0], p.at_s)]
    sizes = [g for p in trained for g in gradients.gradients_of(p)[0]]
    source = gradients.gradients_of(trained[0])[1] if sizes else ""
    own_bytes = float(sum(g.bytes for g in sizes)) or None
    accumulated = sum(len(p.accumulated) for p in trained)
    report = GradientReport(
        tensors=max(accumulated, len(sizes)),
        bytes=own_bytes,
        source=source or None,
        messages=round(len(sent) / len(steps)),
        message_bytes=sent_bytes,
    )
    result = _Gradients(
        report, gradients.precision([g.kind for g in sizes] + [m.kind for m in sent])
    )
    agree = own_bytes == sent_bytes or sent_bytes is None
    if own_bytes and not agree:
        notes.append(
            f"{source} give {own_bytes:.0f} bytes, but messages that reduce them {sent_bytes:.0f}"
        )
    if not alike:
        notes.append("passes differ in their layers: the workload has no layers")
    elif sizes and (agree or "gradients" in source) and all(g.layer is not None for g in sizes):
        result.layers = gradients.layers(found, sizes)
    if sizes and len(sizes) < accumulated:
        notes.append(f"sizes are known for {len(sizes)} of {accumulated} gradients ({source})")
    parameters = sum(len(gradients.parameters_of(p)) for p in trained)
    if accumulated < parameters and (own_bytes != sent_bytes):
        counted = "all" if len(sizes) == parameters else "only these"
        notes.append(
            f"backward accumulates {accumulated} of {parameters} parameters of layers, and "
            f"{counted} are counted: the trace is cut, or layers share parameters, or some are not "
            "trained (--gradient-bytes)"
        )
    if result.layers and given:
        notes.append("--gradient-bytes is ignored: the trace has the size of each gradient")
    if not result.layers and (total := given or (own_bytes if agree else sent_bytes)):
        result.coarse = Gradients(
            bytes=total,
            tensors=max(1, report.tensors),
            largest_bytes=max(g.bytes for g in sizes) if sizes and total == own_bytes else None,
        )
        if alike:
            notes.append("gradient sizes are not known by layer: the workload has no layers")
    return result


def _completeness(p: HostPass) -> tuple[int, int]:
    """Gradients that a pass accumulates, and those of known size: a cut one has fewer."""
    return len(p.accumulated), len(gradients.gradients_of(p)[0])


def _batch_size(passes: Sequence[HostPass], accumulation: int, notes: list[str]) -> int | None:
    """Samples per step, from the shapes of inputs."""
    each = next((n for p in passes if (n := gradients.samples(p))), None)
    if each is None:
        return None
    notes.append(f"batch size {each * accumulation}: from the first layer's input (--batch-size)")
    return each * accumulation


def _note_parts(found: ImportedTrace, serial: bool, notes: list[str]) -> None:
    """Add notes on the parts of a step."""
    parts, step_s = found.parts_s, found.step_s
    if parts["idle"] > SEEN_FRACTION * step_s:
        notes.append(
            f"the device idles for {parts['idle'] / step_s:.1%} of the step, not waiting for "
            "communication or data: included in other_s"
        )
    if found.compute_s["buckets"] > SEEN_FRACTION * step_s:
        part = found.compute_s["buckets"] / step_s
        notes.append(f"copies of gradients to and from buckets: {part:.1%} of the step, in other_s")
    if parts["data_loading"] > SEEN_FRACTION * step_s:
        where = (
            "on the training thread: included in other_s"
            if serial
            else "so loading takes as long as the step"
        )
        part = parts["data_loading"] / step_s
        notes.append(f"the device waits for data for {part:.1%} of the step, {where}")
    if found.step_std_s is not None and found.step_std_s > 0.25 * step_s:
        notes.append(f"steps vary a lot: standard deviation {found.step_std_s / step_s:.0%}")


PARTED = {
    "all_to_all": "experts or embedding tables are spread over devices",
    "send": "a pipeline or a long sequence is spread over devices",
    "recv": "a pipeline or a long sequence is spread over devices",
}
"""What a collective that data parallel workers do not have is for."""


def _lacking(found: ImportedTrace, operators: bool, known: bool, parted: str | None) -> str | None:
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
    if found.compute_s["backward"] <= 0.0:
        return "a backward pass, so it has no training step"
    missing = []
    if not known:
        missing.append("gradient sizes, from shapes or messages: --gradient-bytes")
    if found.batch_size is None:
        missing.append("the shape of an input: --batch-size")
    return f"{'; '.join(missing)}; or trace with record_shapes=True" if missing else None


def _timing(
    found: ImportedTrace,
    steps: Sequence[TraceStep],
    layers: int,
    serial: bool,
    batch_size: int,
    source: Source,
) -> Timing:
    """The times of a step: means, with the spread by layer if there is more than one step."""
    mean: dict[str, tuple[float, ...]] = {}
    spread: dict[str, Seconds] = {}
    for phase in ("forward", "backward"):
        values = [[s.compute_s.get((phase, i), 0.0) for s in steps] for i in range(layers)]
        mean[phase] = tuple(map(fmean, values))
        if len(steps) > 1:
            whole = stdev(s.of_s(phase) for s in steps)
            spread[phase] = tuple(map(stdev, values)) if layers else whole
    passes = found.compute_s["forward"] + found.compute_s["backward"]
    layered = sum(map(sum, mean.values())) if layers else passes
    copy_s, waiting_s = found.parts_s["copies"], found.parts_s["data_loading"]
    limited = not serial and waiting_s > SEEN_FRACTION * found.step_s
    other_s = found.parts_s["idle"] + found.compute_s["buckets"] + found.compute_s["other"]
    other_s += passes - layered + (0.0 if limited else waiting_s)
    optimizer_s = found.compute_s["optimizer"]
    own = [s.length_s - s.parts_s["communication_exposed"] for s in steps]
    return Timing(
        device=found.device,
        batch_size=batch_size,
        source=source,
        precision=found.precision,
        forward_s=mean["forward"] if layers else found.compute_s["forward"],
        backward_s=mean["backward"] if layers else found.compute_s["backward"],
        forward_std_s=spread.get("forward"),
        backward_std_s=spread.get("backward"),
        optimizer_s=optimizer_s,
        data_loading_s=layered + optimizer_s + copy_s + other_s + waiting_s if limited else 0.0,
        copy_s=copy_s,
        other_s=max(0.0, other_s),
        step_std_s=stdev(own) if len(own) > 1 else None,
        accumulation=found.accumulation,
    )
