"""Measuring a network, and real training on it, as processes of their own."""
