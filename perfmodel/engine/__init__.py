"""Simulates any op graph until its rates are known, and measures what happens."""

from perfmodel.engine.measures import Measures, Span
from perfmodel.engine.simulation import first_iterations, makespan, simulate, timeline

__all__ = ["Measures", "Span", "first_iterations", "makespan", "simulate", "timeline"]
