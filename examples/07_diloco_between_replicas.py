"""Does DiLoCo pay between replicas? Llama 7B on four nodes of 2 x 4 A100s, joined by 1 to 100 Gbps.

A replica has two tensor-parallel devices in each of four stages. Either nodes hold stages, so that
activations pass the links between nodes, or each holds a replica, so that gradients or models do.

    python examples/07_diloco_between_replicas.py [PICTURE.png]
"""

import sys

from perfmodel import make_job, predict

GBPS = (1, 10, 100)
WAYS = {
    "ring, a stage per node": {"arch": "ring"},
    "ring, a replica per node": {"arch": "ring", "rank_order": "tp-pp-dp"},
    "DiLoCo, 30 steps": {"arch": "diloco", "rank_order": "tp-pp-dp", "options": {"period": 30}},
}


def prediction(way: dict, gbps: float):
    return predict(make_job(
        model="llama-7b", device="a100-80", workers=4, tensor=2, pipeline=4, batch_size=32,
        balance=True, bandwidth_bytes_per_s=gbps * 1e9 / 8, **way,
    ))  # fmt: skip


def main() -> None:
    rates = {}
    print("                          Gbps  samples/s  network  pipeline")
    for name, way in WAYS.items():
        for gbps in GBPS:
            found = prediction(way, gbps)
            waits = found.idle_fraction.by_cause
            rates.setdefault(name, []).append(found.throughput_samples_per_s)
            print(f"{name:25} {gbps:4} {rates[name][-1]:10.1f} {waits['network']:8.0%}"
                  f" {waits['pipeline']:9.0%}")  # fmt: skip
    print(f"layout: {found.layout.text}")
    if len(sys.argv) > 1:
        draw(rates, sys.argv[1])


def draw(rates: dict, path: str) -> None:
    from matplotlib.figure import Figure

    picture = Figure((6.4, 3.6), layout="tight")
    axes = picture.subplots()
    for name, rate in rates.items():
        axes.plot(GBPS, rate, marker="o", label=name)
    axes.set(
        xscale="log", xlabel="bandwidth between nodes (Gbps)", ylabel="samples/s", ylim=(0, None)
    )
    axes.legend()
    picture.savefig(path, dpi=80)


main()
