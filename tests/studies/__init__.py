"""Tests of studies of one job."""
