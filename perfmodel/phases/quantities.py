"""The quantities of a job that the formulas of coarse models use."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.quantities import (
    Condition,
    Quantity,
    ceiling,
    is_symbol,
    maximum,
    minimum,
    where,
)
from perfmodel.inputs.cluster import NO_HANDOVER, Cluster, Collective
from perfmodel.inputs.job import Job
from perfmodel.phases.classes import Class, joined
from perfmodel.phases.layers import Layers
from perfmodel.phases.phases import Phases, averaged, several
from perfmodel.phases.variation import KIND, iteration_cv as iteration_cv, waits_in_each_pass
from perfmodel.phases.whole import Whole

PACES = 6
"""Number of quantiles of the slowest worker's time over which phases are averaged."""


class Quantities(msgspec.Struct, frozen=True, eq=False, kw_only=True, dict=True):
    """The quantities that the coarse formulas use; the units are in the names.

    Attributes
    ----------
    workers, servers : their numbers.
    devices_per_node : on the fullest node.
    placed_on : number of nodes with workers, if nodes are not filled one after the other.
    least_on_node : fewest workers on any of these nodes, in the same case.
    nics_per_node : network links of a node.
    bandwidth_bytes_per_s, latency_s : of the slowest worker's link, one way; the achieved
        bandwidth.
    least_bytes_per_s : the smallest share of its node's link that any worker gets when all workers
        send at once; None if all links are alike.
    server_bandwidth_bytes_per_s : of the slowest server's link.
    core_bandwidth_bytes_per_s : the core's, divided by the number of nodes; inf if it never limits.
    inside_bandwidth_bytes_per_s, inside_latency_s : of the link inside a node; inf and 0 without.
    bus : whether the devices of a node share that link; otherwise each has its own.
    forward_s, backward_s, optimizer_s : mean times of one worker's iteration; the handover of
        gradients to the network is part of the backward pass.
    data_loading_s : of the worker that takes longest to load a batch.
    gradient_bytes, tensors : of the whole model.
    update_per_tensor_s, update_per_byte_s, optimizer_per_byte_s, update_threads : of one server.
    scale : mean compute time of a worker relative to the profile.
    slowdown : the same for the part of the computation that does not grow with the batch.
    unequal : compute time of the slowest worker relative to the mean, without jitter.
    cv, kind : coefficient of variation of a worker's compute time, and its distribution.
    layers : of the model, or the model as a whole.
    classes : of workers, if these differ; empty if all are alike.
    flow_bytes_per_s : the most that one connection between nodes carries; inf if only links limit.
    sites_bytes_per_s : of the slowest link between sites that a ring takes; inf for a single site.
    sites_latency_s : one-way latency from the site of each worker to that of the next one on a
        ring, (workers,), 0 within a site; None for a single site.
    corrected : whether queueing is corrected for service times of small variance.
    collectives : those measured; others take the closed form of a ring.
    buffer_bytes : of the module's buffers.
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
    optimizer_per_byte_s: Quantity
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
    flow_bytes_per_s: Quantity = math.inf
    sites_bytes_per_s: Quantity = math.inf
    sites_latency_s: Floats | None = None
    buffer_bytes: Quantity = 0.0

    @functools.cached_property
    def at_once_bytes_per_s(self) -> Quantity:
        """Smallest bandwidth of any worker when all send at once and the core never limits."""
        if self.least_bytes_per_s is not None:
            return self.least_bytes_per_s
        return self.bandwidth_bytes_per_s / self.on_a_nic(self.fullest)

    @property
    def beside(self) -> Quantity:
        """Other workers on each network link of the fullest node."""
        return self.on_a_nic(self.fullest) - 1.0

    def slowest(self, steps: Quantity = 1, late: int = 0) -> Quantity:
        """Return the expected maximum of the workers' compute times, relative to their mean.

        It is an order statistic of sums of ``steps`` iterations, without the ``late`` slowest
        workers.
        """
        if type(self.workers) is not int and is_symbol(self.workers):
            import sympy

            whom = f"(N-{late})" if late else "N"
            return sympy.Symbol(f"S_{whom}" + (f"_{steps}" if steps != 1 else ""), positive=True)
        return sum(share * value for share, value in self.paces(steps, late))

    def paces(
        self, steps: Quantity = 1, late: int = 0, points: int = PACES
    ) -> list[tuple[float, Quantity]]:
        """Return the distribution of the slowest worker's compute time relative to the mean, as
        ``points`` pairs of probability and value. There is a single value if nothing is random.

        For numbers and arrays; parameters as for :meth:`slowest`, which returns the mean.
        """
        factors = [kind.scale / self.slowdown for kind in self.classes]
        least: Quantity = 0.0
        if late:  # a worker that is not waited for has computed nevertheless
            scales = [
                kind.scale / self.slowdown for kind in self.classes for _ in range(kind.count)
            ]
            least = len(scales) / sum(1.0 / f for f in scales) if scales else 1.0
        if not self.random:
            unequal = sorted(scales)[-1 - late] if late and factors else self.unequal
            return [(1.0, maximum(unequal, least) if late else unequal)]
        from perfmodel.theory import order_statistics

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

    @functools.cached_property
    def alike(self) -> bool:
        """Whether all workers compute for the same time."""
        return not self.random and not self.classes

    def at_paces(self, phases: Callable[[Quantity], Phases], late: int = 0) -> Phases:
        """Return the mean of ``phases`` over the distribution of the slowest worker's compute time,
        without the ``late`` slowest workers.

        Exposed communication is a convex function of the computation that hides it, so its mean is
        more than its value at the mean (Jensen's inequality).
        """
        if not self.random or is_symbol(self.workers):
            return phases(self.slowest(late=late))
        shares, paces = zip(*self.paces(late=late), strict=True)
        return averaged(shares, several(phases, paces))

    def slowest_followed(self, bound: int) -> Quantity:
        """Return :meth:`slowest` under a staleness bound: no worker gets more than ``bound``
        iterations, 1 or more, ahead of the slowest.

        In k iterations, two workers drift apart by about c sqrt(2k) iterations, with c the
        coefficient of variation, and they reach the bound s after about (s / c)^2 iterations. So
        the pace is that of the slowest sum of as many iterations, and no slower than with a barrier
        every s + 1 iterations. This agrees with simulations of 4 to 64 workers with bounds of 1 and
        3 on a network that takes no time (docs/explanation/coarse.md).
        """
        if is_symbol(self.workers):
            import sympy

            return sympy.Symbol(f"S_N_ahead{bound}", positive=True)
        if not self.random:
            return self.unequal
        return self.slowest(steps=maximum((bound / self.cv) ** 2, bound + 1.0))

    @property
    def random(self) -> bool:
        """Whether the compute time varies at random."""
        return not (isinstance(self.cv, float) and self.cv == 0.0)

    def typical(self, count: int) -> list[Quantity]:
        """Return the compute time relative to the mean for ``count`` quantile groups of workers of
        equal size, the fastest first."""
        from perfmodel.theory import order_statistics

        parts = [(group + 0.5) / count for group in range(count)]
        if not self.classes:
            return [order_statistics.quantile(part, self.cv, self.kind) for part in parts]
        times = order_statistics.quantiles_of_mixture(
            [kind.count for kind in self.classes],
            [kind.scale / self.slowdown for kind in self.classes],
            self.cv,
            self.kind,
            parts,
        )
        return [times[..., k] if times.ndim > 1 else float(times[k]) for k in range(count)]

    def by_class(self) -> list[Quantities]:
        """Return the quantities for a worker of each class, or the mean worker if all are alike."""
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
        """Number of workers of each class."""
        return [kind.count for kind in self.classes] or [self.workers]

    @property
    def nodes(self) -> Quantity:
        """Number of nodes with workers."""
        if self.placed_on is not None:
            return self.placed_on
        if type(self.workers) is int:
            return float(math.ceil(self.workers / self.devices_per_node))
        return ceiling(self.workers / self.devices_per_node)

    @property
    def fullest(self) -> Quantity:
        """Number of workers on the fullest node."""
        if type(self.workers) is int:
            return min(self.devices_per_node, self.workers)
        if is_symbol(self.workers):
            return self.devices_per_node
        return minimum(self.devices_per_node, self.workers)

    @property
    def emptiest(self) -> Quantity:
        """Fewest workers on any node that has some."""
        if self.least_on_node is not None:
            return self.least_on_node
        if is_symbol(self.workers):
            return self.devices_per_node
        return self.workers - (self.nodes - 1) * self.devices_per_node

    def on_a_nic(self, devices: Quantity) -> Quantity:
        """Return the number of workers on each network link of a node with ``devices`` workers."""
        return devices if self.nics_per_node == 1 else ceiling(devices / self.nics_per_node)

    def on_other_nics(self, first: Quantity, second: Quantity) -> Condition:
        """Return whether two devices of a node use different network links."""
        return first % self.nics_per_node != second % self.nics_per_node

    @functools.cached_property
    def core_with_servers_bytes_per_s(self) -> Quantity:
        """Capacity of the core for transfers between the workers and servers on their own nodes."""
        return self.core_bandwidth_bytes_per_s * (self.nodes + self.servers)

    @property
    def hop_s(self) -> Quantity:
        """Greatest latency between neighbours on a ring through all workers."""
        inside = where(self.fullest > 1, self.inside_latency_s, 0.0)
        return where(self.nodes > 1, maximum(self.latency_s, inside), inside)


def quantities_of(job: Job, layers: Layers | Whole | None = None) -> Quantities:
    """Return the quantities of a job, all of them numbers, given its ``layers`` if known."""
    w, cluster, n = job.device_work, job.cluster, job.workers
    server_count = job.options.server_count
    nodes = range(cluster.nodes_for(n))
    nics = [cluster.nic_of(node) for node in nodes] if cluster.overrides else [cluster.nic]
    servers = max(server_count, 1)
    crossed = _crossings(job)
    server_nic = cluster.server_nic if server_count else None
    dedicated = cluster.server.placement == "dedicated" and server_count > 0
    unlike = cluster.overrides or server_nic is not None or cluster.nics_per_process > 1
    theirs = [cluster.nic_of_server(s, n) for s in range(servers)] if unlike else []
    passing = job.path_efficiency
    rates = [nic.goodput_bytes_per_s for nic in nics]
    of_servers = [nic.goodput_bytes_per_s for nic in theirs]
    goodput = passing * min(rates)
    others = of_servers if dedicated else []
    mean_goodput = passing * _mean_goodput(cluster, rates, len(nodes), others)
    at_servers = min((passing * rate for rate in of_servers), default=goodput)
    inside, over = cluster.intra_node, cluster.core_oversubscription
    placed = bool(cluster.devices_on_nodes)
    classes = _classes(job, passing)
    mean = sum(kind.count * kind.scale for kind in classes) / n
    cv = iteration_cv(job)
    without = "lognormal" if w.packing is None else KIND
    kind = job.jitter.kind if job.jitter is not None else without
    return Quantities(
        workers=n,
        servers=servers,
        devices_per_node=cluster.fullest(n) if placed else cluster.devices_per_node,
        bandwidth_bytes_per_s=goodput,
        server_bandwidth_bytes_per_s=at_servers,
        core_bandwidth_bytes_per_s=(
            math.inf if over is None else cluster.nics_per_node * mean_goodput / over
        ),
        latency_s=max(nic.latency_s for nic in (*nics, server_nic) if nic is not None),
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
        optimizer_per_byte_s=cluster.server.optimizer_per_byte_s,
        update_threads=cluster.update_threads,
        scale=mean,
        slowdown=mean,
        unequal=max(kind.scale for kind in classes) / mean,
        cv=cv,
        kind=kind,
        layers=Layers.of(w) if layers is None else layers,
        classes=classes if len(classes) > 1 else (),
        collectives=cluster.collectives_of(n),
        placed_on=cluster.nodes_for(n) if placed else None,
        least_on_node=min(cluster.devices_at(node, n) for node in cluster.samples(n))
        if placed
        else None,
        nics_per_node=cluster.nics_per_node,
        bus=inside is None or inside.kind == "bus",
        least_bytes_per_s=passing
        * min(
            rate / math.ceil(cluster.devices_at(node, n) / cluster.nics_per_node)
            for node, rate in zip(nodes, rates, strict=True)
        )
        if cluster.overrides
        else None,
        flow_bytes_per_s=crossed.flow_bytes_per_s,
        sites_bytes_per_s=crossed.bytes_per_s,
        sites_latency_s=crossed.latency_s,
        buffer_bytes=w.buffer_bytes,
    )


def same_quantities(job: Job, other: Job) -> bool:
    """Whether two jobs, of the same workers and stragglers, surely have the same quantities: they
    differ at most in options that quantities do not depend on."""
    same = job.workload is other.workload and job.cluster is other.cluster
    if not same or job.jitter is not other.jitter:
        return False
    if job.cluster.handover != NO_HANDOVER and job.handovers != other.handovers:
        return False
    options, others = job.options, other.options
    in_step = job.cluster.device_spread > 0.0 or job.workload.packing is not None
    return (
        options.server_count == others.server_count
        and not (in_step and options.asynchronous != others.asynchronous)
        and (job.workload.packing is None or waits_in_each_pass(job) == waits_in_each_pass(other))
    )


def quantities_near(job: Job, known: Job, quantities: Quantities) -> Quantities:
    """Return the quantities of a job, given those of one of the same workers and stragglers: what
    is surely the same is not derived again."""
    if job is known or same_quantities(known, job):
        return quantities
    plain = job.cluster.handover == known.cluster.handover == NO_HANDOVER
    same = job.workload is known.workload and plain
    return quantities_of(job, quantities.layers if same else None)


def _mean_goodput(
    cluster: Cluster, rates: Sequence[float], nodes: int, servers: Sequence[float]
) -> float:
    """Return the mean rate of a node's link, over ``nodes`` nodes of workers with the rates
    ``rates``, one for all or one each, and those of dedicated ``servers``; if there are no
    ``servers``, they have the same links as workers."""
    mean = sum(rates) / len(rates)
    used = sum(servers) / cluster.nics_per_process
    return (nodes * mean + used) / (nodes + len(servers))


class _Crossings(msgspec.Struct, frozen=True):
    """Limits on the steps of a ring between nodes: the most that one transfer carries; the slowest
    link from one site to the next; and the latency from the site of each worker to that of the next
    one, (workers,)."""

    flow_bytes_per_s: float
    bytes_per_s: float = math.inf
    latency_s: Floats | None = None


def _crossings(job: Job) -> _Crossings:
    """Return the steps between nodes, and between sites, of a ring through a job's workers."""
    cluster, n = job.cluster, job.workers
    inside = cluster.flow_bytes_per_s or math.inf
    if not cluster.sites or not job.crosses_sites:
        return _Crossings(inside)
    nodes = cluster.nodes_for(n)
    site = cluster.sites_of(nodes, n)  # does not decrease
    between = cluster.between_sites().among(np.arange(int(site[-1]) + 1))
    if len(between.names) == 1:
        return _Crossings(inside)
    devices = np.array([cluster.devices_at(node, n) for node in range(nodes)])
    ring = between.ring(min(cluster.nics_per_node, int(devices.min())))
    step = ring, np.roll(ring, -1)
    latency_s = np.zeros(n)
    workers = np.bincount(site, devices).astype(np.int64)
    latency_s[np.cumsum(workers[ring]) - 1] = between.latency_s[step]
    flow = float(between.flow_bytes_per_s[step].min())
    if nodes > len(ring):  # the ring also has steps between nodes of one site
        flow = min(flow, inside)
    return _Crossings(flow, float(between.bytes_per_s[step].min()), latency_s)


def classes_of(job: Job, workers: Sequence[int], passing: float) -> dict[int, Class]:
    """Return the class of each of some workers, given ``path_efficiency``; their counts are 1."""
    data_s, found = job.workload.data_loading_s, {}
    for worker, seat in zip(workers, job.seats(workers), strict=True):
        goodput, loading_s = seat.nic.goodput_bytes_per_s * passing, data_s * seat.loading
        found[worker] = Class(1, seat.slowdown, goodput, loading_s, seat.devices)
    return found


def classes_of_workers(job: Job) -> list[Class]:
    """Return the class of each worker, (workers,); their counts are 1.

    Nodes with the same number of workers, links and speed are alike, so most need no look.
    """
    cluster, n, nodes = job.cluster, job.workers, job.cluster.nodes_for(job.workers)
    uneven = {straggler.worker for straggler in job.stragglers}
    special = {*cluster.samples(n), *(override.node for override in cluster.overrides)}
    special |= {cluster.node_of_worker(worker) for worker in uneven}
    regular = next((node for node in range(nodes) if node not in special), 0)
    alike = [(cluster.first_worker(regular), range(n))]  # a worker, and those like it
    for node in (node for node in special if node < nodes):
        first, size = cluster.first_worker(node), cluster.devices_at(node, n)
        workers = range(first, first + size)
        alike.append((next((one for one in workers if one not in uneven), first), workers))
        alike += [(worker, range(worker, worker + 1)) for worker in uneven.intersection(workers)]
    found = classes_of(job, [worker for worker, _ in alike], job.path_efficiency)
    kinds: list[Class] = []
    for worker, like in alike:
        kinds[like.start : like.stop] = [found[worker]] * len(like)
    return kinds


def _classes(job: Job, passing: float) -> tuple[Class, ...]:
    """Return the classes of workers, in order of their first worker."""
    if not job.unequal:
        return (msgspec.structs.replace(classes_of(job, [0], passing)[0], count=job.workers),)
    counts: Counter[Class] = Counter()
    for _, (kind, *more) in itertools.groupby(joined(classes_of_workers(job)), key=id):
        counts[kind] += 1 + len(more)
    return tuple(msgspec.structs.replace(kind, count=count) for kind, count in counts.items())
