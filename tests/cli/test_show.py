"""``perfmodel show --workload``: a model of the catalogue as a workload file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel import InputError, read_profile
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli


def written(model: str, path: Path) -> Path:
    done = CliRunner().invoke(cli, ["show", model, "--workload"])
    assert done.exit_code == 0
    path.write_bytes(done.stdout_bytes)
    return path


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", catalogue.model_names())
def test_the_file_has_everything_of_the_model(model: str, tmp_path: Path) -> None:
    assert read_profile(written(model, tmp_path / "f.json")) == catalogue.model(model)


@pytest.mark.parametrize(
    "job",
    [
        "resnet50 --device v100 --batch-size 48 --workers 8 --arch ring",
        "resnet50 --device t4 --workers 2",
        "gpt2-xl --device a100 --sequence-length 512 --workers 4 --arch fsdp",
    ],
)
def test_the_file_gives_the_predictions_of_the_model(job: str, tmp_path: Path) -> None:
    model, *flags = job.split()
    path = written(model, tmp_path / "f.json")

    def predicted(*source: str) -> str:
        done = CliRunner().invoke(cli, ["predict", *source, *flags, "--json"])
        assert done.exit_code == 0
        return done.stdout

    assert predicted("--workload", str(path)) == predicted("--model", model)


def test_a_changed_layer_changes_the_prediction(tmp_path: Path) -> None:
    path = written("vgg16", tmp_path / "f.json")
    smaller = path.read_text().replace('"bytes": 411041792', '"bytes": 4110417')
    assert smaller != path.read_text()
    changed = tmp_path / "g.json"
    changed.write_text(smaller)
    bytes_of = [read_profile(each).parameter_bytes for each in (path, changed)]
    assert bytes_of[0] - bytes_of[1] == 411041792 - 4110417


@pytest.mark.parametrize("name", ["v100", "ring", "pcie4", "resnte50"])
def test_only_models_have_a_workload(name: str) -> None:
    done = CliRunner().invoke(cli, ["show", name, "--workload"])
    assert isinstance(done.exception, InputError)
    assert f"unknown model '{name}'" in str(done.exception)
    assert not done.output


def test_a_workload_is_no_formula() -> None:
    done = CliRunner().invoke(cli, ["show", "ring", "--workload", "--formula"])
    assert "--workload and --formula: give one of them" in str(done.exception)


def test_a_configured_workload_is_not_that_of_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[all]\nworkload = "net.json"\n')
    monkeypatch.setenv("PERFMODEL_CONFIG", str(config))
    done = CliRunner().invoke(cli, ["show", "pcie4"])
    assert done.exit_code == 0
    assert done.stdout.startswith("{")
