"""What a coarse model is made of: the quantities it is written in, and the phases it consists of.

A coarse model is one function of an architecture, from a :class:`Job` and :class:`Quantities` to
:class:`Phases`. The job says how training goes (options, which layers travel together); all numbers
come from the quantities, of which each may be a float, an array that broadcasts with the others,
or a SymPy symbol (see :mod:`perfmodel.algebra`).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfmodel.algebra import Quantity, ceiling, is_symbol, maximum, minimum, where
from perfmodel.cluster import Collective
from perfmodel.job import Job
from perfmodel.overlap import blend
from perfmodel.workload import Workload, expanded

Send = Callable[[list[Quantity]], Quantity]
"""From when each message is ready to when the last of them has been sent."""


class Part(msgspec.Struct, frozen=True):
    """What one layer keeps at one place: the number of the place, bytes, and tensors."""

    place: int
    bytes: float
    tensors: float


class Stage(NamedTuple):
    """What each part of a gradient passes: how long that keeps a line busy, for each tensor and
    each byte; and how many times longer it takes, where a line is several at once."""

    per_tensor_s: Quantity
    per_byte_s: Quantity
    longer: Quantity = 1.0


class Layers(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Layers with parameters in forward order; what the others compute counts for the one before.

    All of length layers: ``forward_s``, ``backward_s``, ``parts`` of the gradients, and ``index``,
    the number of the layer in the workload. ``first_s`` is forward computation before the first of
    them, ``last_s`` backward computation after it.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    parts: tuple[tuple[Part, ...], ...]
    index: tuple[int, ...]
    first_s: float
    last_s: float

    @classmethod
    def of(cls, workload: Workload) -> Layers:
        """The layers of a workload, each in one part."""
        rows: list[tuple[float, float, tuple[Part, ...], int]] = []
        first = last = 0.0
        for index, layer in enumerate(expanded(workload).layers):
            forward, backward = layer.forward_s, layer.backward_s
            if layer.tensor_bytes:
                part = Part(0, sum(layer.tensor_bytes), float(len(layer.tensor_bytes)))
                rows.append((forward, backward, (part,), index))
            elif rows:
                f, b, parts, i = rows[-1]
                rows[-1] = (f + forward, b + backward, parts, i)
            else:
                first, last = first + forward, last + backward
        forwards, backwards, every, numbers = zip(*rows, strict=True)
        return cls(forwards, backwards, every, numbers, first, last)

    def placed(self, parts: Mapping[int, Sequence[Part]]) -> Layers:
        """The same layers, with their gradients' ``parts`` by number of the layer."""
        return msgspec.structs.replace(self, parts=tuple(tuple(parts[i]) for i in self.index))

    def scaled_like(self, without: Layers, times: Quantity) -> Layers:
        """The layers whose ``times``-fold has only what is in ``without`` ``times``-fold.

        The rest of backward, such as handing over, does not grow with the batch.
        """
        return msgspec.structs.replace(
            self,
            backward_s=tuple(
                less + (more - less) / times
                for less, more in zip(without.backward_s, self.backward_s, strict=True)
            ),
        )

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` returns, called once: for what follows from the layers and ``name``."""
        known = self.__dict__.setdefault("known", {})
        if name not in known:
            known[name] = make()
        return known[name]

    @functools.cached_property
    def bytes(self) -> tuple[float, ...]:
        """Of each layer's gradients."""
        return tuple(sum(part.bytes for part in parts) for parts in self.parts)

    def overlapped_s(
        self,
        scale: Quantity,
        send: Send,
        numbers: Sequence[int],
        *,
        encode_per_byte_s: float = 0.0,
    ) -> list[Quantity]:
        """Until all gradients are computed, and until all messages are sent.

        Message k may be sent once backward has made the gradients of layer ``numbers[k]``; ``send``
        says, from when each is ready, when the last has been sent.
        """
        computed: Quantity = 0.0
        ready: dict[int, Quantity] = {}
        sizes = self.bytes[::-1]
        for number, seconds, size in zip(
            self.index[::-1], self.backward_s[::-1], sizes, strict=True
        ):
            computed = computed + (seconds * scale + encode_per_byte_s * size)
            ready[number] = computed
        computed = computed + self.last_s * scale
        return [computed, maximum(computed, send([ready[number] for number in numbers]))]

    def pull_and_forward_s(self, per_byte_s: Quantity, scale: Quantity) -> Quantity:
        r"""Until forward is over, if each layer waits for its own parameters.

        These arrive in forward order, from each place one after the other, in ``per_byte_s``;
        computation takes ``scale`` times as profiled. From one place:

        .. math:: \max_l \left( x \sum_{j \le l} s_j + \sum_{j \ge l} f_j \right)
        """
        arrived: dict[int, Quantity] = {}
        computed = self.first_s * scale
        for seconds, parts in zip(self.forward_s, self.parts, strict=True):
            for part in parts:
                arrived[part.place] = arrived.get(part.place, 0.0) + part.bytes * per_byte_s
                computed = maximum(computed, arrived[part.place])
            computed = computed + seconds * scale
        return computed

    def backward_and_send_s(
        self,
        scale: Quantity,
        stages: Sequence[Stage],
        *,
        encode_per_byte_s: float = 0.0,
        latency_s: Quantity = 0.0,
        overlap: bool = True,
        ahead: bool = False,
    ) -> list[Quantity]:
        r"""Until all gradients are computed, until they have passed each of the ``stages``, and
        until ``latency_s`` after that.

        A stage is a link, or a server's updates. Each place has stages of its own, which handle one
        part after the other. With one stage:

        .. math:: \max_l \left( \sum_{j \ge l} b_j + x \sum_{j \le l} s_j \right)

        Without ``overlap`` nothing enters the first stage before all gradients are computed. With
        ``ahead`` the next forward pass begins then, with the layers before the first of these.
        """
        computed: Quantity = 0.0
        made: list[Quantity] = []
        for seconds, size in zip(self.backward_s[::-1], self.bytes[::-1], strict=True):
            computed = computed + (seconds * scale + encode_per_byte_s * size)
            made.append(computed)
        computed = computed + self.last_s * scale
        free: list[dict[int, Quantity]] = [{} for _ in stages]
        several = [not (isinstance(s.longer, float) and s.longer == 1.0) for s in stages]
        over: list[Quantity] = [0.0 for _ in stages]
        timed = [not _nothing(stage.per_tensor_s) for stage in stages]
        for ready, parts in zip(made, self.parts[::-1], strict=True):
            for part in parts:
                end = ready if overlap else computed
                for k, (per_tensor_s, per_byte_s, longer) in enumerate(stages):
                    begin = maximum(end, free[k].get(part.place, 0.0))
                    busy = part.bytes * per_byte_s
                    if timed[k]:
                        busy = busy + part.tensors * per_tensor_s
                    end = free[k][part.place] = begin + busy
                    if several[k]:
                        end = begin + longer * busy
                        over[k] = maximum(over[k], end)
        ends = [
            maximum(0.0, *places.values(), late) for places, late in zip(free, over, strict=True)
        ]
        if ahead:
            computed = computed + self.first_s * scale
        return [computed, *(maximum(computed, end) for end in (*ends, ends[-1] + latency_s))]


def _nothing(value: Quantity) -> bool:
    """Whether a quantity is 0 and nothing else: arrays of it are not worth the time."""
    return isinstance(value, float) and value == 0.0


class Whole(msgspec.Struct, frozen=True, eq=False):
    r"""A model as a whole, in the place of its layers: what overlaps is blended.

    Two times that overlap take their p-norm together, with p the ``sharpness``: with 1 they follow
    each other, with infinity the longer one hides the shorter one. No layers need to be known, and
    formulas stay short; but how much is hidden is a guess, where :class:`Layers` work it out.
    ``part`` of the gradients are on the place that has most of them.
    """

    forward_s: Quantity
    backward_s: Quantity
    gradient_bytes: Quantity
    tensors: Quantity
    sharpness: float = math.inf
    part: Quantity = 1.0

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` returns."""
        return make()

    @property
    def bytes(self) -> tuple[Quantity, ...]:
        """Of all gradients."""
        return (self.gradient_bytes,)

    def beside_s(self, *seconds: Quantity) -> Quantity:
        """What takes so long overlaps."""
        return functools.reduce(lambda a, b: blend(a, b, self.sharpness), seconds)

    def overlapped_s(
        self,
        scale: Quantity,
        send: Send,
        numbers: Sequence[int],
        *,
        encode_per_byte_s: float = 0.0,
    ) -> list[Quantity]:
        """Until all gradients are computed, and until all messages are sent."""
        computed = self.backward_s * scale + encode_per_byte_s * self.gradient_bytes
        return [computed, self.beside_s(computed, send([0.0 * computed for _ in numbers]))]

    def pull_and_forward_s(self, per_byte_s: Quantity, scale: Quantity) -> Quantity:
        """Until forward is over."""
        return self.beside_s(self.forward_s * scale, self.part * self.gradient_bytes * per_byte_s)

    def backward_and_send_s(
        self,
        scale: Quantity,
        stages: Sequence[Stage],
        *,
        encode_per_byte_s: float = 0.0,
        latency_s: Quantity = 0.0,
        overlap: bool = True,
        ahead: bool = False,
    ) -> list[Quantity]:
        """Until all gradients are computed, until they have passed each of the ``stages``, and
        until ``latency_s`` after that."""
        computed = self.backward_s * scale + encode_per_byte_s * self.gradient_bytes
        begun, end = (0.0, computed) if overlap else (computed, 0.0)
        ends = [computed]
        for each, per_byte, _ in stages:
            seconds = self.part * (self.tensors * each + self.gradient_bytes * per_byte)
            end = self.beside_s(end, seconds)
            ends.append(begun + end)
        return [*ends, ends[-1] + latency_s]


PACES = 6
"""Points of the distribution of the slowest worker's time that phases are averaged over."""


