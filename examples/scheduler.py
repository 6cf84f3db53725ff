"""A cluster scheduler: 200 jobs share 600 GPUs, which are redistributed every second.

Each job has a link of its own, whose free bandwidth changes. For all jobs of one kind, a single
call of `evaluate` computes their throughput with 1 to 32 workers. Larger batches use their samples
less efficiently (McCandlish and others, 2018): goodput is throughput times this efficiency. The
next GPUs go to the job that gains most per GPU, relative to its goodput on one GPU. For comparison,
the same jobs also run with equal shares. To keep the example short, one second between two plans
does the work of a minute.

    python examples/scheduler.py [JOBS [GPUS [SECONDS]]]
"""

import heapq
import sys
from time import perf_counter
from typing import NamedTuple

import numpy as np

from perfmodel import evaluate, make_job

KINDS = [("resnet50", 64), ("resnet18", 128), ("vgg16", 32), ("inception_v1", 64), ("alexnet", 256)]
GIVEN = {"device": "v100", "cluster": "ethernet-100g", "arch": "ring", "workers": 8}
JOBS = [make_job(model=m, batch_size=b, **GIVEN) for m, b in KINDS]
MOST, MINUTE_S = 32, 60.0
WORKERS = np.arange(MOST + 1)


class Train(NamedTuple):
    """A training job: its kind, noise scale (samples), useful work (samples) and arrival (s)."""

    kind: int
    noise: float
    work: float
    arrival: int


def trains(jobs: int, seconds: int) -> list[Train]:
    """``jobs`` at the start, and as many again that arrive later, at random."""
    draw = np.random.default_rng(0)
    found = []
    for number in range(2 * jobs):
        kind = int(draw.integers(len(KINDS)))
        alone = float(evaluate(JOBS[kind], workers=1).throughput_samples_per_s)
        work = alone * MINUTE_S * seconds * draw.lognormal(0.0, 0.7)
        arrival = 0 if number < jobs else int(draw.integers(seconds))
        found.append(Train(kind, 10.0 ** draw.uniform(2.0, 4.5), work, arrival))
    return found


def goodputs(running: list[Train], rates: np.ndarray) -> np.ndarray:
    """Useful samples per second, of shape (jobs, MOST + 1): with 0 to MOST workers."""
    found = np.zeros((len(running), MOST + 1))
    for kind, (_, batch) in enumerate(KINDS):
        mine = [i for i, one in enumerate(running) if one.kind == kind]
        if mine:
            known = evaluate(
                JOBS[kind], workers=WORKERS[1:], bandwidth_bytes_per_s=rates[mine][:, None]
            )
            noise = np.array([running[i].noise for i in mine])[:, None]
            use = (noise + batch) / (noise + batch * WORKERS[1:])
            found[mine, 1:] = known.throughput_samples_per_s * use
    return found


def marginal(goodput: np.ndarray, gpus: int) -> np.ndarray:
    """GPUs per job, given where they gain most per GPU; several at once if that gains more each."""
    speedup = goodput / goodput[:, 1:2]
    given = np.zeros(len(goodput), int)

    def best(i: int) -> tuple[float, int, int]:
        ahead = speedup[i, given[i] + 1 :] - speedup[i, given[i]]
        each = ahead / WORKERS[1 : len(ahead) + 1]
        k = int(each.argmax())
        return -float(each[k]), i, k + 1

    heap = [best(i) for i in range(len(goodput))]
    heapq.heapify(heap)
    while heap and gpus:
        gain, i, more = heapq.heappop(heap)
        if gain < 0.0 and more <= gpus:
            given[i] += more
            gpus -= more
            if given[i] < MOST:
                heapq.heappush(heap, best(i))
    return given


def equal(goodput: np.ndarray, gpus: int) -> np.ndarray:
    """GPUs per job in equal shares; the first jobs get the remainder."""
    jobs = len(goodput)
    return np.minimum(gpus // jobs + (np.arange(jobs) < gpus % jobs), MOST)


def simulate(share, todo: list[Train], gpus: int, seconds: int) -> tuple[np.ndarray, list[float]]:
    """Seconds from arrival to end per job (inf if unfinished), and seconds per planning step."""
    draw = np.random.default_rng(1)
    links = 10.0 ** draw.uniform(8.5, 9.5, len(todo))  # free bytes per second
    left = np.array([one.work for one in todo])
    took, planning_s = np.full(len(todo), np.inf), []
    for second in range(seconds):
        links = np.clip(links * draw.lognormal(0.0, 0.05, len(todo)), 1e8, 3e9)
        there = [i for i, one in enumerate(todo) if one.arrival <= second and left[i] > 0.0]
        begin = perf_counter()
        goodput = goodputs([todo[i] for i in there], links[there])
        given = share(goodput, gpus)
        planning_s.append(perf_counter() - begin)
        assert given.sum() <= gpus
        left[there] -= goodput[np.arange(len(there)), given] * MINUTE_S
        for i in there:
            if left[i] <= 0.0:
                took[i] = second + 1 - todo[i].arrival
    return took, planning_s


def main(jobs: int = 200, gpus: int = 600, seconds: int = 60) -> None:
    todo = trains(jobs, seconds)
    took, planning_s = simulate(marginal, todo, gpus, seconds)
    before, _ = simulate(equal, todo, gpus, seconds)
    ended = np.isfinite(before) & np.isfinite(took)
    print(f"a plan for about {jobs} jobs on {gpus} GPUs: {1e3 * np.median(planning_s):.0f} ms")
    print(f"finished in {seconds} s: {np.isfinite(took).sum()}, with equal shares "
          f"{np.isfinite(before).sum()}")  # fmt: skip
    times = took[ended].mean() / before[ended].mean()
    print(f"sooner: {(took < before).sum()} jobs, later: {(took > before).sum()}; "
          f"jobs that finish with both take {times:.2f} times as long")  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
