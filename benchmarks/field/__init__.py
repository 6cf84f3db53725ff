"""Runs that people reported in public threads, with the speed of one device and of several."""
