"""Fits a cluster to measured training runs."""
