"""The two routes from a job to a prediction: simulation and formulas."""
