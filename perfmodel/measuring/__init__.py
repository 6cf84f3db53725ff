"""Measures networks and short training runs, with one process per rank."""
