"""Training steps in a trace, divided by device activity."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from perfmodel.base.errors import InputError
from perfmodel.traces.attribution import DeviceInterval
from perfmodel.traces.events import Host, Trace

PARTS = (
    *("computing", "communication_hidden", "communication_exposed"),
    *("copies", "data_loading", "idle"),
)
"""Activities of a device, mutually exclusive, by descending priority.

Computing, with concurrent communication (*hidden*) or without; communication alone (*exposed*);
copies between host and device alone; idle while the host waits for data; otherwise idle.
"""

_STEP = "ProfilerStep#"


@dataclass
class TraceStep:
    """One step: seconds by part, which add up to it, and compute seconds by phase and layer.

    Attributes
    ----------
    compute_s : computing, with or without hidden communication, by phase and layer.
    host_s : start and end on the host, where its work is launched.
    unlaunched_s : computing that no event in the trace launched.
    """

    start_s: float
    end_s: float
    host_s: tuple[float, float]
    parts_s: dict[str, float] = field(default_factory=dict)
    compute_s: dict[tuple[str, int | None], float] = field(default_factory=dict)
    unlaunched_s: float = 0.0

    @property
    def length_s(self) -> float:
        """Seconds from its start to that of the next step."""
        return self.end_s - self.start_s

    def of_s(self, phase: str) -> float:
        """Compute seconds of a phase, all layers together."""
        return sum(s for (name, _), s in self.compute_s.items() if name == phase)


def find_steps(
    trace: Trace, works: Sequence[DeviceInterval], loading: Sequence[Host]
) -> tuple[list[TraceStep], str]:
    """All complete steps of a trace, and the kind of events that mark them.

    The host may run ahead of the device. So a step starts on the device when the host starts it, or
    when all work launched earlier is done, whichever is later.

    Raises
    ------
    InputError : all steps have zero length.
    """
    spans, how = _host_steps(trace, works)
    launched = sorted((w for w in works if w.host_s is not None), key=lambda w: w.host_s or 0.0)
    times = [w.host_s or 0.0 for w in launched]
    done = [0.0]
    for work in launched:
        done.append(max(done[-1], work.end_s))
    steps = []
    for span in spans:
        start, end = (max(at, done[bisect_right(times, at)]) for at in span)
        if end > start:
            steps.append(TraceStep(start, end, span))
    if not steps:
        raise InputError("all steps of the trace have zero length")
    for step in steps:
        _fill(step, works, loading)
    return steps, how


def _host_steps(
    trace: Trace, works: Sequence[DeviceInterval]
) -> tuple[list[tuple[float, float]], str]:
    """Start and end of each step on the host."""
    named = sorted((h for h in trace.host if h.name.startswith(_STEP)), key=lambda h: h.start_s)
    if named:
        spans = [
            (now.start_s, then.start_s if _number(then) == _number(now) + 1 else now.end_s)
            for now, then in pairwise([*named, named[-1]])
        ]
        return spans, "annotations ProfilerStep#"
    updates = _updates(trace)
    if len(updates) > 1:
        return list(pairwise(updates)), "from update to update"
    end = max([h.end_s for h in trace.host] + [w.end_s for w in works])
    start = min([h.start_s for h in trace.host] + [w.start_s for w in works])
    return [(start, end)], "the whole trace, because nothing in it marks a step"


def _number(step: Host) -> int:
    """The number of a step; the numbers have gaps if the profiler paused."""
    digits = step.name.removeprefix(_STEP)
    return int(digits) if digits.isdecimal() else -1


def _updates(trace: Trace) -> list[float]:
    """Ends of the updates of one optimizer, the first in the trace."""
    updates = sorted(
        (h for h in trace.host if h.name.startswith("Optimizer.step")), key=lambda h: h.end_s
    )
    return [h.end_s for h in updates if h.name == updates[0].name]


def _fill(step: TraceStep, works: Sequence[DeviceInterval], loading: Sequence[Host]) -> None:
    """Divide a step by device activity."""
    inside = sorted(
        (w for w in works if w.end_s > step.start_s and w.start_s < step.end_s),
        key=lambda w: w.start_s,
    )
    until = step.start_s
    for work in inside:
        if work.kind == "compute":  # of concurrent kernels, the first counts
            begin, end = max(work.start_s, until), min(work.end_s, step.end_s)
            if end > begin:
                key = (work.phase, work.layer)
                step.compute_s[key] = step.compute_s.get(key, 0.0) + end - begin
                step.unlaunched_s += end - begin if work.host_s is None else 0.0
                until = end
    kinds = ("compute", "communication", "copy")
    spans = [[(w.start_s, w.end_s) for w in inside if w.kind == kind] for kind in kinds]
    spans.append([(h.start_s, h.end_s) for h in loading])
    step.parts_s = dict.fromkeys(PARTS, 0.0)
    for seconds, compute, communication, copy, load in _moments(spans, step.start_s, step.end_s):
        if compute:
            part = "communication_hidden" if communication else "computing"
        elif communication:
            part = "communication_exposed"
        else:
            part = "copies" if copy else "data_loading" if load else "idle"
        step.parts_s[part] += seconds


def _moments(
    spans: Sequence[Iterable[tuple[float, float]]], start_s: float, end_s: float
) -> Iterable[tuple[float, ...]]:
    """Lengths of the intervals between events, and the number of active events of each kind."""
    edges = [(start_s, 0, 0), (end_s, 0, 0)]
    for i, kind in enumerate(spans):
        for begin, end in kind:
            begin, end = max(begin, start_s), min(end, end_s)
            if end > begin:
                edges += [(begin, i, 1), (end, i, -1)]
    edges.sort()
    on = [0] * len(spans)
    for (now, i, change), (then, _, _) in pairwise(edges):
        on[i] += change
        if then > now:
            yield then - now, *on
