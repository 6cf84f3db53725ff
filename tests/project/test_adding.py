"""Adding an architecture, an option or a device takes one file; everything else finds it."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.accuracy import sources
from benchmarks.coarse import draw
from perfmodel import InputError, architectures, make_job, predict
from perfmodel.architectures import base, reference, registry
from perfmodel.catalogue import catalogue, shipped
from perfmodel.cli import cli
from tests.architectures import test_laws, test_traffic
from tests.jobs import cluster, job, workload

SOURCE = Path(architectures.__file__).with_name("d_psgd.py")
NAME = "newest_psgd"
"""Name of the copy; appears in no other output."""
WORK = workload([1.0, 2.0], [2.0, 3.0], [30.0, 60.0], optimizer_s=0.5)


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a new architecture: a copy of D-PSGD with one more option."""
    source = SOURCE.read_text(encoding="utf-8")
    text = source.replace('name="d_psgd"', f'name="{NAME}"').replace(
        'title="D-PSGD', 'title="a copy of D-PSGD'
    )
    field = '    gain: Annotated[float, Option("how much is averaged; no effect on time")] = 0.5\n'
    last = "    ] = True\n"
    assert text.count(last) == 1
    text = text.replace(last, last + field).replace(
        'variants=({}, {"overlap": False})', 'variants=({}, {"overlap": False, "gain": 1.0})'
    )
    path = tmp_path / f"{NAME}.py"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(architectures, "__path__", [*architectures.__path__, str(tmp_path)])
    registry.names.cache_clear()
    base.load.cache_clear()
    yield path
    sys.modules.pop(f"perfmodel.architectures.{NAME}", None)
    monkeypatch.undo()
    registry.names.cache_clear()
    base.load.cache_clear()


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.usefixtures("added")
def test_the_command_line_finds_an_architecture() -> None:
    assert NAME in printed("list", "architectures")
    shown = printed("show", NAME)
    assert "a copy of D-PSGD" in shown
    assert "how much is averaged" in shown
    asked = ["predict", "--model", "resnet18", "--arch", NAME, "--workers", "4"]
    answer = printed(*asked, "--option", "overlap=false", "--verbose")
    assert f"4 x cpu-epyc-2core (4 nodes), {NAME}, batch" in answer
    assert re.search(rf"^gain +0.5 .*default of {NAME}", answer, re.MULTILINE)
    assert "coarse" in printed("sweep", *asked[1:])


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("fidelity", ["fine", "coarse"])
def test_both_routes_predict_as_for_the_original(fidelity: str) -> None:
    answers = [
        predict(make_job(model="resnet18", arch=arch, workers=4), fidelity=fidelity).iteration_s  # type: ignore[arg-type]
        for arch in (NAME, "d_psgd")
    ]
    assert answers[0] == answers[1]


@pytest.mark.usefixtures("added")
def test_an_option_is_parsed_validated_and_recorded() -> None:
    found = predict(make_job(model="resnet18", arch=NAME, workers=2, options={"gain": "0.25"}))
    assert found.provenance.inputs["options"] == {"overlap": True, "gain": 0.25}
    assert "gain" not in [one.name for one in found.assumptions]
    with pytest.raises(InputError, match="option gain of newest_psgd: expected a number, got"):
        make_job(model="resnet18", arch=NAME, options={"gain": "much"})
    with pytest.raises(InputError, match="did you mean 'gain'"):
        make_job(model="resnet18", arch=NAME, options={"gein": 1.0})


@pytest.mark.usefixtures("added")
def test_laws_and_traffic_hold_for_the_copy() -> None:
    found = registry.find(NAME)[0]
    assert NAME in registry.names()
    assert found.variants == ({}, {"overlap": False, "gain": 1.0})
    for options in found.variants:
        test_laws.test_a_result_survives_json(NAME, dict(options))
        test_laws.test_a_scaled_cluster_node_is_a_straggler(NAME, dict(options))
        test_laws.test_another_seed_gives_another_result_when_there_is_jitter(NAME, dict(options))
        assert test_traffic.declared_is(NAME, options, 3)
        with pytest.raises(AssertionError):
            test_traffic.declared_is(NAME, options, 3, times=1.01)


@pytest.mark.usefixtures("added")
def test_the_reference_and_the_route_comparison_include_the_copy() -> None:
    page = reference.reference(registry.all_architectures())
    assert f"## {NAME}\n" in page
    assert "| `gain` | number | 0.5 |  | how much is averaged; no effect on time |" in page
    ways = draw.ways()
    number = list(ways).index(NAME)
    assert draw.cell(1, number).job.architecture.name == NAME


def test_canary_without_the_file_it_is_unknown() -> None:
    assert NAME not in registry.names()
    assert NAME not in printed("list", "architectures")
    assert NAME not in reference.reference(registry.all_architectures())
    with pytest.raises(InputError, match="unknown architecture"):
        make_job(model="resnet18", arch=NAME)
    assert NAME not in draw.ways()


def test_a_device_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "profiles"
    shutil.copytree(catalogue.folder(), folder)
    text = (folder / "devices" / "v100.toml").read_text(encoding="utf-8")
    (folder / "devices" / "newest.toml").write_text(
        text.replace('name = "v100"', 'name = "newest"'), encoding="utf-8"
    )
    monkeypatch.setattr(shipped, "home", lambda: str(folder))
    assert "newest" in printed("list", "devices")
    assert "newest" in printed("show", "newest")
    answer = predict(make_job(model="resnet50", device="newest", arch="ring", workers=2))
    assert answer.device == "newest"
    assert answer.memory.device_bytes == catalogue.device("v100").memory_bytes


def test_jobs_of_a_new_architecture_can_be_copied(added: Path) -> None:
    import copy
    import pickle

    one = job(WORK, cluster(40.0), 2, NAME, {"gain": 1.0})
    assert added.exists()
    assert copy.deepcopy(one) == one == pickle.loads(pickle.dumps(one))


def test_a_source_of_measured_runs_is_one_adapter(tmp_path: Path) -> None:
    folder = Path(sources.__file__).parent
    assert sources.known() == sources.SOURCES
    shutil.copy(folder / "adsp.py", tmp_path / "newest.py")
    found = sources.known([str(folder), str(tmp_path)])
    assert set(found) - set(sources.SOURCES) == {"newest"}
    assert [name for name in found if name != "newest"] == list(sources.SOURCES)
    assert "cases" not in sources.SOURCES
