"""``python -m benchmarks.engine [--workers N,N]``: speed of the engine beside other simulators.

Three tasks with one parameter server and ResNet-18 over links of 10 Gb/s:

- ``ps_fifo``: every worker sends its 62 tensors one after another.
- ``ps_burst``: every worker sends them all at time 0.
- ``ps_iter``: every worker computes 62 forward and 62 backward steps of fixed, uneven length, sends
  each gradient as it is ready, in order, then receives all 62 tensors one after another.

They are simulated by perfmodel, by SimGrid (C++) and SimPy where these are installed, and by a
reference in plain Python that knows these tasks only: every transfer shares the server's link with
all others in its direction, so that one counter of bytes per direction is enough. SimPy gets the
same link, since it has none. Each measurement is a process of its own and counts CPU seconds; of
several runs the fastest counts. Operations per second leave building out.
"""

from __future__ import annotations

import heapq
import importlib.util
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import click
import numpy as np

from perfmodel.engine import makespan
from perfmodel.graph import GraphBuilder, OpGraph
from tests import simgrid

BYTES_PER_S = 1.25e9
PHASES = {"ps_fifo": 1, "ps_burst": 1, "ps_iter": 4}
"""Operations per worker and tensor."""
KNOWN_ITER_S = {8: 0.6332018523, 64: 4.7847639343, 512: 38.296465799}
"""Makespans of ``ps_iter``, in all digits known, by another simulator of one shared link."""


def tensors() -> list[int]:
    """Bytes of the 62 parameter tensors of ResNet-18, first layer first."""
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
Processes = Generator[Any, Any, None]


def compute_s(workers: int) -> np.ndarray:
    """Seconds of each worker's 62 forward, then 62 backward steps: 40 ms, 80 ms, within 20 %."""
    worker, layer = np.ogrid[:workers, :LAYERS]
    phases = []
    for total, salt in ((0.040, 0), (0.080, 97)):
        h = (worker * 2654435761 + layer * 40503 + salt).astype(np.uint32)
        h = (h ^ (h >> 15)) * np.uint32(2246822519)
        h = h ^ (h >> 13)
        phases.append(total / LAYERS * (0.8 + 0.4 * h / 2**32))
    return np.concatenate(phases, axis=1)


def op_graph(task: str, n: int) -> OpGraph:
    """The task for perfmodel."""
    b = GraphBuilder()
    device, line = b.slots("device", (n,)), b.slots("line", (n, 2))
    nic = b.links("nic", np.full((n, 2), BYTES_PER_S))
    server = b.links("server", np.full(2, BYTES_PER_S))
    path = np.stack([nic, np.broadcast_to(server, (n, 2))], -1)
    queue = line[:, :1] if task != "ps_burst" else -1
    push = b.ops("push", (n, LAYERS), bytes=BACKWARD, path=path[:, :1], slot=queue)
    if task != "ps_burst":
        b.chain(push)
    if task != "ps_iter":
        return b.build(device=device, mark=push[:, -1])
    compute = b.ops("c", (n, 2 * LAYERS), seconds=compute_s(n), slot=device[:, None])
    pull = b.ops("pull", (n, LAYERS), bytes=FORWARD, path=path[:, 1:], slot=line[:, 1:])
    b.chain(compute)
    b.edge(compute[:, LAYERS:], push)
    b.edge(push[:, -1], pull[:, 0])
    b.chain(pull)
    return b.build(device=device, mark=pull[:, -1])


def dag(graph: OpGraph) -> simgrid.Dag:
    """The task for SimGrid. The ops on a slot are in a chain already."""
    after: list[list[int]] = [[] for _ in range(graph.n_ops)]
    for source, target in zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True):
        after[target].append(source)
    works = zip(graph.op_seconds.tolist(), graph.op_bytes.tolist(), after, strict=True)
    ops = [
        simgrid.Op(seconds, int(size), tuple(graph.path(op).tolist()), tuple(before))
        for op, (seconds, size, before) in enumerate(works)
    ]
    return simgrid.Dag(tuple(graph.link_capacity_bytes_per_s.tolist()), tuple(ops))


