"""Predictions against measured training runs, one module per source of measurements."""
