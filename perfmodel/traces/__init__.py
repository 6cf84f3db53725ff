"""Converts a PyTorch profiler trace to a workload, with communication removed."""
