"""The report of a job: its contents, and reproducing it from the job file it shows."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import InputError, Report, make_job, predict, read_job, report
from perfmodel.base.provenance import Source
from perfmodel.cli import cli
from perfmodel.inputs.cluster import Cluster, Link
from perfmodel.inputs.job import Jitter, Straggler

JOB: dict[str, Any] = {"model": "resnet18", "arch": "asp", "workers": 3}
pytestmark = pytest.mark.draws
needs_bokeh = pytest.mark.skipif(
    importlib.util.find_spec("bokeh") is None, reason="needs the extra 'report'"
)


@pytest.fixture(scope="module")
def found() -> Report:
    return report(**JOB, dataset_size=1000, epochs=2)


def test_a_report_has_both_routes_and_the_training(found: Report) -> None:
    assert found.prediction.fidelity == "fine"
    assert found.prediction.training is not None
    again = predict(make_job(**JOB))
    assert found.prediction.throughput_samples_per_s == again.throughput_samples_per_s
    formulas = predict(make_job(**JOB), fidelity="coarse")
    assert found.coarse is not None
    assert found.coarse.throughput_samples_per_s == formulas.throughput_samples_per_s


def test_the_scaling_curve_passes_through_the_prediction(found: Report) -> None:
    assert [each.workers for each in found.scaling] == [1, 2, 3, 4]
    here = found.scaling[2]
    p = found.prediction
    assert here.fine_samples_per_s == p.throughput_samples_per_s
    assert p.interval is not None
    ends = (here.low_samples_per_s, here.high_samples_per_s)
    assert ends == p.interval.throughput_samples_per_s
    two = predict(make_job(**{**JOB, "workers": 2}))
    assert found.scaling[1].fine_samples_per_s == two.throughput_samples_per_s


def test_the_scaling_curve_keeps_enough_workers_for_a_straggler() -> None:
    straggler = (Straggler(2, 2.0),)
    result = report(**JOB, stragglers=straggler, fidelity="coarse")
    assert [each.workers for each in result.scaling] == [3, 4]
    assert result.coarse is None
    assert result.scaling[0].fine_samples_per_s is None


def test_the_job_file_reproduces_the_job(found: Report, tmp_path: Path) -> None:
    given = {
        **JOB,
        "arch": "ring",
        "jitter": Jitter(0.1, "gamma", "op"),
        "stragglers": (Straggler(1, 1.5),),
        "options": {"bucketing": "layer"},
        "bandwidth_bytes_per_s": 2e9,
    }
    made = report(**given, fidelity="coarse")
    assert made.job is not None
    path = tmp_path / "job.json"
    path.write_text(json.dumps(made.job))
    assert make_job(**read_job(path)) == make_job(**given)
    assert found.job == {"schema": "perfmodel.job/1", **JOB}


def test_jobs_made_of_objects_have_no_job_file() -> None:
    where = Cluster(name="own", nic=Link(1e9), source=Source("estimated", "a test"))
    assert report(**JOB, cluster=where, fidelity="coarse").job is None


def test_the_scaling_curve_keeps_a_global_batch() -> None:
    given = {**JOB, "workers": 2, "global_batch_size": 32}
    result = report(**given, fidelity="coarse")
    assert result.prediction.batch_size == 16
    four = predict(make_job(**{**JOB, "workers": 4, "batch_size": 8}), fidelity="coarse")
    rates = {each.workers: each.coarse_samples_per_s for each in result.scaling}
    assert rates[4] == four.throughput_samples_per_s


@pytest.mark.slow
@needs_bokeh
def test_the_command_of_a_page_names_a_configuration_that_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[all]\nworkers = 2\n")
    monkeypatch.setenv("PERFMODEL_CONFIG", str(config))
    words = ["report", "--model", "resnet18", "--fidelity", "coarse", "--json", "--output"]
    done = CliRunner().invoke(cli, [*words, str(tmp_path / "report.html")], catch_exceptions=False)
    message = json.loads(done.stdout)
    assert message["prediction"]["workers"] == 2
    assert message["command"].startswith(f"PERFMODEL_CONFIG={config} perfmodel report --model")


@pytest.mark.slow
@needs_bokeh
def test_the_command_writes_a_page_that_shows_its_command(tmp_path: Path) -> None:
    path, again = tmp_path / "report.html", tmp_path / "again.html"
    flags = ["report", "--model", "resnet18", "--arch", "ring", "--workers", "2", "--fidelity"]
    first = CliRunner().invoke(cli, [*flags, "coarse", "--output", str(path), "--json"])
    assert first.exit_code == 0, first.output
    message = json.loads(first.stdout)
    assert message["command"].startswith("perfmodel report --model resnet18")
    words = shlex.split(message["command"].replace(str(path), str(again)))
    second = CliRunner().invoke(cli, words[1:])
    assert second.exit_code == 0, second.output
    assert json.loads(second.stdout)["prediction"] == message["prediction"]
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.slow
@needs_bokeh
@pytest.mark.parametrize(
    "flags",
    [
        "sweep --model resnet18 --workers 1,2",
        "compare --model resnet18 --workers 2 --arch ring,ps --fidelity coarse",
        "plan --model resnet50 --dataset-size 1000 --workers 4 --fidelity coarse",
    ],
)
def test_other_commands_write_pages_too(flags: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    ended = CliRunner().invoke(cli, [*flags.split(), "--report", str(path)])
    assert ended.exit_code == 0, ended.output
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_without_the_extra_one_line_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    monkeypatch.setitem(sys.modules, "bokeh.plotting", None)
    text = r"reports need Bokeh: pip install 'perfmodel\[report\]'"
    with pytest.raises(InputError, match=text):
        predict(make_job(**JOB), fidelity="coarse").report()
    flags = ["report", "--model", "resnet18", "--output", str(tmp_path / "a.html")]
    ended = CliRunner().invoke(cli, flags)
    assert isinstance(ended.exception, InputError)
    flags = ["sweep", "--model", "resnet18", "--report", str(tmp_path / "a.html")]
    assert isinstance(CliRunner().invoke(cli, flags).exception, InputError)
    assert list(tmp_path.iterdir()) == []


@needs_bokeh
def test_an_unwritable_path_is_reported_before_the_work(tmp_path: Path) -> None:
    flags = ["report", "--model", "resnet18", "--output", str(tmp_path / "no" / "a.html")]
    ended = CliRunner().invoke(cli, flags)
    assert isinstance(ended.exception, InputError)
