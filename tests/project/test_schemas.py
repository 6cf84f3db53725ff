"""The JSON Schemas of files and outputs: complete, true, and never narrower than those of 1.0."""

from __future__ import annotations

import json
import os
import re
import runpy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel.cli import cli
from tests.schemas import FOLDER, breaches, stored

ROOT = Path(__file__).parents[2]
GENERATOR = runpy.run_path(str(ROOT / "docs" / "json_schemas.py"))
INPUTS, OUTPUTS = GENERATOR["INPUTS"], GENERATOR["OUTPUTS"]
FREEZE = os.environ.get("PERFMODEL_FREEZE") == "1"
UPDATE = os.environ.get("PERFMODEL_UPDATE_OUTPUTS") == "1"
FROZEN = Path(__file__).with_name("frozen.txt")
"""Every key of the last release, with its schema; ``!`` marks those that are required."""

INTERNAL = {"perfmodel.bands/1", "perfmodel.memory/1", "perfmodel.shards/1"}
"""Schemas of files that only the package itself reads."""


def test_the_stored_schemas_are_those_of_the_program() -> None:
    texts = GENERATOR["every"]()
    if UPDATE:
        for name, text in texts.items():
            (FOLDER / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(texts)
    differing = [name for name, text in texts.items() if json.loads(text) != stored(name)]
    assert differing == [], "PERFMODEL_UPDATE_OUTPUTS=1 rewrites them"


def test_every_schema_is_published() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "perfmodel").rglob("*.py")]
    named = {found for text in sources for found in re.findall(r'"(perfmodel\.[\w-]+/\d)"', text)}
    kinds = [*INPUTS.values(), *OUTPUTS.values()]
    assert named - INTERNAL == {kind.schema for kind in kinds}


# -- what was promised --------------------------------------------------------------------------


def broken(before: set[str], now: set[str]) -> list[str]:
    """Promises of the frozen keys that the present ones break, in words."""
    known = {key.rstrip("!") for key in now}
    old = {key.rstrip("!") for key in before}
    gone = [f"{key.rstrip('!')} is gone" for key in before if key.rstrip("!") not in known]
    files = tuple(f"{name} " for name in INPUTS)
    newly = [
        f"{key.rstrip('!')} is required now"
        for key in now - before
        if key.endswith("!") and key.startswith(files) and not _below_new(key.rstrip("!"), old)
    ]
    missing = [
        f"{key.rstrip('!')} may be missing now"
        for key in before - now
        if key.endswith("!") and not key.startswith(files) and key.rstrip("!") in known
    ]
    return sorted([*gone, *newly, *missing])


def _below_new(key: str, old: set[str]) -> bool:
    """Whether a key belongs to an object that is itself new."""
    above, _, _ = key.rpartition(".")
    return bool(above) and above.removesuffix(".*").rstrip("[]") not in old


def present() -> set[str]:
    """All keys of the stored schemas; those of a prediction inside another answer only once."""
    return {
        f"{name} {key}"
        for name in (*INPUTS, *OUTPUTS)
        for key in GENERATOR["paths"](stored(name))
        if not key.startswith(("prediction.", "coarse."))
    }


def test_no_key_of_version_1_is_lost_or_newly_required() -> None:
    frozen = set(FROZEN.read_text(encoding="utf-8").split("\n")) - {""}
    if FREEZE:  # for a release: its new keys are promised from then on
        text = "\n".join(sorted(frozen | present())) + "\n"
        FROZEN.write_text(text, encoding="utf-8", newline="\n")
    assert len(frozen) > 500
    assert broken(frozen, present()) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda keys: keys - {"cluster nodes"}, ["cluster nodes is gone"]),
        (lambda keys: keys | {"cluster colour!"}, ["cluster colour is required now"]),
        (lambda keys: keys | {"cluster colour", "cluster colour.red!"}, []),
        (
            lambda keys: keys - {"plan why!"} | {"plan why"},
            ["plan why may be missing now"],
        ),
        (lambda keys: keys | {"plan colour!"}, []),
    ],
)
def test_canary_a_broken_promise_is_noticed(
    change: Callable[[set[str]], set[str]], expected: list[str]
) -> None:
    frozen = set(FROZEN.read_text(encoding="utf-8").split("\n")) - {""}
    assert broken(frozen, change(set(frozen))) == expected


