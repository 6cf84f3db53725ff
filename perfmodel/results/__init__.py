"""Results: a prediction, its timeline, its schedule, and what their figures and pages show."""
