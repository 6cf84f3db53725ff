"""Tests of formulas."""
