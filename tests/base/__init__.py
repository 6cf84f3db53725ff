"""Tests of what every room uses."""
