"""Tests of the inputs of predictions."""
