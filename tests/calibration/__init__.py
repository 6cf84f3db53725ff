"""Tests of fits on data with a known truth."""
