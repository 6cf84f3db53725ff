"""What comes out: a prediction, its figures and its drawings."""
