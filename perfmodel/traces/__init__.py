"""Reads PyTorch profiler traces: as a workload without communication, or as works of a rank."""
