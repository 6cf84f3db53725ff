"""Tests of the simulator, on graphs of all kinds."""
