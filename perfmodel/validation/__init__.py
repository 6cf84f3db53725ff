"""Compares predictions with measurements: cases in files, errors by group."""

from perfmodel.validation.cases import Case, Cases, MeasuredValues, read_cases, shipped_cases
from perfmodel.validation.scores import Summary, summarise
from perfmodel.validation.validate import CaseScores, Validation, validate

__all__ = [
    "Case",
    "CaseScores",
    "Cases",
    "MeasuredValues",
    "Summary",
    "Validation",
    "read_cases",
    "shipped_cases",
    "summarise",
    "validate",
]
