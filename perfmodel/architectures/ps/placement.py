"""Placement of tensors on parameter servers: whole or cut, by size or by hash."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from perfmodel.architectures.ps.options import Options
from perfmodel.base.arrays import Floats, Ids
from perfmodel.base.errors import InputError
from perfmodel.base.same import kept
from perfmodel.communication.messages import MOST_PARTS, parts_of, tensors_of
from perfmodel.inputs.workload import Workload

HASH = 9973
"""Factor by which MXNet's KVStore spreads keys over servers (kvstore_dist.h, EncodeDefaultKey)."""


class Slices(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The part of each layer on each server, in the order in which backward computes gradients.

    All of shape (slices,): ``layer`` index, ``server`` index, ``bytes``, the number of ``tensors``
    (or parts of tensors), and of ``parts`` that are one message because they are :func:`joined`.
    """

    layer: Ids
    server: Ids
    bytes: Floats
    tensors: Floats
    parts: Floats


@kept(16)
def slices_of(workload: Workload, options: Options) -> Slices:
    """Place a workload's tensors; the part of a layer on a server is one message, a slice.

    Tensors of more than ``split_above_bytes`` are cut evenly over all servers, except for a
    fraction ``uneven``, which the first server holds in addition. Other tensors stay whole. They go
    to a server by *hash* of their number or, the largest first, to the one with the fewest *bytes*
    so far. Slices larger than ``partition_bytes`` are then cut evenly.
    """
    tensors = tensors_of(workload)
    servers = options.servers
    cut = tensors.bytes > options.split_above_bytes if servers > 1 else tensors.bytes < 0.0
    whole = np.flatnonzero(~cut)
    home = tensors.key * HASH % servers
    if options.sharding == "bytes":
        load = np.bincount([], minlength=servers) + tensors.bytes[cut].sum() / servers
        for t in whole[np.argsort(-tensors.bytes[whole], kind="stable")]:
            home[t] = load.argmin()
            load[home[t]] += tensors.bytes[t]
    many = int(cut.sum()) * servers
    if many > MOST_PARTS:
        raise InputError(
            f"servers: {servers} cut the gradients into {many} parts (at most {MOST_PARTS})"
        )
    held: dict[tuple[int, int], list[float]] = {}
    for t, layer in enumerate(tensors.layer.tolist()):
        parts = range(servers) if cut[t] else (int(home[t]),)
        for server in parts:
            size = tensors.bytes[t] / len(parts)
            if cut[t] and options.uneven > 0.0:
                size *= 1.0 - options.uneven + options.uneven * servers * (server == 0)
            held.setdefault((layer, server), []).append(size)
    where = np.array(list(held))
    size = np.array([sum(parts) for parts in held.values()])
    count = np.array([len(parts) for parts in held.values()], np.float64)
    times = parts_of(size, options.partition_bytes)
    return Slices(
        layer=np.repeat(where[:, 0], times),
        server=np.repeat(where[:, 1], times),
        bytes=np.repeat(size / times, times),
        tensors=np.repeat(np.maximum(count / times, 1.0), times),
        parts=np.ones(times.sum()),
    )


def joined(slices: Slices, most: int) -> Slices:
    """Return slices with several parts of a slice in one message, so that messages are not many
    more than ``most``."""
    together = math.ceil(len(slices.layer) / most)
    begins = (np.diff(slices.layer, prepend=-1) != 0) | (np.diff(slices.server, prepend=-1) != 0)
    first = np.flatnonzero(begins)
    parts = np.diff(first, append=len(slices.layer))
    times = -(-parts // together)
    each = parts / times
    return Slices(
        layer=np.repeat(slices.layer[first], times),
        server=np.repeat(slices.server[first], times),
        bytes=np.repeat(slices.bytes[first] * each, times),
        tensors=np.repeat(slices.tensors[first] * each, times),
        parts=np.repeat(each, times),
    )
