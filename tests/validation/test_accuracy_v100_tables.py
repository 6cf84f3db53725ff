"""Published tables of eight and more V100 and of cloud workers: DLPerf, KungFu, transient servers.

They are predicted from the fits that are part of the repository. The measurements themselves are
not; what needs them is skipped where they are not at hand. Made-up folders always run.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.accuracy import dlperf, fitted, kungfu, transient
from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.summaries import summarise
from perfmodel import InputError
from tests.measured import measured

ADAPTERS = {"dlperf": dlperf, "kungfu": kungfu, "transient": transient}


def kungfu_row(model: str, system: str, batch: int) -> kungfu.Row:
    return kungfu.Row(
        model=model,
        system=system,
        batch_per_gpu=batch,
        num_gpus=16,
        num_nodes=2,
        images_per_s=1.0,
    )


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
    """A folder of fits of its own, with none but that of the cloud campaign."""
    folder = tmp_path / "fitted"
    folder.mkdir()
    shutil.copy(fitted.FOLDER / "cmdare.json", folder)
    monkeypatch.setattr(fitted, "FOLDER", folder)
    return folder


# -- the measured runs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "group", "count", "median", "p90"),
    [
        ("dlperf", "dlperf/few", 28, 0.05, 0.15),
        ("dlperf", "dlperf/few/bert-base", 12, 0.05, 0.15),
        ("dlperf", "dlperf/few-strict", 28, 0.06, 0.16),
        ("kungfu", "kungfu/few", 24, 0.05, 0.15),
        ("kungfu", "kungfu/dnn", 40, 0.05, 0.15),
        ("transient", "transient/few", 13, 0.05, 0.15),
    ],
)
def test_step_times_are_met(name: str, group: str, count: int, median: float, p90: float) -> None:
    adapter = ADAPTERS[name]
    cases = adapter.cases(shared(adapter))
    found = summarise(cases)[group]
    assert found["n"] == count
    assert found["median"] < median
    assert found["p90"] < p90
    assert found["coverage90"] >= 0.8
    assert all(case.interval is not None for case in cases)


@pytest.mark.parametrize("name", ["dlperf", "kungfu"])
def test_ideal_scaling_is_beaten_everywhere(name: str) -> None:
    adapter = ADAPTERS[name]
    for found in summarise(adapter.cases(shared(adapter))).values():
        for baseline in found["others"].values():
            assert found["median"] < baseline["median"]
            assert found["p90"] < baseline["p90"]


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_fits_are_those_of_the_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = ADAPTERS[name]
    folder = shared(adapter)
    kept = adapter.cases(folder)
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
    """What a fit predicts of the measured runs where some were twice as fast when it was fitted."""
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
            "dlperf",
            "few",
            lambda case: "OneFlow" in case.name and "BERT" in case.name,
            lambda row: (
                row["framework"].startswith("OneFlow")
                and row["model"].startswith("BERT")
                and int(row["num_gpus"]) > 8
            ),
            lambda row: row["framework"] == "NGC PyTorch" and int(row["num_gpus"]) > 8,
        ),
        (
            "dlperf",
            "few-strict",
            lambda case: True,
            lambda row: int(row["num_gpus"]) > 8,
            lambda row: int(row["num_gpus"]) == 8,
        ),
        (
            "kungfu",
            "few",
            lambda case: True,
            lambda row: int(row["batch_per_gpu"]) > 32,
            lambda row: int(row["batch_per_gpu"]) == 32,
        ),
        (
            "kungfu",
            "dnn",
            lambda case: "ResNet50" in case.name,
            lambda row: row["model"] == "ResNet50",
            lambda row: row["model"] == "InceptionV3",
        ),
        (
            "transient",
            "few",
            lambda case: True,
            lambda row: row["config"] != "1ps2v",
            lambda row: row["config"] == "1ps2v",
        ),
    ],
)
def test_what_is_predicted_is_never_fitted_to(
    name: str,
    split: str,
    predicted: Callable[[Case], bool],
    faster: Callable[[dict[str, Any]], bool],
    calibrating: Callable[[dict[str, Any]], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that a split predicts may be anything when it is fitted; those that it names may not."""

    def of(cases: Iterable[Case]) -> dict[str, float]:
        some = (case for case in cases if f"{name}/{split}/" in case.group and predicted(case))
        return {case.name: case.predicted for case in some}

    before = of(ADAPTERS[name].cases(shared(ADAPTERS[name])))
    assert before
    (tmp_path / "a").mkdir()
    assert of(changed(name, tmp_path / "a", monkeypatch, faster)) == before
    monkeypatch.undo()
    (tmp_path / "b").mkdir()
    assert of(changed(name, tmp_path / "b", monkeypatch, calibrating)) != before


@pytest.mark.parametrize("name", ADAPTERS)
def test_canary_wrong_speeds_are_errors(name: str, tmp_path: Path) -> None:
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


# -- DLPerf: made-up folders -----------------------------------------------------------------------


