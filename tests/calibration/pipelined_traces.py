"""Traces as jobs with NCCL leave them, of two pipeline stages of one or two ranks each.

Every kernel is where the schedule puts it, by hand: forward passes of all micro-batches, then
backward passes. The host launches everything early.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.traces.test_traces import COMPUTE, MAIN, Made

MICRO_BATCHES = 3
TENSOR, PAIRED = 30, 20
"""Streams of all-reduces, and of sends and receives."""

ACTIVATION, PARTIAL = 1_000_000, 500_000
"""Elements (float) of a message, and of an all-reduce."""

WAIT = "cudaStreamWaitEvent"


@dataclass(frozen=True)
class Kernel:
    """A kernel of a rank, in microseconds of its step; ``waits`` for streams, and ``exchange``."""

    name: str
    stream: int
    start: float
    end: float
    waits: bool = False
    exchange: dict[str, Any] = field(default_factory=dict)


@dataclass
class Pipeline:
    """The job: two stages of ``tensor`` ranks; times in microseconds.

    A forward pass takes ``forward``, a backward pass ``backward``, each with an all-reduce of
    ``reduce`` if a stage has two ranks; a message ``message``; the update ``update``. Rank r
    computes ``slower[r]`` times as long.
    """

    forward: float = 1000.0
    backward: float = 2000.0
    message: float = 100.0
    reduce: float = 200.0
    update: float = 500.0
    tensor: int = 1
    slower: Sequence[float] = (1.0, 1.0, 1.0, 1.0)

    @property
    def ranks(self) -> int:
        return 2 * self.tensor

    def step(self) -> list[list[Kernel]]:
        """Kernels of each rank in a step, in the order of launch; all ranks begin at 0."""
        made: list[list[Kernel]] = [[] for _ in range(self.ranks)]
        free = [0.0] * self.ranks
        sent = [0.0] * self.ranks  # end of the last message of a rank
        stages = [range(self.tensor), range(self.tensor, self.ranks)]
        arrivals: list[list[float]] = [[] for _ in range(self.ranks)]
        for _ in range(MICRO_BATCHES):
            ready = self._compute(made, free, stages[0], self.forward, [0.0] * self.ranks)
            for r in stages[0]:
                start = max(ready[r], sent[r])
                sent[r] = start + self.message
                made[r].append(self._message("send", r, r + self.tensor, start, sent[r]))
                arrivals[r + self.tensor].append(sent[r])
        for r in stages[1]:
            begin = 0.0
            for end in arrivals[r]:
                made[r].append(self._message("recv", r, r - self.tensor, begin, end))
                begin = end
            sent[r] = begin
        for m in range(MICRO_BATCHES):
            gate = [arrivals[r][m] if r in stages[1] else 0.0 for r in range(self.ranks)]
            self._compute(made, free, stages[1], self.forward, gate)
        gradients: list[list[float]] = [[] for _ in range(self.ranks)]
        posted = list(sent)
        for _ in range(MICRO_BATCHES):
            ready = self._compute(made, free, stages[1], self.backward, [0.0] * self.ranks)
            for r in stages[1]:
                start = max(ready[r], sent[r])
                sent[r] = start + self.message
                made[r].append(self._message("send", r, r - self.tensor, start, sent[r]))
                gradients[r - self.tensor].append(sent[r])
        for r in stages[0]:
            begin = max(posted[r], free[r])
            for end in gradients[r]:
                made[r].append(self._message("recv", r, r + self.tensor, begin, end))
                begin = end
        for m in range(MICRO_BATCHES):
            gate = [gradients[r][m] if r in stages[0] else 0.0 for r in range(self.ranks)]
            self._compute(made, free, stages[0], self.backward, gate)
        for r in range(self.ranks):
            end = free[r] + self.update * self.slower[r]
            made[r].append(Kernel("adam", COMPUTE, free[r], end))
        return made

    def _compute(
        self,
        made: list[list[Kernel]],
        free: list[float],
        stage: Sequence[int],
        takes: float,
        gate: Sequence[float],
    ) -> dict[int, float]:
        """A pass on the ranks of a stage, after ``gate``; when its result is ready."""
        done = {}
        for r in stage:
            start = max(free[r], gate[r])
            done[r] = start + takes * self.slower[r]
            made[r].append(Kernel("gemm", COMPUTE, start, done[r], waits=gate[r] > 0.0))
        if self.tensor == 1:
            free[stage[0]] = done[stage[0]]
            return done
        end = max(done.values()) + self.reduce
        for r in stage:
            told = {
                "Collective name": "allreduce",
                "In msg nelems": PARTIAL,
                "Out msg nelems": PARTIAL,
                "Process Group Name": str(1 + stage[0] // 2),
                "Process Group Ranks": str(list(stage)),
                "Group size": 2,
            }
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            made[r].append(Kernel(name, TENSOR, done[r], end, exchange=told))
            made[r].append(Kernel("add", COMPUTE, end, end, waits=True))
            free[r] = end
        return dict.fromkeys(stage, end)

    def _message(self, way: str, rank: int, peer: int, start: float, end: float) -> Kernel:
        told = {
            "Collective name": way,
            "In msg nelems": ACTIVATION,
            "Out msg nelems": ACTIVATION,
            "Process Group Name": str(5 + rank % self.tensor),
            "Process Group Ranks": str(sorted([rank, peer])),
            "Group size": 2,
            ("Dst Rank" if way == "send" else "Src Rank"): str(peer),
        }
        return Kernel("ncclDevKernel_SendRecv", PAIRED, start, end, exchange=told)

    def write(self, folder: Path, steps: int = 2, skew: float = 0.0) -> list[Path]:
        """Traces of all ranks; the clock of rank r is ``skew * r`` ahead.

        The first stage ends last, and begins the next step then.
        """
        kernels = self.step()
        length = max(k.end for each in kernels for k in each)
        paths = []
        for rank, each in enumerate(kernels):
            made, begin = Made(), skew * rank
            for n in range(steps):
                begin = self._write_step(made, each, begin, skew * rank + n * length, n)
            data = {
                "traceEvents": made.events,
                "deviceProperties": made.properties,
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self.ranks},
            }
            paths.append(folder / f"rank{rank}.json")
            paths[-1].write_text(json.dumps(data))
        return paths

    def _write_step(
        self, made: Made, kernels: Sequence[Kernel], begin: float, zero: float, n: int
    ) -> float:
        """A step whose works are launched at its begin, a tenth of a microsecond apart.

        The host then waits for the device; returns when that is done.
        """
        end = zero + max(k.end for k in kernels)
        made.host(f"ProfilerStep#{n}", begin, end, cat="user_annotation")
        at = begin
        for kernel in kernels:
            at += 0.1
            start = at if kernel.start == 0.0 else max(kernel.start + zero, at)
            if kernel.waits:
                made._add("cuda_runtime", WAIT, 100, MAIN, at, at, {})
                at += 0.01
            if kernel.exchange:
                told = {"dtype": "Float", **kernel.exchange}
                made.host("record_param_comms", at - 0.02, at + 0.05, MAIN, **told)
                made._add("cuda_runtime", WAIT, 100, MAIN, at - 0.01, at, {})
            made.kernel(at, start, max(kernel.end + zero, start), kernel.name, MAIN, kernel.stream)
        made._add("cuda_runtime", "cudaDeviceSynchronize", 100, MAIN, at + 0.01, end, {})
        return end
