"""Every result has a picture, or is named here with the reason why it has none."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

import perfmodel

ROOMS = (
    *("results", "predicting", "replay", "sweeping", "studies", "planning"),
    *("measuring", "calibration", "validation"),
)
"""Rooms that make results."""

SHOWS = ("to_dict", "to_json", "to_frame", "frame", "report", "plot")
"""Methods of results; a class without any of them is a result if it is a public name."""

WITHOUT: Mapping[str, str] = {
    "calibration.traced.Replay": "its prediction has pictures",
    "calibration.what_if.WhatIf": "the traces themselves are pictures",
    "measuring.training.measure.RankReport": "a message between processes",
    "predicting.options.PredictOptions": "an input",
    "predicting.variants.Variants": "arrays over axes that only the caller knows",
    "studies.advice.Recommendation": "a bar in the picture of Advice",
    "studies.aims.Aim": "an input",
    "sweeping.convergence.TrainingSetup": "an input",
    "studies.crossovers.Crossover": "a line in the picture of an Explanation",
    "studies.observables.Measured": "an input",
    "studies.formulas.Formula": "symbols, without numbers",
    "planning.search.PlanLimits": "an input",
    "planning.plans.Candidate": "a point in the picture of a Plan",
    "studies.reports.Report": "a page, which has all pictures",
    "sweeping.layouts.Layouts": "a table, of which a report draws what it shows",
    "sweeping.tables.Tabular": "what results with rows have in common",
}


def classes() -> dict[str, type]:
    """Public classes of the rooms that make results, by module and name."""
    root = Path(perfmodel.__file__).parent
    found: dict[str, type] = {}
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            for name, each in inspect.getmembers(module, inspect.isclass):
                if each.__module__ == module.__name__ and not name.startswith("_"):
                    found[f"{module.__name__}.{name}".removeprefix("perfmodel.")] = each
    return found


def without_a_picture(found: Mapping[str, type]) -> list[str]:
    """Results that have no picture."""
    public = [getattr(perfmodel, name) for name in perfmodel.__all__]
    results = {
        name
        for name, each in found.items()
        if any(hasattr(each, m) for m in SHOWS) or each in public
    }
    return sorted(name for name in results if not hasattr(found[name], "to_image"))


def test_every_result_has_a_picture() -> None:
    assert without_a_picture(classes()) == sorted(WITHOUT)


def test_canary_a_result_without_a_picture_is_seen() -> None:
    class Table(msgspec.Struct):
        def to_frame(self) -> None:
            """A result without a picture."""

    assert without_a_picture({"Table": Table, "Prediction": perfmodel.Prediction}) == ["Table"]


@pytest.mark.parametrize("name", [n for n in perfmodel.__all__ if n[0].isupper()])
def test_public_names_with_pictures_write_files_too(name: str) -> None:
    found = getattr(perfmodel, name)
    assert hasattr(found, "plot") == hasattr(found, "to_image")
