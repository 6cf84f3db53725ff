"""Works of a rank, and its exchanges with others as Kineto tells them: operation, process group,
size, and peer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from perfmodel.base.errors import InputError
from perfmodel.traces.events import DeviceEvent, Host, Trace, count_of, element_bytes
from perfmodel.traces.gradients import tensors_of

OPERATIONS = (
    (re.compile(r"all_?reduce"), "all_reduce"),
    (re.compile(r"reduce_?scatter"), "reduce_scatter"),
    (re.compile(r"all_?gather"), "all_gather"),
    (re.compile(r"all_?to_?all"), "all_to_all"),
    (re.compile(r"broadcast"), "broadcast"),
    (re.compile(r"barrier"), "barrier"),
    (re.compile(r"send"), "send"),
    (re.compile(r"recv"), "recv"),
)
"""Operations by their names in traces, in lower case; the first that is found counts."""

PAIRED = frozenset({"send", "recv"})
"""Operations between two ranks."""


class TracedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a collective, a send or a receive.

    Attributes
    ----------
    operation : a name of :data:`OPERATIONS`.
    group : name of the process group; "" if the trace does not tell.
    members : ranks of the group in the job, in the order of the group; empty if unknown.
    bytes : of the whole vector that is reduced, scattered or gathered, or of the message.
    peer : of a send or a receive: rank in the job, or with ``group`` "" the place in an unknown
        group; None if unknown.
    label : what the program calls the group, such as ``mesh_tp``; "" if nothing.
    """

    operation: str
    group: str
    members: tuple[int, ...]
    bytes: float
    peer: int | None = None
    label: str = ""


@dataclass(frozen=True)
class TracedWork:
    """A kernel, a copy or a communication, or what the training thread computes between two.

    Attributes
    ----------
    launched_s : moment of its launch on the host; None if unknown or if it runs there.
    exchanges : with other ranks; empty of work that has none, or whose trace does not tell.
    """

    name: str
    kind: str
    stream: str
    start_s: float
    end_s: float
    launched_s: float | None = None
    exchanges: tuple[TracedExchange, ...] = ()


def operation_of(name: str) -> str | None:
    """The operation of a name in a trace; None of others.

    >>> operation_of("_allgather_base"), operation_of("c10d::recv_"), operation_of("wait")
    ('all_gather', 'recv', None)
    """
    folded = name.lower()
    return next((word for pattern, word in OPERATIONS if pattern.search(folded)), None)


def of_kernels(trace: Trace, kernels: Sequence[DeviceEvent]) -> list[tuple[TracedExchange, ...]]:
    """Exchanges of each kernel of communication, in the order of ``kernels``, that of launch.

    A kernel does what is recorded on its thread since the kernel before it: several sends and
    receives, if they were batched. Without such a record, what Kineto copied to the kernel counts.
    """
    records: dict[str, list[Host]] = defaultdict(list)
    for host in trace.host:
        if host.name == "record_param_comms" and "Collective name" in host.args:
            records[host.thread].append(host)
    for hosts_of_thread in records.values():
        hosts_of_thread.sort(key=lambda host: host.start_s)
    place: dict[str, int] = defaultdict(int)
    exchanges: list[tuple[TracedExchange, ...]] = []
    for kernel in kernels:
        arguments: list[Mapping[str, object]] = []
        hosts = records.get(kernel.thread, [])
        at = place[kernel.thread]
        while at < len(hosts) and hosts[at].start_s <= (kernel.launched_s or 0.0):
            arguments.append(hosts[at].args)
            at += 1
        place[kernel.thread] = at
        known = [e for args in arguments if (e := _exchange(args, trace)) is not None]
        paired = [e for e in known if e.operation in PAIRED]
        if not known:
            copied = _exchange(kernel.args, trace)
            exchanges.append((copied,) if copied is not None else ())
        elif paired:
            exchanges.append(tuple(paired))
        else:
            exchanges.append(_together(known))
    return exchanges


