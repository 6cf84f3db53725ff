"""My model and my cluster are not in the catalogue. How many servers should they have?

python examples/03_own_model_and_cluster.py [PICTURE.png]
"""

import sys

from perfmodel import (
    Cluster,
    Link,
    NodeOverride,
    Server,
    Source,
    Workload,
    WorkloadLayer,
    make_job,
    predict,
)

# name, forward and backward seconds, bytes of the gradients in the order backward makes them
layers = [
    WorkloadLayer("embedding", 0.002, 0.004, (40e6,)),
    WorkloadLayer("encoder", 0.030, 0.060, (1e3, 25e6)),
    WorkloadLayer("head", 0.005, 0.010, (4e3, 10e6)),
]
workload = Workload.of("tagger", layers, batch_size=32, device="lab GPU", optimizer_s=0.003)
cluster = Cluster(
    name="lab",
    nic=Link(bandwidth_bytes_per_s=25e9 / 8, latency_s=10e-6, efficiency=0.9),
    overrides=(NodeOverride(node=2, speed=0.8),),  # the third node is older
    server=Server(placement="colocated", update_per_tensor_s=10e-6, update_per_byte_s=0.2e-9),
    source=Source("estimated", "data sheet of the switch"),
)


def main() -> None:
    answers = {}
    for servers in (1, 2, 3, 4):
        job = make_job(
            workload=workload, cluster=cluster, workers=4, arch="ps", options={"servers": servers}
        )
        answers[servers] = predict(job)
        print(f"servers {servers}: {answers[servers]}")
    print(answers[4].to_frame().round(3).to_string(index=False))
    if len(sys.argv) > 1:
        draw(answers, sys.argv[1])


def draw(answers: dict, path: str) -> None:
    from matplotlib.figure import Figure

    picture = Figure((6.4, 3.6), layout="tight")
    axes = picture.subplots()
    below = [0.0] * len(answers)
    for cause in ("compute", *answers[1].idle_fraction.by_cause):
        parts_s = [
            (p.idle_fraction.by_cause[cause] if cause != "compute" else 1 - p.idle_fraction.mean)
            * p.iteration_s
            for p in answers.values()
        ]
        axes.bar([str(n) for n in answers], parts_s, bottom=below, label=cause)
        below = [a + b for a, b in zip(below, parts_s, strict=True)]
    axes.set(xlabel="servers", ylabel="seconds of an iteration")
    axes.legend()
    picture.savefig(path, dpi=80)


main()
