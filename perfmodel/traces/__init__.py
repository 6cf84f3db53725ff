"""From the trace of a PyTorch profiler to a workload, with communication taken out."""