def _together(known: Sequence[TracedExchange]) -> tuple[TracedExchange, ...]:
    """Collectives of one kernel, as one if they are alike."""
    last = known[-1]
    joined = [e for e in known if (e.operation, e.group) == (last.operation, last.group)]
    return (msgspec.structs.replace(last, bytes=sum(e.bytes for e in joined)),)


def _exchange(args: Mapping[str, object], trace: Trace) -> TracedExchange | None:
    operation = operation_of(str(args.get("Collective name", "")))
    if operation is None:
        return None
    members = _members(args, trace)
    counts = [count_of(args.get(f"{way} msg nelems")) or 0 for way in ("In", "Out")]
    size = float(max(counts) * (element_bytes(str(args.get("dtype", ""))) or 0))
    peer = None
    if operation in PAIRED:
        peer = count_of(args.get("Dst Rank" if operation == "send" else "Src Rank"))
        if peer is None and len(members) == 2:
            peer = next((rank for rank in members if rank != trace.rank), None)
    return TracedExchange(
        operation=operation,
        group=str(args.get("Process Group Name", "")) or "world",
        members=members,
        bytes=size,
        peer=peer,
        label=_label(args),
    )


def _label(args: Mapping[str, object]) -> str:
    label = str(args.get("Process Group Description", ""))
    return "" if label in ("undefined", "default_pg") else label


def _members(args: Mapping[str, object], trace: Trace) -> tuple[int, ...]:
    """Ranks of a group: as listed, else by their distance; all of the job without a group."""
    size = count_of(args.get("Group size"))
    text = str(args.get("Process Group Ranks", ""))
    listed = tuple(map(int, re.findall(r"\d{1,9}", text)))
    if listed and "..." not in text and size in (None, len(listed)):
        return listed
    name = str(args.get("Process Group Name", ""))
    if name in trace.groups:
        return trace.groups[name]
    first = count_of(args.get("Global rank start"))
    stride = count_of(args.get("Global rank stride"))
    if size and first is not None and (stride or size == 1):
        return tuple(range(first, first + size * (stride or 1), stride or 1))
    if trace.ranks is not None and size in (None, trace.ranks):
        return tuple(range(trace.ranks))
    return ()


class HostExchange(msgspec.Struct, frozen=True):
    """An exchange by gloo that the training thread waits for (s)."""

    start_s: float
    end_s: float
    exchange: TracedExchange


def of_host(trace: Trace, thread: str, path: str) -> list[HostExchange]:
    """Exchanges by gloo, in order; their groups are unknown.

    The call of a collective says, as its last but one input, whether the program goes on at once.

    Raises
    ------
    InputError : the training thread does not wait for a collective at once.
    """
    calls = sorted(
        (h for h in trace.host if h.name.startswith("c10d::") and operation_of(h.name)),
        key=lambda host: host.start_s,
    )
    works = sorted(
        (h for h in trace.host if h.name.startswith("gloo:") and operation_of(h.name)),
        key=lambda host: host.start_s,
    )
    if len(calls) != len(works):
        raise InputError(
            f"{path}: {len(calls)} calls of collectives but {len(works)} by gloo: the trace is cut"
        )
    exchanges = []
    for call, work in zip(calls, works, strict=True):
        operation = operation_of(call.name) or ""
        inputs = call.args.get("Concrete Inputs")
        concrete = inputs if isinstance(inputs, list) else []
        if call.thread != thread or (operation not in PAIRED and concrete[-2:-1] != ["False"]):
            raise InputError(
                f"{path}: gloo runs {call.name} beside the training thread, and nothing tells "
                "where that waits; data-parallel traces are for perfmodel predict --from-trace"
            )
        sizes = [size for size, _ in tensors_of(work.args)]
        peer = count_of(concrete[2]) if len(concrete) > 2 else None
        exchange = TracedExchange(
            operation=operation,
            group="",
            members=(),
            bytes=float(sum(sizes)),
            peer=peer if operation in PAIRED else None,
        )
        exchanges.append(HostExchange(call.start_s, max(call.end_s, work.end_s), exchange))
    if any(then.start_s < now.end_s for now, then in pairwise(exchanges)):
        raise InputError(f"{path}: exchanges by gloo overlap: nothing tells where they are awaited")
    return exchanges
