"""Results: a prediction, its figures, its schedule and its drawings."""
