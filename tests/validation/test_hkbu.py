"""Seven ways to communicate on three networks, predicted from the fits in the repository.

The measurements themselves are not there; what needs them is skipped where they are not at hand.
The other tests make up runs whose parameters are known.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import fitted, hkbu
from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.hkbu_models import layers_of, size_of
from benchmarks.accuracy.hkbu_runs import Row, Run
from benchmarks.accuracy.summaries import ranking_summary, rankings, summarise
from perfmodel import InputError
from tests.measured import measured

FILE = "throughput.csv"
NETWORK = "10GbE with TCP/IP"

METHODS = {
    "BSP-A2A": ("allreduce", "no_overlap"),
    "WFBP-A2A": ("allreduce", "wfbp_per_tensor"),
    "MG-WFBP": ("allreduce", "wfbp_merged"),
    "ByteScheduler-A2A": ("allreduce", "bytescheduler"),
    "BSP-PS": ("ps", "no_overlap"),
    "WFBP-PS": ("ps", "wfbp_per_tensor"),
}

TRUTH = {
    "ring bytes_per_s inside": 5e9,
    f"ring bytes_per_s {NETWORK}": 1.1e9,
    "ring latency_s": 7.3e-6,
    "update_s_per_byte": 5e-11,
    "scheduler_s": 0.6e-3,
    "ps bytes_per_s inside": 3e9,
    f"ps bytes_per_s {NETWORK}": 0.7e9,
}
"""What made-up runs are made with."""

ALONE = {"ResNet-18": (64, 400.0), "BERT-Base": (16, 200.0)}
"""Batch size, and samples per second on one GPU, of what is made up."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows that the fits were made with, whatever else is in the folder."""
    known = fitted.read("hkbu", hkbu.Fit)["all"].runs
    found = []
    for row in rows(measured(hkbu.ABOUT.folder, FILE) / FILE):
        series = f"{row['dnn']}, {row['connection']}, {row['method']}"
        if row["num_gpus"] == "1" or int(row["num_gpus"]) in known.get(series, ()):
            found.append(row)
    path = tmp_path_factory.mktemp("measured")
    write(path, found)
    return path


@pytest.fixture(scope="module")
def predicted(folder: Path) -> list[Case]:
    return hkbu.cases(folder)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(folder: Path, found: Iterable[dict[str, Any]]) -> None:
    listed = list(found)
    folder.mkdir(exist_ok=True)
    with (folder / FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)


# -- the measured runs -----------------------------------------------------------------------------


def test_step_times_are_met(predicted: list[Case]) -> None:
    groups = summarise(predicted)
    few = groups["hkbu/few"]
    assert few["n"] == 58
    assert few["median"] < 0.04
    assert few["p90"] < 0.15
    assert few["coverage90"] >= 0.85
    for name in ("hkbu/few", "hkbu/dnn"):
        for baseline in ("ideal scaling", "plain alpha-beta"):
            assert groups[name]["median"] < 0.7 * groups[name]["others"][baseline]["median"]
            assert groups[name]["p90"] < 0.7 * groups[name]["others"][baseline]["p90"]
    assert groups["hkbu/dnn"]["median"] < 0.10


