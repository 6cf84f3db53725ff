"""``python -m benchmarks.engine``: speed of the engine beside other simulators, on known tasks."""
