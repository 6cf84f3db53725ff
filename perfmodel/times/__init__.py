"""Compute times of layers: by operators, on other devices, and of layers that devices divide."""
