"""Simulations and predictions that run in several threads at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from perfmodel import build_graph, make_job
from perfmodel.base.errors import PerfmodelError
from perfmodel.engine.run import Simulation, advance_all
from perfmodel.graph.op_graph import OpGraph

PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
from perfmodel import make_job, predict

ARCHS = "ps ring asp p2p d_psgd easgd gosgd fsdp".split()
barrier, found = threading.Barrier(len(ARCHS)), {}

def go(arch):
    barrier.wait()
    job = make_job(model="resnet18", arch=arch, workers=4)
    found[arch] = predict(job, fidelity="coarse").throughput_samples_per_s

threads = [threading.Thread(target=go, args=(arch,)) for arch in ARCHS]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(found.items()))
"""


def crashes(processes: int) -> list[int]:
    """Exit codes of processes that failed; all others must print the same."""
    codes, said = [], set()
    for _ in range(processes):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, encoding="utf-8", check=False
        )
        if done.returncode or done.stderr:
            codes.append(done.returncode)
        else:
            said.add(done.stdout)
    assert len(said) <= 1
    return codes


@pytest.mark.slow
def test_first_predictions_from_eight_threads() -> None:
    assert crashes(3) == []


@pytest.mark.family("many draws")
@pytest.mark.slow
def test_first_predictions_from_eight_threads_of_50_processes() -> None:
    assert crashes(50) == []


def asynchronous() -> OpGraph:
    return build_graph(make_job(model="resnet18", arch="asp", workers=4, jitter=0.1))


def test_simulations_at_the_same_time_are_as_they_are_alone() -> None:
    graph = asynchronous()
    with Simulation(graph, 1) as one, Simulation(graph, 2) as two, Simulation(graph, 3) as third:
        advance_all([one, two], 20)
        advance_all([one, two, third], 30)
        found = [run.totals() for run in (one, two, third)]
    for seed, totals in enumerate(found, 1):
        with Simulation(graph, seed) as alone:
            alone.advance(20)
            alone.advance(30)
            expected = alone.totals()
        assert totals.time == expected.time
        np.testing.assert_array_equal(totals.iterations, expected.iterations)


def test_an_error_in_one_simulation_ends_the_others() -> None:
    """Rather than that these go on for 20 s."""
    graph = asynchronous()
    with Simulation(graph, 1) as one, Simulation(graph, 2) as two:
        one.stop()
        with pytest.raises(PerfmodelError, match="stopped"):
            advance_all([one, two], 200_000)
        assert two.rounds < 100_000


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot interrupt a thread")
def test_an_interrupt_ends_all_simulations_before_it_is_raised() -> None:
    graph = asynchronous()
    with Simulation(graph, 1) as one, Simulation(graph, 2) as two:
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            advance_all([one, two], 2_000_000)
        rounds = one.rounds, two.rounds
        assert max(rounds) < 1_000_000
        time.sleep(0.3)
        assert (one.rounds, two.rounds) == rounds
