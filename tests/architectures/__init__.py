"""Tests of each architecture, and of what all have in common."""
