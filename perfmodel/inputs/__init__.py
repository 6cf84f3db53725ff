"""What a prediction is made from: profiles, devices, workloads, clusters and jobs."""
