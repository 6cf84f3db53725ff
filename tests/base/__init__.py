"""Tests of the helpers used everywhere."""
