"""``python -m benchmarks.layouts``: large replicas by the graph, many layouts by formulas."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from typing import Any

import perfmodel
from perfmodel import make_job, predict
from perfmodel.planning.decision import own_machine, profile_of
from perfmodel.planning.layout_fitting import Fitting, best_of
from perfmodel.planning.layout_space import Division, combinations_on
from perfmodel.results.memory import SURE

MOST_S, MOST_BYTES = 2.0, 500e6
"""Targets of the graph of 16,384 devices."""


def largest() -> tuple[float, float]:
    """Return the seconds, and the further peak memory (bytes), of predicting Llama 405B on 16,384
    devices: 16 stages of 7 chunks (its 126 blocks do not fill 8), 64 micro-batches, 8 devices that
    divide layers, 128 replicas."""
    job = make_job(
        model="llama-405b", device="h100", arch="ring", devices=16_384, tensor=8, pipeline=16,
        virtual_stages=7, micro_batches=64, batch_size=64, recompute="full", transfers="ahead",
    )  # fmt: skip
    before, begin = _peak_bytes(), time.perf_counter()
    predict(job)
    return time.perf_counter() - begin, _peak_bytes() - before


def _peak_bytes() -> float:
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def rate(numbers: int, stages: tuple[int, ...]) -> tuple[int, float]:
    """Return how many layouts were evaluated, and how many per second."""
    job = make_job(
        model="llama-70b", device="h100", arch="ring", devices=512, tensor=8, pipeline=4,
        micro_batches=32, batch_size=32, recompute="full", transfers="ahead",
    )  # fmt: skip
    begin = time.process_time()
    found = perfmodel.layouts(job, tensor=(2, 4, 8), pipeline=stages, virtual_stages=(1, 2),
                              micro_batches=range(1, numbers + 1))  # fmt: skip
    return len(found), len(found) / (time.process_time() - begin)


def whole(batches: Sequence[int]) -> tuple[int, int, float]:
    """Return how many shapes and layouts of Llama 405B on 16,384 devices were evaluated, and the
    seconds of one core: all powers of two of tensor parallelism up to 16, stages up to 64, chunks
    up to 4, micro-batches of up to 8 sequences, recomputation and sharding, with these global batch
    sizes."""
    job = make_job(
        model="llama-405b", device="h100", cluster="dgx-h100", arch="ring", devices=16_384,
        tensor=8, pipeline=16, micro_batches=64, batch_size=64, framework="megatron",
    )  # fmt: skip
    begin = time.process_time()
    found = perfmodel.layouts(
        job, tensor=(1, 2, 4, 8, 16), pipeline=(1, 2, 4, 8, 16, 32, 64), virtual_stages=(1, 2, 4),
        micro_batch_size=(1, 2, 4, 8), recompute=("none", "selective", "full"),
        arch=("ring", "zero1", "zero2", "zero3"), global_batch_size=batches,
    )  # fmt: skip
    took_s = time.process_time() - begin
    shapes = zip(found.tensor, found.pipeline, found.virtual_stages, found.micro_batch_size,
                 found.recompute, found.arch, strict=True)  # fmt: skip
    return len(set(shapes)), len(found), took_s


def of_sequences() -> tuple[int, float]:
    """Return how many layouts of Llama 70B on 64 devices were evaluated that divide sequences, and
    the seconds of one core."""
    job = make_job(
        model="llama-70b", device="h100", cluster="dgx-h100", arch="zero1", devices=64, tensor=8,
        pipeline=4, micro_batches=16, batch_size=16,
    )  # fmt: skip
    begin = time.process_time()
    found = perfmodel.layouts(
        job, tensor=(4, 8), context=(2, 4), pipeline=(2, 4, 8), virtual_stages=(1, 2),
        micro_batch_size=(1, 2), recompute=("none", "full"),
        arch=("ring", "zero1", "zero2", "zero3"), global_batch_size=(256,),
    )  # fmt: skip
    return len(found), time.process_time() - begin


BATCHES, STAGES = tuple(256 * 2**k for k in range(6)), (2, 4, 8, 16, 32, 64)
SCHEDULES = ("1f1b", "zb_h1", "gpipe", "interleaved_1f1b", "looped_bfs")
SPACES: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("plan", "llama-70b", 64, {}),
    ("plan", "llama-405b", 16_384, {}),
    ("plan", "mixtral-8x7b", 64, {}),
    ("with pipelines", "llama-70b", 512, {"schedule": SCHEDULES, "pipeline": STAGES,
                                          "context": (1, 2, 4), "global_batch_size": BATCHES}),
    ("with experts", "mixtral-8x7b", 64, {"schedule": SCHEDULES, "pipeline": STAGES[:-1],
                                          "global_batch_size": BATCHES}),
    ("without pipelines", "llama-8b", 64, {"pipeline": (1,), "context": (1, 2, 4, 8),
                                           "global_batch_size": range(64, 8193, 64)}),
    ("with pipelines", "llama-70b", 512, {"schedule": SCHEDULES, "pipeline": STAGES,
                                          "context": (1, 2, 4),
                                          "global_batch_size": range(512, 20_481, 512)}),
    ("without pipelines", "llama-8b", 64, {"pipeline": (1,), "context": (1, 2, 4, 8),
                                           "global_batch_size": range(64, 81_921, 64)}),
)  # fmt: skip
"""Spaces by name: model, H100 devices, and what differs from the default axes of a plan."""


def of_space(model: str, devices: int, axes: dict[str, Any]) -> tuple[int, int, float]:
    """Return how many layouts a plan considers, of how many of these the formulas are evaluated,
    and the seconds of one core until it has those that fit best, beginning with nothing."""
    profile, division = profile_of(model, None), Division(**axes)
    machine = own_machine("h100", "dgx-h100", profile)
    begin = time.process_time()
    choices = combinations_on(machine, profile, division, devices)
    possible = Fitting.of(choices, SURE)
    found = best_of(choices, possible)
    list(Fitting(found, SURE, needs=possible.needs).chosen())
    return len(possible.layouts), len(found), time.process_time() - begin


def main() -> None:
    """Print all figures, rates as ratios to predictions one by one as well."""
    took_s, memory = largest()
    print(f"16,384 devices by the graph: {took_s:.2f} s (target {MOST_S:g}), "
          f"{memory / 1e6:.0f} MB more (target {MOST_BYTES / 1e6:g})")  # fmt: skip
    job = make_job(model="llama-70b", device="h100", arch="ring", devices=512, tensor=8, pipeline=4,
                   micro_batches=32, batch_size=32, recompute="full")  # fmt: skip
    begin = time.process_time()
    for _ in range(10):
        predict(job, fidelity="coarse")
    one_by_one = 10 / (time.process_time() - begin)
    print(f"one by one: {one_by_one:.1f} layouts/s")
    for numbers, stages in ((64, (2, 4, 8, 16)), (4000, (2, 4, 8, 16)), (100_000, (2, 4))):
        count, per_s = rate(numbers, stages)
        print(f"{count} layouts, {numbers} numbers of micro-batches, stages {stages}: "
              f"{per_s:.0f}/s, {per_s / one_by_one:.0f} times one by one")  # fmt: skip
    for batches in ([2048], [1024 * 2**k for k in range(6)]):
        shapes, count, took_s = whole(batches)
        print(f"{count} layouts of {shapes} shapes, {len(batches)} global batch sizes: "
              f"{took_s:.1f} s of one core, {count / took_s:.0f}/s, "
              f"{count / took_s / one_by_one:.0f} times one by one")  # fmt: skip
    count, took_s = of_sequences()
    print(f"{count} layouts that divide sequences: {took_s:.1f} s, {count / took_s:.0f}/s, "
          f"{count / took_s / one_by_one:.0f} times one by one")  # fmt: skip
    for name, model, devices, axes in SPACES:
        count, full, took_s = of_space(model, devices, axes)
        print(f"{name}, {model} on {devices} devices: {count} layouts considered, {full} evaluated "
              f"in full: {took_s:.1f} s, {count / took_s:.0f} considered/s, "
              f"{count / took_s / one_by_one:.0f} times one by one")  # fmt: skip


if __name__ == "__main__":
    main()
