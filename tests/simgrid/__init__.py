"""Graphs of delays and transfers, run by the engine and independently by SimGrid."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import NONE
from perfmodel.engine.simulation import Simulation
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph

SOURCE = Path(__file__).with_name("oracle.cpp")
BUILT = Path(__file__).parents[2] / "build" / "simgrid"
NEEDED = "SimGrid (Debian package libsimgrid-dev) and g++ are needed for this oracle"

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Op:
    """Waits for ``after``, then ``seconds``, then moves ``bytes`` over ``path``.

    Its successors wait ``latency_s`` longer.
    """

    seconds: float = 0.0
    bytes: int = 0
    path: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    latency_s: float = 0.0
    rate_cap_bytes_per_s: float = float("inf")
    slot: int = NONE


@dataclass(frozen=True)
class Dag:
    """Ops that run once, over links of ``capacity`` (bytes/s).

    Slots are for the engine only: the ops on a slot have to be in a chain, so that SimGrid, which
    has no slots, serves them in the same order.
    """

    capacity: tuple[float, ...]
    ops: tuple[Op, ...]

    def scaled(self, link: int, factor: float) -> Dag:
        """The same graph with one link faster or slower."""
        capacity = list(self.capacity)
        capacity[link] *= factor
        return replace(self, capacity=tuple(capacity))

    def without(self, link: int) -> Dag:
        """The same graph with one link removed from every path."""
        ops = (replace(op, path=tuple(x for x in op.path if x != link)) for op in self.ops)
        return replace(self, ops=tuple(ops))


@functools.cache
def missing() -> str:
    """Why the oracle cannot be built here; empty if it can be."""
    compiler = shutil.which("g++")
    if compiler is None:
        return NEEDED
    probe = "#if !__has_include(<simgrid/s4u.hpp>)\n#error\n#endif\n"
    header = subprocess.run(
        [compiler, "-std=c++17", "-E", "-x", "c++", "-"],
        input=probe,
        text=True,
        capture_output=True,
        check=False,
    )
    return "" if header.returncode == 0 and library().is_absolute() else NEEDED


def library() -> Path:
    """SimGrid, whose resolved name has its version; a relative path if it is missing."""
    words = ["g++", "-print-file-name=libsimgrid.so"]
    printed = subprocess.run(words, text=True, capture_output=True, check=True).stdout
    return Path(printed.strip())


@functools.cache
def binary() -> Path:
    """The oracle, built once for each version of its source and of SimGrid."""
    version = hashlib.sha256(SOURCE.read_bytes() + str(library().resolve()).encode()).hexdigest()
    target = BUILT / version
    if not target.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as folder:
            made = Path(folder) / "oracle"
            words = ["g++", "-std=c++17", "-O0", "-w", str(SOURCE), "-o", str(made), "-lsimgrid"]
            subprocess.run(words, check=True)
            made.replace(target)  # another process may have built it meanwhile
    return target


def description(dag: Dag) -> str:
    """The graph in the oracle's input format.

    A rate cap becomes a separate link of the op, a latency one more op before its successors.
    """
    capacity, ops = list(dag.capacity), list(dag.ops)
    awaited = list(range(len(ops)))
    for k, op in enumerate(dag.ops):
        if op.rate_cap_bytes_per_s < float("inf"):
            ops[k] = replace(op, path=(*op.path, len(capacity)))
            capacity.append(op.rate_cap_bytes_per_s)
        if op.latency_s > 0.0:
            awaited[k] = len(ops)
            ops.append(Op(seconds=op.latency_s, after=(k,)))
    lines = [f"{len(capacity)} {len(ops)}", *map(repr, capacity)]
    for k, op in enumerate(ops):
        after = op.after if k >= len(dag.ops) else [awaited[before] for before in op.after]
        numbers = [op.bytes, len(op.path), *op.path, len(after), *after]
        lines.append(f"{op.seconds!r} {' '.join(map(str, numbers))}")
    return "\n".join([*lines, ""])


def run(text: str) -> tuple[Times, tuple[float, float, float]]:
    """End of every op, CPU seconds for building and simulating, and peak memory in MB."""
    done = subprocess.run([str(binary())], input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    building, simulating, peak = map(float, done.stderr.split())
    return np.array(done.stdout.split(), np.float64), (building, simulating, peak)


def by_simgrid(dag: Dag) -> Times:
    """End of every op according to SimGrid."""
    return run(description(dag))[0][: len(dag.ops)]


def graph(dag: Dag) -> OpGraph:
    """The op graph of one iteration."""
    b = GraphBuilder()
    b.links("link", dag.capacity)
    slots = b.slots("slot", (max((op.slot for op in dag.ops), default=NONE) + 2,))
    widest = max(len(op.path) for op in dag.ops) or 1
    ids = b.ops(
        "op",
        (len(dag.ops),),
        seconds=[op.seconds for op in dag.ops],
        bytes=[op.bytes for op in dag.ops],
        path=[[*op.path, *[NONE] * (widest - len(op.path))] for op in dag.ops],
        latency_s=[op.latency_s for op in dag.ops],
        rate_cap_bytes_per_s=[op.rate_cap_bytes_per_s for op in dag.ops],
        slot=[op.slot for op in dag.ops],
    )
    edges = [(source, target) for target, op in enumerate(dag.ops) for source in op.after]
    sources, targets = np.array(edges, np.int64).reshape(-1, 2).T
    b.edge(ids[sources], ids[targets])
    return b.build(device=slots[-1:], mark=ids[-1:])


def by_engine(dag: Dag, compiled: bool | None = None) -> Times:
    """End of every op according to the engine; each runs once."""
    ends = np.full(len(dag.ops), np.nan)
    with Simulation(graph(dag), 0, compiled, limit=1, record=range(1)) as run:
        run.drain()
        for span in run.spans():
            ends[span.op] = span.end_s
    return ends


def deviation(a: Times, b: Times) -> float:
    """The largest relative difference; NaN (an op that never ended) stays NaN."""
    largest = np.maximum(np.abs(a), np.abs(b))
    parts = np.divide(np.abs(a - b), largest, out=np.zeros_like(a), where=largest != 0.0)
    return float(np.max(parts, initial=0.0))
