"""Inputs of a prediction: profiles, devices, workloads, clusters and jobs."""
