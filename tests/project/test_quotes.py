"""Figures of docs/accuracy.md that other pages quote."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchmarks.accuracy.sources import SOURCES
from perfmodel.catalogue import catalogue

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "other-tools.md"
UPDATE = os.environ.get("PERFMODEL_UPDATE_OUTPUTS") == "1"
QUOTE = r"[\d.]+ % \(median\), [\d.]+ % \(nine in ten\)"


def quoted(group: str, accuracy: str) -> str:
    """Errors of a group of runs, in words, as the table of its source on the page has them."""
    row = (
        rf"^\| {group} \| \d+ \| ([\d.]+)% \| ([\d.]+)% \| [\d.]+% \| [-\d.]+% \| \d+% \| [\d.]+% /"
    )
    found = re.search(row, accuracy, re.M)
    assert found is not None, group
    return f"{found[1]} % (median), {found[2]} % (nine in ten)"


def renewed(page: str, accuracy: str) -> str:
    """The page on other tools with the figures of the page on accuracy."""
    for tool, source in (("vTrain", "vtrain_llm"), ("SimuMax", "simumax_b200")):
        (row,) = re.findall(rf"^\| {tool}: .*$", page, re.M)
        new = row
        for old, part in zip(re.findall(QUOTE, row), ("estimated", "anchored"), strict=True):
            new = new.replace(old, quoted(f"{source}/{part}", accuracy))
        page = page.replace(row, new)
    return page


def test_errors_beside_other_tools_are_those_of_the_page_on_accuracy() -> None:
    accuracy = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    now = renewed(page, accuracy)
    if UPDATE:
        PAGE.write_text(now, encoding="utf-8", newline="\n")
        page = now
    assert now == page, "PERFMODEL_UPDATE_OUTPUTS=1 rewrites the page"
    assert len(re.findall(QUOTE, page)) == 4


def test_canary_other_errors_are_noticed() -> None:
    accuracy = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    page = renewed(PAGE.read_text(encoding="utf-8"), accuracy)
    first = re.search(QUOTE, page)
    assert first is not None
    assert renewed(page.replace(first[0], "1 % (median), 2 % (nine in ten)"), accuracy) == page


@pytest.mark.parametrize(
    "words",
    [
        f"{len(catalogue.model_names())} models, {len(catalogue.device_names())} devices and "
        f"{len(catalogue.cluster_names())} clusters come with it",
        f"measured runs of {len(SOURCES)} sources",
    ],
)
def test_the_changelog_counts_what_there_is(words: str) -> None:
    assert words in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
