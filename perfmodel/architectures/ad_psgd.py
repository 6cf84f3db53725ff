"""AD-PSGD: active workers average their models with random passive ones, without a common clock."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from perfmodel.architectures import Architecture
from perfmodel.architectures._gossip import Partners, add_begin, add_network
from perfmodel.architectures._workers import Workers, add_optimizer, add_workers
from perfmodel.graph import NONE, GraphBuilder, Ids, OpGraph
from perfmodel.job import Job


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of AD-PSGD; the registry entry below says what each means."""

    passive: Literal["even", "odd"] = "odd"
    overlap: bool = True


def sides(workers: int, options: Options) -> tuple[Ids, Ids]:
    """Numbers of the active and of the passive workers.

    >>> active, passive = sides(5, Options(passive="even"))
    >>> active.tolist(), passive.tolist()
    ([1, 3], [0, 2, 4])
    """
    index = np.arange(workers)
    passive = index % 2 == (0 if options.passive == "even" else 1)
    return index[~passive], index[passive]


def build(job: Job) -> OpGraph:
    """The op graph: computation, and the exchanges of the active workers beside it or after it."""
    b = GraphBuilder()
    workers = add_workers(b, job)
    optimizer = add_optimizer(b, job, workers)
    begin = add_begin(b, job, workers, optimizer)
    if job.workers > 1:
        counter = _add_exchange(b, job, workers, begin, optimizer)
    else:
        counter = b.counters(optimizer)
    b.probe(
        "staleness",
        workers.forward[:, 0],
        optimizer,
        at_ready=True,
        counter=counter,
        group=workers.index,
    )
    return b.build(device=workers.device, mark=optimizer)


def _add_exchange(b: GraphBuilder, job: Job, workers: Workers, begin: Ids, optimizer: Ids) -> Ids:
    """Let each active worker exchange models with a passive one.

    Returns a counter for each worker's model, (workers,), which rises with each averaging and with
    each of the worker's own gradients.
    """
    active, passive = sides(job.workers, job.options)
    network = add_network(b, job)
    partners = Partners.add(b, active, np.broadcast_to(passive, (len(active), len(passive))))
    request = partners.send(b, "request", job, workers, network)
    averaged = partners.when_drawn(b, "average of the partner")
    reply = partners.send(b, "reply", job, workers, network, reply=True)
    average = b.ops("average", active.shape, group=active, axes=(partners.axis,))
    b.edge((begin if job.options.overlap else optimizer)[active], request)
    b.edge(request[:, None], averaged)
    b.edge(request, reply)
    b.edge(reply, average)
    b.edge(average, begin[active], lag=1)
    b.probe("exchange", request, average, at_ready=True, group=active)
    counter = np.full(job.workers, NONE)
    counter[active] = b.counters(np.stack([optimizer[active], average]))
    counter[passive] = b.counters(np.concatenate([optimizer[passive][None], averaged]))
    return counter


ARCHITECTURE = Architecture(
    name="ad_psgd",
    title="AD-PSGD (random pairs, asynchronous)",
    options=Options,
    build=build,
    asynchronous=lambda options: True,
    server_bytes=None,
    option_help={
        "passive": "workers that answer and never ask: those of even or of odd number",
        "overlap": "exchange models while the gradient is computed; otherwise after it",
    },
    assumptions=(
        "each active worker draws a passive one for each iteration, all equally likely, sends it "
        "its model, and is then sent the other's: two transfers, one after the other",
        "a passive worker never waits, and answers all who ask at once: their models share its "
        "link",
        "an active worker's iteration is over when its computation and its exchange are",
        "a gradient is applied as soon as it is computed, be it before or after the averaging",
        "averaging takes no time",
    ),
    source="Lian et al., ICML 2018, arXiv 1710.06952",
)
