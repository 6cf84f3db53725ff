"""Formulas of the literature: collectives, overlap, queues, contention and order statistics."""
