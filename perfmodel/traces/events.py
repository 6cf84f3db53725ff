"""Reads the relevant events of a Kineto file (Chrome's trace format).

Times in the file are in microseconds; here they are seconds since the first event.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from perfmodel.base import formats
from perfmodel.base.chakra import read_chakra
from perfmodel.base.errors import InputError, plain
from perfmodel.base.files import beginning, most_unpacked, read_bytes, ready, without_mark

MOST_BYTES = 2**30
"""Maximum size of an unpacked trace, in bytes."""

MOST_US = 1e18
"""Largest time of an event in microseconds: thirty thousand years."""

MOST_COUNT = 10**15
"""Largest number of elements, bytes or samples."""

MODULE = "nn.Module: "
"""Prefix of the names of module calls (``with_modules`` or ``with_stack``)."""

ELEMENT_BYTES = {
    **dict.fromkeys(("float", "int", "float32"), 4),
    **dict.fromkeys(("double", "long", "long int", "float64"), 8),
    **dict.fromkeys(("half", "bfloat16", "short", "short int", "float16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char"), 1),
}
"""Bytes per element, by type name in a trace, in lower case and without ``c10::``."""

_OPS = frozenset({"cpu_op", "operator"})
_ANNOTATIONS = frozenset({"user_annotation"})
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_ON_GPU = ("aten::cudnn", "aten::_cudnn", "aten::miopen", "nccl:")
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "hipLaunchKernel", "hipExtLaunchKernel")
SYNC = "cuda_sync"
"""Category of waits with their streams, which ``enable_cuda_sync_events`` records."""

LONG_US = 100.0
"""A call of the runtime that takes longer may have waited for the device."""

_WAITS = re.compile(r"(?:cuda|hip)(?:EventRecord|StreamWaitEvent|\w+Synchronize)")
_NOT_OPS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "gloo:", "nccl:")


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str | None = None
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: float | str | None = None
    dur: float | str | None = None
    args: msgspec.Raw = msgspec.Raw()


class _TraceFile(msgspec.Struct):
    traceEvents: list[_Event] | None = None  # noqa: N815 (the file's own name)
    nodes: list[dict[str, Any]] | None = None
    deviceProperties: list[dict[str, Any]] | None = None  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    host_name: str | None = None
    baseTimeNanoseconds: float = 0.0  # noqa: N815


@dataclass(frozen=True)
class Host:
    """An event of a host thread: an operator, an annotation, or a module call."""

    name: str
    start_s: float
    end_s: float
    thread: str
    kind: str
    args: dict[str, object]


@dataclass(frozen=True)
class DeviceEvent:
    """An event of a device, with the time and thread of its launch (None and "" if unknown), its
    stream, and what Kineto tells of a communication."""

    name: str
    start_s: float
    end_s: float
    kind: str
    launched_s: float | None
    thread: str
    stream: str = ""
    args: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """A call of the runtime that waits or marks, on the host or on a stream, or that took long.

    ``args`` has the streams of :data:`SYNC` events, and ``correlation``.
    """

    name: str
    start_s: float
    end_s: float
    thread: str
    args: dict[str, object]


@dataclass(frozen=True)
class Trace:
    """Events of a trace; ``device`` is empty if the profiler recorded only the CPU. ``rank`` and
    ``ranks`` are those of the job, None if the trace does not tell; ``groups`` has the ranks of its
    process groups by name, as far as it lists them. ``machine`` is where it was recorded ("" if
    unknown), and ``zero_s`` the moment of its first event on the clock of that."""

    host: list[Host]
    device: list[DeviceEvent]
    device_name: str
    notes: tuple[str, ...] = ()
    rank: int | None = None
    ranks: int | None = None
    calls: list[Call] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    machine: str = ""
    zero_s: float = 0.0


def element_bytes(kind: str) -> int | None:
    """Bytes per element of a type as named in traces; None if it is not the type of a tensor.

    >>> element_bytes("c10::BFloat16"), element_bytes("Float"), element_bytes("Scalar")
    (2, 4, None)
    """
    return ELEMENT_BYTES.get(kind.lower().removeprefix("c10::"))


def decode(data: bytes, path: str | Path, *, pid: str | None, gpu: int | None) -> Trace:
    """Read a trace from the unpacked contents of a file; ``path`` is what errors call it.

    Parameters
    ----------
    pid : the process to read if the file has several; by default the one with the most operators.
    gpu : the device to read; by default the one with the most kernels.

    Raises
    ------
    InputError : the file is truncated or not a trace, or has no event with a time.
    """
    try:
        return _read(data, path, pid, gpu)
    except InputError as error:
        readable = (formats.TRACE, formats.CHAKRA_JSON)
        refused = formats.refusal(data, str(path), "a PyTorch profiler trace", readable)
        raise _of_chakra(data, str(path)) or refused or error from None


def _read(data: bytes, path: str | Path, pid: str | None, gpu: int | None) -> Trace:
    contents = _decode(data, str(path))
    if contents.traceEvents is None:
        raise _not_a_trace(contents, str(path))
    complete = [e for e in contents.traceEvents if e.ph == "X" and e.ts is not None]
    if not complete:
        raise InputError(f"{path}: nothing to import: no event has a time and a duration (ph X)")
    job = contents.distributedInfo if isinstance(contents.distributedInfo, dict) else {}
    try:
        trace = _trace(complete, contents.deviceProperties or [], str(path), pid, gpu)
        return replace(
            trace,
            rank=count_of(job.get("rank")),
            ranks=count_of(job.get("world_size")) or None,
            groups=_groups(job),
            machine=contents.host_name or "",
            zero_s=trace.zero_s + contents.baseTimeNanoseconds * 1e-9,
        )
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot read an event: {error}") from None


def _groups(job: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Ranks of each process group that a trace lists completely, by name."""
    groups = {}
    for group in listed(job.get("pg_config")):
        if not isinstance(group, dict):
            continue
        ranks = [rank for rank in map(count_of, listed(group.get("ranks"))) if rank is not None]
        if ranks and len(ranks) == count_of(group.get("pg_size")):
            groups[str(group.get("pg_name"))] = tuple(ranks)
    return groups


