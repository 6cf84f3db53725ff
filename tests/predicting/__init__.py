"""Tests of both routes, each against the other."""
