"""Tests of the command line as a whole: what all commands have in common."""
