"""Training in the order of jobs: times of the job, accuracy of the task."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel import Convergence, InputError, TrainingSetup, converge, make_job, predict
from perfmodel.cli import cli, main
from perfmodel.replay.optimizer import Optimizer
from perfmodel.sweeping.convergence import half_width

SETUP = TrainingSetup(epochs=0.5, evaluations=4, optimizer=Optimizer(learning_rate=0.05))
JOB: dict[str, Any] = {"model": "resnet18", "device": "v100", "workers": 4}
WORDS = [
    *("converge", "--model", "resnet18", "--device", "v100", "--workers", "4"),
    *("--arch", "ring,gosgd", "--epochs", "0.5", "--evaluations", "4", "--seeds", "2"),
    *("--momentum", "0", "--lr", "0.05", "--lr-scaling", "none", "--jobs", "1"),
]


@pytest.fixture(scope="module")
def found() -> Convergence:
    return converge(SETUP, seeds=2, processes=1, arch=["ring", "gosgd"], **JOB)


def test_times_are_those_of_the_job(found: Convergence) -> None:
    """Half an epoch of 4000 samples is 125 gradients of 16, in 32 steps of four workers."""
    ring = found.trained[0]
    step_s = predict(make_job(**JOB, arch="ring")).iteration_s
    seconds, _ = ring.mean("time_s")
    assert seconds[-1] == pytest.approx(math.ceil(125 / 4) * step_s, rel=0.02)
    assert ring.curves[0].samples[-1] == pytest.approx(2000, abs=64)


@pytest.mark.slow
def test_processes_do_not_change_results(found: Convergence) -> None:
    shared = converge(SETUP, seeds=2, processes=2, arch=["ring", "gosgd"], **JOB)
    assert shared.to_json() == found.to_json()


def test_seeds_change_results(found: Convergence) -> None:
    for trained in found.trained:
        first, second = trained.curves
        assert not np.array_equal(first.loss, second.loss)


def test_each_combination_is_a_job() -> None:
    several = converge(
        SETUP, seeds=1, processes=1, model="resnet18", device="v100", arch="gosgd", workers=[2, 3]
    )
    assert [t.name for t in several.trained] == ["2 workers", "3 workers"]
    assert [t.prediction.workers for t in several.trained] == [2, 3]


def test_bandwidth_changes_only_times() -> None:
    slow, fast = converge(
        SETUP, seeds=1, processes=1, arch="ring", cluster="ethernet-10g",
        bandwidth_bytes_per_s=[1e8, 1e9], **JOB,
    ).trained  # fmt: skip
    assert np.array_equal(slow.curves[0].loss, fast.curves[0].loss)
    assert slow.mean("time_s")[0][-1] > 1.5 * fast.mean("time_s")[0][-1]


def test_half_widths_follow_students_t() -> None:
    values = np.array([[1.0], [2.0], [4.0]])  # of variance (16 + 1 + 25) / 9 / 2 = 7 / 3
    t95 = 2.919986  # of two degrees of freedom, from a table
    assert half_width(values)[0] == pytest.approx(t95 * math.sqrt(7.0 / 3.0 / 3.0))
    assert np.isnan(half_width(values[:1])).all()


def test_the_default_target_is_a_fraction_of_the_best_accuracy(found: Convergence) -> None:
    best = max(t.accuracy[0] for t in found.trained)
    assert found.target == 0.98 * best
    never = converge(SETUP, seeds=1, processes=1, target=1.0, arch="ring", **JOB)
    assert never.first is None
    assert never.rows()[0]["time_to_target_s"] is None
    assert never.rows()[0]["reached"] == 0


def test_divergence_is_reported_with_its_update() -> None:
    wild = TrainingSetup(epochs=1.0, optimizer=Optimizer(learning_rate=50.0, momentum=0.9))
    (trained,) = converge(wild, seeds=2, processes=1, target=0.5, arch="ring", **JOB).trained
    assert trained.diverged == 2
    assert trained.accuracy == (0.0, 0.0)
    every = [c.divergence.update for c in trained.curves if c.divergence is not None]
    assert min(every) > 0
    assert all(np.isfinite(c.loss).all() for c in trained.curves)


def test_if_all_diverge_none_reaches_the_target() -> None:
    wild = TrainingSetup(epochs=1.0, optimizer=Optimizer(learning_rate=50.0, momentum=0.9))
    result = converge(wild, seeds=1, processes=1, arch="ring", **JOB)
    assert result.rows()[0]["reached"] == 0
    assert result.first is None


def test_noise_is_measured_on_request(found: Convergence) -> None:
    assert found.trained[0].noise_scale_samples is None
    setup = TrainingSetup(epochs=0.25, evaluations=2, noise_batches=16)
    (noisy,) = converge(setup, seeds=1, processes=1, arch="ring", **JOB).trained
    assert noisy.noise_scale_samples is not None
    assert noisy.noise_scale_samples > 0.0


@pytest.mark.slow
def test_the_command_prints_the_library_result(found: Convergence) -> None:
    result = CliRunner().invoke(cli, [*WORDS, "--json"])
    assert result.exit_code == 0, result.output
    values, expected = json.loads(result.stdout), json.loads(found.to_json())
    assert values["rows"] == expected["rows"]
    assert values["points"] == expected["points"]
    text = CliRunner().invoke(cli, WORDS).stdout
    assert text.startswith("times are predicted for")
    assert "those of the task 'mixture'" in " ".join(text.split())
    printed = CliRunner().invoke(cli, [*WORDS, "--csv", "-"]).stdout
    assert len(list(csv.DictReader(io.StringIO(printed)))) == len(values["points"])


@pytest.mark.slow
def test_a_schedule_in_a_file_is_replayed(found: Convergence, tmp_path: Path) -> None:
    """The ring's curves of seed 0, from a file with the same number of gradients."""
    path = tmp_path / "ring.npz"
    words = ["--model", "resnet18", "--device", "v100", "--workers", "4", "--arch", "ring"]
    written = CliRunner().invoke(
        cli, ["predict", *words, "--update-order", str(path), "--updates", "125"]
    )
    assert written.exit_code == 0, written.output
    given = [
        "--epochs",
        "0.5",
        "--evaluations",
        "4",
        "--seeds",
        "2",
        "--momentum",
        "0",
        "--lr",
        "0.05",
    ]
    result = CliRunner().invoke(
        cli, ["converge", "--replay", str(path), *given, "--lr-scaling", "none", "--json"]
    )
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    expected = found.trained[0]
    assert values["title"].startswith("times are taken from the schedules")
    assert [row["job"] for row in values["rows"]] == [str(path)]
    assert values["rows"][0]["accuracy"] == expected.accuracy[0]
    assert values["rows"][0]["iteration_s"] == pytest.approx(expected.iteration_s)
    assert [p["time_s"] for p in values["points"]] == expected.mean("time_s")[0].tolist()


