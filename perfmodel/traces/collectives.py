"""Collectives in a trace: operation, ranks, bytes, and how long the device, or gloo, was at it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from perfmodel.traces.attribution import Attribution
from perfmodel.traces.events import DeviceEvent, Host, Trace, count_of, element_bytes
from perfmodel.traces.gradients import tensors_of

OPERATIONS = (
    (re.compile(r"all_?reduce"), "all_reduce"),
    (re.compile(r"reduce_?scatter"), "reduce_scatter"),
    (re.compile(r"all_?gather"), "all_gather"),
)
"""Operations by their names in traces, in lower case."""


class TracedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of a step.

    Attributes
    ----------
    operation : all_reduce, reduce_scatter or all_gather.
    ranks : that take part; None if the trace does not tell.
    bytes : of the whole vector that is reduced, scattered or gathered.
    seconds : from its first to its last moment on the device, with waiting for slower ranks.
    """

    operation: str
    ranks: int | None
    bytes: float
    seconds: float


def collectives(
    trace: Trace, work: Attribution, spans: Sequence[tuple[float, float]]
) -> tuple[TracedCollective, ...]:
    """Collectives launched in steps, in the order of their launch.

    ``spans`` are start and end of the steps on the host, (steps,).
    """
    hosts = sorted((e.host for e in work.events), key=lambda host: host.start_s)
    inside = [h for h in hosts if any(start <= h.start_s < end for start, end in spans)]
    records = [h for h in inside if h.name == "record_param_comms" and _size(h)]
    if trace.device:
        return tuple(_of_device(trace.device, records))
    return tuple(_of_host(inside, records))


def _of_device(
    device: Sequence[DeviceEvent], records: Sequence[Host]
) -> Iterator[TracedCollective]:
    """Kernels of collectives, each with the record that encloses its launch."""
    by_thread: dict[str, list[Host]] = defaultdict(list)
    for record in records:
        by_thread[record.thread].append(record)
    starts = {thread: [h.start_s for h in hosts] for thread, hosts in by_thread.items()}
    kernels = [e for e in device if e.kind == "communication" and e.launched_s is not None]
    for kernel in sorted(kernels, key=lambda e: e.launched_s or 0.0):
        at = kernel.launched_s or 0.0
        place = bisect_right(starts.get(kernel.thread, []), at) - 1
        if place < 0:
            continue
        record = by_thread[kernel.thread][place]
        if at <= record.end_s:
            made = _made(record, kernel.end_s - kernel.start_s)
            if made is not None:
                yield made


def _of_host(inside: Sequence[Host], records: Sequence[Host]) -> Iterator[TracedCollective]:
    """What gloo runs on threads of its own, with records in the same order if there are any."""
    sent = [h for h in inside if h.name.startswith("gloo:") and _operation(h.name)]
    paired = len(records) == len(sent)
    for k, host in enumerate(sent):
        if paired:
            made = _made(records[k], host.end_s - host.start_s)
            if made is not None:
                yield made
            continue
        sizes = [size for size, _ in tensors_of(host.args)]
        if sizes and host.end_s > host.start_s:
            yield TracedCollective(
                operation=_operation(host.name) or "",
                ranks=None,
                bytes=float(sum(sizes)),
                seconds=host.end_s - host.start_s,
            )


def _operation(name: str) -> str | None:
    folded = name.lower()
    return next((word for pattern, word in OPERATIONS if pattern.search(folded)), None)


def _size(record: Host) -> float:
    """Bytes of the whole vector."""
    counts = [count_of(record.args.get(f"{way} msg nelems")) or 0 for way in ("In", "Out")]
    return float(max(counts) * (element_bytes(str(record.args.get("dtype", ""))) or 0))


def _made(record: Host, seconds: float) -> TracedCollective | None:
    operation = _operation(str(record.args.get("Collective name", "")))
    if operation is None or seconds <= 0.0:
        return None
    return TracedCollective(
        operation=operation,
        ranks=count_of(record.args.get("Group size")) or None,
        bytes=_size(record),
        seconds=seconds,
    )
