"""Formulas from the literature: collectives, overlap, queues, contention, order statistics."""
