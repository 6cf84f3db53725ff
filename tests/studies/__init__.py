"""Tests of many predictions at once."""
