"""Converts a trace of the PyTorch profiler to a workload, without communication."""