def test_a_file_of_another_version_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = predict(make_job(**JOB, arch="ring")).schedule(8)
    header = msgspec.structs.replace(schedule.header, format="perfmodel.schedule/2")
    path = tmp_path / "other.npz"
    msgspec.structs.replace(schedule, header=header).write(path)
    for words in (["--replay", str(path)], ["--replay", str(path), "--model", "resnet18"]):
        monkeypatch.setattr("sys.argv", ["perfmodel", "converge", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        error = capfd.readouterr().err
        assert ended.value.code == 2
        assert error.count("\n") == 1
        assert ("perfmodel.schedule/1" in error) == (len(words) == 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "1.5"], "target"),
        (["--task", "mixtur"], "did you mean 'mixture'"),
        (["--task", "nowhere:made"], "nowhere"),
        (["--momentum", "1"], "momentum"),
        (["--lr", "nan"], "learning_rate"),
        (["--lr-scaling", "cubic"], "scaling"),
        (["--epochs", "0"], "epochs"),
        (["--seeds", "0"], "seeds"),
        (["--arch", "bsp,nope"], "nope"),
        (["--workers", "1..17"], "at most 16"),
        (["--csv", "-", "--json"], "--csv"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["perfmodel", "converge", "--model", "resnet18", "--device", "v100"]
    monkeypatch.setattr("sys.argv", [*base, *words])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capfd.readouterr().err
    assert ended.value.code == 2
    assert error.startswith("perfmodel: error:")
    assert error.count("\n") == 1
    assert said in error


def test_the_library_refuses_the_same_input() -> None:
    with pytest.raises(InputError, match="target"):
        converge(SETUP, target=1.5, **JOB)


@pytest.mark.draws
def test_a_plot_has_a_line_for_each_job(found: Convergence) -> None:
    pytest.importorskip("matplotlib")
    left, right = found.plot().axes
    labels = [line.get_label() for line in right.get_lines()]
    assert labels[:2] == [t.name for t in found.trained]
    assert "time" in left.get_xlabel()
    assert "samples" in right.get_xlabel()
