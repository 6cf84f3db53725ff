"""Tests of the profiler."""
