"""Attributes a device's work to phases and layers of a training step.

DeviceInterval is attributed by the host events that enclose its launch. ``Optimizer.step`` and
``Optimizer.zero_grad`` mark the optimizer, and nodes of autograd (:func:`is_node`) mark backward;
work between the first layer of a pass and its first node is forward. A layer begins with an
operator that has parameters, such as a convolution, and extends to the next one. Autograd numbers
the operators of forward, and a node has the number of its operator (``Sequence number``), which
maps backward work to layers.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from perfmodel.traces.events import MODULE, Host, Trace

Phase = Literal["forward", "backward", "optimizer", "buckets", "other"]

NODE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
LOADING = "enumerate(DataLoader)"

_NAME_OF_NODE = re.compile(r"(?!aten::)(\w+::)*\w*Backwards?\d*")

KINDS = {
    **{f"aten::conv{n}d": f"conv{n}d" for n in (1, 2, 3)},
    **{f"aten::conv_transpose{n}d": f"conv_transpose{n}d" for n in (1, 2, 3)},
    **dict.fromkeys(("aten::convolution", "aten::_convolution"), "conv"),
    **dict.fromkeys(("aten::linear", "aten::addmm"), "linear"),
    **{
        f"aten::{name}": name
        for name in (
            *("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"),
            *("embedding", "embedding_bag", "bilinear", "prelu", "lstm", "gru", "rnn_tanh"),
        )
    },
}
"""Operators with parameters, and the kind of layer of each."""

_COMMUNICATION = ("c10d::", "nccl:", "gloo:", "mpi:", "record_param_comms")
_SENT_BY_HOST = ("gloo:", "mpi:")
_BUCKETS = ("torch::distributed::reducer::", "torch.distributed.ddp.reducer::")


@dataclass(frozen=True)
class ThreadContext:
    """Events that enclose a moment on a thread; ``number`` is that of the last numbered node
    before it."""

    optimizer: bool = False
    node: bool = False
    number: int | None = None
    layer: Host | None = None
    module: str = ""
    forward: bool = False
    buckets: bool = False
    communication: bool = False
    loading: bool = False
    op: bool = False


@dataclass(frozen=True)
class DeviceInterval:
    """A busy interval of a device, attributed; ``layer`` is an index of ``Attribution.names``."""

    start_s: float
    end_s: float
    kind: str
    phase: Phase
    layer: int | None
    host_s: float | None


@dataclass
class HostPass:
    """One forward and one backward pass on the host, and the start of the update after them.

    ``starts``, ``numbers``, ``order`` and ``ops`` describe the operators that begin layers;
    ``order`` has indices of ``names`` and ``kinds``. ``accumulated`` has the layer and the operator
    of each gradient.
    """

    start_s: float
    backward_s: float = float("inf")
    end_s: float = float("inf")
    update_s: float = float("inf")
    starts: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    ops: list[Host] = field(default_factory=list)
    accumulated: list[tuple[int | None, Host]] = field(default_factory=list)

    @property
    def at_s(self) -> float:
        """Start of backward, or of forward if there is no backward."""
        return self.backward_s if math.isfinite(self.backward_s) else self.start_s

    def began(self, op: Host, module: str) -> None:
        """Add an operator that begins a layer; the operators of one module form one layer."""
        kind = KINDS[op.name]
        name = module or f"{kind}_{self.kinds.count(kind)}"
        if name not in self.names:
            self.names.append(name)
            self.kinds.append(kind)
        number = op.args.get("Sequence number")
        last = self.numbers[-1] if self.numbers else -1
        self.numbers.append(number if isinstance(number, int) else last)
        self.starts.append(op.start_s)
        self.order.append(self.names.index(name))
        self.ops.append(op)

    def at(self, seconds: float) -> int | None:
        """The forward layer at a moment."""
        i = bisect_right(self.starts, seconds) - 1
        return self.order[max(i, 0)] if self.order else None

    def numbered(self, number: int | None) -> int | None:
        """The layer that a backward node belongs to."""
        if number is None or not self.order or self.numbers[-1] < 0:
            return None
        return self.order[max(bisect_right(self.numbers, number) - 1, 0)]


@dataclass(frozen=True)
class HostEvent:
    """A host event, the context that encloses it, and the context inside it."""

    host: Host
    parent: ThreadContext
    context: ThreadContext


@dataclass(frozen=True)
class Attribution:
    """All attributed work, and the passes; ``names`` and ``kinds`` are the layers of most passes,
    ``autograd`` the threads that only run backward."""

    works: list[DeviceInterval]
    passes: list[HostPass]
    events: list[HostEvent]
    loading: list[Host]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    autograd: frozenset[str]


def attribute(trace: Trace) -> Attribution:
    """Attribute all work of a trace."""
    launched_by: dict[str, list[int]] = defaultdict(list)
    for i, event in enumerate(trace.device):
        if event.launched_s is not None:
            launched_by[event.thread].append(i)
    threads: dict[str, list[Host]] = defaultdict(list)
    for host in trace.host:
        threads[host.thread].append(host)
    host_events: list[HostEvent] = []
    launched: dict[int, ThreadContext] = {}
    for thread, events in threads.items():
        moments = [(trace.device[i].launched_s or 0.0, i) for i in launched_by[thread]]
        host_events += _walk(events, moments, launched)
    host_events.sort(key=lambda s: s.host.start_s)
    passes = _passes(host_events)
    common = Counter(tuple(p.names) for p in passes).most_common(1)
    names = common[0][0] if common else ()
    autograd = _autograd_threads(host_events)
    owner = _Owner(passes, names, autograd)
    works = [
        DeviceInterval(h.start_s, h.end_s, "communication", "other", None, h.start_s)
        for h in (s.host for s in host_events)
        if h.name.startswith(_SENT_BY_HOST)
    ]
    for i, event in enumerate(trace.device):
        c = launched.get(i, NOWHERE)
        kind = "communication" if c.communication else event.kind
        phase, layer = owner.of(event.launched_s, event.thread, c)
        works.append(
            DeviceInterval(event.start_s, event.end_s, kind, phase, layer, event.launched_s)
        )
    if not trace.device:
        for thread in threads:
            works += _host_works([s for s in host_events if s.host.thread == thread], owner)
    return Attribution(
        works=works,
        passes=passes,
        events=host_events,
        loading=[s.host for s in host_events if s.host.name.startswith(LOADING)],
        names=names,
        kinds=next((tuple(p.kinds) for p in passes if tuple(p.names) == names), ()),
        autograd=autograd,
    )


NOWHERE = ThreadContext()


def is_node(host: Host) -> bool:
    """Return whether an event runs a node of autograd.

    PyTorch since 1.9 marks each node (``autograd::engine::evaluate_function``). Before that there
    is only the event of the node itself (``MmBackward``), which is now inside the mark.
    """
    name = host.name
    if host.kind != "op":
        return False
    marked = name.startswith(NODE) or name == ACCUMULATE
    return marked or _NAME_OF_NODE.fullmatch(name) is not None


def _walk(
    events: Sequence[Host], moments: Sequence[tuple[float, int]], launched: dict[int, ThreadContext]
) -> Iterator[HostEvent]:
    """Walk through one thread's events, and store the context of each of ``moments`` in
    ``launched``."""
    order: list[tuple[float, float, int, Host | None]] = [
        (h.start_s, h.start_s - h.end_s, 0, h) for h in events
    ]
    order += [(seconds, 1.0, i, None) for seconds, i in moments]
    order.sort(key=lambda item: item[:3])
    stack: list[tuple[float, ThreadContext]] = []
    number: int | None = None
    for seconds, _, i, host in order:
        while stack and stack[-1][0] <= seconds:
            stack.pop()
        parent = stack[-1][1] if stack else NOWHERE
        if host is None:
            launched[i] = replace(parent, number=number)
            continue
        if is_node(host) and not parent.node and host.name != ACCUMULATE:
            sequence = host.args.get("Sequence number")
            number = sequence if isinstance(sequence, int) and sequence >= 0 else number
        context = replace(_inside(parent, host), number=number)
        stack.append((host.end_s, context))
        yield HostEvent(host, parent, context)


def _inside(parent: ThreadContext, host: Host) -> ThreadContext:
    """Context of a moment inside an event."""
    name = host.name
    if host.kind == "module":
        return replace(parent, module=name.removeprefix(MODULE), forward=True)
    if name.startswith("Optimizer."):
        return replace(parent, optimizer=True)
    if name.startswith(LOADING):
        return replace(parent, loading=True)
    if name == "DistributedDataParallel.forward":
        return replace(parent, forward=True)
    if is_node(host) and not parent.node:
        return replace(parent, node=True, op=True)
    if name.startswith(_COMMUNICATION):
        return replace(parent, communication=True, op=host.kind == "op" or parent.op)
    if host.kind != "op":
        return parent
    if name.startswith(_BUCKETS):
        return replace(parent, buckets=True, op=True)
    free = not (parent.optimizer or parent.node or parent.loading or parent.layer)
    if free and name in KINDS:
        return replace(parent, layer=host, op=True)
    return parent if parent.op else replace(parent, op=True)


def _passes(events: Sequence[HostEvent]) -> list[HostPass]:
    """Forward and backward passes; each begins with the first layer after a backward pass or an
    update."""
    passes: list[HostPass] = []
    updated = True
    for s in events:
        h, c = s.host, s.context
        if c.layer is h:
            if updated or passes[-1].backward_s < float("inf"):
                passes.append(HostPass(h.start_s))
                updated = False
            passes[-1].began(h, c.module)
        elif c.node and not c.optimizer and is_node(h) and not s.parent.node:
            if updated:
                passes.append(HostPass(passes[-1].end_s if passes else -float("inf")))
                updated = False
            now = passes[-1]
            now.end_s = h.end_s if now.end_s == float("inf") else max(now.end_s, h.end_s)
            now.backward_s = min(now.backward_s, h.start_s)
        elif h.name.startswith("Optimizer.step"):
            updated = True
            for p in passes[-1:]:
                p.update_s = min(p.update_s, h.start_s)
        if h.name == ACCUMULATE and c.node and passes:
            passes[-1].accumulated.append((passes[-1].numbered(c.number), h))
    return passes


def _autograd_threads(events: Sequence[HostEvent]) -> frozenset[str]:
    """Threads that only run backward."""
    nodes = {s.host.thread for s in events if s.context.node}
    main_events = ("ProfilerStep#", "Optimizer.")
    main = {
        s.host.thread
        for s in events
        if s.context.layer is s.host or s.host.name.startswith(main_events)
    }
    return frozenset(nodes - main)


class _Owner:
    """Maps launched work to phases and layers."""

    def __init__(
        self, passes: Sequence[HostPass], names: tuple[str, ...], autograd: frozenset[str]
    ) -> None:
        self.passes = passes
        self.starts = [p.start_s for p in passes]
        self.names = names
        self.autograd = autograd

    def of(self, host_s: float | None, thread: str, c: ThreadContext) -> tuple[Phase, int | None]:
        """Phase and layer of work launched by a thread at a moment."""
        if host_s is None or c.loading:
            return "other", None
        if c.optimizer:
            return "optimizer", None
        if c.buckets:
            return "buckets", None
        i = bisect_right(self.starts, host_s) - 1
        if i >= 0:
            now = self.passes[i]
            alike = tuple(now.names) == self.names
            if c.node or thread in self.autograd or now.backward_s <= host_s < now.end_s:
                return "backward", now.numbered(c.number) if alike else None
            if host_s < now.backward_s:
                return "forward", now.at(host_s) if alike else None
        if c.forward and i + 1 < len(self.passes) and self.passes[i + 1].order:
            return "forward", 0 if tuple(self.passes[i + 1].names) == self.names else None
        return "other", None


def _host_works(events: Sequence[HostEvent], owner: _Owner) -> Iterator[DeviceInterval]:
    """Work of the host itself: the outermost operators of a thread, without communication."""
    begin = end = 0.0
    now: tuple[Phase, int | None] = ("other", None)
    for s in events:
        h, c, parent = s.host, s.context, s.parent
        if h.kind != "op" or c.loading:
            continue
        sends = c.communication and not parent.communication
        if sends or (c.buckets and not parent.buckets and not c.communication):
            if min(end, h.start_s) > begin:
                yield DeviceInterval(begin, min(end, h.start_s), "compute", *now, begin)
            begin = h.end_s
            kind = "communication" if sends else "compute"
            yield DeviceInterval(
                h.start_s, h.end_s, kind, "other" if sends else "buckets", None, h.start_s
            )
        elif not parent.op:
            if end > begin:
                yield DeviceInterval(begin, end, "compute", *now, begin)
            begin, end, now = h.start_s, h.end_s, owner.of(h.start_s, h.thread, c)
    if end > begin:
        yield DeviceInterval(begin, end, "compute", *now, begin)
