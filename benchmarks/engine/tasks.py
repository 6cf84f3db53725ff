"""The tasks: ResNet-18's 62 tensors over links of 10 Gb/s, as op graphs and as text for SimGrid.

With one parameter server, whose link all workers share:

- ``ps_fifo``: every worker sends its tensors one after another.
- ``ps_burst``: every worker sends them all at time 0.
- ``ps_iter``: every worker computes 62 forward and 62 backward steps of fixed, uneven length, sends
  each gradient as it is ready, in order, then receives all tensors one after another.
- ``ps_layers``: the same with 64 workers and n tensors, those of ResNet-18 repeated.

On other networks:

- ``racks``: nodes in racks of 16 with 4:1 oversubscribed uplinks; every node sends 20 transfers of
  random size, one after another, to random nodes.
- ``ring``: every tensor is reduced around a ring of n ranks in 2(n-1) steps, one tensor after
  another; each rank begins each tensor with a different delay.
- ``ring-folded``: the same without delays. All ranks then do the same, so one of them, which
  receives from itself, represents all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import NONE
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from tests import simgrid

BYTES_PER_S = 1.25e9
KNOWN_ITER_S = {8: 0.6332018523, 64: 4.7847639343, 512: 38.296465799}
"""Makespans of ``ps_iter`` with all known digits, from another simulator of one shared link."""

RACK = 16
OVERSUBSCRIBED = 4
TRANSFERS = 20
DELAY_S = 1e-4
STRAGGLER_S = 1e-3

Floats = NDArray[np.float64]


def tensors() -> list[int]:
    """Return the bytes of the 62 parameter tensors of ResNet-18, first layer first."""
    sizes, inputs = [64 * 3 * 49, 64, 64], 64
    for width in (64, 128, 256, 512):
        sizes += [width * inputs * 9, width, width, width * width * 9, width, width]
        if width != inputs:
            sizes += [width * inputs, width, width]
        sizes += [width * width * 9, width, width] * 2
        inputs = width
    return [4 * size for size in [*sizes, 512_000, 1000]]


FORWARD = tensors()
BACKWARD = FORWARD[::-1]
LAYERS = len(FORWARD)
WORKERS = 64
"""Number of workers of the task with a varying number of layers."""


def uneven(n: int, salt: int, layers: int = LAYERS) -> Floats:
    """Return fixed pseudo-random numbers in [0, 1), shape (n, layers)."""
    worker, layer = np.ogrid[:n, :layers]
    h = (worker * 2654435761 + layer * 40503 + salt).astype(np.uint32)
    h = (h ^ (h >> 15)) * np.uint32(2246822519)
    parts: Floats = (h ^ (h >> 13)) / 2**32
    return parts


def compute_s(n: int, layers: int = LAYERS) -> Floats:
    """Return the seconds of each worker's forward and backward steps: 40 ms, 80 ms, within 20 %."""
    phases = [
        total / layers * (0.8 + 0.4 * uneven(n, salt, layers))
        for total, salt in ((0.040, 0), (0.080, 97))
    ]
    return np.concatenate(phases, axis=1)


def delay_s(n: int) -> Floats:
    """Return the start delay of each tensor on each rank, shape (LAYERS, n); rank 0 is by far the
    last."""
    delays = DELAY_S * uneven(n, 0).T
    delays[:, 0] = STRAGGLER_S
    return delays


def parameter_server(task: str, n: int, layers: int = LAYERS) -> OpGraph:
    sizes = np.resize(FORWARD, layers)
    b = GraphBuilder()
    device, line = b.slots("device", (n,)), b.slots("line", (n, 2))
    nic = b.links("nic", np.full((n, 2), BYTES_PER_S))
    server = b.links("server", np.full(2, BYTES_PER_S))
    path = np.stack([nic, np.broadcast_to(server, (n, 2))], -1)
    queue = line[:, :1] if task != "ps_burst" else NONE
    push = b.ops("push", (n, layers), bytes=sizes[::-1], path=path[:, :1], slot=queue)
    if task != "ps_burst":
        b.chain(push)
    if task != "ps_iter":
        return b.build(device=device, mark=push[:, -1])
    compute = b.ops("c", (n, 2 * layers), seconds=compute_s(n, layers), slot=device[:, None])
    pull = b.ops("pull", (n, layers), bytes=sizes, path=path[:, 1:], slot=line[:, 1:])
    b.chain(compute)
    b.edge(compute[:, layers:], push)
    b.edge(push[:, -1], pull[:, 0])
    b.chain(pull)
    return b.build(device=device, mark=pull[:, -1])


