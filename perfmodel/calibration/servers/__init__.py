"""Fits parameter servers to measured runs."""
