"""Measures a network, and real training on it, in separate processes."""
