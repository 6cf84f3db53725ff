"""Tests of each architecture, and of what holds for all."""
