"""Tests of fits, on what is known."""
