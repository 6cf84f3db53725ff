"""Tests of many jobs: grids, sweeps, executors, comparisons, convergence."""
