"""Many predictions at once: sweeps, comparisons, crossovers and formulas."""
