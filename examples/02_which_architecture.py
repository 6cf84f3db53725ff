"""Which architecture suits which link? VGG-16 on eight V100s, from 1 to 100 Gbps.

The formulas handle all bandwidths at once: one call of `evaluate` per training algorithm.

    python examples/02_which_architecture.py [PICTURE.png]
"""

import sys

import numpy as np

from perfmodel import evaluate, make_job

GBPS = np.geomspace(1, 100, 201)
ENOUGH = 500  # samples/s
WAYS = {
    "ring": {"arch": "ring"},
    "ps, 8 servers": {"arch": "ps", "options": {"servers": 8}},
    "ps, asynchronous": {"arch": "asp", "options": {"servers": 8}},
    "p2p": {"arch": "p2p"},
    "local SGD, 8 steps": {"arch": "local_sgd", "options": {"period": 8}},
}


def main() -> None:
    rates = {}
    for name, way in WAYS.items():
        job = make_job(
            model="vgg16", device="v100", cluster="ethernet-100g", batch_size=16, workers=8, **way
        )
        found = evaluate(job, bandwidth_bytes_per_s=GBPS * 1e9 / 8)
        rates[name] = found.throughput_samples_per_s
    shown = "".join(f"{g:>6.0f} Gbps" for g in GBPS[::50])
    print(f"samples/s at        {shown}   {ENOUGH} at")
    for name, rate in rates.items():
        needed = np.interp(ENOUGH, rate, GBPS, right=np.inf)
        cells = "".join(f"{each:11.0f}" for each in rate[::50])
        print(f"{name:20}{cells}   {f'{needed:.0f} Gbps' if needed < np.inf else '-'}")
    if len(sys.argv) > 1:
        draw(rates, sys.argv[1])


def draw(rates: dict, path: str) -> None:
    from matplotlib.figure import Figure

    picture = Figure((6.4, 4.0), layout="tight")
    axes = picture.subplots()
    for name, rate in rates.items():
        axes.plot(GBPS, rate, label=name)
    axes.set(xscale="log", xlabel="bandwidth (Gbps)", ylabel="samples/s", ylim=(0, None))
    axes.legend()
    picture.savefig(path, dpi=80)


main()