def racks(n: int) -> OpGraph:
    rng = np.random.default_rng(n)
    b = GraphBuilder()
    device = b.slots("device", (n,))
    nic = b.links("nic", np.full((n, 2), BYTES_PER_S))
    uplink = b.links("uplink", np.full((-(-n // RACK), 2), BYTES_PER_S * RACK / OVERSUBSCRIBED))
    source = np.arange(n)[:, None]
    target = (source + rng.integers(1, n, (n, TRANSFERS))) % n
    leaves = source // RACK != target // RACK
    path = np.stack(
        [
            np.broadcast_to(nic[source, 0], target.shape),
            np.where(leaves, uplink[source // RACK, 0], NONE),
            np.where(leaves, uplink[target // RACK, 1], NONE),
            nic[target, 1],
        ],
        -1,
    )
    sizes = np.floor(10 ** rng.uniform(4, 8, target.shape))
    sends = b.ops("send", target.shape, bytes=sizes, path=path)
    b.chain(sends)
    return b.build(device=device, mark=sends[:, -1])


def ring(n: int) -> OpGraph:
    b = GraphBuilder()
    device, line = b.slots("device", (n,)), b.slots("line", (n,))
    nic = b.links("nic", np.full((n, 2), BYTES_PER_S))
    path = np.stack([nic[:, 0], np.roll(nic[:, 1], -1)], -1)
    shape = (LAYERS, 2 * (n - 1), n)
    seconds = np.zeros(shape)
    seconds[:, 0] = delay_s(n)
    sizes = np.array(BACKWARD)[:, None, None] / n
    sends = b.ops("send", shape, seconds=seconds, bytes=sizes, path=path, slot=line).reshape(-1, n)
    b.edge(np.roll(sends[:-1], 1, axis=1), sends[1:])
    return b.build(device=device, mark=sends[-1])


def ring_folded(n: int) -> OpGraph:
    b = GraphBuilder()
    device, line = b.slots("device", (1,)), b.slots("line", (1,))
    nic = b.links("nic", np.full(2, BYTES_PER_S))
    sizes = np.array(BACKWARD)[:, None] / n
    sends = b.ops("send", (LAYERS, 2 * (n - 1)), bytes=sizes, path=nic, slot=line).ravel()
    b.chain(sends)
    return b.build(device=device, mark=sends[-1:])


def dag(graph: OpGraph) -> simgrid.Dag:
    """Return a task for SimGrid. The ops on a slot must already form a chain."""
    after: list[list[int]] = [[] for _ in range(graph.n_ops)]
    for source, target in zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True):
        after[target].append(source)
    works = zip(graph.op_seconds.tolist(), graph.op_bytes.tolist(), after, strict=True)
    ops = [
        simgrid.Op(seconds, int(size), tuple(graph.path(op).tolist()), tuple(before))
        for op, (seconds, size, before) in enumerate(works)
    ]
    return simgrid.Dag(tuple(graph.link_capacity_bytes_per_s.tolist()), tuple(ops))


def one_link_s(n: int) -> float:
    """Return the seconds to send all workers' tensors over the server's link."""
    return n * sum(FORWARD) / BYTES_PER_S


@functools.cache
def ring_s(n: int) -> float:
    """Return the makespan of the ring: a send begins when the previous sends of its sender and of
    the left neighbour have ended."""
    ends = np.zeros(n)
    for size, delays in zip(BACKWARD, delay_s(n), strict=True):
        for step in range(2 * (n - 1)):
            ends = np.maximum(ends, np.roll(ends, 1)) + size / n / BYTES_PER_S
            if step == 0:
                ends += delays
    return float(ends.max())


@dataclass(frozen=True)
class Task:
    """``ops`` and ``known_s`` (NaN: unknown) depend on n workers; ``sizes`` are the measured n.

    In ``ps_layers`` n is the number of layers.

    ``largest`` is the largest measured n by tool; tools that are missing do not support the task.
    """

    graph: Callable[[int], OpGraph]
    ops: Callable[[int], int]
    sizes: tuple[int, ...]
    largest: dict[str, int]
    known_s: Callable[[int], float] = lambda n: nan


_PS = {"reference": 4096, "perfmodel": 4096, "perfmodel-plain": 64, "simgrid": 512, "simpy": 512}

TASKS = {
    "ps_fifo": Task(
        lambda n: parameter_server("ps_fifo", n),
        lambda n: LAYERS * n,
        (8, 64, 512),
        _PS,
        one_link_s,
    ),
    "ps_burst": Task(
        lambda n: parameter_server("ps_burst", n),
        lambda n: LAYERS * n,
        (8, 64, 512),
        _PS,
        one_link_s,
    ),
    "ps_iter": Task(
        lambda n: parameter_server("ps_iter", n),
        lambda n: 4 * LAYERS * n,
        (8, 64, 512, 4096),
        _PS,
        lambda n: KNOWN_ITER_S.get(n, nan),
    ),
    "ps_layers": Task(
        lambda n: parameter_server("ps_iter", WORKERS, n),
        lambda n: 4 * n * WORKERS,
        (62, 124, 248, 496),
        {"reference": 496, "perfmodel": 496},
    ),
    "racks": Task(
        racks,
        lambda n: TRANSFERS * n,
        (64, 512),
        {"perfmodel": 512, "perfmodel-plain": 64, "simgrid": 512},
    ),
    "ring": Task(
        ring,
        lambda n: LAYERS * 2 * (n - 1) * n,
        (16, 256),
        {"reference": 16, "perfmodel": 256, "perfmodel-plain": 16},
        ring_s,
    ),
    "ring-folded": Task(
        ring_folded,
        lambda n: LAYERS * 2 * (n - 1),
        (1024,),
        {"perfmodel": 1024},
        lambda n: 2 * (n - 1) / n * sum(FORWARD) / BYTES_PER_S,
    ),
}
