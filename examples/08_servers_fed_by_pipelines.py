"""How many pipelines can asynchronous servers serve? GPT-2 small, four stages of A100s each.

Each worker is a pipeline of four stages. It sends gradients to four parameter servers and goes on
with their parameters, without waiting for other workers. More workers make gradients staler, and
wait longer for the servers than for other stages.

    python examples/08_servers_fed_by_pipelines.py [PICTURE.png]
"""

import sys

from perfmodel import make_job, predict

WORKERS = (1, 2, 4, 8)
CAUSES = ("pipeline", "network", "server")


def main() -> None:
    waits = {cause: [] for cause in CAUSES}
    print("workers  samples/s  staleness  " + "  ".join(CAUSES))
    for workers in WORKERS:
        found = predict(make_job(
            model="gpt2-small", device="a100", sequence_length=1024, batch_size=64,
            pipeline=4, micro_batches=16, balance=True, workers=workers,
            arch="asp", options={"servers": 4}, jitter=0.05,
        ))  # fmt: skip
        for cause in CAUSES:
            waits[cause].append(found.idle_fraction.by_cause.get(cause, 0.0))
        shares = "".join(f"{waits[c][-1]:>{len(c) + 2}.0%}" for c in CAUSES)
        print(f"{workers:7} {found.throughput_samples_per_s:10.0f} {found.staleness.mean:10.1f} "
              f"{shares}")  # fmt: skip
    print(f"bottleneck: {found.bottleneck.text}")
    if len(sys.argv) > 1:
        draw(waits, sys.argv[1])


def draw(waits: dict, path: str) -> None:
    from matplotlib.figure import Figure

    picture = Figure((6.4, 3.6), layout="tight")
    axes = picture.subplots()
    below = [0.0] * len(WORKERS)
    names = [str(workers) for workers in WORKERS]
    for cause, parts in waits.items():
        axes.bar(names, [100 * part for part in parts], bottom=below, label=f"waiting: {cause}")
        below = [low + 100 * part for low, part in zip(below, parts, strict=True)]
    axes.set(xlabel="workers (pipelines of four stages)", ylabel="% of the time", ylim=(0, 100))
    axes.legend(loc="upper left")
    picture.savefig(path, dpi=80)


main()
