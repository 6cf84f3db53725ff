"""Summaries of the accuracy benchmarks over many cases: distributions, coverage, rankings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import perfmodel as pm
from benchmarks.accuracy import fitted, rows
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.cases import Case, Run, idle_of_ranks, predicted
from benchmarks.accuracy.summaries import (
    choice_summary,
    choices,
    ranking_summary,
    rankings,
    summarise,
)
from perfmodel.base.errors import InputError
from perfmodel.results.prediction import Idle


def case(predicted: float, measured: float, **more: object) -> Case:
    return Case("source/split/net", "a run", predicted, measured, **more)  # type: ignore[arg-type]


def test_errors_are_fractions_or_differences() -> None:
    assert case(1.1, 1.0).error == pytest.approx(0.1)
    assert case(8.0, 7.0, relative=False).error == pytest.approx(1.0)


def test_idleness_of_ranks_by_hand() -> None:
    """Stages of 3 s and 1 s: of each step of 4 s the first waits for a quarter, the other for
    three; two devices that divide layers wait alike, and both replicas."""
    layers = [pm.WorkloadLayer("a", 1.0, 2.0, (0.001,)), pm.WorkloadLayer("b", 0.4, 0.6, (0.001,))]
    given: dict[str, Any] = {"workload": pm.Workload.of("made", layers), "arch": "ring"}
    job = pm.make_job(**given, pipeline=2, workers=2, cluster="infiniband-100g")
    seen = (0.25, 0.25, 0.75, 0.7)
    found = predicted([Run("source/split", "a run", job, idle=0.5, rank_idle=seen)])
    ranks = [one for one in found if one.group == "source/split:rank_idle"]
    assert [one.name for one in ranks] == [f"a run, rank {k}" for k in range(4)]
    assert [one.predicted for one in ranks] == pytest.approx([0.25, 0.25, 0.75, 0.75], abs=1e-3)
    assert [one.error for one in ranks] == pytest.approx([0.0, 0.0, 0.0, 0.05], abs=1e-3)
    alone = Idle(mean=0.3, per_worker=(0.2, 0.4), by_cause={})
    summed = [msgspec.structs.replace(one, forward_summed_bytes=1.0) for one in layers]
    given["workload"] = pm.Workload.of("made", summed)
    divided = pm.make_job(**given, tensor=2, workers=2, cluster="infiniband-100g")
    assert idle_of_ranks(divided, alone) == (0.2, 0.2, 0.4, 0.4)


def test_groups_and_pools_have_distributions_coverage_and_baselines() -> None:
    found = summarise(
        [
            case(1.1, 1.0, interval=(0.9, 1.2), pools=("source/split",), others={"ideal": 0.5}),
            case(0.7, 1.0, interval=(0.6, 0.8), pools=("source/split",), others={"ideal": 2.0}),
        ]
    )
    assert found.keys() == {"source/split", "source/split/net"}
    group = found["source/split"]
    assert group["n"] == 2
    assert group["median"] == pytest.approx(0.2)
    assert group["worst"] == pytest.approx(0.3)
    assert group["bias"] == pytest.approx(-0.1)
    assert group["coverage90"] == 0.5
    assert group["others"]["ideal"]["worst"] == pytest.approx(1.0)


def ranked(predicted: list[float], measured: list[float]) -> dict[str, object]:
    cases = [
        case(p, m, setting="net", samples=1.0) for p, m in zip(predicted, measured, strict=True)
    ]
    return ranking_summary(rankings(cases))


def test_a_right_order_is_1_and_a_reversed_one_is_minus_1() -> None:
    assert ranked([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])["median_kendall_tau"] == 1.0
    assert ranked([3.0, 2.0, 1.0], [1.0, 2.0, 3.0])["median_kendall_tau"] == -1.0


def test_one_swap_of_three_pairs_costs_two_thirds() -> None:
    assert ranked([1.0, 3.0, 2.0], [1.0, 2.0, 3.0])["median_kendall_tau"] == pytest.approx(1 / 3)


def test_close_pairs_do_not_count() -> None:
    found = ranked([1.0, 3.0, 2.9], [1.0, 2.0, 2.02])
    assert found["median_kendall_tau"] == 1.0
    assert ranked([1.0, 2.0, 3.0], [1.0, 1.01, 1.02]) == {}


def test_throughput_not_step_time_is_ranked() -> None:
    cases = [
        case(1.0, 1.0, setting="net", samples=1.0),
        case(2.0, 2.0, setting="net", samples=8.0),
        case(3.0, 3.0, setting="net", samples=6.0),
    ]
    swapped = [
        case(1.0, 1.0, setting="net", samples=1.0),
        case(8.0, 2.0, setting="net", samples=8.0),
        case(3.0, 3.0, setting="net", samples=6.0),
    ]
    assert ranking_summary(rankings(cases))["worst_lost"] == 0.0
    assert ranking_summary(rankings(swapped))["worst_lost"] == pytest.approx(0.5)
    assert ranking_summary(rankings(swapped))["best_within_3_percent"] == 0.0


def test_only_pairs_are_ranked_by_setting_and_split() -> None:
    cases = [case(x, x, setting="a", samples=1.0) for x in (1.0, 2.0, 3.0)]
    cases += [case(x, x, setting="b", samples=1.0) for x in (1.0, 2.0)]
    cases += [case(x, x) for x in (1.0, 2.0, 3.0)]
    assert list(rankings(cases)) == ["source/split/a"]


def chosen(
    predicted: list[float], measured: list[float], samples: list[float]
) -> dict[str, object]:
    several = zip(predicted, measured, samples, strict=True)
    return choice_summary(choices([case(p, m, setting="a", samples=s) for p, m, s in several]))


def test_choices_are_among_runs_with_the_same_batch() -> None:
    """By hand: of 8 samples the second is chosen, which takes 1.25 times as long as the first; of
    16 the right one."""
    found = chosen([2.0, 1.5, 3.0, 4.0], [2.0, 2.5, 3.0, 4.0], [8.0, 8.0, 16.0, 16.0])
    assert found["settings"] == 2
    assert found["worst_lost"] == pytest.approx(0.2)
    assert found["median_lost"] == pytest.approx(0.1)
    assert found["best_within_5_percent"] == 0.5
    assert chosen([2.0, 1.5], [2.0, 2.5], [8.0, 16.0]) == {}


def test_repeated_runs_of_a_layout_are_no_choice() -> None:
    assert chosen([2.0, 2.0], [2.0, 2.5], [8.0, 8.0]) == {}
    found = chosen([2.0, 2.0, 2.0, 3.0], [2.0, 9.0, 2.2, 2.1], [8.0] * 4)  # medians 2.2, 2.1
    assert found["worst_lost"] == pytest.approx(1.0 - 2.1 / 2.2)


def test_a_loss_below_5_percent_is_a_good_choice() -> None:
    found = chosen([2.0, 1.9], [2.0, 2.08], [8.0, 8.0])
    assert found["best_within_5_percent"] == 1.0
    assert chosen([2.0, 1.9], [2.0, 2.12], [8.0, 8.0])["best_within_5_percent"] == 0.0


class Row(msgspec.Struct):
    name: str
    count: int
    extra: float | None = None


def test_further_columns_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("other,count,name,extra\nx,3,a,\ny,4,b,0.5\n")
    assert rows.read(path, Row) == [Row("a", 3), Row("b", 4, 0.5)]


@pytest.mark.parametrize(
    "text",
    [
        "name,count,extra\r\na,3,\r\nb,4,0.5\r\n\r\n",
        '"extra","count","name"\n"","3","a"\n"0.5","4","b"\n\n',
        "\ufeffname,count,extra\na,3.0,\nb,4,0.5",
    ],
)
def test_tables_may_be_written_by_other_programs(tmp_path: Path, text: str) -> None:
    """Windows line ends, quotes, a byte order mark, and a final empty line or none."""
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    assert rows.read(path, Row) == [Row("a", 3), Row("b", 4, 0.5)]


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes("name,count\nä,3\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"table\.csv: not a text file in UTF-8"):
        rows.read(path, Row)


@pytest.mark.parametrize(
    ("text", "what"),
    [("name,count\na,many\n", "line 2: "), ("name\na\n", "line 2: "), (None, "no such file")],
)
def test_a_bad_table_is_named_with_its_line(tmp_path: Path, text: str | None, what: str) -> None:
    path = tmp_path / "table.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=what) as caught:
        rows.read(path, Row)
    assert str(path) in str(caught.value)


class Entry(msgspec.Struct):
    rows: int
    value: float


def test_fits_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted, "FOLDER", tmp_path / "fitted")
    with pytest.raises(InputError, match="--fit makes it"):
        fitted.read("net", Entry)
    fitted.write("net", {"a": Entry(3, 0.5), "all": Entry(6, 0.25)})
    assert fitted.read("net", Entry) == {"a": Entry(3, 0.5), "all": Entry(6, 0.25)}
    assert json.loads((tmp_path / "fitted" / "net.json").read_text())["a"]["rows"] == 3
    (tmp_path / "fitted" / "net.json").write_text('{"a": {"rows": 3}}')
    with pytest.raises(InputError, match="--fit makes it"):
        fitted.read("net", Entry)


def test_an_unknown_source_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    answer = CliRunner().invoke(main, ["testbet", str(tmp_path)])
    assert isinstance(answer.exception, InputError)
    assert "testbed" in str(answer.exception)
