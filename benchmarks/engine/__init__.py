"""``python -m benchmarks.engine``: compare the engine's speed with other simulators."""
