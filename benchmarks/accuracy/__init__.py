"""Compare predictions with measured training runs, one module per source of measurements."""
