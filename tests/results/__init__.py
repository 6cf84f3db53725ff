"""Tests of the result types, figures and schedules."""
