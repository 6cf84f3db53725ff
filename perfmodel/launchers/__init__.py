"""Reads what launchers and their configurations say about a job, as arguments of a job."""
