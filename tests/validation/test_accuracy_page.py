"""The page on accuracy: what is written of a source, and whether goals that were missed show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from benchmarks.accuracy import fitted
from benchmarks.accuracy.cases import About, Case, Split
from benchmarks.accuracy.page import Found, page
from benchmarks.accuracy.scaling import Case as Estimate
from benchmarks.accuracy.sources import SOURCES, adapter
from benchmarks.accuracy.summaries import summarise
from benchmarks.accuracy.targets import LIMITS, TARGETS

ABOUT = About(
    title="Rings in the lab",
    citation='Nobody, "Rings", 2020',
    folder="lab_rings",
    splits={"few": Split("the small ones", "the large ones")},
    remarks="They are *round*.",
)


def source(errors: Sequence[float]) -> Found:
    cases = [
        Case(
            "dlperf/few/net",
            f"run {i}",
            1.0 + error,
            1.0,
            interval=(0.9, 1.1),
            pools=("dlperf/few",),
            others={"ideal scaling": 0.5},
            setting="net",
            samples=float(1 + i),
        )
        for i, error in enumerate(errors)
    ]
    return Found("dlperf", ABOUT, cases, summarise(cases))


POOL = "adsp/waiting:idle"


class Entry(msgspec.Struct):
    rows: int


@pytest.fixture
def fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted, "FOLDER", tmp_path)
    fitted.write("dlperf", {"few/a": Entry(7), "few/b": Entry(9), "all": Entry(99)})


@pytest.mark.usefixtures("fits")
def test_all_of_a_source_is_written() -> None:
    text = page([source([0.01, -0.02, 0.03])], {"between": [Estimate("between", "net", 0.25)]})
    assert "## Rings in the lab" in text
    assert "python -m benchmarks.accuracy dlperf DATA/lab_rings" in text
    assert "| few | the small ones (7 to 9 rows) | the large ones |" in text
    assert "| dlperf/few/net | 3 | 2.0% | 2.8% | 3.0% | 0.7% | 100% | 50.0% / 50.0% |" in text
    assert "run 2: 1.03 s predicted, 1 s measured (+3%)" in text
    assert "They are *round*." in text
    assert "| dlperf/few | 1 | 1.00 | 1.00 | 100% |" in text
    assert "| between | 1 | 1 | 0.25 | 0.25 | 0.25 |" in text


@pytest.mark.parametrize(
    ("errors", "reached"),
    [([0.01] * 9, "yes"), ([0.06] * 9, "no"), ([0.01] * 7 + [0.2] * 3, "no")],
)
@pytest.mark.usefixtures("fits")
def test_a_goal_that_was_missed_shows(errors: list[float], reached: str) -> None:
    text = page([source(errors)], {})
    row = next(line for line in text.splitlines() if line.startswith("| dlperf/few | "))
    assert f"| 5% / 15% | {reached} |" in row
    assert "ideal scaling 50.0% / 50.0%" in row


@pytest.mark.parametrize(("errors", "reached"), [([0.01, -0.08], "yes"), ([0.01, 0.12], "no")])
def test_idleness_is_judged_by_its_mean_error(errors: list[float], reached: str) -> None:
    cases = [
        Case("adsp/waiting/BSP:idle", "w", 0.3 + error, 0.3, relative=False, pools=(POOL,))
        for error in errors
    ]
    text = page([Found("adsp", ABOUT, cases, summarise(cases))], {})
    mean = sum(map(abs, errors)) / 2
    assert f"| {POOL} | 2 | mean {mean:.3f} | 0.05 | {reached} |" in text


def test_goals_are_of_sources_that_there_are() -> None:
    for target in TARGETS:
        assert target.group.partition("/")[0] in SOURCES
        assert 0.0 < target.median < target.p90 < 1.0
    for limit in LIMITS:
        assert limit.group.partition("/")[0] in SOURCES


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_says_what_it_is(name: str) -> None:
    about = adapter(name).ABOUT
    assert about.title
    assert about.citation
    assert about.folder
    assert about.splits
    assert not about.remarks.startswith((" ", "\n"))
