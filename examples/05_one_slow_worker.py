"""What does one slow worker cost? ResNet-50 on four V100s over 5 Gbps; one takes 1.5 times as long.

Throughput counts processed samples; it does not say how fast training converges. Staleness and
model age show how far the workers' models may drift apart.

    python examples/05_one_slow_worker.py [PICTURE.png]
"""

import sys

from perfmodel import Straggler, make_job, predict

SERVERS = {"servers": 2}
WAYS = {
    "bsp": SERVERS,
    "ssp": {**SERVERS, "staleness_bound": 3},
    "asp": SERVERS,
    "ring": {},
    "zero3": {},
    "local_sgd": {"period": 8},
    "d_psgd": {},
    "easgd": {**SERVERS, "period": 4},
    "ad_psgd": {},
    "gosgd": {"probability": 0.1},
}


def rate(name: str, *slow: Straggler):
    job = make_job(
        model="resnet50", device="v100", cluster="ethernet-10g", workers=4,
        bandwidth_bytes_per_s=5e9 / 8,
        arch=name, options=WAYS[name], stragglers=slow,
    )  # fmt: skip
    return predict(job, rel_ci=0.05)


def main() -> None:
    print("architecture  samples/s  vs no straggler  idle   staleness  model age")
    kept = {}
    for name in WAYS:
        answer, alike = rate(name, Straggler(0, 1.5)), rate(name)
        kept[name] = answer.throughput_samples_per_s / alike.throughput_samples_per_s
        age = f"{answer.model_age.mean:.1f} steps" if answer.model_age else "-"
        idle = f"{answer.idle_fraction.mean:5.1%}"
        print(
            f"{name:12}  {answer.throughput_samples_per_s:9.0f}  {kept[name]:15.0%}  {idle}"
            f" {answer.staleness.mean:10.2f}  {age:>9}"
        )
    if len(sys.argv) > 1:
        draw(kept, sys.argv[1])


def draw(kept: dict, path: str) -> None:
    from matplotlib.figure import Figure

    picture = Figure((6.4, 3.6), layout="tight")
    axes = picture.subplots()
    axes.bar(list(kept), [100 * part for part in kept.values()], color="#4c78a8")
    axes.axhline(
        100 / 4 * (3 + 1 / 1.5), color="0.4", linestyle=":", label="what the devices can still do"
    )
    axes.set(ylabel="% of the throughput\nwithout a slow worker", ylim=(0, 100))
    axes.tick_params(axis="x", rotation=45)
    axes.legend(loc="lower right")
    picture.savefig(path, dpi=80)


main()
