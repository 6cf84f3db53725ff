"""Runs real SGD on the model versions of a schedule, for accuracy over predicted seconds."""
