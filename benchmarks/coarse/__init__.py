"""The coarse model against the simulation, on a fixed grid of jobs."""
