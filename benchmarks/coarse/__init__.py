"""Compare the coarse model with the simulation on random jobs."""