class Shared:
    """A link that all transfers on it share equally; it counts the bytes that each has got."""

    def __init__(self) -> None:
        self.got = self.since = 0.0
        self.heap: list[tuple[float, int, Any]] = []
        self.added = 0

    def _advance(self, now: float) -> None:
        if self.heap:
            self.got += (now - self.since) * BYTES_PER_S / len(self.heap)
        self.since = now

    def add(self, now: float, size: int, who: Any) -> None:
        self._advance(now)
        self.added += 1
        heapq.heappush(self.heap, (self.got + size, self.added, who))

    def next_s(self) -> float:
        if not self.heap:
            return inf
        left = max(self.heap[0][0] - self.got, 0.0)
        return self.since + left * len(self.heap) / BYTES_PER_S

    def pop(self, now: float) -> Any:
        self._advance(now)
        self.got = self.heap[0][0]
        return heapq.heappop(self.heap)[2]


class Reference:
    """The tasks, written out by hand."""

    def __init__(self, task: str, n: int) -> None:
        self.now, self.events = 0.0, []
        self.up, self.down = Shared(), Shared()
        self.iterates, self.burst = task == "ps_iter", task == "ps_burst"
        self.ready = [0 if self.iterates else LAYERS] * n
        self.sent, self.received, self.step = [0] * n, [0] * n, [0] * n
        self.compute = compute_s(n).tolist() if self.iterates else []
        for worker in range(n):
            if self.iterates:
                self.events.append((self.compute[worker][0], worker))
            else:
                for size in BACKWARD if self.burst else BACKWARD[:1]:
                    self.up.add(0.0, size, worker)
        heapq.heapify(self.events)

    def run(self) -> float:
        events, up, down = self.events, self.up, self.down
        while True:
            computed = events[0][0] if events else inf
            pushed, pulled = up.next_s(), down.next_s()
            now = min(computed, pushed, pulled)
            if now == inf:
                return self.now
            self.now = now
            if computed == now:
                self._computed(heapq.heappop(events)[1])
            elif pushed == now:
                self._pushed(up.pop(now))
            else:
                self._pulled(down.pop(now))

    def _computed(self, worker: int) -> None:
        step = self.step[worker] = self.step[worker] + 1
        if step < 2 * LAYERS:
            heapq.heappush(self.events, (self.now + self.compute[worker][step], worker))
        if step > LAYERS:
            self.ready[worker] += 1
            if self.ready[worker] == self.sent[worker] + 1:
                self.up.add(self.now, BACKWARD[self.sent[worker]], worker)

    def _pushed(self, worker: int) -> None:
        sent = self.sent[worker] = self.sent[worker] + 1
        if sent == LAYERS:
            if self.iterates:
                self.down.add(self.now, FORWARD[0], worker)
        elif sent < self.ready[worker] and not self.burst:
            self.up.add(self.now, BACKWARD[sent], worker)

    def _pulled(self, worker: int) -> None:
        received = self.received[worker] = self.received[worker] + 1
        if received < LAYERS:
            self.down.add(self.now, FORWARD[received], worker)


@dataclass(frozen=True)
class Run:
    makespan_s: float
    build_s: float
    simulate_s: float
    peak_mb: float


def peak_mb() -> float:
    """Peak memory of this process. Not getrusage: its peak begins with that of the parent."""
    status = Path("/proc/self/status")
    found = status.read_text().partition("VmHWM:")[2].split() if status.exists() else []
    return int(found[0]) / 1024 if found else nan


def timed(build: Callable[[], Callable[[], float]]) -> Run:
    """Build, then simulate."""
    begin = process_time()
    simulate = build()
    built = process_time()
    end_s = simulate()
    return Run(end_s, built - begin, process_time() - built, peak_mb())


def by_simgrid(task: str, n: int) -> Run:
    ends, (build_s, simulate_s, peak) = simgrid.run(simgrid.description(dag(op_graph(task, n))))
    return Run(float(ends.max()), build_s, simulate_s, peak)


