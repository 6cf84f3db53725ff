"""New processes whose first predictions run in several threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
