"""Measure one task with one simulator, or ``perfmodel predict``, each in its own process."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from multiprocessing import get_context
from pathlib import Path
from time import thread_time
from typing import Any

from benchmarks.engine.reference import ParameterServer, Ring, Shared
from benchmarks.engine.tasks import BACKWARD, FORWARD, LAYERS, TASKS, WORKERS, compute_s, dag
from perfmodel.engine.simulation import makespan, prepare
from tests import simgrid

Processes = Generator[Any, Any, None]
Simulate = Callable[[], float]

COMMAND = (
    *("predict", "--model", "resnet50", "--arch", "ps", "--sync", "asp"),
    *("--workers", "64", "--jitter", "0.05", "--rel-ci", "1%"),
)
HELPER = """
import resource, subprocess, sys, time
begin = time.perf_counter()
subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""
"""A small intermediate process: the peak memory of a process starts at that of its parent."""


@dataclass(frozen=True)
class Run:
    """CPU seconds of building and simulating; for ``predict``, wall seconds as simulating."""

    makespan_s: float
    build_s: float
    simulate_s: float
    peak_mb: float


def peak_mb() -> float:
    """Return the peak memory of this process. Not from getrusage, whose peak starts at that of the
    parent."""
    status = Path("/proc/self/status")
    found = status.read_text().partition("VmHWM:")[2].split() if status.exists() else []
    return int(found[0]) / 1024 if found else nan


def timed(build: Callable[[], Simulate]) -> Run:
    """Build the graph, then simulate it."""
    begin = thread_time()
    simulate = build()
    built = thread_time()
    end_s = simulate()
    return Run(end_s, built - begin, thread_time() - built, peak_mb())


def by_perfmodel(task: str, n: int, *, compiled: bool) -> Simulate:
    graph = TASKS[task].graph(n)
    prepare(graph, compiled=compiled)
    return partial(makespan, graph, compiled=compiled)


def by_reference(task: str, n: int) -> Simulate:
    if task == "ring":
        return Ring(n).run
    if task == "ps_layers":
        return ParameterServer("ps_iter", WORKERS, n).run
    return ParameterServer(task, n).run


def by_simpy(task: str, n: int) -> Simulate:
    """Run the task in SimPy, with the reference's shared link because SimPy has none."""
    import simpy

    env = simpy.Environment()

    class Link(Shared):
        """Wakes the senders whose transfers end; resets a timer that fires early."""

        timer: Any = None
        until = inf

        def send(self, size: int) -> Any:
            event = env.event()
            self.add(env.now, size, event)
            self._set()
            return event

        def _set(self) -> None:
            until = self.next_s()
            if until < self.until:
                self.until = until
                self.timer = env.timeout(max(until - env.now, 0.0))
                self.timer.callbacks.append(self._rings)

        def _rings(self, timer: Any) -> None:
            if timer is not self.timer:
                return
            self.until = inf
            if self.next_s() <= env.now:
                self.pop(env.now).succeed()
                while self.heap and self.heap[0][0] == self.got:
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

    def run() -> float:
        env.run()
        return max(up.since, down.since)

    if task == "ps_iter":
        for steps in compute_s(n).tolist():
            env.process(iterate(steps))
    else:
        for _ in range(n):
            for sizes in [BACKWARD] if task == "ps_fifo" else [[s] for s in BACKWARD]:
                env.process(send(up, sizes))
    return run


TOOLS: dict[str, Callable[[str, int], Simulate]] = {
    "perfmodel": partial(by_perfmodel, compiled=True),
    "perfmodel-plain": partial(by_perfmodel, compiled=False),
    "reference": by_reference,
    "simpy": by_simpy,
}


@functools.cache
def description(task: str, n: int) -> str:
    """Return the task in the format of SimGrid's driver."""
    return simgrid.description(dag(TASKS[task].graph(n)))


def by_simgrid(task: str, n: int, optim: str) -> Run:
    """Run SimGrid's driver, which measures itself."""
    words = [str(simgrid.binary()), optim]
    done = subprocess.run(
        words, input=description(task, n), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    build_s, simulate_s, peak = map(float, done.stderr.split())
    return Run(max(map(float, done.stdout.split())), build_s, simulate_s, peak)


def warm(tool: str, task: str, n: int) -> Run:
    """Measure once, after a small measurement that triggers late imports."""
    TOOLS[tool](task, 2)()
    return timed(partial(TOOLS[tool], task, n))


def measure(tool: str, task: str, n: int, optim: str) -> Run:
    """Measure once in a separate process, which SimGrid has anyway."""
    if tool == "simgrid":
        return by_simgrid(task, n, optim)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(warm, tool, task, n).result()


def predict() -> Run:
    """Measure the whole command."""
    script = shutil.which("perfmodel", path=str(Path(sys.executable).parent))
    tool = (script,) if script else (sys.executable, "-m", "perfmodel")
    words = [sys.executable, "-S", "-c", HELPER, *tool, *COMMAND]
    done = subprocess.run(words, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.partition("Traceback")[0].strip() or done.stderr)
    wall_s, peak = map(float, done.stdout.split())
    return Run(nan, nan, wall_s, peak)


def deviation(task: str, n: int) -> float:
    """Return the largest relative difference of op end times between perfmodel and SimGrid."""
    same = dag(TASKS[task].graph(n))
    return simgrid.deviation(simgrid.by_engine(same), simgrid.by_simgrid(same))


def missing() -> dict[str, str]:
    """Return, for each simulator that is not installed, why it cannot run."""
    found = {"simgrid": simgrid.missing()}
    if importlib.util.find_spec("simpy") is None:
        found["simpy"] = "SimPy (PyPI package simpy) is missing"
    return {tool: reason for tool, reason in found.items() if reason}