def test_canary_a_wrong_answer_is_noticed() -> None:
    known = dict.fromkeys(stored("calibration-network")["properties"])
    known |= {"schema": "perfmodel.calibration/1", "kind": "network"}
    assert breaches("calibration-network", known) == []
    known |= {"kind": "runs", "colour": 1}
    del known["link"]
    assert breaches("calibration-network", known) == ["colour", "link", "kind"]


# -- files and outputs are as the schemas say ---------------------------------------------------


def wrong(values: Any, schema: Any) -> list[str]:
    """Places where values differ from a schema."""
    jsonschema = pytest.importorskip("jsonschema")
    found = jsonschema.Draft202012Validator(schema).iter_errors(values)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


def strict(part: Any) -> Any:
    """A schema that allows no further keys, as outputs have none."""
    if isinstance(part, list):
        return [strict(each) for each in part]
    if not isinstance(part, dict):
        return part
    closed = {key: strict(value) for key, value in part.items()}
    if isinstance(part.get("properties"), dict) and part.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


SHIPPED = [
    *((path, "workload") for path in sorted((ROOT / "profiles" / "models").glob("*.json"))[::4]),
    *((path, "device") for path in sorted((ROOT / "profiles" / "devices").glob("*.toml"))),
    *((path, "cluster") for path in sorted((ROOT / "profiles" / "clusters").glob("*.toml"))),
    *((path, "cases") for path in sorted((ROOT / "profiles" / "cases").glob("*.*ml"))),
]


@pytest.mark.slow
def test_shipped_files_are_as_the_schemas_say() -> None:
    for path, name in SHIPPED:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        assert wrong(values, stored(name)) == [], path.name


def test_canary_a_wrong_file_is_noticed() -> None:
    path = next(path for path, name in SHIPPED if name == "cluster")
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    values["nic"]["bandwidth_bytes_per_s"] = "25Gbps"
    assert wrong(values, stored("cluster")) == []
    values["nodes"] = "25Gbps"
    values["nick"] = 1
    assert len(wrong(values, stored("cluster"))) == 2


JOB = "--model resnet18 --arch ps --workers 4"
COMMANDS = {
    f"predict {JOB}": "prediction",
    f"predict {JOB} --fidelity coarse --dataset-size 1000": "prediction",
    "predict --model llama-8b --device h100 --workers 4 --arch ring --tensor 4 --pipeline 2 "
    "--micro-batches 4 --batch-size 4 --fidelity coarse": "prediction",
    "sweep --model resnet18 --arch ps --workers 2,4": "sweep",
    "compare --model resnet18 --arch ps,ring --workers 4": "comparison",
    "compare --layouts --model gpt2-large --device a100 --cluster dgx-a100 --devices 8 "
    "--tensor 1,2 --pipeline 1,2 --recompute none --micro-batch-size 1 --virtual-stages 1": (
        "layouts"
    ),
    f"explain {JOB} --against ring": "explanation",
    f"advise {JOB} --sync asp": "advice",
    f"require bandwidth {JOB} --to scaling>0.9": "requirement",
    f"report {JOB} --output page.html --fidelity coarse": "report",
    "show --formula ps": "formula",
    f"diagnose {JOB} --measured-step 5s --also 2:2.4s": "diagnosis",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            c, marks=pytest.mark.slow if c.startswith(("report", "compare --layouts")) else ()
        )
        for c in COMMANDS
    ],
)
def test_outputs_are_as_the_schemas_say(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jsonschema")
    if command.startswith("report"):
        pytest.importorskip("bokeh")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, [*command.split(), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    schema = strict(stored(COMMANDS[command]))
    assert wrong(values, schema) == []
    values["colour"] = 1
    assert wrong(values, schema) != []
