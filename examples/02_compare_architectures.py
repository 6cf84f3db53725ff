"""VGG-16 on V100s over 10 Gbps: a parameter server, synchronous or not, against a ring.

Asynchronous workers start at random offsets; the interval shows how much that matters here.
"""

from perfmodel import make_job, predict

WAYS = {
    "ps bsp": {"arch": "ps", "options": {"sync": "bsp"}},
    "ps asp": {"arch": "ps", "options": {"sync": "asp"}},
    "ring": {"arch": "ring"},
}


def main() -> None:
    print("samples/s with 95 % confidence interval, and idle fraction")
    print("workers " + "".join(f"{name:>22}" for name in WAYS))
    for workers in (2, 4, 8, 16):
        cells = []
        for way in WAYS.values():
            job = make_job(model="vgg16", device="v100", batch_size=64, workers=workers, **way)
            answer = predict(job)
            interval = answer.throughput_ci_fraction
            rate, idle = answer.throughput_samples_per_s, answer.idle_fraction.mean
            cells.append(f"{rate:.1f} ± {interval:.0%}, {idle:.0%}")
        print(f"{workers:7} " + "".join(f"{cell:>22}" for cell in cells))


main()
