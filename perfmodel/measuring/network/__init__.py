"""Measures the links and collectives of a cluster."""
