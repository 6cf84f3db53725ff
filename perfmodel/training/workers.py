"""The workers of a job in its op graph: their passes, their updates, and how they start."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ids
from perfmodel.graph.builder import GraphBuilder
from perfmodel.inputs.job import Job
from perfmodel.inputs.offload import COPY_BYTES_PER_S, Offload
from perfmodel.inputs.workload import Workload, expanded
from perfmodel.training.blocks import in_blocks
from perfmodel.training.devices import CORES as CORES, Noise, Processors, Workers as Workers

FOLDED: Ids = np.zeros(1, np.int64)
"""The worker of a folded graph, which represents all: the first."""

PREFETCH = 2
"""Batches that the data loader may be ahead (default of PyTorch's DataLoader, per process)."""

EARLIER = "attention of earlier passes"
"""Label of the ops of attention in passes that are part of the forward pass."""


def alike(job: Job) -> bool:
    """Return whether all workers do the same at the same time, so that one can represent all."""
    own_cores = job.cluster.worker_threads is None
    return steady(job) and not job.unequal and own_cores and job.start == "together"


def plain(job: Job) -> bool:
    """Return whether workers do the same at once, each on its own node, and never wait for data."""
    return equal(job) and job.cluster.fullest(job.workers) == 1


def equal(job: Job) -> bool:
    """Return whether workers do the same at the same time, and never wait for data."""
    return alike(job) and job.workload.data_loading_s == 0.0


def steady(job: Job) -> bool:
    """Return whether the compute time of an iteration is constant."""
    return job.workload.packing is None and (job.jitter is None or job.jitter.cv == 0.0)


def left_out(
    job: Job,
    beyond: Mapping[str, bool] | None = None,
    *,
    core: bool = True,
    connections: bool = True,
    sites: bool = True,
    parts: int | None = 1,
) -> str | None:
    """Return the first feature of a job that a coarse model leaves out, or None.

    These features are shared processor cores; an oversubscribed network core, with ``core``; links
    between sites, with ``sites``; a limit on the rate of connections, with ``connections``; copies
    of one of ``parts`` of the gradients to the host that outlast the backward pass (None where
    workers do not copy them); and those in ``beyond``, by name, that are true.
    """
    known = {
        "workers that share cores": job.cluster.worker_threads is not None,
        "an oversubscribed core": core and job.cluster.core_oversubscription is not None,
        "links between sites": sites and bool(job.cluster.sites) and job.crosses_sites,
        "flow_bytes_per_s of the cluster": connections and job.cluster.flow_bytes_per_s is not None,
        "copies to the host that outlast the backward pass": parts is not None
        and _copies_late(job, parts),
        **(beyond or {}),
    }
    return next((text for text, present in known.items() if present), None)


def _copies_late(job: Job, parts: int) -> bool:
    """Return whether gradients reach the host later than they follow the backward pass."""
    host = job.host_update
    if host is None:
        return False
    layers = expanded(job.workload).layers
    return host.late_s([layer.backward_s for layer in layers], parts) > 0.0


def add_workers(
    b: GraphBuilder,
    job: Job,
    *,
    some: Ids | None = None,
    nodes: int | None = None,
    layers: bool = True,
) -> Workers:
    """Add the data loading, forward and backward pass of every worker, or of ``some`` (workers,).

    All passes of an update but the last are part of the forward pass. ``nodes`` is the number of
    nodes with cores in use; by default those of the workers. Without ``layers`` a pass, or that
    of a chunk of a stage, is a single op, unless its layers differ by more than their times.
    """
    job = job if layers else in_blocks(job, 1)
    work = expanded(job.device_work)
    workers = _placed(b, job, work, some, nodes)
    if job.stage is not None:
        from perfmodel.training.stages import add_stage

        (workers,) = add_stage(b, job, job.stage, workers, [True])
        return _add_loading(b, job, workers)
    workers = _add_pass(b, workers, work, job.workload.accumulation)
    return _add_loading(b, job, workers)


def add_passes(
    b: GraphBuilder, job: Job, reduced: Sequence[bool], *, some: Ids | None = None
) -> list[Workers]:
    """Add each pass of an update as a forward and a backward pass, one after the other.

    ``reduced`` (passes,) says in which of them gradients are handed over to the network. With a
    single one, the earlier passes are part of its forward pass, as in :func:`add_workers`.
    """
    if len(reduced) == 1:
        return [add_workers(b, job, some=some)]
    works = {handed: expanded(job.pass_work(reduced=handed)) for handed in set(reduced)}
    plain = _placed(b, job, works[reduced[-1]], some, None)
    if job.stage is not None:
        from perfmodel.training.stages import add_stage

        passes = add_stage(b, job, job.stage, plain, reduced)
        return [_add_loading(b, job, passes[0]), *passes[1:]]
    passes = []
    for number, handed in enumerate(reduced):
        one = msgspec.structs.replace(plain, axes=(("pass", (str(number),)),))
        passes.append(_add_pass(b, one, works[handed], number=number))
    for earlier, later in itertools.pairwise(passes):
        b.edge(earlier.backward[:, 0], later.forward[:, 0])
    return [_add_loading(b, job, passes[0]), *passes[1:]]


def _placed(
    b: GraphBuilder, job: Job, workload: Workload, some: Ids | None, nodes: int | None
) -> Workers:
    """Return every worker, or ``some`` (workers,), on its node and without ops yet."""
    numbers = np.arange(job.workers) if some is None else some
    n, index, seats = len(numbers), np.arange(len(numbers)), job.seats(numbers.tolist())
    if some is not None:
        b.name("worker", [f"worker {number}" for number in numbers])
    node = np.array([seat.node for seat in seats])
    names = tuple(layer.name for layer in workload.layers)
    device = b.slots("device of", (n,), place=node, axes=(("worker", None),))
    return Workers(
        node=node,
        device=device,
        forward=index,
        backward=index,
        noise=Noise(b, job, n, job.workload.accumulation),
        slowdown=np.array([seat.slowdown for seat in seats]),
        processors=Processors(b, job.cluster, int(node.max()) + 1 if nodes is None else nodes),
        threads=job.cluster.worker_threads or 1,
        layer_names=names,
        numbers=some,
    )


def _add_pass(
    b: GraphBuilder, workers: Workers, workload: Workload, passes: int = 1, number: int = 0
) -> Workers:
    """Add a forward and a backward pass, the last of so many ``passes``, which are part of its
    forward pass, or pass ``number`` of an update."""
    names, layers = workers.layer_names, workload.layers
    forward_s = [layer.forward_s for layer in layers]
    before_s = (passes - 1) * sum(
        layer.forward_s + layer.backward_s for layer in layers[1:] if layer.varying
    )
    forward_s[0] -= before_s
    documents = workers.noise.of_documents(layers, number)
    forward = workers.compute(b, "forward", forward_s, names=names, documents=documents)
    backward_s = [layer.backward_s for layer in layers]
    backward = workers.compute(b, "backward", backward_s, names=names, documents=documents)
    b.chain(forward)
    if before_s > 0.0:
        of_others = workers.noise.of_attention(range(1, passes))
        before = workers.compute(b, EARLIER, before_s, documents=of_others)
        b.edge(forward[:, 0], before)
        b.edge(before, forward[:, 1])
    b.edge(forward[:, -1], backward[:, -1])
    b.chain(backward[:, ::-1])
    return msgspec.structs.replace(workers, forward=forward, backward=backward)


def _add_loading(b: GraphBuilder, job: Job, workers: Workers) -> Workers:
    """Add the loading of an update's data before its first forward pass, if it takes time."""
    if job.workload.data_loading_s == 0.0:
        return workers
    forward, n = workers.forward, len(workers.node)
    seats = job.seats(workers.of_job.tolist())
    loader = b.slots("data loader of", (n,), place=workers.node, axes=(("worker", None),))
    load = b.ops(
        "load data",
        (n,),
        seconds=job.workload.data_loading_s * np.array([s.loading for s in seats]),
        slot=loader,
        group=workers.index,
        cause="data",
        axes=(("worker", None),),
    )
    b.edge(load, forward[:, 0])
    b.edge(forward[:, 0], load, lag=PREFETCH)
    b.stagger(load, stagger_s(job)[workers.of_job])
    return msgspec.structs.replace(workers, loading=load)


class Update(NamedTuple):
    """The first and the last op of each worker's own update, (workers,): messages are applied by
    the first, and the next step follows the last. A device updates by a single op."""

    first: Ids
    last: Ids


ON_HOST = ("gradients to host", "update on host", "parameters from host")
"""Kinds of the ops of an update by the host."""

TO_HOST, FROM_HOST = "link to the host of", "link from the host of"
"""Labels of the links between devices and their hosts."""


def add_optimizer(
    b: GraphBuilder, job: Job, workers: Workers, first: Workers | None = None, parts: int = 1
) -> Update:
    """Add each worker's own update of its parameters, between its backward pass and its next
    forward pass, by its device or its host.

    ``first`` is the first pass of an update, if there are several. Each worker updates one of
    ``parts`` of the parameters.
    """
    alone = msgspec.structs.replace(workers, axes=())
    if job.host_update is None:
        op = alone.compute(b, "optimizer", job.device_work.optimizer_s / parts)
        update = Update(op, op)
    else:
        update = _add_on_host(b, alone, job.host_update, parts)
    b.edge(workers.backward[:, 0], update.first)
    if workers.returns is not None:
        b.edge(workers.returns, update.first[:, None])
    b.edge(update.last, (workers if first is None else first).forward[:, 0], lag=1)
    return update


def _add_on_host(b: GraphBuilder, workers: Workers, host: Offload, parts: int) -> Update:
    """Add an update by the host, in which each device copies one of ``parts`` of the model.

    Copies of a layer's gradients begin when they are complete, one after the other; the last one is
    the first op of the update. A device waits for it and for what follows.
    """
    n, axis, to_host, update, from_host = len(workers.node), ("worker", None), *ON_HOST
    there, back = (
        b.links(label, np.full(n, COPY_BYTES_PER_S), place=workers.node, axes=(axis,))
        for label in (TO_HOST, FROM_HOST)
    )
    noise = workers.noise

    def copied(label: str, size: float, link: Ids) -> Ids:
        return b.ops(
            label,
            (n,),
            bytes=workers.slowdown * size / parts,
            path=link[:, None],
            slot=workers.device,
            group=workers.index,
            cause="straggler",
            noise=noise.of(),
            axes=(axis,),
        )

    first = copied(to_host, host.gradient_bytes[host.last], there)
    early = [i for i, size in enumerate(host.gradient_bytes) if size and i != host.last]
    if early:
        names = tuple(workers.layer_names[i] for i in early)
        sizes = np.array([host.gradient_bytes[i] for i in early]) / parts
        copies = b.ops(
            to_host,
            (n, len(early)),
            bytes=workers.slowdown[:, None] * sizes,
            path=there[:, None, None],
            axes=(axis, ("layer", names)),
        )
        b.edge(workers.backward[:, early], copies)
        b.chain(copies[:, ::-1])
        b.edge(copies[:, 0], first)
    between = workers.compute(b, update, host.update_s / parts)
    last = copied(from_host, host.parameter_bytes, back)
    b.edge(first, between)
    b.edge(between, last)
    return Update(first, last)


def add_begin(
    b: GraphBuilder, job: Job, workers: Workers, optimizer: Ids, *, period: int = 1
) -> Ids:
    """Add the op that begins each worker's iteration, (workers,).

    It follows the previous iteration's ``optimizer``, and precedes the forward pass and everything
    a worker sends during computation. Staggered workers start within the time of ``period``
    iterations of which one communicates.
    """
    n = len(workers.node)
    axes = (("worker", None),)
    begin = b.ops("begin", (n,), group=workers.index, cause="straggler", axes=axes)
    b.edge(optimizer, begin, lag=1)
    b.edge(begin, workers.forward[:, 0])
    within_s = stagger_s(job)[workers.of_job]
    without_s = workers.slowdown * job.workload.compute_s
    b.stagger(begin, within_s + np.where(within_s > 0.0, (period - 1) * without_s, 0.0))
    return begin


def log_steps(b: GraphBuilder, workers: Workers, *, central: bool = False) -> None:
    """Log the start of steps, and the time when all parameters of a gradient have arrived: when the
    first layer begins or, if slices of the centre arrive one by one, when the last layer does."""
    b.log("begin", workers.forward[:, 0], at_ready=True)
    b.log("gradient", workers.forward[:, -1 if central else 0], at_ready=True)


def stagger_s(job: Job) -> Floats:
    """Return the time within which each worker starts, (workers,): its uncontended iteration.

    That is its computation, plus sending and receiving the model once over an idle link.
    """
    if job.start == "together" or job.workers == 1:
        return np.zeros(job.workers)
    once_s, seats = job.device_work.compute_s, job.seats()
    compute = np.array([seat.slowdown * once_s for seat in seats])
    goodput = np.array([seat.nic.goodput_bytes_per_s for seat in seats])
    return compute + 2.0 * job.workload.gradient_bytes / goodput