def gpus(
    model: str, framework: str, count: int, rate: float, precision: str = "FP32", batch: int = 64
) -> dict[str, Any]:
    return {
        "samples_per_s": rate,
        "num_gpus": count,
        "num_nodes": max(count // 8, 1),
        "batch_per_gpu": batch,
        "framework": framework,
        "precision": precision,
        "model": model,
        "remark": "",
    }


def steps(
    model: str, framework: str, seconds: dict[int, float], precision: str = "FP32"
) -> list[dict[str, Any]]:
    return [
        gpus(model, framework, count, count * 64 / step_s, precision)
        for count, step_s in seconds.items()
    ]


def named(cases: Iterable[Case], split: str) -> dict[str, Case]:
    return {case.name: case for case in cases if case.group.split("/")[1] == split}


@pytest.mark.usefixtures("own_fits")
def test_dlperf_recovers_what_nodes_add(tmp_path: Path) -> None:
    """A node adds 20 ms; two nodes a wait of 10 ms, and half a ring that is not hidden."""
    table = []
    for model, size_bytes in (("ResNet50 V1.5", 102_228_128), ("BERT Base", 438_057_192)):
        pair_s = 0.010 + 0.5 * size_bytes / 12.5e9
        for framework in ("A", "B", "C"):
            table += steps(model, framework, {1: 0.3, 8: 0.32, 16: 0.32 + pair_s})
    folder = write(tmp_path, table)
    dlperf.fit(folder)
    for name, fit in fitted.read("dlperf", dlperf.Fit).items():
        if name != "few-strict":
            assert fit.wait_s == pytest.approx(0.010, rel=0.01), name
            assert fit.exposed == pytest.approx(0.5, rel=0.01), name
    few = named(dlperf.cases(folder), "few")
    assert len(few) == 6
    for case in few.values():
        assert case.error == pytest.approx(0.0, abs=1e-3)
    assert not named(dlperf.cases(folder), "all")


def test_dlperf_predicts_rows_that_nothing_was_fitted_to(tmp_path: Path) -> None:
    """More nodes, a precision of which one GPU is known, a framework that nobody had."""
    folder = write(
        tmp_path,
        [
            gpus("ResNet50 V1.5", "OneFlow", 32, 12000.0, batch=128),
            gpus("BERT Base Pretrain", "OneFlow", 8, 3500.0, "AMP"),
            gpus("BERT Base Pretrain", "OneFlow", 32, 12000.0, "AMP"),
            *steps("ResNet50 V1.5", "Jax", {1: 0.2, 4: 0.21, 16: 0.24}, "AMP"),
        ],
    )
    found = dlperf.cases(folder)
    for split in dlperf.ABOUT.splits:
        cases = named(found, split)
        assert len(cases) == 5, split
        for case in cases.values():
            assert abs(case.error) < 0.3
            assert case.interval is not None
            assert case.interval[0] < case.predicted < case.interval[1]
        one, four = (
            next(c for name, c in cases.items() if "BERT" in name and name.endswith(f" {n} GPUs"))
            for n in (8, 32)
        )
        assert four.predicted > one.predicted
        assert four.interval is not None
        assert one.interval is not None
        if split != "few-strict":
            assert four.interval[1] / four.predicted > one.interval[1] / one.predicted


def test_dlperf_names_what_it_cannot_predict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [
        gpus("ResNet50 V1.5", "OneFlow", 32, 12000.0, batch=128),
        gpus("ResNet50 V1.5", "Jax", 32, 12000.0, batch=128),
        *steps("Nobody's DNN", "Jax", {1: 0.2, 8: 0.2}),
    ]
    assert len(dlperf.cases(write(tmp_path, table))) == 3
    note = capsys.readouterr().err
    assert "left out: Nobody's DNN, FP32, Jax; ResNet50 V1.5, FP32, Jax\n" in note
    with pytest.raises(InputError, match="no run that can be predicted"):
        dlperf.cases(write(tmp_path, table[1:]))


def test_dlperf_asks_for_the_rows_that_it_fits_to(own_fits: Path, tmp_path: Path) -> None:
    table = steps("ResNet50", "A", {1: 0.3, 8: 0.32, 16: 0.34})
    with pytest.raises(InputError, match=r"rows of 1 and 8 GPUs"):
        dlperf.fit(write(tmp_path, [table[0], table[2]]))
    with pytest.raises(InputError, match=r"rows of 8 and 16 GPUs"):
        dlperf.fit(write(tmp_path, table[:2]))
    assert not (own_fits / "dlperf.json").exists()
    with pytest.raises(InputError, match="--fit makes it"):
        dlperf.cases(tmp_path)


# -- KungFu: made-up folders -----------------------------------------------------------------------

SYSTEMS = {
    "A all-reduce": 3e-9,
    "B pair averaging": 1e-9,
    "C parameter server": 2e-9,
}


def bars(model: str, batches: Iterable[int], speed: float = 1.0) -> list[dict[str, Any]]:
    """Runs as if a step took what the adapter's formula says, with known parameters."""
    truth = kungfu.Fit(
        rows=0,
        dnns=("resnet50",),
        most_batch=256,
        launch_s=0.03,
        sharpness=2.5,
        speed=speed,
        per_byte_s=SYSTEMS,
        kinds={},
        spread=0.0,
    )
    found = []
    for system in SYSTEMS:
        for batch in batches:
            row = kungfu_row(model, system, batch)
            rate = 16 * batch / truth.predict(row)
            found.append(
                {
                    "system": system,
                    "model": model,
                    "images_per_s": rate,
                    "batch_per_gpu": batch,
                    "num_nodes": 2,
                    "num_gpus": 16,
                }
            )
    return found


@pytest.mark.usefixtures("own_fits")
def test_kungfu_recovers_what_a_system_takes(tmp_path: Path) -> None:
    batches = (16, 32, 64, 128, 256)
    table = [*bars("ResNet50", batches, 1.05), *bars("InceptionV3", batches, 1.05)]
    kungfu.fit(write(tmp_path, table))
    found = fitted.read("kungfu", kungfu.Fit)["all"]
    assert found.per_byte_s == pytest.approx(SYSTEMS, rel=0.03)
    assert found.speed == pytest.approx(1.05, rel=0.02)
    assert found.spread < 0.03
    for split in ("few", "dnn"):
        cases = named(kungfu.cases(tmp_path), split)
        assert len(cases) == {"few": 18, "dnn": 30}[split]
        assert max(abs(case.error) for case in cases.values()) < 0.06


def test_kungfu_predicts_other_dnns_and_systems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """VGG-16, of which no run was at hand, and systems known by their kind alone."""
    known = {"A all-reduce": "Horovod (TCP)", "C parameter server": "Another server"}
    table = [
        row | {"system": known.get(row["system"], row["system"])}
        for row in [*bars("VGG16", (16, 256)), *bars("ResNet50", (64,)), *bars("VGG16", (16,))]
    ]
    table[0] |= {"model": "Nobody's DNN"}
    found = kungfu.cases(write(tmp_path, table))
    assert "left out: Nobody's DNN" in capsys.readouterr().err
    for split in kungfu.ABOUT.splits:
        assert {case.group for case in found if split in case.group} >= {f"kungfu/{split}/vgg16"}
    width = {}
    for case in found:
        assert case.interval is not None
        assert case.interval[0] < case.predicted < case.interval[1]
        if "few" in case.group and "pair" in case.name and "256" not in case.name:
            width[case.group] = case.interval[1] / case.predicted
    assert width["kungfu/few/vgg16"] > width["kungfu/few/resnet50"] > 1.0


def test_kungfu_moves_most_to_the_server_of_the_largest_tensor() -> None:
    """Where one tensor outweighs an even share, bytes are those of its server, for two servers."""
    rows = {name: kungfu_row(name, "parameter server", 16) for name in ("VGG16", "ResNet50")}
    fit = kungfu.Fit(1, ("resnet50",), 256, 0.0, 2.0, 1.0, {"parameter server": 1e-9}, {}, 0.0)
    assert fit.parts(rows["VGG16"])[1] == pytest.approx(2 * 411.0e6 * 1e-9)
    assert fit.parts(rows["ResNet50"])[1] == pytest.approx(102.2e6 * 1e-9)


# -- transient servers: made-up folders ------------------------------------------------------------


def runs(config: str, *rates: float, experiment: str = "x") -> list[dict[str, Any]]:
    return [{"steps_per_s": x, "config": config, "experiment": experiment} for x in rates]


def test_transient_predicts_mixed_devices_and_two_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [
        *runs("1ps2v", 26.8),  # was fitted to
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
        "left out: 1e1c2w of x (links between regions), "
        "4-spot of k80_spot (pauses after revocations), "
        "p100 of x (not a number of servers and workers)\n"
    )


@pytest.mark.usefixtures("own_fits")
def test_transient_learns_a_device_from_its_fewest_workers(tmp_path: Path) -> None:
    table = [*runs("1ps1v", 14.0), *runs("1ps5v", 40.0), *runs("1ps2k", 9.0)]
    folder = write(tmp_path, table, "runs.csv")
    transient.fit(folder)
    told = fitted.read("transient", transient.Fit)["few"]
    assert told.alone == {"v100": 14.0}
    assert told.rows == 1
    assert {case.name for case in transient.cases(folder)} == {"x 1ps5v, 1 runs", "x 1ps2k, 1 runs"}


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADAPTERS)
def test_missing_and_wrong_tables_are_named(name: str, tmp_path: Path) -> None:
    adapter = ADAPTERS[name]
    with pytest.raises(InputError, match=r"no such file|no CSV file"):
        adapter.cases(tmp_path)
    wrong = {
        "dlperf": gpus("ResNet50", "OneFlow", 8, -1.0),
        "kungfu": bars("ResNet50", [16])[0] | {"images_per_s": -1.0},
        "transient": runs("1ps2k", -1.0)[0],
    }
    with pytest.raises(InputError, match=r"throughput\.csv: line 2: .*_per_s: must be"):
        adapter.cases(write(tmp_path, [wrong[name]]))
