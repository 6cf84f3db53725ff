"""Tests of predictions against measured runs."""
