"""Studies of many predictions: sweeps, comparisons, advice, requirements, plans, convergence."""
