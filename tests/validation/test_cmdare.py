"""Asynchronous servers on a public cloud, predicted from the fits in the repository.

The measurements are not part of it; tests that need them are skipped if they are missing.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.accuracy import cmdare, fitted
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from perfmodel.calibration import ServersFit
from tests.measured import measured, predicted_cases

pytestmark = pytest.mark.slow  # what they compare with is rarely at hand

SPEEDS, ONE_WORKER = "speed_vs_workers.csv", "one_worker_step_time.csv"


@pytest.fixture(scope="module")
def folder() -> Path:
    return measured(cmdare.ABOUT.folder, SPEEDS)


@pytest.fixture(scope="module")
def groups() -> dict[str, dict[str, Any]]:
    """The errors of the measured runs."""
    return summarise(predicted_cases(cmdare, SPEEDS))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """The cases of :data:`OTHER`."""
    return cmdare.cases(made(tmp_path_factory.mktemp("other"), OTHER))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, found: Iterable[dict[str, str]]) -> None:
    listed = list(found)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)


# -- the measured runs -----------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "median", "p90"), [("n4", 0.04, 0.10), ("n3", 0.04, 0.17)])
def test_step_times_are_predicted(
    groups: dict[str, dict[str, Any]], split: str, median: float, p90: float
) -> None:
    found = groups[f"cmdare/{split}"]
    assert found["n"] >= 6
    assert found["median"] < median
    assert found["p90"] < p90
    assert found["coverage90"] >= 0.8
    models = [name for name in groups if name.startswith(f"cmdare/{split}/")]
    assert sum(groups[name]["n"] for name in models) == found["n"]


def test_predictions_beat_ideal_scaling(groups: dict[str, dict[str, Any]]) -> None:
    for split in ("n3", "n4"):
        found = groups[f"cmdare/{split}"]
        assert found["median"] < found["others"]["ideal scaling"]["median"]
        assert found["p90"] < found["others"]["ideal scaling"]["p90"]


def test_the_stored_fits_are_reproduced_from_the_runs(folder: Path) -> None:
    kept = fitted.read("cmdare", ServersFit)
    assert kept.keys() == cmdare.MOST_WORKERS.keys() == cmdare.ABOUT.splits.keys()
    found = cmdare.calibrated(folder, cmdare.MOST_WORKERS["n3"])
    assert found.rows == kept["n3"].rows
    for name, served in kept["n3"].workloads.items():
        assert found[name].costs == pytest.approx(served.costs, rel=0.02)
        assert found[name].compute_s == pytest.approx(served.compute_s, rel=0.01)
        assert found[name].known[0].spread == pytest.approx(served.known[0].spread, rel=0.1)


def refitted(folder: Path, to: Path, most: int, changed: Callable[[int], bool]) -> ServersFit:
    """Parameters of the fit to one of the six series of runs, of up to ``most`` workers, with some
    runs made twice as fast."""
    write(
        to / SPEEDS,
        (
            row | {"steady_steps_per_s_wall": str(2.0 * float(row["steady_steps_per_s_wall"]))}
            if changed(int(row["num_workers"]))
            else row
            for row in rows(folder / SPEEDS)
            if (row["gpu"], row["model"]) == ("p100", "resnet32")
        ),
    )
    (to / ONE_WORKER).write_bytes((folder / ONE_WORKER).read_bytes())
    return cmdare.calibrated(to, most)


def test_predicted_rows_are_never_fitted_to(folder: Path, tmp_path: Path) -> None:
    most = 3
    kept = refitted(folder, tmp_path, most, lambda workers: False)
    assert kept.rows == 4  # and a published one
    assert refitted(folder, tmp_path, most, lambda workers: workers > most) == kept
    assert refitted(folder, tmp_path, most, lambda workers: workers == most) != kept


# -- other runs ------------------------------------------------------------------------------------


def run(gpu: str, model: str, servers: int, workers: int, rate: float) -> dict[str, str]:
    return {
        "gpu": gpu,
        "model": model,
        "num_ps": str(servers),
        "num_workers": str(workers),
        "n_points": "49",
        "steady_steps_per_s_wall": str(rate),
        "steady_steps_per_s_median": str(rate),
        "steady_mean": str(rate),
        "steady_std": str(0.02 * rate),
    }


def step_time(gpu: str, model: str, parameters: int, tensors: str, step_s: float) -> dict[str, str]:
    return {
        "gpu": gpu,
        "model": model,
        "num_parameters": str(parameters),
        "num_tensors": tensors,
        "step_time_median_s": str(step_s),
    }


STEP_TIMES = [
    step_time("K80", "Res32", 1_857_722, "104", 0.22),
    step_time("P100", "custom4", 2_633_658, "", 0.12),
    step_time("K80", "custom4", 2_633_658, "140", 0.29),
]
OTHER = [
    run("p100", "resnet32", 1, 8, 48.0),
    run("p100", "resnet32", 2, 8, 80.0),
    run("2k80+1p100", "resnet32", 1, 3, 20.5),
    run("p100", "custom4", 1, 1, 8.4),
    run("p100", "custom4", 1, 2, 16.5),
    run("k80", "resnet32", 1, 2, 9.0),
]


def made(to: Path, speeds: list[dict[str, str]]) -> Path:
    write(to / SPEEDS, speeds)
    write(to / ONE_WORKER, STEP_TIMES)
    return to


def test_other_runs_are_predicted(others: list[Case]) -> None:
    """More workers, two servers, mixed devices, and a model with runs of one worker only."""
    assert {case.name for case in others} == {
        "p100 resnet32 8 workers 1 servers",
        "p100 resnet32 8 workers 2 servers",
        "2k80+1p100 resnet32 3 workers 1 servers",
        "p100 custom4 2 workers 1 servers",
    }  # the others were fitted to, or are a model's runs of one worker
    assert len(others) == 4 * len(cmdare.MOST_WORKERS)
    for case in others:
        assert abs(case.error) < 0.15
        assert case.interval is not None
        assert case.interval[0] < case.predicted < case.interval[1]
    assert {case.group for case in others if "custom4" in case.name} == {
        f"cmdare/{split}/custom4" for split in cmdare.MOST_WORKERS
    }


def test_canary_a_wrong_rate_increases_the_error(tmp_path: Path) -> None:
    wrong = [run("p100", "resnet32", 1, 8, 2 * 48.0)]
    groups = summarise(cmdare.cases(made(tmp_path, wrong)))
    assert groups["cmdare/n4"]["median"] > 0.5
    assert groups["cmdare/n4"]["coverage90"] == 0.0


def test_unpredictable_rows_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = [OTHER[4], run("v100", "resnet32", 1, 2, 27.0), run("2k80+1p100", "resnet32", 1, 4, 1.0)]
    found = cmdare.cases(made(tmp_path, [*OTHER[3:4], *more]))
    assert len(found) == len(cmdare.MOST_WORKERS)
    assert {case.name for case in found} == {"p100 custom4 2 workers 1 servers"}
    assert capsys.readouterr().err.splitlines() == [
        "not as many devices as workers, left out: 4 workers of 2k80+1p100",
        "no run with one worker, or size not known, left out: resnet32 on v100",
    ]


@pytest.mark.parametrize(
    ("gpu", "kinds"),
    [
        ("k80", {"k80": 3}),
        ("2k80+1p100", {"k80": 2, "p100": 1}),
        ("2xK80, 1xP100", {"k80": 2, "p100": 1}),
        ("2 k80 1 p100", {"k80": 2, "p100": 1}),
        ("k80x2_p100x1", {"k80": 2, "p100": 1}),
        ("k80:1,p100:1,v100:1", {"k80": 1, "p100": 1, "v100": 1}),
        ("k80+p100+p100", {"k80": 1, "p100": 2}),
        ("3p100", {"p100": 3}),
        ("tpu", {"tpu": 3}),
    ],
)
def test_mixed_devices_are_counted(gpu: str, kinds: dict[str, int]) -> None:
    row = cmdare.Speed(gpu=gpu, model="Res32", num_workers=3, steady_steps_per_s_wall=1.0)
    assert row.mix == kinds


def test_several_servers_and_mixed_devices_are_pooled(others: list[Case]) -> None:
    groups = summarise(others)
    assert groups["cmdare/n4-mixed"]["n"] == groups["cmdare/n4-two-servers"]["n"] == 1
    assert groups["cmdare/n4/resnet32"]["n"] == 3


def test_intervals_are_wider_for_a_second_server(others: list[Case]) -> None:
    found = {case.name: case for case in others if "/n4/" in case.group}
    one, two = (found[f"p100 resnet32 8 workers {n} servers"].interval for n in (1, 2))
    assert one is not None
    assert two is not None
    assert math.log(two[1] / two[0]) > math.log(one[1] / one[0])


def test_the_step_time_table_may_be_missing(tmp_path: Path) -> None:
    write(tmp_path / SPEEDS, [run("p100", "resnet32", 1, 8, 48.0)])
    assert len(cmdare.cases(tmp_path)) == len(cmdare.MOST_WORKERS)


def test_order_and_further_columns_do_not_matter(tmp_path: Path, others: list[Case]) -> None:
    few = OTHER[2:5]
    turned = [{"when": "today"} | dict(reversed(row.items())) for row in few[::-1]]
    expected = {c.name: c.predicted for c in others if not c.name.startswith("p100 resnet32")}
    assert {c.name: c.predicted for c in cmdare.cases(made(tmp_path, turned))} == expected


@pytest.mark.parametrize(
    ("speeds", "message"),
    [
        ([run("2k80+1p100", "resnet32", 1, 4, 1.0)], "no predictable run"),
        ([run("k80", "resnet32", 1, 2, 9.0)], "no predictable run outside the fits"),
        (
            [run("k80", "resnet32", 1, 2, -9.0)],
            "line 2: steady_steps_per_s_wall: must be more than 0",
        ),
        ([{"gpu": "k80"}], "line 2: Object missing required field `model`"),
        ([run("k80", "resnet32", 1, 2, 9.0) | {"num_ps": "one"}], "Expected `int`, got `str`"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, speeds: list[dict[str, str]], message: str) -> None:
    with pytest.raises(InputError) as error:
        cmdare.cases(made(tmp_path, speeds))
    assert message in str(error.value)


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"speed_vs_workers\.csv: no such file"):
        cmdare.cases(tmp_path)
    monkeypatch.setattr(fitted, "FOLDER", tmp_path)
    with pytest.raises(InputError, match=r"cmdare\.json: cannot read: .*; --fit makes it"):
        fitted.read("cmdare", ServersFit)
    (tmp_path / "cmdare.json").write_text("{}}")
    with pytest.raises(InputError, match="--fit makes it"):
        fitted.read("cmdare", ServersFit)


# -- the command -----------------------------------------------------------------------------------


def test_the_command_writes_fits_and_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a separate folder: two models, one and two servers."""
    monkeypatch.setattr(fitted, "FOLDER", tmp_path / "fitted")
    speeds = [
        *(
            run("p100", "resnet32", 1, n, x)
            for n, x in enumerate((11.5, 22.6, 34.6, 40.9, 44.7), 1)
        ),
        run("p100", "resnet32", 2, 5, 55.0),
    ]
    done = CliRunner().invoke(main, ["cmdare", str(made(tmp_path, speeds)), "--fit", "--json"])
    assert done.exit_code == 0, done.output
    groups = json.loads(done.stdout)["groups"]
    assert {name: group["n"] for name, group in groups.items()} == {
        "cmdare/all": 1,
        "cmdare/all-two-servers": 1,
        "cmdare/all/resnet32": 1,
        "cmdare/n3": 3,
        "cmdare/n3-two-servers": 1,
        "cmdare/n3/resnet32": 3,
        "cmdare/n4": 2,
        "cmdare/n4-two-servers": 1,
        "cmdare/n4/resnet32": 2,
    }
    assert groups["cmdare/n4"].keys() >= {"n", "median", "p90", "worst", "bias", "coverage90"}
    assert fitted.read("cmdare", ServersFit)["n3"].rows == 4  # and a published one
