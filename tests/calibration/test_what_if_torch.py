"""A real job of four processes, two stages of two tensor parallel ranks, is replayed."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from perfmodel.calibration.exchange_times import TraceChange
from perfmodel.calibration.what_if import TracedRanks

torch = pytest.importorskip("torch")

RANKS, MICRO_BATCHES, STEPS = 4, 3, 3
PASS_S = 0.05
"""A pass sleeps so long: computing that four processes can do on few cores."""

SLOW, FACTOR = 3, 2.0


def worker(rank: int, port: int, folder: str, factor: float) -> None:
    """A rank of the job; ranks 2 and 3 are the second stage."""
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    tensor, first, peer = groups[rank // 2], rank < 2, (rank + 2) % RANKS
    data = torch.zeros(1000)

    def compute() -> None:
        time.sleep(PASS_S * (factor if rank == SLOW else 1.0))
        dist.all_reduce(data, group=tensor)

    def step() -> None:
        for _ in range(MICRO_BATCHES):
            if not first:
                dist.recv(data, peer)
            compute()
            if first:
                dist.send(data, peer)
        for _ in range(MICRO_BATCHES):
            if first:
                dist.recv(data, peer)
            compute()
            if not first:
                dist.send(data, peer)

    when = schedule(wait=1, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=when) as traced:
        for _ in range(STEPS + 2):
            step()
            traced.step()
    traced.export_chrome_trace(f"{folder}/rank{rank}.json")
    dist.destroy_process_group()


def run(folder: Path, factor: float) -> TracedRanks:
    from torch import multiprocessing

    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments: Any = (port, str(folder), factor)
    multiprocessing.spawn(worker, args=arguments, nprocs=RANKS)
    return TracedRanks(sorted(folder.glob("rank*.json")))


@pytest.mark.slow
def test_a_slow_rank_of_a_real_job_can_be_as_others(tmp_path: Path) -> None:
    """By hand a step takes eight passes: one of the first stage, six of the second, one of the
    first. With a slow rank six of them take twice as long; without it the job is the other one."""
    even, uneven = run(tmp_path / "even", 1.0), run(tmp_path / "uneven", FACTOR)
    assert even.step_s == pytest.approx(8 * PASS_S, rel=0.25)
    assert uneven.step_s == pytest.approx((2 + 6 * FACTOR) * PASS_S, rel=0.25)
    for told in (even, uneven):
        assert told.error == pytest.approx(0.0, abs=0.05)
        assert {(k.kind, k.per_step) for k in told.kinds} == {("2x1", 12.0), ("p2p", 12.0)}
    assert uneven.slow.keys() == {SLOW}
    without = uneven.replay(TraceChange(as_others=(SLOW,))).step_s
    assert without == pytest.approx(even.step_s, rel=0.1)
