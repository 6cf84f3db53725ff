"""Tests of compute times."""
