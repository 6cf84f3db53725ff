"""Runs small training jobs and records how fast they are."""
