"""Tests of studies of many predictions."""
