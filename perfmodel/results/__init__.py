"""Results: a prediction, its figures and its drawings."""
