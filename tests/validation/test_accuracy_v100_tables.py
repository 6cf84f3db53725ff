"""Published runs of transient servers in the cloud.

They are predicted from the fits in the repository. The measurements are not part of it; tests that
need them are skipped if they are missing. Tests on synthetic folders always run.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.accuracy import fitted, transient
from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from tests.measured import measured, predicted_cases

pytestmark = pytest.mark.slow  # what they compare with is rarely at hand

ADAPTERS = {"transient": transient}


def shared(adapter: ModuleType) -> Path:
    return measured(adapter.ABOUT.folder)


def write(folder: Path, found: Iterable[dict[str, Any]], name: str = "throughput.csv") -> Path:
    listed = list(found)
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    (table,) = folder.glob("*.csv")
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def own_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate folder of fits with only that of the cloud campaign."""
    folder = tmp_path / "fitted"
    folder.mkdir()
    shutil.copy(fitted.FOLDER / "cmdare.json", folder)
    monkeypatch.setattr(fitted, "FOLDER", folder)
    return folder


# -- the measured runs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "group", "count", "median", "p90"),
    [
        ("transient", "transient/few", 13, 0.05, 0.15),
    ],
)
def test_step_times_are_predicted(
    name: str, group: str, count: int, median: float, p90: float
) -> None:
    adapter = ADAPTERS[name]
    cases = predicted_cases(adapter)
    found = summarise(cases)[group]
    assert found["n"] == count
    assert found["median"] < median
    assert found["p90"] < p90
    assert found["coverage90"] >= 0.8
    assert all(case.interval is not None for case in cases)


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_stored_fits_are_reproduced_from_the_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = ADAPTERS[name]
    folder = shared(adapter)
    kept = predicted_cases(adapter)
    shutil.copy(fitted.FOLDER / "cmdare.json", tmp_path)
    monkeypatch.setattr(fitted, "FOLDER", tmp_path)
    adapter.fit(folder)
    for before, after in zip(kept, adapter.cases(folder), strict=True):
        assert after.name == before.name
        assert after.predicted == pytest.approx(before.predicted, rel=1e-3)
        assert after.interval == pytest.approx(before.interval, rel=1e-2)


def changed(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faster: Callable[[dict[str, Any]], bool],
) -> list[Case]:
    """Predictions of the measured runs by a fit to which some runs were given twice as fast."""
    adapter = ADAPTERS[name]
    folder = shared(adapter)
    figure = next(key for key in rows_of(folder)[0] if key.endswith("per_s"))
    table = [
        row | {figure: str(2.0 * float(row[figure]))} if faster(row) else row
        for row in rows_of(folder)
    ]
    shutil.copy(fitted.FOLDER / "cmdare.json", tmp_path)
    monkeypatch.setattr(fitted, "FOLDER", tmp_path)
    (tmp_path / "changed").mkdir()
    adapter.fit(write(tmp_path / "changed", table))
    found: list[Case] = adapter.cases(folder)
    return found


@pytest.mark.parametrize(
    ("name", "split", "predicted", "faster", "calibrating"),
    [
        (
            "transient",
            "few",
            lambda case: True,
            lambda row: row["config"] != "1ps2v",
            lambda row: row["config"] == "1ps2v",
        ),
    ],
)
def test_predicted_rows_are_never_fitted_to(
    name: str,
    split: str,
    predicted: Callable[[Case], bool],
    faster: Callable[[dict[str, Any]], bool],
    calibrating: Callable[[dict[str, Any]], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that a split predicts do not affect its fit; rows that it names as fitted do."""

    def of(cases: Iterable[Case]) -> dict[str, float]:
        some = (case for case in cases if f"{name}/{split}/" in case.group and predicted(case))
        return {case.name: case.predicted for case in some}

    before = of(predicted_cases(ADAPTERS[name]))
    assert before
    (tmp_path / "a").mkdir()
    assert of(changed(name, tmp_path / "a", monkeypatch, faster)) == before
    monkeypatch.undo()
    (tmp_path / "b").mkdir()
    assert of(changed(name, tmp_path / "b", monkeypatch, calibrating)) != before


@pytest.mark.parametrize("name", ADAPTERS)
def test_canary_wrong_speeds_increase_the_error(name: str, tmp_path: Path) -> None:
    adapter = ADAPTERS[name]
    folder = shared(adapter)
    figure = next(key for key in rows_of(folder)[0] if key.endswith("per_s"))
    doubled = [
        row | {figure: str(float(row[figure]) * (2.0 if int(row.get("num_gpus", 2)) > 1 else 1.0))}
        for row in rows_of(folder)
    ]
    for group, found in summarise(adapter.cases(write(tmp_path, doubled))).items():
        assert found["median"] > 0.5, group
        assert found["coverage90"] < 0.2, group


SYSTEMS = {
    "A all-reduce": 3e-9,
    "B pair averaging": 1e-9,
    "C parameter server": 2e-9,
}


# -- transient servers: synthetic folders ----------------------------------------------------------


def runs(config: str, *rates: float, experiment: str = "x") -> list[dict[str, Any]]:
    return [{"steps_per_s": x, "config": config, "experiment": experiment} for x in rates]


def test_transient_predicts_mixed_devices_and_two_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [
        *runs("1ps2v", 26.8),  # fitted to
        *runs("2ps7v", 70.0, 72.0, 90.0),
        *runs("1v1p2k", 33.0),
        *runs("4-demand", 17.8, experiment="k80_on_demand"),
        *runs("1e1c2w", 9.0),
        *runs("4-spot", 5.0, experiment="k80_spot"),
        *runs("p100", 5.0),
    ]
    found = transient.cases(write(tmp_path, table, "train_data.csv"))
    assert [case.name for case in found] == [
        "x 2ps7v, 3 runs",
        "x 1v1p2k, 1 runs",
        "k80_on_demand 4-demand, 1 runs",
    ]
    assert found[0].measured == pytest.approx(7 / 72.0)
    for case in found:
        assert abs(case.error) < 0.3
        assert case.interval is not None
        assert case.interval[0] < case.predicted < case.interval[1]
    assert capsys.readouterr().err == (
        "not predicted, left out: 1e1c2w of x (links between regions); "
        "4-spot of k80_spot (pauses after revocations); "
        "p100 of x (not a number of servers and workers)\n"
    )


@pytest.mark.usefixtures("own_fits")
def test_transient_learns_a_device_from_its_fewest_workers(tmp_path: Path) -> None:
    table = [*runs("1ps1v", 14.0), *runs("1ps5v", 40.0), *runs("1ps2k", 9.0)]
    folder = write(tmp_path, table, "runs.csv")
    transient.fit(folder)
    told = fitted.read("transient", transient.Fit)["few"]
    assert told.workers == {"v100": 1}
    assert told.fit.workloads["v100/resnet32"].compute_s < 1.0 / 14.0
    assert told.rows == 1
    assert {case.name for case in transient.cases(folder)} == {"x 1ps5v, 1 runs", "x 1ps2k, 1 runs"}


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADAPTERS)
def test_missing_and_wrong_tables_are_named(name: str, tmp_path: Path) -> None:
    adapter = ADAPTERS[name]
    with pytest.raises(InputError, match=r"no such file|no CSV file"):
        adapter.cases(tmp_path)
    wrong = {
        "transient": runs("1ps2k", -1.0)[0],
    }
    with pytest.raises(InputError, match=r"throughput\.csv: line 2: .*_per_s: must be"):
        adapter.cases(write(tmp_path, [wrong[name]]))
