"""What works on a device, and the host, wait for: from calls of the runtime, and from times.

A trace with ``enable_cuda_sync_events`` tells which stream waits for which. Others only have the
calls: ``cudaStreamWaitEvent`` without its stream, and so on. Then a work waits for what it can have
waited for: works that were launched earlier, and that ended before it began.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from perfmodel.traces.events import SYNC, Call, Host, count_of
from perfmodel.traces.exchanges import TracedWork

ROUNDING_S = 1.5e-6
"""Differences of times that mean nothing."""

REACTION_S = 20e-6
"""A work that begins at most so long after another one has ended may have waited for it."""


MOST_BACK = 4000
"""Most works launched before a wait that it may be for; a queue of launches holds about 1000."""


class HostWait(NamedTuple):
    """The host waits in a call from ``start_s`` to ``end_s`` for ``works`` (indices)."""

    start_s: float
    end_s: float
    works: tuple[int, ...]


def host_waits(works: Sequence[TracedWork], calls: Sequence[Call]) -> tuple[HostWait, ...]:
    """Waits of the host: for all that was launched before, or for the last that ended.

    The latter is also what other calls that took long have waited for: launches into a full queue,
    and copies to the host.
    """
    launched = [_launch(work) for work in works]
    waits = []
    for call in sorted(calls, key=lambda c: c.start_s):
        if "StreamWaitEvent" in call.name or "EventRecord" in call.name:
            continue
        last: dict[str, int] = {}
        before = bisect_right(launched, call.start_s)
        for i in range(before - 1, max(before - MOST_BACK, 0) - 1, -1):
            if works[i].end_s <= call.end_s + ROUNDING_S:
                last.setdefault(works[i].stream, i)
        if "DeviceSynchronize" not in call.name and last:
            last = {"": max(last.values(), key=lambda i: works[i].end_s)}
        if not call.name.endswith("Synchronize"):
            last = {s: i for s, i in last.items() if works[i].end_s > call.start_s}
        if last:
            waits.append(HostWait(call.start_s, call.end_s, tuple(sorted(last.values()))))
    return tuple(waits)


def stream_waits(
    works: Sequence[TracedWork], calls: Sequence[Call], host: Sequence[Host]
) -> tuple[tuple[int, ...], ...]:
    """Works on other streams that each work waits for, (works,) of indices.

    ``works`` are sorted by launch.
    """
    awaited: list[set[int]] = [set() for _ in works]
    by_stream: dict[str, list[int]] = defaultdict(list)
    for i, work in enumerate(works):
        by_stream[work.stream].append(i)
    recorded = _recorded(works, by_stream, calls)
    for i, j in recorded:
        awaited[i].add(j)
    if not recorded:
        _of_calls(works, calls, host, awaited)
        _of_communication(works, by_stream, awaited)
    _seen(works, by_stream, awaited)
    return tuple(
        tuple(sorted(j for j in indices if works[j].stream != works[i].stream))
        for i, indices in enumerate(awaited)
    )


def _launch(work: TracedWork) -> float:
    return work.start_s if work.launched_s is None else work.launched_s


def _recorded(
    works: Sequence[TracedWork], by_stream: dict[str, list[int]], calls: Sequence[Call]
) -> list[tuple[int, int]]:
    """Pairs of a work and one that it waits for, as a trace with streams of waits has them."""
    recorded = {c.args.get("correlation"): c.start_s for c in calls if "EventRecord" in c.name}
    pairs = []
    launched = {s: [_launch(works[i]) for i in indices] for s, indices in by_stream.items()}
    for call in calls:
        awaited = count_of(call.args.get("wait_on_stream"))
        at = recorded.get(call.args.get("wait_on_cuda_event_record_corr_id"))
        stream = str(call.args.get("stream", ""))
        if awaited is None or at is None or stream not in by_stream:
            continue
        source = str(awaited)
        before = bisect_left(launched.get(source, []), at) - 1
        after = bisect_left(launched[stream], call.start_s)
        if before >= 0 and after < len(by_stream[stream]):
            pairs.append((by_stream[stream][after], by_stream[source][before]))
    return pairs


def _of_communication(
    works: Sequence[TracedWork], by_stream: dict[str, list[int]], awaited: list[set[int]]
) -> None:
    """PyTorch lets a communication wait for what was launched before it on the current stream."""
    for i, work in enumerate(works):
        if work.kind != "communication":
            continue
        for stream, launched in by_stream.items():
            if stream == work.stream:
                continue
            place = bisect_left(launched, i) - 1
            if place >= 0 and works[launched[place]].kind != "communication":
                j = launched[place]
                if works[j].end_s <= work.start_s + ROUNDING_S:
                    awaited[i].add(j)


def _of_calls(
    works: Sequence[TracedWork],
    calls: Sequence[Call],
    host: Sequence[Host],
    awaited: list[set[int]],
) -> None:
    """After a wait on a stream the next work waits for communications that had ended by then.

    Waits in calls of collectives are those of the communication itself.
    """
    spans = [h for h in host if h.name == "record_param_comms" or h.name.startswith("nccl:")]
    sending: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in sorted(spans, key=lambda h: h.start_s):
        sending[span.thread].append((span.start_s, span.end_s))
    starts = {thread: [s for s, _ in intervals] for thread, intervals in sending.items()}
    launched = [_launch(work) for work in works]
    for call in calls:
        if "StreamWaitEvent" not in call.name or call.name.startswith(SYNC):
            continue
        place = bisect_right(starts.get(call.thread, []), call.start_s) - 1
        inside = sending[call.thread][max(place - 1, 0) : place + 1] if place >= 0 else []
        if any(start <= call.start_s < end for start, end in inside):
            continue
        at = bisect_left(launched, call.start_s)
        then = next((i for i in range(at, len(works)) if works[i].kind == "compute"), None)
        if then is None:
            continue
        last: dict[str, int] = {}
        for j in range(max(0, at - MOST_BACK), at):
            ended = works[j].end_s <= works[then].start_s + ROUNDING_S
            if works[j].kind == "communication" and ended:
                last[works[j].stream] = j
        awaited[then].update(last.values())


def _seen(
    works: Sequence[TracedWork], by_stream: dict[str, list[int]], awaited: list[set[int]]
) -> None:
    """A work begins after a pause, and when a work of another stream has just ended."""
    ends = sorted((work.end_s, i) for i, work in enumerate(works))
    times = [end for end, _ in ends]
    for indices in by_stream.values():
        before_s = 0.0
        for i in indices:
            work = works[i]
            if work.start_s > max(before_s, _launch(work)) + ROUNDING_S:
                first = bisect_left(times, work.start_s - REACTION_S)
                last = bisect_right(times, work.start_s + ROUNDING_S)
                others = [j for _, j in ends[first:last] if works[j].stream != work.stream]
                others = [j for j in others if j < i and works[j].end_s > before_s]
                if others:
                    awaited[i].add(max(others, key=lambda j: works[j].end_s))
            before_s = max(before_s, work.end_s)