def by_simpy(task: str, n: int) -> Run:
    import simpy

    env = simpy.Environment()

    class Link(Shared):
        """Wakes the sender whose transfer ends; a timer for a time that has moved does nothing."""

        def send(self, size: int) -> Any:
            event = env.event()
            self.add(env.now, size, event)
            self._set()
            return event

        def _set(self) -> None:
            version = self.version = getattr(self, "version", 0) + 1
            if self.heap:
                timer = env.timeout(max(self.next_s() - env.now, 0.0))
                timer.callbacks.append(lambda _: self._ended() if version == self.version else None)

        def _ended(self) -> None:
            self.pop(env.now).succeed()
            self._set()

    up, down = Link(), Link()

    def send(link: Link, sizes: Sequence[int], ready: Sequence[Any] = ()) -> Processes:
        for k, size in enumerate(sizes):
            if ready:
                yield ready[k]
            yield link.send(size)

    def iterate(steps: Sequence[float]) -> Processes:
        ready = [env.event() for _ in FORWARD]
        sender = env.process(send(up, BACKWARD, ready))
        for k, seconds in enumerate(steps):
            yield env.timeout(seconds)
            if k >= LAYERS:
                ready[k - LAYERS].succeed()
        yield sender
        yield from send(down, FORWARD)

    def build() -> Callable[[], float]:
        if task == "ps_iter":
            for steps in compute_s(n).tolist():
                env.process(iterate(steps))
        else:
            for _ in range(n):
                for sizes in [BACKWARD] if task == "ps_fifo" else [[s] for s in BACKWARD]:
                    env.process(send(up, sizes))
        return run

    def run() -> float:
        env.run()
        return max(up.since, down.since)

    return timed(build)


TOOLS: dict[str, Callable[[str, int], Run]] = {
    "reference": lambda task, n: timed(lambda: Reference(task, n).run),
    "perfmodel": lambda task, n: timed(lambda: partial(makespan, op_graph(task, n))),
    "simgrid": by_simgrid,
    "simpy": by_simpy,
}


def warm(tool: str, task: str, n: int) -> Run:
    """One measurement, after one of a single worker that loads whatever is loaded late."""
    TOOLS[tool](task, 1)
    return TOOLS[tool](task, n)


def measure(tool: str, task: str, n: int) -> Run:
    """One measurement in a process of its own, which SimGrid has anyway."""
    if tool == "simgrid":
        return by_simgrid(task, n)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(warm, tool, task, n).result()


def numbers(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter("expected whole numbers, such as 8,64") from None


@click.command()
@click.option("--workers", default="8,64,512", show_default=True, callback=numbers)
@click.option("--runs", type=click.IntRange(min=1), default=1, show_default=True)
def main(workers: list[int], runs: int) -> None:
    """Print one line per task, number of workers and simulator."""
    simpy = "" if importlib.util.find_spec("simpy") else "SimPy (PyPI package simpy) is missing"
    absent = {"simgrid": simgrid.missing(), "simpy": simpy}
    for tool in TOOLS:
        if absent.get(tool):
            click.echo(f"without {tool}: {absent[tool]}")
    tools = [tool for tool in TOOLS if not absent.get(tool)]
    click.echo(
        f"{'task':8} {'N':>4} {'ops':>7}  {'simulator':9} {'makespan':>15}  {'error':>7}"
        f" {'build':>8} {'simulate':>9} {'ops/s':>11} {'ratio':>6} {'peak':>7}"
    )
    for task in PHASES:
        for n in workers:
            results: dict[str, list[Run]] = {tool: [] for tool in tools}
            for _ in range(runs):
                for tool in tools:
                    results[tool].append(measure(tool, task, n))
            best = {t: min(got, key=lambda run: run.simulate_s) for t, got in results.items()}
            ops, known = PHASES[task] * LAYERS * n, n * sum(FORWARD) / BYTES_PER_S
            if task == "ps_iter":
                known = KNOWN_ITER_S.get(n, nan)
            for tool, run in best.items():
                error = abs(run.makespan_s / known - 1)
                click.echo(
                    f"{task:8} {n:4} {ops:7}  {tool:9} {run.makespan_s:13.10f} s  {error:7.0e}"
                    f" {run.build_s:6.3f} s {run.simulate_s:7.3f} s {ops / run.simulate_s:11,.0f}"
                    f" {best['reference'].simulate_s / run.simulate_s:5.2f}x {run.peak_mb:4.0f} MB"
                )


if __name__ == "__main__":
    main()
