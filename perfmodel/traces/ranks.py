"""The traced steps of a rank as works in streams, with what each waits for: :func:`read_rank`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.base.errors import InputError
from perfmodel.traces import exchanges
from perfmodel.traces.attribution import DeviceInterval
from perfmodel.traces.events import DeviceEvent, Trace, decode, unpacked
from perfmodel.traces.exchanges import TracedWork
from perfmodel.traces.steps import TraceStep, find_steps
from perfmodel.traces.waits import HostWait, host_waits, stream_waits

HOST = "host"
"""Stream of a trace without a device: the training thread."""


@dataclass(frozen=True)
class RankTrace:
    """The traced steps of a rank; times in seconds of its own clock.

    Attributes
    ----------
    rank, ranks : of this one, and number in the job; None if the trace does not tell.
    groups : ranks of the process groups that the trace lists, by name.
    machine, zero_s : where the trace was recorded ("" if unknown), and when its clock began there.
    on_device : whether works run on a device, beside the host.
    steps : number of them.
    start_s, begin_s, end_s : when the first step begins on the host, when its works can begin, and
        when all works are done.
    works : by launch.
    after : (works,) works on other streams that each waits for, as indices.
    waits : of the host for the device.
    main : stream of most computing.
    """

    path: str
    rank: int | None
    ranks: int | None
    groups: dict[str, tuple[int, ...]]
    machine: str
    zero_s: float
    on_device: bool
    steps: int
    start_s: float
    begin_s: float
    end_s: float
    works: tuple[TracedWork, ...]
    after: tuple[tuple[int, ...], ...]
    waits: tuple[HostWait, ...]
    main: str
    notes: tuple[str, ...] = field(default=())

    @property
    def compute_s(self) -> float:
        """Computing on the main stream in a step."""
        lengths = (
            w.end_s - w.start_s for w in self.works if w.stream == self.main and w.kind == "compute"
        )
        return sum(lengths) / self.steps


def read_rank(path: str | Path) -> RankTrace:
    """Read the trace of a rank.

    Raises
    ------
    InputError : it cannot be read, is cut, or has no work in its steps.
    """
    trace = decode(unpacked(Path(path)), path, pid=None, gpu=None)
    intervals = [
        DeviceInterval(e.start_s, e.end_s, e.kind, "other", None, e.launched_s)
        for e in trace.device
    ]
    try:
        steps, _ = find_steps(trace, intervals, [])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    works = _of_device(trace, steps) if trace.device else _of_host(trace, steps, str(path))
    computing: dict[str, float] = defaultdict(float)
    for work in works:
        computing[work.stream] += work.end_s - work.start_s if work.kind == "compute" else 0.0
    if not any(computing.values()):
        raise InputError(f"{path}: no computation in its steps")
    unknown = sum(w.kind == "communication" and not w.exchanges for w in works)
    notes = [f"{unknown} communications without a record: as long as traced"] if unknown else []
    main = max(computing, key=lambda stream: computing[stream])
    begin, end = steps[0].host_s[0], steps[-1].host_s[1]
    calls = [c for c in trace.calls if begin <= c.start_s < end] if trace.device else []
    return RankTrace(
        path=str(path),
        rank=trace.rank,
        ranks=trace.ranks,
        groups=trace.groups,
        machine=trace.machine,
        zero_s=trace.zero_s,
        on_device=bool(trace.device),
        steps=len(steps),
        start_s=begin,
        begin_s=steps[0].start_s,
        end_s=max(work.end_s for work in works),
        works=tuple(works),
        after=stream_waits(works, calls, trace.host),
        waits=host_waits(works, calls),
        main=main,
        notes=tuple(notes),
    )


def _of_device(trace: Trace, steps: Sequence[TraceStep]) -> list[TracedWork]:
    """Works launched in the steps; those of unknown launch by their start."""
    begin, end = steps[0].host_s[0], steps[-1].host_s[1]
    events = sorted(
        (e for e in trace.device if begin <= _launch_s(e) < end),
        key=lambda e: (_launch_s(e), e.start_s),
    )
    sending = [e for e in events if e.kind == "communication"]
    exchanges_of = dict(zip(map(id, sending), exchanges.of_kernels(trace, sending), strict=True))
    return [
        TracedWork(
            name=e.name,
            kind=e.kind,
            stream=e.stream,
            start_s=e.start_s,
            end_s=e.end_s,
            launched_s=e.launched_s,
            exchanges=exchanges_of.get(id(e), ()),
        )
        for e in events
    ]


def _launch_s(event: DeviceEvent) -> float:
    return event.start_s if event.launched_s is None else event.launched_s


def _of_host(trace: Trace, steps: Sequence[TraceStep], path: str) -> list[TracedWork]:
    """What the training thread does: exchanges by gloo, and between them computing."""
    begin, end = steps[0].host_s[0], steps[-1].host_s[1]
    threads = Counter(h.thread for h in trace.host if h.name.startswith("ProfilerStep#"))
    threads = threads or Counter(h.thread for h in trace.host if h.kind == "op")
    thread = threads.most_common(1)[0][0]
    sent = [
        e for e in exchanges.of_host(trace, thread, path) if begin <= e.start_s and e.end_s <= end
    ]
    works, now = [], begin
    for sending in sent:
        if sending.start_s > now:
            works.append(TracedWork("computing", "compute", HOST, now, sending.start_s))
        works.append(
            TracedWork(
                name=sending.exchange.operation,
                kind="communication",
                stream=HOST,
                start_s=sending.start_s,
                end_s=sending.end_s,
                exchanges=(sending.exchange,),
            )
        )
        now = sending.end_s
    if end > now:
        works.append(TracedWork("computing", "compute", HOST, now, end))
    return works
