"""Tests of both routes, and of each against the other."""
