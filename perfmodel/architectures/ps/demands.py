"""Service demands of an iteration on links and servers."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import slices_of
from perfmodel.base.quantities import Quantity, is_symbol, maximum
from perfmodel.communication.messages import tensors_of
from perfmodel.inputs.workload import Workload
from perfmodel.phases.quantities import Quantities
from perfmodel.phases.whole import Whole

CUT_FROM, CUT_TO = 0.7, 0.9
"""Fractions of the model, cut evenly over the servers, at which lockstep begins and is complete."""

MANY_SERVERS = 3
"""Number of servers from which lockstep is complete; with two it is a quarter."""


class Demands(msgspec.Struct, frozen=True, eq=False):
    """Service demands of one worker per iteration.

    Attributes
    ----------
    own_s, shared_s : transfer time per byte on the worker's own link, without contention, and on a
        server's, or the core if that takes longer.
    core_s : transfer time per byte on the core, which carries both directions.
    flow_s : least transfer time per byte on the connection to a server.
    fullest : fraction of the model on the fullest server.
    lockstep : 1 if most of the model is cut evenly over all servers, so that asynchronous workers
        tend towards lockstep; 0 if no tensor is cut.
    update_s : update time of the server with the most to update, using all its threads.
    per_tensor_s, per_byte_s : the same per tensor and per byte.
    optimizer_per_byte_s : further time per byte of an update of all workers together.
    optimizer_s : the same for the fullest server's part of the model.
    threads : of a server; one update takes one of them.
    longest_s : the longest update, on its thread; 0 if updates overlap with pushes.
    sent : bytes pushed per byte of gradients.
    """

    own_s: Quantity
    shared_s: Quantity
    core_s: Quantity
    flow_s: Quantity
    fullest: Quantity
    lockstep: float
    update_s: Quantity
    per_tensor_s: Quantity
    per_byte_s: Quantity
    optimizer_per_byte_s: Quantity
    optimizer_s: Quantity
    threads: Quantity
    longest_s: Quantity
    sent: float

    @classmethod
    def of(cls, options: Options, workload: Workload, q: Quantities) -> Demands:
        """Return the demands of a worker with these quantities."""
        tensor_s = q.update_per_tensor_s / q.update_threads
        byte_s = (q.update_per_byte_s + options.decode_per_byte_s) / q.update_threads
        once_s = q.optimizer_per_byte_s / q.update_threads
        if options.sync != "bsp":  # each gradient is an update, or part of one
            byte_s, once_s = byte_s + once_s / options.softsync, 0.0
        overlapping = options.overlap or options.duplex
        fullest, lockstep = 1.0 / q.servers, 0.0
        core_bytes_per_s = q.core_with_servers_bytes_per_s
        update_s = fullest * (q.tensors * tensor_s + q.gradient_bytes * byte_s)
        cut_up = options.servers > 1 or options.partition_bytes < math.inf
        if cut_up and not is_symbol(q.servers):
            slices = slices_of(workload, options)
            kept = np.bincount(slices.server, slices.bytes, options.servers)
            tensors = np.bincount(slices.server, slices.tensors, options.servers)
            loads = set(zip(tensors.tolist(), kept.tolist(), strict=True))
            update_s = maximum(*(count * tensor_s + size * byte_s for count, size in loads))
            sizes = tensors_of(workload).bytes
            cut = sizes[sizes > options.split_above_bytes].sum() / sizes.sum()
            lockstep = float(np.clip((cut - CUT_FROM) / (CUT_TO - CUT_FROM), 0.0, 1.0))
            lockstep *= min((options.servers - 1) / (MANY_SERVERS - 1), 1.0) ** 2
            fullest = float(kept.max() / kept.sum())
        return cls(
            own_s=1.0 / q.bandwidth_bytes_per_s,
            shared_s=maximum(
                1.0 / q.server_bandwidth_bytes_per_s, 1.0 / (fullest * core_bytes_per_s)
            ),
            core_s=1.0 / core_bytes_per_s,
            flow_s=1.0 / q.flow_bytes_per_s,
            fullest=fullest,
            lockstep=lockstep,
            update_s=update_s,
            per_tensor_s=tensor_s,
            per_byte_s=byte_s,
            optimizer_per_byte_s=once_s,
            optimizer_s=once_s * fullest * q.gradient_bytes,
            threads=q.update_threads,
            longest_s=0.0 if overlapping else _longest_s(q, tensor_s, byte_s),
            sent=options.sent_share,
        )

    @property
    def both_ways_s(self) -> Quantity:
        """Time on the core per byte of the model, pulled and pushed."""
        return (1.0 + self.sent) * self.core_s


def _longest_s(q: Quantities, tensor_s: Quantity, byte_s: Quantity) -> Quantity:
    """Return the longest update of a part of the model on one thread; 0 if nothing is cut."""
    if isinstance(q.layers, Whole):
        return 0.0
    parts = {part for parts in q.layers.parts for part in parts}
    loads = {(part.tensors, part.bytes) for part in parts}
    return q.update_threads * maximum(*(n * tensor_s + size * byte_s for n, size in loads), 0.0)


class Flows(msgspec.Struct, frozen=True, eq=False):
    """How many workers pull, push and update at the same time, including the one considered.

    ``own_pulling`` and ``own_pushing`` are those on the link of its node; ``in_step`` is true if
    workers are synchronous.
    """

    pulling: Quantity
    pushing: Quantity
    updating: Quantity
    own_pulling: Quantity
    own_pushing: Quantity
    in_step: bool = False
