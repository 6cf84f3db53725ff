"""Tests of the simulator on various graphs."""