def test_slower_networks_are_noticed(folder: Path) -> None:
    """What the test above relies on: other bandwidths do not meet the runs as well."""
    few = fitted.read("hkbu", hkbu.Fit)["few"]
    runs = [run for run in hkbu.read(folder)[0] if not few.was_fitted_to(run)]

    def median(factor: float) -> float:
        values = {
            name: value * (factor if "bytes_per_s" in name else 1.0)
            for name, value in few.values.items()
        }
        errors = sorted(abs(r.step_s(values, "coarse") / r.row.step_s - 1) for r in runs)
        return errors[len(errors) // 2]

    assert median(1.0) < 0.04 < min(median(0.75), median(1.33))


def test_methods_are_ranked(predicted: list[Case]) -> None:
    found = ranking_summary(rankings(case for case in predicted if "/few/" in case.group))
    assert found["settings"] == 6
    assert found["median_kendall_tau"] >= 0.9
    assert found["worst_lost"] <= 0.03


def test_the_fits_are_of_runs_in_the_folder(folder: Path) -> None:
    runs, left_out = hkbu.read(folder)
    assert not left_out
    fits = fitted.read("hkbu", hkbu.Fit)
    for name, one in fits.items():
        assert one.rows == sum(one.was_fitted_to(run) for run in runs)
        assert one.rows == sum(len(found) for found in one.runs.values())
        missed = sorted(
            abs(run.step_s(one.values, "coarse") / run.row.step_s - 1)
            for run in runs
            if one.was_fitted_to(run)
        )
        assert missed[len(missed) // 2] < 0.03
        left = name.removeprefix("dnn/") if name.startswith("dnn/") else None
        assert all(one.was_fitted_to(run) for run in runs if run.row.dnn != left) == (name != "few")
        assert not any(one.was_fitted_to(run) for run in runs if run.row.dnn == left)
    few = fits["few"]
    assert all(few.was_fitted_to(run) == hkbu.is_few(run.row) for run in runs)


def test_what_was_measured_does_not_change_what_is_predicted(
    folder: Path, predicted: list[Case], tmp_path: Path
) -> None:
    changed = [
        row | {"samples_per_s": str(0.5 * float(row["samples_per_s"]))}
        if row["num_gpus"] != "1"
        else row
        for row in rows(folder / FILE)
    ]
    write(tmp_path, changed)
    again = hkbu.cases(tmp_path)
    assert [case.predicted for case in again] == [case.predicted for case in predicted]
    assert [case.interval for case in again] == [case.interval for case in predicted]
    assert [case.measured for case in again] == [2 * case.measured for case in predicted]


def test_other_rows_of_the_same_columns_are_predicted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More GPUs, a new DNN that is known, one that is not, new names; columns in another order."""
    known = rows(folder / FILE)
    ring = next(r for r in known if r["method"] == "WFBP-A2A" and r["num_gpus"] == "16")
    large = ring | {"num_gpus": "32", "num_nodes": "8", "samples_per_s": "5000"}
    alone = next(r for r in known if r["dnn"] == "BERT-Base")
    other = ring | {"dnn": "BERT-Base", "samples_per_s": "1500", "std": ""}
    strange = [
        large | {"dnn": "FooNet"},
        large | {"dnn": "VGG-16"},
        large | {"connection": "25GbE"},
        large | {"schedule": "later", "method": "Later"},
        large | {"num_nodes": "5"},
    ]
    found = [r for r in known if r["num_gpus"] == "1" and r["dnn"] == ring["dnn"]]
    found += [large, alone, other, *strange]
    columns = ["extra", *reversed(list(ring))]
    write(tmp_path, ({"extra": "x", **row} for row in found))
    write(tmp_path, ({name: ({"extra": "x"} | row)[name] for name in columns} for row in found))
    by_group = {case.group: case for case in hkbu.cases(tmp_path)}
    assert by_group.keys() == {
        "hkbu/few/ResNet-50",
        "hkbu/dnn/ResNet-50",
        "hkbu/all/ResNet-50",
        "hkbu/few/BERT-Base",
        "hkbu/dnn/BERT-Base",
    }
    for case in by_group.values():
        assert case.interval is not None
        low, high = case.interval
        assert 0.1 < low < case.predicted < high < 5.0
    told = capsys.readouterr().err
    for part in ("FooNet", "VGG-16: no run on one GPU", "25GbE", "Later", "5 nodes"):
        assert part in told


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("samples_per_s", "0", "samples_per_s: must be more than 0, got 0"),
        ("samples_per_s", "nan", "samples_per_s: expected a finite number, got nan"),
        ("num_gpus", "0", "num_gpus: must be at least 1, got 0"),
        ("num_nodes", "-1", "num_nodes: must be at least 1, got -1"),
    ],
)
def test_wrong_numbers_are_named(tmp_path: Path, name: str, value: str, message: str) -> None:
    write(tmp_path, [row | ({name: value} if i == 1 else {}) for i, row in enumerate(made_up())])
    with pytest.raises(InputError) as error:
        hkbu.cases(tmp_path)
    assert str(error.value).endswith(f"{FILE}: line 3: {message}")


def test_runs_on_one_gpu_may_be_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the fits stand in, which is said; those of the folder count first."""
    ring = ("10GbE with TCP/IP", "WFBP-A2A", "allreduce", "wfbp_per_tensor")
    setups = (("ResNet-50", 64, 32), ("BERT-Base", 64, 8), ("VGG-16", 64, 8))
    many = [
        dict(zip(Row.__struct_fields__, (dnn, batch, *ring, n, n // 4, 2000.0, 1.0), strict=True))
        for dnn, batch, n in setups
    ]
    write(tmp_path, many)
    steps = {c.name: c.others["ideal scaling"] for c in hkbu.cases(tmp_path)}
    known = fitted.read("hkbu", hkbu.Fit)["all"].alone_s
    assert sorted(steps.values()) == sorted(
        known[f"{dnn}, batch size 64"] for dnn in ("ResNet-50", "BERT-Base")
    )
    told = capsys.readouterr().err
    assert "taken from the fits: BERT-Base, batch size 64; ResNet-50, batch size 64" in told
    assert "VGG-16: no run on one GPU with batch size 64" in told
    alone = many[0] | {"num_gpus": 1, "num_nodes": 1, "samples_per_s": 128.0}
    write(tmp_path, [*many, alone])
    (resnet,) = {c.others["ideal scaling"] for c in hkbu.cases(tmp_path) if "ResNet" in c.name}
    assert resnet == 0.5
    assert "taken from the fits: BERT-Base, batch size 64\n" in capsys.readouterr().err


# -- made-up runs ----------------------------------------------------------------------------------


def made_up(changed: Callable[[Row], float] = lambda row: 1.0) -> list[dict[str, Any]]:
    """Rows of runs that take just as long as :data:`TRUTH` says, times a factor."""
    found = []
    for dnn, (batch, alone) in ALONE.items():
        for method, (architecture, schedule) in METHODS.items():
            for gpus in (1, 4, 8, 16):
                row = Row(
                    dnn, batch, NETWORK, method, architecture, schedule, gpus, -(-gpus // 4), alone
                )
                if gpus > 1:
                    step_s = Run(row, batch / alone).step_s(TRUTH, "coarse") * changed(row)
                    rate = batch * gpus / step_s
                else:
                    rate = alone
                found.append(
                    {name: getattr(row, name) for name in Row.__struct_fields__}
                    | {"samples_per_s": rate, "std": 0.01 * rate}
                )
    return found


@pytest.fixture(scope="module")
def made_up_fit(tmp_path_factory: pytest.TempPathFactory) -> hkbu.Fit:
    """A fit to made-up runs on 4 GPUs, and on 8 without overlap."""
    folder = tmp_path_factory.mktemp("made up")
    write(folder, made_up())
    return hkbu.calibrated([run for run in hkbu.read(folder)[0] if hkbu.is_few(run.row)])


def test_parameters_are_found_again(made_up_fit: hkbu.Fit) -> None:
    assert made_up_fit.values.keys() == TRUTH.keys()
    for name, value in TRUTH.items():
        if "bytes_per_s" in name or name == "scheduler_s":  # the others are hardly seen in runs
            assert made_up_fit.values[name] == pytest.approx(value, rel=0.02), name


def test_more_gpus_are_predicted(made_up_fit: hkbu.Fit, tmp_path: Path) -> None:
    write(tmp_path, made_up())
    for run in hkbu.read(tmp_path)[0]:
        assert run.step_s(made_up_fit.values, "coarse") == pytest.approx(run.row.step_s, rel=0.03)


def test_a_slower_network_is_noticed(made_up_fit: hkbu.Fit, tmp_path: Path) -> None:
    """Runs that the fit sees change it: what it finds is not what it took for granted."""
    slow = made_up(lambda row: 1.5 if row.method == "BSP-A2A" and row.num_gpus == 8 else 1.0)
    write(tmp_path, slow)
    runs = [run for run in hkbu.read(tmp_path)[0] if hkbu.is_few(run.row)]
    name = f"ring bytes_per_s {NETWORK}"
    assert hkbu.calibrated(runs).values[name] < 0.8 * made_up_fit.values[name]


def test_intervals_widen_away_from_what_was_fitted(made_up_fit: hkbu.Fit) -> None:
    def parts(dnn: str, gpus: int) -> Any:
        row = Row(
            dnn, 64, NETWORK, "WFBP-A2A", "allreduce", "wfbp_per_tensor", gpus, gpus // 4, 1.0
        )
        return made_up_fit.uncertainty(Run(row, 0.2))

    assert parts("ResNet-18", 4).extrapolation == 0.0
    wider = [parts("ResNet-18", gpus) for gpus in (4, 8, 16, 32)]
    assert [one.total for one in wider] == sorted(one.total for one in wider)
    assert wider[3].extrapolation == pytest.approx(3 * wider[3].model)
    assert parts("BERT-Large", 4).extrapolation > 0.0


def test_fits_are_written_and_read(
    made_up_fit: hkbu.Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitted, "FOLDER", tmp_path / "fitted")
    monkeypatch.setattr(hkbu, "calibrated", lambda runs: made_up_fit)
    write(tmp_path, made_up())
    with pytest.raises(InputError, match=r"hkbu\.json: cannot read: .*--fit makes it"):
        hkbu.cases(tmp_path)
    hkbu.fit(tmp_path)
    found = fitted.read("hkbu", hkbu.Fit)
    assert list(found) == ["few", "dnn/ResNet-18", "dnn/BERT-Base", "all"]
    assert found["few"] == made_up_fit
    errors = [abs(case.error) for case in hkbu.cases(tmp_path)]
    assert max(errors) < 0.05


def test_a_baseline_by_hand(made_up_fit: hkbu.Fit, tmp_path: Path) -> None:
    """Alpha and beta of an all-reduce among 8 GPUs on 10 Gbit/s, after 0.16 s of computing."""
    row = Row("ResNet-18", 64, NETWORK, "BSP-A2A", "allreduce", "no_overlap", 8, 2, 1000.0, 1.0)
    write(tmp_path, [{name: getattr(row, name) for name in Row.__struct_fields__}])
    with (tmp_path / FILE).open("a", encoding="utf-8") as file:
        file.write(f"ResNet-18,64,{NETWORK},any,allreduce,no_overlap,1,1,400,\n")
    startups = "network,num_workers,alpha_s\n10GbE,8,0.01\n56GbIB,8,0.5\n10GbE,4,0.7\n"
    (tmp_path / "allreduce_alpha_beta_from_mgwfbp.csv").write_text(startups)
    few = next(case for case in hkbu.cases(tmp_path) if "/few/" in case.group)
    sending_s = 2 * 7 / 8 * size_of("ResNet-18") / 1.25e9
    assert few.others["plain alpha-beta"] == pytest.approx(0.16 + 0.01 + sending_s)
    assert few.others["ideal scaling"] == pytest.approx(0.16)
    assert few.samples / few.measured == pytest.approx(1000.0)


@pytest.mark.parametrize(("dnn", "millions"), [("BERT-Base", 110), ("bert_large", 336)])
def test_bert_has_as_many_parameters_as_published(dnn: str, millions: int) -> None:
    assert size_of(dnn) / 4e6 == pytest.approx(millions, rel=0.01)
    layers = layers_of(dnn)
    assert max(layers, key=lambda layer: sum(t.bytes for t in layer.tensors)) is layers[0]


def test_a_folder_without_anything_to_predict(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        hkbu.cases(tmp_path)
    write(tmp_path, [row for row in made_up() if row["num_gpus"] == 1])
    with pytest.raises(InputError, match="no run that can be predicted"):
        hkbu.cases(tmp_path)
    with pytest.raises(InputError, match="no run on several GPUs"):
        hkbu.fit(tmp_path)
