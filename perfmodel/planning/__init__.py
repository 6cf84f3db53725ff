"""Choosing machines, workers, architecture and batch size for a training run."""
