"""The accuracy page: the text of each source, and the marking of missed goals."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import msgspec
import numpy as np
import pytest

from benchmarks.accuracy import fitted
from benchmarks.accuracy.cases import About, Case, Split
from benchmarks.accuracy.page import (
    BEGIN,
    END,
    LAST,
    PAGE,
    README,
    SUMMARY,
    Found,
    page,
    with_sections,
    with_summary,
)
from benchmarks.accuracy.scaling import Case as Estimate
from benchmarks.accuracy.sources import SOURCES, adapter
from benchmarks.accuracy.summaries import attainable, chance_of_right, coverage, summarise
from benchmarks.accuracy.targets import COVERED, LIMITS, TARGETS
from perfmodel import cli
from perfmodel.base.errors import InputError
from perfmodel.catalogue import catalogue
from tests.measured import predicted_cases
from tests.settings import SOURCE_TESTS

ABOUT = About(
    title="Rings in the lab",
    citation='Nobody, "Rings", 2020',
    folder="lab_rings",
    commands="perfmodel predict --arch ring\n",
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


@pytest.mark.slow
@pytest.mark.usefixtures("fits")
def test_all_parts_of_a_source_are_written() -> None:
    text = page([source([0.01, -0.02, 0.03])], {"between": [Estimate("between", "net", 0.25)]})
    assert "## Rings in the lab" in text
    assert "python -m benchmarks.accuracy dlperf DATA/lab_rings" in text
    assert "| few | the small ones (7 to 9 rows) | the large ones |" in text
    assert "| dlperf/few/net | 3 | 2.0% | 2.8% | 3.0% | 0.7% | 100% | 50.0% / 50.0% |" in text
    assert "run 2: 1.03 s predicted, 1 s measured (+3%)" in text
    assert "They are *round*." in text
    assert "\n    perfmodel predict --arch ring\n" in text
    assert "| dlperf/few | 1 | 1.00 | 1.00 | 100% |" in text
    assert "| between | 1 | 1 | 0.25 | 0.25 | 0.25 |" in text


@pytest.mark.parametrize(
    ("errors", "reached"),
    [([0.01] * 9, "yes"), ([0.06] * 9, "no"), ([0.01] * 7 + [0.2] * 3, "no")],
)
@pytest.mark.usefixtures("fits")
def test_a_missed_goal_is_marked(errors: list[float], reached: str) -> None:
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


def test_sections_are_renewed_or_added_in_their_order() -> None:
    text = page([source([0.01, -0.02, 0.03])], {})
    renewed = with_sections(text, [source([0.5])])
    assert renewed.count("## " + ABOUT.title + "\n") == 1
    assert "(+50%)" in renewed
    assert "(+50%)" not in text
    without = text.replace("## " + ABOUT.title, "## Another")
    added = with_sections(without, [source([0.5])])
    assert added.index("## Another") < added.index("## " + ABOUT.title) < added.index(LAST)
    with pytest.raises(InputError, match="Estimated compute times"):
        with_sections("nothing", [source([0.5])])


def test_goals_refer_to_existing_sources() -> None:
    for target in TARGETS:
        assert target.group.partition("/")[0] in SOURCES
        assert 0.0 < target.median < target.p90 < 1.0
    for limit in LIMITS:
        assert limit.group.partition("/")[0] in SOURCES


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_has_a_description(name: str) -> None:
    about = adapter(name).ABOUT
    assert about.title
    assert about.citation
    assert about.folder
    assert about.splits
    assert "perfmodel" in about.commands
    assert not about.remarks.startswith((" ", "\n"))


# -- intervals -------------------------------------------------------------------------------------


def with_interval(width: float, group: str = "dlperf/few/net") -> list[Case]:
    """A hundred runs with errors up to 10 % in either direction, and intervals of the given
    width."""
    return [
        Case(group, f"run {i}", 1.0, 1.0 + off, interval=(1.0 - width, 1.0 + width))
        for i, off in enumerate(np.linspace(-0.1, 0.1, 100).tolist())
    ]


@pytest.mark.parametrize(
    ("width", "inside", "reached"), [(0.09, "90%", "yes"), (0.2, "100%", "no"), (0.05, "50%", "no")]
)
@pytest.mark.usefixtures("fits")
def test_intervals_that_are_too_narrow_or_too_wide_are_marked(
    width: float, inside: str, reached: str
) -> None:
    cases = with_interval(width)
    text = page([Found("dlperf", ABOUT, cases, summarise(cases))], {})
    groups = "1 of 1" if reached == "yes" else "0 of 1"
    assert f"| dlperf | 100 | {inside} | {reached} | 96% | {groups} |" in text


def test_small_groups_and_idleness_do_not_count_as_groups() -> None:
    idle = [replace(case, group="dlperf/few/net:idle") for case in with_interval(0.01)]
    found = coverage([*with_interval(0.09), *with_interval(0.09, "dlperf/dnn/net")[:19], *idle])
    assert found is not None
    assert (found.runs, found.groups) == (119, 1)
    assert coverage(idle) is None


def test_groups_with_common_errors_cannot_all_be_covered() -> None:
    """With normal errors, and intervals from the true standard deviations."""
    generator = np.random.Generator(np.random.Philox(2))
    errors = 0.1 * generator.standard_normal((400, 200))
    shares = []
    for between in (0.0, 0.1, 0.3):
        misses = errors + between * generator.standard_normal((400, 1))
        inside = np.mean(np.abs(misses) < 1.645 * math.hypot(between, 0.1), axis=1)
        right = float(np.mean((inside >= COVERED[0]) & (inside <= COVERED[1])))
        shares.append(attainable(misses.tolist()) / len(misses))
        assert shares[-1] == pytest.approx(right, abs=0.06)
    assert shares[0] > 0.95
    assert shares[2] < 0.2
    assert attainable([[0.1] * 19]) == 0.0


def test_few_runs_rarely_have_the_nominal_coverage_by_chance() -> None:
    assert chance_of_right(7) == pytest.approx(7 * 0.9**6 * 0.1)  # six of seven
    drawn = np.random.default_rng(0).binomial(64, 0.9, 100_000) / 64
    right = float(np.mean((drawn >= 0.85) & (drawn <= 0.97)))
    assert chance_of_right(64) == pytest.approx(right, abs=0.01)
    assert chance_of_right(2000) > 0.999
    assert abs(chance_of_right(64) - float(np.mean(drawn >= 0.85))) > 0.01  # canary


WIDE = (
    *("dlperf", "diloco_measured", "field", "gavel", "internevo", "lambda_pytorch", "mlperf"),
    *("dgxc_benchmarking", "megatron_bridge", "nvidia", "simumax_b200", "stage_memory"),
    *("mlperf_v5_1", "neusight", "torchtitan"),
)
"""Sources with so little prior information (other frameworks, estimated devices, software as found
or tuned, an assumed shaper, nominal links) that their intervals are rightly wider than 20 %."""


LONG = ("pollux", "sia", "vtrain_llm")
"""Sources of thousands of runs, which take minutes to predict."""


@pytest.mark.family(SOURCE_TESTS)
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SOURCES if name not in LONG])
def test_canary_a_bias_breaks_the_coverage_of_a_source(name: str) -> None:
    """Steps 20 % longer than measured fall outside their intervals too often. For sources with
    wider intervals, steps are off by the square of what half of the intervals allow."""
    cases = predicted_cases(adapter(name))
    if coverage(cases) is None:
        pytest.skip("no step time has an interval")
    bias = 1.2
    if name in WIDE:
        ends = [case.interval[1] / case.predicted for case in cases if case.interval is not None]
        bias = float(np.median(ends)) ** 2
        assert bias > 1.2**2
    biased = coverage([replace(case, measured=bias * case.measured) for case in cases])
    assert biased is not None
    assert biased.inside < COVERED[0]


def test_the_readme_table_agrees_with_the_page() -> None:
    """Every figure of the README's table is in docs/accuracy.md, in the row of its group."""
    readme = README.read_text(encoding="utf-8")
    table = readme.partition(BEGIN)[2].partition(END)[0]
    rows = [line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:]]
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    written = {label: cells for label, *cells in rows}
    for label, _, group in SUMMARY:
        runs, median, p90 = written[label][1:4]
        start = f"| {group} | {runs} | {median} | {p90} |"
        assert any(line.startswith(start) for line in lines), start


def test_a_readme_without_a_place_for_the_table_is_refused() -> None:
    assert with_summary(f"a\n{BEGIN}\nold\n{END}\nb", "new") == f"a\n{BEGIN}\nnew\n{END}\nb"
    with pytest.raises(InputError, match="needs <!-- accuracy"):
        with_summary("nothing", "new")


@pytest.mark.parametrize("name", SOURCES)
def test_the_commands_of_a_source_exist(name: str) -> None:
    for line in adapter(name).ABOUT.commands.strip().splitlines():
        program, *words = shlex.split(line)
        if program == "python:":
            continue
        assert program == "perfmodel"
        command: click.Command = cli.cli
        context = click.Context(command)
        while isinstance(command, click.Group):
            found = command.get_command(context, words.pop(0))
            assert found is not None
            command = found
        given = command.make_context("perfmodel", words).params
        if given.get("model") is not None and "--model DNN" not in line:
            assert given["model"] in catalogue.model_names()
