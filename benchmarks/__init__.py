"""Benchmarks: accuracy against measured training runs, and speed against references."""
