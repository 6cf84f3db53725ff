"""Who waits for whom: ResNet-50 on four V100s over 5 Gbps, of which one takes 1.5 times as long.

Throughput is what the devices get done, not how fast training converges. Staleness and model age
say how far apart the workers' models may be meanwhile.
"""

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


def main() -> None:
    print("architecture  samples/s            idle  staleness  model age")
    for name, options in WAYS.items():
        job = make_job(
            model="resnet50", device="v100", workers=4, bandwidth_bytes_per_s=5e9 / 8,
            arch=name, options=options, stragglers=[Straggler(0, 1.5)],
        )  # fmt: skip
        answer = predict(job, rel_ci=0.05)
        rate = f"{answer.throughput_samples_per_s:.0f} ± {answer.throughput_ci_fraction:.1%}"
        age = f"{answer.model_age.mean:.1f} steps" if answer.model_age else "-"
        idle = f"{answer.idle_fraction.mean:.1%}"
        print(f"{name:12}  {rate:14} {idle:>10} {answer.staleness.mean:10.2f}  {age:>9}")


main()
