"""A model and a cluster described in code: no file, nothing of the catalogue."""

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

for servers in (1, 2, 4):
    job = make_job(
        workload=workload, cluster=cluster, workers=4, arch="ps", options={"servers": servers}
    )
    prediction = predict(job)
    print(f"{servers} servers: {prediction}")
    print(prediction.to_frame().round(3).to_string(index=False))
