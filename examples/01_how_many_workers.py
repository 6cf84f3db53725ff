"""How many workers are worth paying for? ResNet-50 on V100s over 10 Gbps.

python examples/01_how_many_workers.py [PICTURE.png]
"""

import sys

from perfmodel import make_job, predict

WORKERS = (1, 2, 4, 8, 16, 32, 64)
WAYS = {
    "ring": {"arch": "ring"},
    "ps, 4 servers": {"arch": "ps", "options": {"servers": 4}},
    "ps, 1 server": {"arch": "ps"},
}
WORTH = 0.9  # of what each worker does alone


def main() -> None:
    answers = {}
    for name, way in WAYS.items():
        jobs = [make_job(model="resnet50", device="v100", workers=n, **way) for n in WORKERS]
        answers[name] = [predict(job) for job in jobs]
    print("samples/s of each worker" + "".join(f"{n:6}" for n in WORKERS) + "   worth paying for")
    for name, found in answers.items():
        each = [p.throughput_samples_per_s / n for p, n in zip(found, WORKERS, strict=True)]
        most = max(n for n, rate in zip(WORKERS, each, strict=True) if rate >= WORTH * each[0])
        print(f"{name:24}" + "".join(f"{rate:6.0f}" for rate in each) + f"   {most}")
    if len(sys.argv) > 1:
        draw(answers, sys.argv[1])


def draw(answers: dict, path: str) -> None:
    from matplotlib.figure import Figure

    picture = Figure((6.4, 4.0), layout="tight")
    axes = picture.subplots()
    for name, found in answers.items():
        (line,) = axes.plot(WORKERS, [p.throughput_samples_per_s for p in found], "o-", label=name)
        low, high = zip(*(p.interval.throughput_samples_per_s for p in found), strict=True)
        axes.fill_between(WORKERS, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="samples/s, with 90 % interval")
    axes.set_xticks(WORKERS, WORKERS)
    axes.legend()
    picture.savefig(path, dpi=80)


main()
