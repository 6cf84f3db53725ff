"""Runs short training jobs and records their iteration times, idleness and staleness."""
