"""My model and my cluster are not in the catalogue. How many servers should they have?

python examples/03_own_model_and_cluster.py [PICTURE.png]
"""

import sys
from pathlib import Path

from perfmodel import (
    Cluster,
    Link,
    NodeOverride,
    Server,
    Source,
    Workload,
    WorkloadLayer,
    compare,
    make_job,
)

# name, forward and backward seconds, bytes of gradients in the order of the backward pass
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
    jobs = [
        make_job(workload=workload, cluster=cluster, workers=4, arch="ps", options={"servers": n})
        for n in (1, 2, 3, 4)
    ]
    found = compare(jobs, [f"servers {n}" for n in (1, 2, 3, 4)])
    for name, prediction in zip(found.names, found.predictions, strict=True):
        print(f"{name}: {prediction}")
    print(found.predictions[3].to_frame().round(3).to_string(index=False))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_bytes(found.to_image("png"))


main()
