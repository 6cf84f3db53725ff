"""Steps by placement on published clusters, predicted from the fits in the repository.

The measurements are not part of it; tests that need them are skipped if they are missing.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from benchmarks.accuracy import fitted, placement_rows, placements, pollux, sia
from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.summaries import coverage
from benchmarks.accuracy.targets import COVERED
from perfmodel import InputError
from perfmodel.calibration.placements import calibrate_placements

pytestmark = pytest.mark.slow  # what they compare with is rarely at hand

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module", params=[pollux, sia], ids=["pollux", "sia"])
def source(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    if not (DATA / module.ABOUT.folder / placement_rows.FILE).is_file():
        pytest.skip("the measured steps are not at hand")
    return module


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(folder: Path, found: Iterable[dict[str, str]]) -> Path:
    listed = list(found)
    with (folder / placement_rows.FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)
    return folder


def pool(found: Iterable[Case], name: str) -> list[Case]:
    return [case for case in found if name in case.pools]


def error(found: Iterable[Case], name: str, part: float) -> float:
    return float(np.quantile([abs(case.error) for case in pool(found, name)], part))


def covered(found: Iterable[Case], name: str) -> float:
    inside = [
        case.interval[0] <= case.measured <= case.interval[1]
        for case in pool(found, name)
        if case.interval
    ]
    return float(np.mean(inside))


# -- the measured steps ----------------------------------------------------------------------------


FIGURES = {
    "pollux": [("a", "", 0.08, 0.20, 0.060), ("b", "", 0.14, 0.30, 0.07)],
    "sia": [
        ("a", "rtx", 0.045, 0.125, 0.052),
        # waiting for a loader rather than an exchange: YOLOv3 gets ahead while it waits (b on rtx),
        # and waits for the loaders of other nodes (dgx)
        ("b", "rtx", 0.085, 0.26, None),
        ("a", "dgx", 0.065, 0.19, None),
        # bytes of BERT take a quarter less time, which steps on one device cannot show
        ("b", "quad", 0.055, 0.23, None),
    ],
}
"""By split and cluster: median and 90th percentile of steps, mean of waiting parts."""


def check(source: ModuleType, found: list[Case], figures: tuple[Any, ...]) -> None:
    split, cluster, median, p90, idle = figures
    name = f"{source.SOURCE}/{split}" + (f"-{cluster}" if cluster else "")
    assert error(found, name, 0.5) < median
    assert error(found, name, 0.9) < p90
    if idle is not None:
        assert np.mean([abs(case.error) for case in pool(found, f"{name}:idle")]) < idle
    assert covered(found, name) > 0.84
    naive = [
        float(np.median([abs(case.error_of(case.others[other])) for case in pool(found, name)]))
        for other in ("ideal scaling", "plain alpha-beta")
    ]
    if cluster not in ("dgx", "quad"):  # waiting is negligible
        assert error(found, name, 0.5) < min(naive)


def test_every_step_is_predicted(source: ModuleType) -> None:
    """And intervals have their nominal coverage over all steps of a source."""
    found = source.cases(DATA / source.ABOUT.folder)
    for figures in FIGURES[source.SOURCE]:
        check(source, found, figures)
    of = coverage(found)
    assert of is not None
    assert COVERED[0] <= of.inside <= COVERED[1]


@pytest.mark.parametrize("key", ["a/cifar10", "b/cifar10+ncf"])
def test_predicted_rows_are_never_fitted_to(key: str, tmp_path: Path) -> None:
    """Only DNNs that are not held out may change a fit."""
    folder = DATA / pollux.ABOUT.folder
    if not (folder / placement_rows.FILE).is_file():
        pytest.skip("the measured steps are not at hand")
    kept = fitted.read("pollux", placements.Entry)[key].fit.cluster

    def refitted(changed: Callable[[dict[str, str]], bool]) -> pm.Cluster:
        def twice(row: dict[str, str]) -> dict[str, str]:
            factor = 2.0 if changed(row) else 1.0
            return row | {"step_time_s": str(factor * float(row["step_time_s"]))}

        write(tmp_path, map(twice, rows(folder / placement_rows.FILE)))
        out = key[2:].split("+")
        (own,) = placement_rows.read(tmp_path).values()
        used = placement_rows.trainings(row for row in own if row.model not in out)
        return calibrate_placements(list(used.values()), *pollux.TABLES.expected("")).cluster

    same = refitted(lambda row: row["model"] in key)
    assert same.nic.efficiency == pytest.approx(kept.nic.efficiency, rel=1e-3)
    other = refitted(lambda row: row["model"] == "yolov3" and row["num_nodes"] != "1")
    assert other.nic.efficiency != pytest.approx(kept.nic.efficiency, rel=0.02)


# -- other steps -----------------------------------------------------------------------------------


COMPUTING = {"cifar10": 1e-3, "yolov3": 40e-3, "ncf": 0.2e-3, "bert": 20e-3, "new": 1e-3}


def row(model: str, placement: str, batch: int, nodes: int = 0, devices: int = 0) -> dict[str, str]:
    """A step with a network of 1 GB/s, half of whose time is hidden."""
    counts = [int(digit) for digit in placement] or [devices // nodes] * nodes
    size = placement_rows.DNNS[model][0] * 4 if model in placement_rows.DNNS else 4e6
    computing = 0.01 + COMPUTING[model] * batch
    n, several = sum(counts), len(counts)
    ring = 2.0 * (several - 1) / several * 1e-9 if several > 1 else 2.0 * (n - 1) / n * 0.3e-9
    waiting = max(ring * size - 0.4 * computing, 0.1 * ring * size, 1e-4)
    return {
        "extra": "no",
        "model": model,
        "cluster": "any",
        "table": "placements" if placement else "scalability",
        "placement": placement,
        "num_nodes": str(several),
        "num_replicas": str(n),
        "local_bsz": str(batch),
        "step_time_s": str(computing + waiting),
        "sync_time_s": str(waiting),
    }


def made(batches: Iterable[int] = (8, 16)) -> list[dict[str, str]]:
    shapes = ("1", "2", "4", "11", "22", "44", "14", "111", "444")
    models = ("cifar10", "yolov3", "ncf")
    return [row(model, shape, batch) for model in models for shape in shapes for batch in batches]


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fits to the synthetic steps."""
    folder = tmp_path_factory.mktemp("fitted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitted, "FOLDER", folder)
        pollux.fit(write(tmp_path_factory.mktemp("steps"), made()))
    return folder


@pytest.fixture
def own(tmp_path: Path, fits: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of synthetic steps, and fits to them."""
    monkeypatch.setattr(fitted, "FOLDER", shutil.copytree(fits, tmp_path / "fitted"))
    return write(tmp_path, made())


def test_every_split_has_its_cases(own: Path) -> None:
    found = pollux.cases(own)
    count = {name: len(pool(found, f"pollux/{name}")) for name in ("a", "b", "all", "a-strict")}
    # 6 placements on several nodes, 2 more on one, 2 batches, 3 DNNs; each DNN in two pairs
    assert count == {"a": 36, "b": 3 * 2 * 16, "all": 0, "a-strict": 36}
    assert len(pool(found, "pollux/a:idle")) == 36
    assert {case.setting for case in pool(found, "pollux/a")} == {
        "cifar10",
        "yolov3",
        "ncf",
    }
    for case in found:
        assert np.isfinite(case.predicted)
        if case.relative:
            assert case.interval is not None
            assert case.interval[0] < case.predicted < case.interval[1]
            assert case.samples > 0
    assert error(found, "pollux/a", 0.5) < 0.25  # these do not follow the formula
    entries = fitted.read("pollux", placements.Entry)
    assert {key: entry.rows for key, entry in entries.items()} == {
        "all": 54,
        **{f"a/{name}": 36 for name in ("cifar10", "ncf", "yolov3")},
        **{f"b/{pair}": 18 for pair in ("cifar10+ncf", "cifar10+yolov3", "ncf+yolov3")},
    }


def test_canary_a_wrong_step_increases_the_error(own: Path) -> None:
    wrong = [
        each | {"step_time_s": str(3.0 * float(each["step_time_s"]))}
        if each["num_nodes"] != "1"
        else each
        for each in made([8])
    ]
    found = pollux.cases(write(own, wrong))
    assert error(found, "pollux/a", 0.5) > 0.5
    assert covered(found, "pollux/a") < 0.2


def test_more_nodes_and_another_dnn_are_predicted(own: Path) -> None:
    more = [row("yolov3", "", 16, nodes, 4 * nodes) for nodes in (4, 8, 16)]
    bert = [row("bert", shape, 8) for shape in ("1", "2", "22", "222")]
    found = pollux.cases(write(own, [*reversed(made([8])), *more, *bert]))
    names = {case.name for case in pool(found, "pollux/all")}
    assert names == {
        f"yolov3 scalability {'.'.join(['4'] * nodes)}, 16 samples" for nodes in (4, 8, 16)
    }
    assert error(found, "pollux/all", 1.0) < 0.5
    far, near = (
        next(case for case in pool(found, "pollux/all") if f" {'.'.join(['4'] * n)}," in case.name)
        for n in (16, 4)
    )
    assert far.interval is not None
    assert near.interval is not None
    assert far.interval[1] / far.predicted > near.interval[1] / near.predicted
    assert len([case for case in pool(found, "pollux/a") if "bert" in case.name]) == 2
    assert len([case for case in pool(found, "pollux/b") if "bert" in case.name]) == 3


def test_unpredictable_rows_are_named(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest = [row("new", "1", 8), row("new", "11", 8), row("bert", "11", 8)]
    lines = [each for each in made([8]) if each["model"] != "ncf" or each["num_nodes"] != "1"]
    found = pollux.cases(write(own, [*lines, *rest]))
    said = capsys.readouterr().err
    assert "parameters are not known, left out: new on any" in said
    assert "no step on one device, left out: bert" in said
    assert "no run with one GPU, taken from the fits: ncf on any" in said
    assert not [case for case in found if case.name.startswith(("new", "bert"))]
    alone = [case for case in pool(found, "pollux/a") if case.name.startswith("ncf")]
    assert len(alone) == 6
    assert np.median([abs(case.error) for case in alone]) < 0.4


def test_steps_on_one_node_are_not_predicted_from_themselves(own: Path) -> None:
    slow = [row("yolov3", "3", batch) for batch in (8, 16)]
    for each in slow:
        each["step_time_s"] = str(3.0 * float(each["step_time_s"]))
    found = pool(pollux.cases(write(own, [*made([8]), *slow])), "pollux/all")
    assert [case.name for case in found] == [f"yolov3 placements 3, {n} samples" for n in (8, 16)]
    assert error(found, "pollux/all", 0.0) > 0.3


def test_tcp_goodput_lies_between_a_fraction_and_a_rate() -> None:
    slow, fast = (placement_rows.ethernet("", g * 1e9 / 8, g * 1e9 / 8).nic for g in (1, 100))
    assert fast.goodput_bytes_per_s == pytest.approx((1.3e9 * 2.9e9) ** 0.5)
    assert slow.goodput_bytes_per_s < 1e9 / 8
    limited = placement_rows.ethernet("", 100e9 / 8, 0.5e9).nic
    assert limited.goodput_bytes_per_s == pytest.approx(0.5e9)


def test_another_cluster_is_predicted_from_nominal_links(own: Path) -> None:
    sia.fit(own)
    elsewhere = [each | {"cluster": "elsewhere"} for each in made()]
    found = sia.cases(write(own, [*made(), *elsewhere]))
    assert len(pool(found, "sia/a-any")) == 36
    assert len(pool(found, "sia/a-strict-elsewhere")) == 36
    assert not pool(found, "sia/a-elsewhere")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"step_time_s": "0"}, "line 2: .*step_time_s: must be more than 0, got 0"),
        ({"placement": "1a"}, "line 2: .*placement: must be digits of 1 to 9, got '1a'"),
        ({"num_nodes": "none"}, r"line 2: .*Expected `int`, got `str` - at `\$.num_nodes`"),
        ({"num_nodes": "3", "num_replicas": "2"}, "num_replicas: must be at least 3, got 2"),
    ],
)
def test_mistakes_are_named(own: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pollux.cases(write(own, [made()[0] | changed]))


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"throughput\.csv: no such file"):
        pollux.fit(tmp_path)
    with pytest.raises(InputError, match="no DNN was run on one device and on several"):
        pollux.fit(write(tmp_path, [row("cifar10", "1", 8)]))
    with pytest.raises(InputError, match="no predictable step"):
        pollux.cases(write(tmp_path, [row("cifar10", "1", 8)]))
    monkeypatch.setattr(fitted, "FOLDER", tmp_path / "none")
    with pytest.raises(InputError, match="--fit makes it"):
        pollux.cases(tmp_path)
