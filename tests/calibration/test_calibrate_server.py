"""Update costs of a server, from runs that measured them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, Link
from perfmodel.base.provenance import Source
from perfmodel.calibration import measured_costs, with_server
from perfmodel.calibration.statistics import folds, median_interval
from perfmodel.cli import main
from perfmodel.inputs.cluster import Cluster, Server, read_cluster
from perfmodel.measuring.training.run import MeasuredRun, RunResults

MADE = Source("exact", "made for a test")
CLUSTER = Cluster(
    name="lab",
    nic=Link(1.25e9, 25e-6),
    server=Server("colocated", update_per_tensor_s=1e-4, update_per_byte_s=1e-10, threads=3),
    source=MADE,
)


def run(per_tensor_s: float | None, per_byte_s: float | None) -> MeasuredRun:
    """A run that measured these costs of its server."""
    measured = RunResults(
        iterations=10,
        warmup=2,
        iteration_s=1.0,
        iteration_std_s=0.1,
        worker_iteration_s=(1.0,),
        samples_per_s=1.0,
        compute_s=0.5,
        idle_fraction=0.5,
        update_per_tensor_s=per_tensor_s,
        update_per_byte_s=per_byte_s,
    )
    return MeasuredRun(
        name="a", workload="deep", batch_size=1, workers=1, arch="ps", options={},
        measured=measured, source=MADE,
    )  # fmt: skip


def write(path: Path, *runs: MeasuredRun) -> list[str]:
    names = [f"{path}/run{i}.json" for i in range(len(runs))]
    for name, one in zip(names, runs, strict=True):
        Path(name).write_bytes(msgspec.json.encode(one))
    return names


def test_the_median_of_several_runs_counts() -> None:
    values = [2e-4, 2.1e-4, 1.9e-4, 2.05e-4, 9e-3]  # one run is wrong
    found = measured_costs([run(v, None) for v in values], CLUSTER)
    tensor, byte = found.estimates
    assert (tensor.value, tensor.low, tensor.high, tensor.was) == (2.05e-4, 1.9e-4, 9e-3, 1e-4)
    assert (byte.status, byte.value, byte.note) == ("not identified", 1e-10, "no run measured it")
    assert found.notes == ()
    assert np.mean(values) > 5.0 * tensor.value  # canary: the mean


def test_few_runs_have_a_wide_interval() -> None:
    (note,) = measured_costs([run(v, None) for v in (1e-4, 2e-4, 3e-4)], CLUSTER).notes
    assert note.endswith(
        "3 runs: their smallest and largest value contain the median in 75% of cases"
    )
    (note,) = measured_costs([run(1e-4, None)], CLUSTER).notes
    assert "a single run" in note
    with pytest.raises(InputError, match="none of them measured the server's update costs"):
        measured_costs([run(None, None)], CLUSTER)


@pytest.mark.parametrize("count", [5, 9, 20])
def test_the_interval_of_a_median_covers_it(count: int) -> None:
    random = np.random.default_rng(1)
    held = []
    for _ in range(2000):
        values = random.lognormal(size=count)
        found, sure = median_interval(list(values))
        assert sure >= 0.9
        held.append(found.low <= 1.0 <= found.high)
    _, sure = median_interval(list(range(count)))
    assert np.mean(held) == pytest.approx(sure, abs=0.025)


def test_each_run_is_in_one_fold() -> None:
    found = folds(23, 5)
    assert sorted(np.concatenate(found)) == list(range(23))
    assert sorted(map(len, found)) == [4, 4, 5, 5, 5]
    assert list(map(list, found)) == list(map(list, folds(23, 5)))
    assert len(folds(3, 5)) == 3


def test_a_run_calibrates_a_cluster() -> None:
    found = with_server(CLUSTER, run(2e-4, 3e-9))
    assert found.server == Server("colocated", 2e-4, 3e-9, 3)
    assert found.nic == CLUSTER.nic
    assert found.source.kind == "measured"
    assert "measured in 1 run;" in found.source.text
    assert with_server(CLUSTER, run(2e-4, None)).server.update_per_byte_s == 1e-10


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    monkeypatch.setattr("sys.argv", ["perfmodel", *words])
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, out.err


@pytest.mark.slow
@pytest.mark.draws
def test_the_command_plots_the_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    names = write(tmp_path, *(run(v, v * 1e-5) for v in (1e-4, 2e-4, 3e-4)))
    picture = tmp_path / "costs.pdf"
    words = ("calibrate", "server", *names, "--plot", str(picture))
    code, _, err = call(monkeypatch, capsys, *words)
    assert (code, err) == (0, f"wrote {picture}\n")
    assert picture.read_bytes().startswith(b"%PDF")


def test_the_command_writes_a_calibrated_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = write(tmp_path, *(run(v, v * 1e-5) for v in (1e-4, 2e-4, 3e-4)))
    lab, found = str(tmp_path / "lab.json"), str(tmp_path / "found.json")
    Path(lab).write_bytes(msgspec.json.encode(CLUSTER))
    words = ("calibrate", "server", *names, "--cluster", lab, "--output", found)
    code, out, err = call(monkeypatch, capsys, *words)
    assert (code, err) == (0, f"wrote {found}\n")
    assert "update per tensor" in out
    assert "200 us" in out
    assert "75% of cases" in out
    assert read_cluster(found).server == Server("colocated", 2e-4, 2e-4 * 1e-5, 3)
    predict = ("predict", "--model", "resnet50", "--cluster", found, "--workers", "4", "--json")
    code, out, _ = call(monkeypatch, capsys, *predict)
    assert code == 0
    server = json.loads(out)["provenance"]["inputs"]["cluster"]["server"]
    assert server["update_per_tensor_s"] == 2e-4


def test_mistakes_are_one_line_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (name,) = write(tmp_path, run(None, None))
    before = sorted(tmp_path.iterdir())
    found = str(tmp_path / "found.json")
    for words, said in (
        ([name], "none of them measured the server's update costs"),
        ([str(tmp_path / "none.json")], "cannot read"),
        ([name, "--cluster", "lba"], "unknown cluster 'lba'"),
    ):
        code, out, err = call(monkeypatch, capsys, "calibrate", "server", *words, "--output", found)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err
    assert sorted(tmp_path.iterdir()) == before
