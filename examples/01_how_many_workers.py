"""How many workers are worth paying for? ResNet-50 on V100s over 10 Gbps.

python examples/01_how_many_workers.py [PICTURE.png]
"""

import sys
from itertools import groupby
from pathlib import Path

from perfmodel import sweep

WORKERS = [1, 2, 4, 8, 16, 32, 64]
WORTH = 0.9  # least throughput per worker, relative to a single worker


def main() -> None:
    found = sweep(
        model="resnet50", device="v100", cluster="ethernet-10g",
        workers=WORKERS, arch=["ring", "ps"],
        options={"servers": [4, 1]}, fidelity="fine",
    )  # fmt: skip
    print("samples/s per worker    " + "".join(f"{n:6}" for n in WORKERS) + "   worth paying for")
    for (arch, servers), rows in groupby(found.rows(), lambda row: (row["arch"], row["servers"])):
        each = [row["throughput_samples_per_s"] / row["workers"] for row in rows]
        most = max(n for n, rate in zip(WORKERS, each, strict=True) if rate >= WORTH * each[0])
        name = f"{arch}, servers {servers}" if servers else arch
        print(f"{name:24}" + "".join(f"{rate:6.0f}" for rate in each) + f"   {most}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_bytes(found.to_image("png"))


main()
