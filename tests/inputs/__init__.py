"""Tests of what predictions are made from."""
