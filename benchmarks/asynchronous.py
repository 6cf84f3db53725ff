"""``python -m benchmarks.asynchronous``: how long predictions of random asynchronous jobs take.

Jobs are drawn from models, clusters, architectures and their options, replicas, slow workers and
queues. With ``--rounds``, all workers are simulated for so many rounds, too, and errors are shown.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import click
import msgspec
import numpy as np

from perfmodel import InputError, Job, Straggler, build_graph, make_job, predict
from perfmodel.base.errors import TooLargeError
from perfmodel.engine.run import Simulation

MODELS = ("alexnet", "resnet18", "resnet50", "vgg16", "inception_v3", "densenet121", "bert-base")
STAGED = ("bert-large", "gpt2-medium", "llama-1b")
"""Models that may be divided into stages."""

EXPERTS = ("deepseek-v2-lite", "mixtral-8x7b")

CLUSTERS = ("ethernet-1g", "ethernet-10g", "ethernet-25g", "ethernet-100g", "infiniband-100g")
CLUSTERS += ("dgx-1", "dgx-a100", "dgx-h100")

ALLOWED = 0.005
"""What simulations of all may be off, too, as a fraction."""

LONG_S = 5.0
"""A prediction that takes longer is printed as it was drawn."""


def drawn(number: int, workers: int) -> Job:
    """Return a random job.

    Raises
    ------
    InputError : the options that were drawn exclude each other.
    """
    draw = random.Random(number)
    arch = draw.choice(["ps", "ps", "ps", "easgd", "gosgd", "ad_psgd"])
    given: dict[str, Any] = {"model": draw.choice(MODELS + STAGED)}
    if given["model"] in STAGED and draw.random() < 0.4:
        given |= {"pipeline": draw.choice([2, 4]), "micro_batches": 8}
    elif draw.random() < 0.1:
        among = draw.choice([2, 4, 8])
        given = {"model": draw.choice(EXPERTS), "tensor": among, "sequence_parallel": True}
        given |= {"expert": among, "expert_tensor": 1}
    if draw.random() < 0.6:
        given["jitter"] = draw.choice([0.02, 0.05, 0.1, 0.2])
    if draw.random() < 0.2:
        given["stragglers"] = [Straggler(draw.randrange(workers), draw.choice([1.5, 3.0]))]
    job = make_job(
        device=draw.choice(["v100", "a100", "h100"]),
        cluster=draw.choice(CLUSTERS),
        workers=workers,
        arch=arch,
        options=_options(draw, arch),
        seed=number,
        **given,
    )
    if draw.random() >= 0.2:
        return job
    limits = [{"queue_bytes": 1e5}, {"queue_bytes": 1e6}, {"queue_bytes": 1.2e7}]
    limits += [{"burst_bytes": 1e6}, {"burst_bytes": 1e7}]
    cluster = msgspec.structs.replace(job.cluster, **draw.choice(limits))
    return msgspec.structs.replace(job, cluster=cluster)


def _options(draw: random.Random, arch: str) -> dict[str, Any]:
    if arch == "gosgd":
        return {"probability": draw.choice([0.01, 0.1, 0.5, 1.0])}
    if arch == "ad_psgd":
        return {"overlap": draw.random() < 0.7}
    options: dict[str, Any] = {"servers": draw.choice([1, 2, 4, 8, 16, 32, 64])}
    if arch == "easgd":
        return options | {"period": draw.choice([1, 4, 10])}
    options["sync"] = draw.choice(["asp", "ssp"])
    if options["sync"] == "ssp":
        options["staleness_bound"] = draw.choice([1, 2, 3, 5, 10])
    elif draw.random() < 0.15:
        options["softsync"] = draw.choice([2, 8, 64])
    pushed = [{}, {}, {"overlap": False}, {"duplex": True}, {"duplex": True, "pull": "request"}]
    options |= draw.choice(pushed)
    if draw.random() < 0.3:
        orders = ["quantum", "shared", "priority", "random"]
        options["transmission"] = draw.choice(orders)
    if draw.random() < 0.2:
        options["partition_bytes"] = draw.choice([1e6, 4e6])
    if draw.random() < 0.2:
        options["compression"] = draw.choice(["top_k", "quantised"])
    if draw.random() < 0.15:
        options["sharding"] = "hash"
    return options


def in_the_long_run(job: Job, rounds: int) -> float:
    """Return the samples per second of all workers, all of them simulated, in the second half of so
    many rounds."""
    graph = build_graph(job)
    with Simulation(graph, job.seed + 1, steady=True) as run:
        run.advance(rounds // 2)
        begin = run.totals()
        run.advance(rounds)
        devices = len(graph.worker_group) / job.workers
        each = job.global_batch_size / job.workers
        return (run.totals() - begin).iterations_per_s(graph) / devices * each


def _described(job: Job) -> str:
    """The model, the architecture, and options that are not the default."""
    usual = msgspec.structs.asdict(type(job.options)())
    given = msgspec.structs.asdict(job.options)
    options = [f"{name}={value}" for name, value in given.items() if value != usual[name]]
    return " ".join([job.workload.name, job.architecture.name, *options])


def _line(name: str, values: Sequence[float], unit: str) -> str:
    middle, ninety, last = np.quantile(values, [0.5, 0.9, 0.99])
    parts = f"median {middle:.2g}, p90 {ninety:.2g}, p99 {last:.2g}, worst {max(values):.2g}"
    return f"{name}: {parts} {unit}"


@click.command()
@click.option("--jobs", default=100, show_default=True, help="Jobs that are drawn.")
@click.option("--workers", default=1024, show_default=True, help="Workers of each.")
@click.option("--seed", default=0, show_default=True, help="Number of the first job.")
@click.option("--rounds", default=0, help="Rounds of all workers to compare with; 0: none.")
def main(jobs: int, workers: int, seed: int, rounds: int) -> None:
    """Print how long predictions take, and how far they are from simulations of all workers."""
    seconds: list[float] = []
    errors: list[float] = []
    outside = 0
    for number in range(seed, seed + jobs):
        try:
            job = drawn(number, workers)
        except InputError:
            continue
        begin = time.perf_counter()
        try:
            found = predict(job, fidelity="fine")
        except TooLargeError as error:
            click.echo(f"{number}: {error}, {_described(job)}")
            continue
        seconds.append(time.perf_counter() - begin)
        if seconds[-1] > LONG_S:
            click.echo(f"{number}: {seconds[-1]:.1f} s, {_described(job)}")
        if rounds:
            whole = in_the_long_run(job, rounds)
            error = abs(found.throughput_samples_per_s / whole - 1.0)
            errors.append(100.0 * error)
            if error > found.throughput_ci_fraction + ALLOWED:
                outside += 1
                width = 100.0 * found.throughput_ci_fraction
                click.echo(f"{number}: {errors[-1]:.1f} % off, +-{width:.1f} %, {_described(job)}")
    click.echo(_line(f"time of {len(seconds)} jobs", seconds, "s"))
    if errors:
        click.echo(_line("error against all workers", errors, "%"))
        click.echo(f"outside the interval by more than {100.0 * ALLOWED:g} points: {outside}")


if __name__ == "__main__":
    main()