class Class(msgspec.Struct, frozen=True):
    """Workers that are alike: their ``count``, and how they differ from the mean one.

    ``scale`` is how many times longer than profiled they compute, ``loading_s`` how long they load
    a batch, ``devices`` how many of them, and of others, share a node.
    """

    count: int
    scale: float
    bandwidth_bytes_per_s: Quantity
    loading_s: float = 0.0
    devices: int = 1


class Quantities(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What coarse formulas are written in; the units are in the names.

    Attributes
    ----------
    workers, servers : how many.
    devices_per_node : of the fullest node.
    placed_on : nodes that the workers are on, where these are not filled one after the other.
    least_on_node : workers of the emptiest of these.
    nics_per_node : links of a node to the network.
    bandwidth_bytes_per_s, latency_s : of the slowest worker's link, one way, as achieved.
    least_bytes_per_s : the least part of its node's link that a worker has where all workers send
        at once; None where all links are alike.
    server_bandwidth_bytes_per_s : of the slowest server's link.
    core_bandwidth_bytes_per_s : the core's, divided by the number of nodes; inf if it never limits.
    inside_bandwidth_bytes_per_s, inside_latency_s : of the link inside a node; inf and 0 without.
    bus : whether the devices of a node share that link; else each has one of its own.
    forward_s, backward_s, optimizer_s : mean times of one worker's iteration; handing gradients
        over to the network is part of the backward pass.
    data_loading_s : the longest that a worker loads a batch.
    gradient_bytes, tensors : of the whole model.
    update_per_tensor_s, update_per_byte_s, update_threads : of one server.
    scale : how many times longer than profiled a worker computes, on average.
    slowdown : the same of what does not grow with the batch.
    unequal : how many times longer than that the slowest worker computes, jitter apart.
    cv, kind : coefficient of variation of a worker's computation, and its distribution.
    layers : of the model, or the model as a whole.
    classes : of workers, where these differ; empty where all are alike.
    corrected : whether queueing is corrected for times that vary little.
    collectives : as measured; those that are not take the closed form of a ring.
    """

    workers: Quantity
    servers: Quantity
    devices_per_node: Quantity
    bandwidth_bytes_per_s: Quantity
    server_bandwidth_bytes_per_s: Quantity
    core_bandwidth_bytes_per_s: Quantity
    latency_s: Quantity
    inside_bandwidth_bytes_per_s: Quantity
    inside_latency_s: Quantity
    forward_s: Quantity
    backward_s: Quantity
    optimizer_s: Quantity
    data_loading_s: Quantity
    gradient_bytes: Quantity
    tensors: Quantity
    update_per_tensor_s: Quantity
    update_per_byte_s: Quantity
    update_threads: Quantity
    scale: Quantity
    slowdown: Quantity
    unequal: Quantity
    cv: Quantity
    kind: str
    layers: Layers | Whole
    classes: tuple[Class, ...] = ()
    corrected: bool = True
    collectives: tuple[Collective, ...] = ()
    placed_on: int | None = None
    least_on_node: int | None = None
    nics_per_node: int = 1
    bus: bool = True
    least_bytes_per_s: float | None = None

    @property
    def at_once_bytes_per_s(self) -> Quantity:
        """What a worker can send where all workers send at once, and the network never limits."""
        if self.least_bytes_per_s is not None:
            return self.least_bytes_per_s
        return self.bandwidth_bytes_per_s / self.on_a_nic(self.fullest)

    def slowest(self, steps: Quantity = 1, late: int = 0) -> Quantity:
        """How many times longer than the average the slowest worker computes, on average.

        In sums of so many ``steps``; without the ``late`` slowest ones.
        """
        if is_symbol(self.workers):
            import sympy

            whom = f"(N-{late})" if late else "N"
            return sympy.Symbol(f"S_{whom}" + (f"_{steps}" if steps != 1 else ""), positive=True)
        return sum(share * value for share, value in self.paces(steps, late))

    def paces(
        self, steps: Quantity = 1, late: int = 0, points: int = PACES
    ) -> list[tuple[float, Quantity]]:
        """How the slowest worker's time is distributed: shares, and how many times longer than the
        average it computes. One value where nothing is random.

        For numbers and arrays; parameters as for :meth:`slowest`. The mean is that of
        :meth:`slowest`; of so many ``points``, so that a function of it can be averaged.
        """
        factors = [kind.scale / self.slowdown for kind in self.classes]
        least = 0.0
        if late:  # who gives up has computed nevertheless
            each = [kind.scale / self.slowdown for kind in self.classes for _ in range(kind.count)]
            least = len(each) / sum(1.0 / f for f in each) if each else 1.0
        if not self.random:
            unequal = sorted(each)[-1 - late] if late and factors else self.unequal
            return [(1.0, maximum(unequal, least))]
        from perfmodel import order_statistics

        cv = self.cv / steps**0.5
        if factors:
            values, shares = order_statistics.quantiles_of_unequal(
                self.counts, factors, cv, self.kind, late=late, points=points
            )
        else:
            n = self.workers
            values, shares = order_statistics.quantiles_of_order_statistic(
                n - late, n, cv, self.kind, points
            )
            values = values * self.unequal
        return [
            (share, maximum(values[..., k] if values.ndim > 1 else float(values[k]), least))
            for k, share in enumerate(shares.tolist())
        ]

    @property
    def alike(self) -> bool:
        """Whether all workers compute for the same time."""
        return not self.random and not self.classes

    def at_paces(self, phases: Callable[[Quantity], Phases], late: int = 0) -> Phases:
        """The mean of ``phases`` over the pace of the slowest worker, without the ``late`` ones.

        What overlaps computation hides less when that is short than it hides more when it is long,
        so that the mean of the phases is longer than the phases of the mean.
        """
        if is_symbol(self.workers) or not self.random:
            return phases(self.slowest(late=late))
        shares, paces = zip(*self.paces(late=late), strict=True)
        return averaged(shares, [phases(pace) for pace in paces])

    def slowest_followed(self, ahead: int) -> Quantity:
        """The same where nobody is more than so many iterations ahead of the slowest, 1 or more.

        Two workers drift apart by chance by c sqrt(2k) iterations in k of them, with c the
        coefficient of variation, and are as far apart as they may be after about (s / c)^2 of them.
        So the pace is that of the slowest sum of as many iterations; no more than that of waiting
        for all after every s + 1 iterations. Simulations of 4 to 64 workers, 1 and 3 iterations
        ahead, on a network that takes no time, agree (docs/explanation/coarse.md).
        """
        if is_symbol(self.workers):
            import sympy

            return sympy.Symbol(f"S_N_ahead{ahead}", positive=True)
        if not self.random:
            return self.unequal
        return self.slowest(steps=maximum((ahead / self.cv) ** 2, ahead + 1.0))

    @property
    def random(self) -> bool:
        """Whether computation varies."""
        return not _nothing(self.cv)

    def typical(self, count: int) -> list[Quantity]:
        """How many times longer than the average one computes, of ``count`` groups of workers of
        the same size, the fastest first."""
        from perfmodel import order_statistics

        parts = [(group + 0.5) / count for group in range(count)]
        if not self.classes:
            return [order_statistics.quantile(part, self.cv, self.kind) for part in parts]
        found = order_statistics.quantiles_of_mixture(
            [kind.count for kind in self.classes],
            [kind.scale / self.slowdown for kind in self.classes],
            self.cv,
            self.kind,
            parts,
        )
        return [found[..., k] if found.ndim > 1 else float(found[k]) for k in range(count)]

    def by_class(self) -> list[Quantities]:
        """The same for a worker of each class; for the mean worker where all are alike."""
        return [
            msgspec.structs.replace(
                self,
                bandwidth_bytes_per_s=kind.bandwidth_bytes_per_s,
                forward_s=self.forward_s * kind.scale / self.slowdown,
                backward_s=self.backward_s * kind.scale / self.slowdown,
                optimizer_s=self.optimizer_s * kind.scale / self.slowdown,
                scale=self.scale * kind.scale / self.slowdown,
                slowdown=kind.scale,
                data_loading_s=kind.loading_s,
                devices_per_node=kind.devices,
                unequal=1.0,
                classes=(),
            )
            for kind in self.classes
        ] or [self]

    @property
    def counts(self) -> list[Quantity]:
        """Workers of each class."""
        return [kind.count for kind in self.classes] or [self.workers]

    @property
    def nodes(self) -> Quantity:
        """Nodes that the workers fill."""
        if self.placed_on is not None:
            return self.placed_on
        return ceiling(self.workers / self.devices_per_node)

    @property
    def fullest(self) -> Quantity:
        """Workers of the node that has most."""
        if is_symbol(self.workers):
            return self.devices_per_node
        return minimum(self.devices_per_node, self.workers)

    @property
    def emptiest(self) -> Quantity:
        """Workers of the node that has fewest."""
        if self.least_on_node is not None:
            return self.least_on_node
        if is_symbol(self.workers):
            return self.devices_per_node
        return self.workers - (self.nodes - 1) * self.devices_per_node

    def on_a_nic(self, devices: Quantity) -> Quantity:
        """How many of the workers of a node with so many use the same link to the network."""
        return devices if self.nics_per_node == 1 else ceiling(devices / self.nics_per_node)

    def on_other_nics(self, first: Quantity, second: Quantity) -> Quantity:
        """Whether two devices of a node use different links to the network."""
        return first % self.nics_per_node != second % self.nics_per_node

    @property
    def hop_s(self) -> Quantity:
        """Greatest latency between neighbours on a ring through all workers."""
        inside = where(self.fullest > 1, self.inside_latency_s, 0.0)
        return where(self.nodes > 1, maximum(self.latency_s, inside), inside)


def quantities_of(job: Job) -> Quantities:
    """The quantities of a job, all of them numbers."""
    w, cluster, n = job.device_work, job.cluster, job.workers
    nodes = range(cluster.nodes_for(n))
    nics = [cluster.nic_of(node) for node in nodes] if cluster.overrides else [cluster.nic]
    servers = getattr(job.options, "servers", 1)
    homes = [cluster.node_of_server(s, n) for s in range(servers)] if cluster.overrides else []
    goodput = min(nic.goodput_bytes_per_s for nic in nics)
    at_servers = min((cluster.nic_of(h).goodput_bytes_per_s for h in homes), default=goodput)
    inside, over = cluster.intra_node, cluster.core_oversubscription
    placed = bool(cluster.devices_on_nodes)
    classes = _classes(job)
    mean = sum(kind.count * kind.scale for kind in classes) / n
    cv = iteration_cv(job)
    kind = job.jitter.kind if job.jitter is not None else "lognormal"
    return Quantities(
        workers=n,
        servers=servers,
        devices_per_node=cluster.fullest(n) if placed else cluster.devices_per_node,
        bandwidth_bytes_per_s=goodput,
        server_bandwidth_bytes_per_s=at_servers,
        core_bandwidth_bytes_per_s=(
            math.inf if over is None else cluster.nics_per_node * goodput / over
        ),
        latency_s=max(nic.latency_s for nic in nics),
        inside_bandwidth_bytes_per_s=math.inf if inside is None else inside.goodput_bytes_per_s,
        inside_latency_s=0.0 if inside is None else inside.latency_s,
        forward_s=w.forward_s * mean,
        backward_s=w.backward_s * mean,
        optimizer_s=w.optimizer_s * mean,
        data_loading_s=max(kind.loading_s for kind in classes),
        gradient_bytes=w.gradient_bytes,
        tensors=float(w.tensors),
        update_per_tensor_s=cluster.server.update_per_tensor_s,
        update_per_byte_s=cluster.server.update_per_byte_s,
        update_threads=cluster.update_threads,
        scale=mean,
        slowdown=mean,
        unequal=max(kind.scale for kind in classes) / mean,
        cv=cv,
        kind=kind,
        layers=Layers.of(w),
        classes=classes if len(classes) > 1 else (),
        collectives=cluster.collectives_of(n),
        placed_on=cluster.nodes_for(n) if placed else None,
        least_on_node=min(cluster.devices_at(node, n) for node in cluster.samples(n))
        if placed
        else None,
        nics_per_node=cluster.nics_per_node,
        bus=inside is None or inside.kind == "bus",
        least_bytes_per_s=min(
            nic.goodput_bytes_per_s / math.ceil(cluster.devices_at(node, n) / cluster.nics_per_node)
            for node, nic in zip(nodes, nics, strict=True)
        )
        if cluster.overrides
        else None,
    )


def class_of(job: Job, worker: int) -> Class:
    """What a worker is like; its count is 1."""
    node = job.cluster.node_of_worker(worker)
    goodput = job.cluster.nic_of(node).goodput_bytes_per_s
    devices = job.cluster.devices_at(node, job.workers)
    return Class(1, job.slowdown(worker), goodput, job.loading_s(worker), devices)


def _classes(job: Job) -> tuple[Class, ...]:
    """Of workers, in the order in which they first come."""
    if not job.unequal:
        return (msgspec.structs.replace(class_of(job, 0), count=job.workers),)
    found = Counter(class_of(job, worker) for worker in range(job.workers))
    return tuple(msgspec.structs.replace(kind, count=count) for kind, count in found.items())


def iteration_cv(job: Job, times: Quantity = 1.0) -> Quantity:
    """Coefficient of variation of a whole iteration's computation, if the passes take ``times`` as
    long; factors of single ops average out."""
    if job.jitter is None:
        return 0.0
    if job.jitter.scope == "iteration":
        return job.jitter.cv
    w = expanded(job.device_work)
    parts = np.array([s for a in w.layers for s in (a.forward_s, a.backward_s)])
    squares = times**2 * float((parts**2).sum()) + w.optimizer_s**2
    return job.jitter.cv * squares**0.5 / (times * float(parts.sum()) + w.optimizer_s)


class Phase(msgspec.Struct, frozen=True, eq=False):
    """A part of an iteration that nothing hides: its time, and what a worker waits for in it.

    ``cause`` is one of :data:`perfmodel.graph.CAUSES`, or *compute*.
    """

    seconds: Quantity
    cause: str


class Phases(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A coarse model's answer: the phases of a worker's mean iteration.

    Attributes
    ----------
    parts : phases by name, one after the other; together they are the iteration.
    busy_s : by resource, seconds that it is busy in an iteration, for all workers that share it.
    updates : how often an iteration of one worker updates the model.
    staleness : mean version staleness.
    spread : coefficient of variation of the time between two updates of a worker, which spreads
        the staleness around its mean; 0 where it is always the same.
    classes : the phases of each class of workers, in the order of ``Quantities.classes``; empty
        where all take as long.
    """

    parts: Mapping[str, Phase]
    busy_s: Mapping[str, Quantity]
    updates: Quantity
    staleness: Quantity = 0.0
    spread: Quantity = 0.0
    classes: tuple[Phases, ...] = ()

    @property
    def iteration_s(self) -> Quantity:
        """Mean time of a worker's iteration."""
        return sum(part.seconds for part in self.parts.values())

    @property
    def compute_s(self) -> Quantity:
        """Of an iteration, what a device computes."""
        return sum(part.seconds for part in self.parts.values() if part.cause == "compute")


def mixed(counts: Sequence[int], classes: Sequence[Phases]) -> Phases:
    """The mean iteration of so many workers of each class, who go round on their own.

    The mean is over iterations, of which fast workers make more; so the job's rate is the number of
    workers over its length.
    """
    if len(classes) == 1:
        return classes[0]
    rates = [count / found.iteration_s for count, found in zip(counts, classes, strict=True)]
    shares = [rate / sum(rates) for rate in rates]
    return msgspec.structs.replace(averaged(shares, classes), classes=tuple(classes))


def averaged(shares: Sequence[Quantity], several: Sequence[Phases]) -> Phases:
    """The mean of several answers with the same parts, of which each has a share."""

    def mean(of: Callable[[Phases], Quantity]) -> Quantity:
        return sum(share * of(found) for share, found in zip(shares, several, strict=True))

    first = several[0]
    return Phases(
        parts={
            name: Phase(mean(lambda f, n=name: f.parts[n].seconds), part.cause)  # type: ignore[misc]
            for name, part in first.parts.items()
        },
        busy_s={
            name: mean(lambda f, n=name: f.busy_s[n])  # type: ignore[misc]
            for name in first.busy_s
        },
        updates=mean(lambda f: f.updates),
        staleness=mean(lambda f: f.staleness),
        spread=mean(lambda f: f.spread),
    )


def held_up(
    counts: Sequence[Quantity],
    classes: Sequence[Phases],
    *,
    links_s: Quantity,
    servers_s: Quantity,
) -> Phases:
    """The same, where iterations take at least as long as links and servers are busy with them.

    ``links_s`` and ``servers_s`` are of the busiest one, for an iteration of every worker.
    """
    before_s = mixed(counts, classes).iteration_s
    by_links = maximum(links_s - before_s, 0.0)
    by_servers = maximum(servers_s - before_s - by_links, 0.0)
    late = {
        "queue for links": Phase(by_links, "network"),
        "queue for servers": Phase(by_servers, "server"),
    }
    return mixed(
        counts,
        [msgspec.structs.replace(found, parts={**found.parts, **late}) for found in classes],
    )