def unpacked(path: Path) -> bytes:
    """Return the contents of a file, plain or compressed with gzip.

    Raises
    ------
    InputError : the file cannot be read, is damaged or too large.
    """
    data = read_bytes(path, MOST_BYTES)
    if data[:2] != b"\x1f\x8b":
        return data
    most = most_unpacked(len(data), MOST_BYTES)
    try:
        with gzip.open(BytesIO(data)) as file:
            return beginning(file, most, f"{path} unpacked")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: truncated or damaged (gzip): {error}") from None


def _decode(data: bytes, name: str) -> _TraceFile:
    data = without_mark(data)
    try:
        if data.lstrip()[:1] == b"[":
            return _TraceFile(msgspec.json.decode(data, type=ready(list[_Event])))
        return msgspec.json.decode(data, type=ready(_TraceFile))
    except RecursionError:
        raise InputError(f"{name}: nested too deeply") from None
    except msgspec.ValidationError as error:
        raise InputError(f"{name}: not a PyTorch profiler trace: {error}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InputError(f"{name}: not valid JSON: {error}") from None


def count_of(value: object) -> int | None:
    """Return a count from a trace, or None if the value is not a valid count.

    >>> count_of(8), count_of("8"), count_of("many"), count_of(-1)
    (8, 8, None, None)
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= MOST_COUNT else None


def listed(value: object) -> list[object]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def _of_chakra(data: bytes, name: str) -> InputError | None:
    """The error for a Chakra trace in protobuf form that can be read, with the bytes it reduces."""
    kind = formats.recognise(data, name)
    if kind is None or kind.name != formats.CHAKRA:
        return None
    try:
        contents = read_chakra(data, name)
    except InputError:
        return None
    option = f" (--gradient-bytes {contents.reduced_bytes}B)" if contents.reduced_bytes else ""
    return InputError(
        f"{name}: a Chakra execution trace ({contents.nodes} nodes) has no times of kernels; "
        f"import the Kineto trace of the same run{option}"
    )


def _not_a_trace(contents: _TraceFile, name: str) -> InputError:
    if not contents.nodes:
        return InputError(f"{name}: not a PyTorch profiler trace: it has no traceEvents")
    names = [str(node.get("name")) for node in contents.nodes]
    steps = sum(name.startswith("ProfilerStep#") for name in names) or 1
    sizes = [
        (count_of(value[3]) or 0) * (count_of(value[4]) or 0)  # elements, and bytes of each
        for node, label in zip(contents.nodes, names, strict=True)
        if label == "torch::autograd::AccumulateGrad" and isinstance(node.get("inputs"), dict)
        for value in listed(node["inputs"].get("values"))
        if isinstance(value, list) and len(value) == 6
    ]
    option = f" (--gradient-bytes {sum(sizes) // steps}B)" if sizes else ""
    return InputError(
        f"{name}: a Chakra execution trace has no times; import the Kineto trace of the same "
        f"run{option}"
    )


def _trace(
    events: list[_Event],
    properties: list[dict[str, Any]],
    name: str,
    pid: str | None,
    gpu: int | None,
) -> Trace:
    for event in events:
        event.ts, event.dur = _moment(event.ts), _moment(event.dur)
        event.name = plain(str(event.name))
    first = min(float(e.ts or 0.0) for e in events)
    notes: list[str] = []
    ops = Counter(str(e.pid) for e in events if (e.cat or "").lower() in _OPS)
    pid = _chosen(name, "process", "--pid", ops, pid, notes)
    device_events, host, launches, calls, on_gpu = [], [], {}, [], False
    for event in events:
        category = (event.cat or "").lower()
        label = str(event.name)
        runtime = "runtime" in category or "driver" in category
        if category == SYNC or (runtime and (_WAITS.match(label) or _moment(event.dur) > LONG_US)):
            calls.append(Call(label, *_span(event, first), str(event.tid), _arguments(event)))
        if category in _DEVICE:
            device_events.append((event, _arguments(event)))
        elif pid is not None and str(event.pid) != pid:
            continue
        elif category in _OPS or category in _ANNOTATIONS or label.startswith(MODULE):
            host.append(_host(event, category, first))
            on_gpu |= label.startswith(_ON_GPU)
        elif runtime:
            on_gpu |= label.startswith(_LAUNCHES)
            correlation = _arguments(event).get("correlation")
            if correlation is not None:
                launches[correlation] = (_span(event, first)[0], str(event.tid))
    used = Counter(str(a.get("device", e.pid)) for e, a in device_events)
    chosen = _chosen(name, "GPU", "--gpu", used, None if gpu is None else str(gpu), notes)
    by_id = {h.args["External id"]: h for h in host if h.kind == "op" and "External id" in h.args}
    device = []
    for event, arguments in device_events:
        if str(arguments.get("device", event.pid)) != chosen:
            continue
        launch = launches.get(arguments.get("correlation"))
        if launch is None and (op := by_id.get(arguments.get("External id"))) is not None:
            launch = (op.start_s, op.thread)
        device.append(_device(event, first, launch, arguments))
    if on_gpu and not device:
        raise InputError(
            f"{name}: the trace has launches on a GPU but no kernels, so times on the GPU are "
            "unknown: trace with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    if host and not device:
        notes.append(
            "no kernels: times are those of the CPU; for a GPU, trace with ProfilerActivity.CUDA"
        )
    if not host and not device:
        raise InputError(f"{name}: nothing to import: there are no operators and no kernels")
    names = {str(p.get("id")): str(p.get("name")) for p in properties}
    device_name = names.get(chosen or "", "gpu") if device else "cpu"
    return Trace(host, device, device_name, tuple(notes), calls=calls, zero_s=first * 1e-6)


def _chosen(
    name: str, what: str, flag: str, counts: Counter[str], wish: str | None, notes: list[str]
) -> str | None:
    """Return the requested process or GPU, or else the busiest."""
    if wish is not None and wish not in counts:
        choices = ", ".join(sorted(counts)) or "none"
        raise InputError(f"{flag}: {name} has no {what} {wish} (known: {choices})")
    if wish is None and counts:
        wish = counts.most_common(1)[0][0]
        if len(counts) > 1:
            ignored = ", ".join(sorted(set(counts) - {wish}))
            notes.append(f"only {what} {wish}, the busiest; use {flag} for another: {ignored}")
    return wish


def _arguments(event: _Event) -> dict[str, object]:
    return msgspec.json.decode(event.args, type=dict[str, Any] | None) or {} if event.args else {}


def _moment(value: float | str | None) -> float:
    """Return a time in microseconds."""
    time_us = float(value or 0.0)
    if not -MOST_US <= time_us <= MOST_US:
        raise ValueError(f"time of {value} microseconds, at most {MOST_US:g} is allowed")
    return time_us


def _span(event: _Event, first_us: float) -> tuple[float, float]:
    """Start and end of an event in seconds since the first."""
    start_s = (float(event.ts or 0.0) - first_us) * 1e-6
    return start_s, start_s + max(0.0, float(event.dur or 0.0)) * 1e-6


def _host(event: _Event, category: str, first_us: float) -> Host:
    name = str(event.name)
    op = category in _OPS and not name.startswith(_NOT_OPS)
    kind = "op" if op else "module" if name.startswith(MODULE) else "annotation"
    arguments = _arguments(event) if kind != "module" else {}
    return Host(name, *_span(event, first_us), str(event.tid), kind, arguments)


def _device(
    event: _Event,
    first_us: float,
    launch: tuple[float, str] | None,
    arguments: dict[str, object],
) -> DeviceEvent:
    name = str(event.name)
    kind = "compute"
    if "nccl" in name.lower() or "ptop" in name.lower():
        kind = "communication"
    elif "htod" in name.lower() or "dtoh" in name.lower():
        kind = "copy"
    start_s, end_s = _span(event, first_us)
    launched_s, thread = launch or (None, "")
    return DeviceEvent(
        name,
        start_s,
        end_s,
        kind,
        launched_s,
        thread,
        stream=str(arguments.get("stream", event.tid)),
        args=arguments if kind == "communication" else {},
    )
