"""A replica of several devices: its stages, their work and memory, and its seats."""
