"""Tests of perfmodel."""
