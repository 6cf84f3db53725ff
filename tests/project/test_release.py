"""Files that others install and report with: versions, recipes, workflows and forms agree."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

import perfmodel

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*.yml"))

RENAMED = {"msgspec": "msgspec-python"}
"""Packages that conda-forge calls otherwise."""


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read(path: Path) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def lowest(requirements: list[str]) -> dict[str, str]:
    """The lowest version of each package that is required, without the package's own extras."""
    pairs = (re.fullmatch(r"([\w-]+)>=([\d.]+)", each) for each in requirements)
    return {found[1]: found[2] for found in pairs if found}


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("CITATION.cff", r"^version: (.*)$"),
        ("conda/recipe.yaml", r'^  version: "(.*)"$'),
        ("CHANGELOG.md", r"^## \[(.*)\]"),
    ],
)
def test_versions_agree(name: str, pattern: str) -> None:
    assert re.findall(pattern, text_of(name), re.M)[0] == perfmodel.__version__


def test_every_package_is_installed() -> None:
    folders = {path.parent for path in (ROOT / "perfmodel").rglob("__init__.py")}
    names = {path.relative_to(ROOT).as_posix().replace("/", ".") for path in folders}
    listed = {name for name in PROJECT["tool"]["setuptools"]["packages"] if "._" not in name}
    assert listed == names


# -- the lowest versions ------------------------------------------------------------------------


def disagreeing(constraints: str, wanted: dict[str, str]) -> list[str]:
    """Packages whose constraint is not the first version of the one that is wanted."""
    pairs = dict(re.findall(r"^([\w-]+)==([\d.]+)$", constraints, re.M))
    wrong = [
        name
        for name, version in wanted.items()
        if not f"{pairs.get(name, '')}.".startswith(f"{version}.")
    ]
    return sorted({*wrong, *(pairs.keys() - wanted)})


def wanted_by_tests() -> dict[str, str]:
    extras = [*EXTRAS["compiler"], *EXTRAS["converge"], *EXTRAS["oracle"], *EXTRAS["test"]]
    build = PROJECT["build-system"]["requires"]
    return lowest([*build, *PROJECT["project"]["dependencies"], *extras])


def test_the_lowest_versions_are_those_of_the_project() -> None:
    wanted = wanted_by_tests()
    assert len(wanted) >= len(PROJECT["project"]["dependencies"]) + 8
    assert disagreeing(text_of(".ci/lowest.txt"), wanted) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("numpy==1.26.0", "numpy==1.27.0", ["numpy"]),
        ("numpy==1.26.0", "", ["numpy"]),
        ("rich==13.0.0", "rich==13.0.0\nattrs==1.0", ["attrs"]),
        ("sympy==1.13.0", "sympy==1.130", ["sympy"]),
    ],
)
def test_canary_another_lowest_version_is_noticed(
    before: str, after: str, expected: list[str]
) -> None:
    changed = text_of(".ci/lowest.txt").replace(before, after)
    assert disagreeing(changed, wanted_by_tests()) == expected


# -- the recipe of conda ------------------------------------------------------------------------


def differences(recipe: dict[str, Any]) -> list[str]:
    """Parts of a recipe that differ from pyproject.toml."""
    project = PROJECT["project"]

    def named(requirements: dict[str, str], *more: str) -> list[str]:
        names = (f"{RENAMED.get(name, name)} >={at}" for name, at in requirements.items())
        return sorted([*names, f"python {project['requires-python']}", *more])

    checks = {
        "name": recipe["package"]["name"] == project["name"],
        "host": sorted(recipe["requirements"]["host"])
        == named(lowest(PROJECT["build-system"]["requires"]), "pip"),
        "run": sorted(recipe["requirements"]["run"]) == named(lowest(project["dependencies"])),
        "command": recipe["build"]["python"]["entry_points"]
        == [f"{name} = {place}" for name, place in project["scripts"].items()],
        "summary": recipe["about"]["summary"] == project["description"],
        "license": recipe["about"]["license"] == project["license"],
        "license file": [recipe["about"]["license_file"]] == project["license-files"],
    }
    return [name for name, holds in checks.items() if not holds]


def test_the_recipe_of_conda_agrees_with_the_project() -> None:
    recipe = read(ROOT / "conda" / "recipe.yaml")
    assert differences(recipe) == []
    recipe["requirements"]["run"].remove("rich >=13.0")
    recipe["requirements"]["host"].append("scipy >=1.0")
    recipe["about"]["license"] = "MIT"
    assert differences(recipe) == ["host", "run", "license"]


# -- continuous integration ---------------------------------------------------------------------


def parts() -> list[str]:
    """The parts of ``.ci/run``."""
    found = re.search(r"^known=\((.*)\)$", text_of(".ci/run"), re.M)
    assert found is not None
    return found[1].split()


def called(workflow: dict[str, Any]) -> set[str]:
    """The parts of ``.ci/run`` that a workflow calls."""
    found = set()
    for job in workflow["jobs"].values():
        cells = job.get("strategy", {}).get("matrix", {}).get("parts", [])
        for step in job["steps"]:
            script, _, words = step.get("run", "").partition(" ")
            if script == ".ci/run":
                found |= set(" ".join(cells).split() if "matrix" in words else words.split())
    return found


def test_each_part_of_the_checks_is_described_and_called() -> None:
    head = text_of(".ci/run").partition("set -euo")[0]
    assert re.findall(r"^# (\w+)  ", head, re.M) == parts()
    body = text_of(".ci/run")
    assert all(f"if part {name}" in body or f" {name}" in body for name in parts())
    assert called(read(ROOT / ".github" / "workflows" / "ci.yml")) == set(parts())


def test_every_part_that_is_drawn_runs_whole_each_night() -> None:
    sections = re.split(r"^if part ", text_of(".ci/run"), flags=re.M)[1:]
    parts_drawn = {words.split(";")[0] for words in sections if "run_drawn " in words}
    assert parts_drawn == {"torch", "slow", "plain", "properties"}
    nightly = read(ROOT / ".github" / "workflows" / "nightly.yml")
    assert called(nightly) == parts_drawn
    assert [job["env"]["PERFMODEL_DRAWN"] for job in nightly["jobs"].values()] == ["1"]


@pytest.mark.skipif(os.name == "nt", reason="bash may be that of another system there")
def test_an_unknown_part_is_refused() -> None:
    done = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run"), "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "unknown part 'nonsense'" in done.stderr
    assert done.stdout == ""


def test_the_matrix_has_all_systems_and_versions() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    matrix = jobs["systems"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["project"]["requires-python"] == f">={matrix['python'][0]}"
    systems = {re.split(r"-(?!arm)", name)[0] for name in matrix["os"]}
    assert systems == {"ubuntu", "macos", "windows"}
    assert any(name.endswith("-arm") for name in matrix["os"])
    claimed = [
        found[1]
        for line in PROJECT["project"]["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
    ]
    assert claimed
    assert set(claimed) <= set(matrix["python"])
    wheels = read(ROOT / ".github" / "workflows" / "wheels.yml")["jobs"]["wheels"]
    built = wheels["strategy"]["matrix"]["os"]
    assert set(matrix["os"]) <= set(built)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_can_be_run(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@v[\d.]+", step.get("uses", "a/b@v1"))


# -- forms for issues ---------------------------------------------------------------------------

KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def mistakes(form: dict[str, Any]) -> list[str]:
    """What the host of a repository would refuse in a form."""
    found = [key for key in ("name", "description", "body") if not form.get(key)]
    ids = [each["id"] for each in form["body"] if each["type"] != "markdown"]
    if len(set(ids)) < len(ids):
        found.append("ids")
    for each in form["body"]:
        wanted = "value" if each["type"] == "markdown" else "label"
        if each["type"] not in KINDS or not each["attributes"].get(wanted):
            found.append(each.get("id", each["type"]))
        if each["type"] == "dropdown" and not all(
            isinstance(option, str) for option in each["attributes"]["options"]
        ):
            found.append(f"options of {each['id']}")
    return found


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_are_complete(path: Path) -> None:
    form = read(path)
    assert mistakes(form) == []
    form["body"].append({"type": "text", "id": form["body"][-1]["id"], "attributes": {}})
    assert mistakes(form) == ["ids", form["body"][-1]["id"]]


def test_there_is_a_form_for_each_kind_of_report() -> None:
    assert [path.stem.partition("-")[2] for path in FORMS] == [
        *("wrong-prediction", "slower-than-predicted", "crash", "feature"),
    ]


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_reports_go_through_the_host_of_the_repository(name: str) -> None:
    text = text_of(name)
    assert "private" in text
    assert "@" not in text


# -- decisions ----------------------------------------------------------------------------------


def unstated(text: str) -> list[str]:
    """What the status of a decision lacks."""
    found = re.search(r"\A# \d{4} .*\n\nStatus: (accepted|superseded)\b(.*)\n\n", text)
    if found is None:
        return ["status"]
    return ["by what"] if "superseded" in found[0] and "superseded by [" not in found[0] else []


def test_each_decision_states_its_status() -> None:
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        text = path.read_text(encoding="utf-8")
        assert unstated(text) == [], path.name
        other = re.search(r"superseded by \[\d+\]\((.*?)\)", text)
        if other is not None:
            newer = (path.parent / other[1]).read_text(encoding="utf-8")
            assert re.search(rf"supersedes .*\({path.name}\)", newer), path.name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# 0001 One\n\nStatus: accepted\n\n## Context\n", []),
        ("# 0001 One\n\n## Context\n", ["status"]),
        ("# 0001 One\n\nStatus: superseded\n\n## Context\n", ["by what"]),
    ],
)
def test_canary_a_decision_without_a_status_is_noticed(text: str, expected: list[str]) -> None:
    assert unstated(text) == expected


def test_the_command_that_tests_a_wheel_runs_in_every_shell() -> None:
    command = PROJECT["tool"]["cibuildwheel"]["test-command"]
    program, option, code = command.split(" ", 2)
    assert (program, option) == ("python", "-c")
    assert code[0] == code[-1] == '"'
    assert set("'\"$`%!").isdisjoint(code[1:-1])  # means something to cmd.exe or to Bash
    compile(code[1:-1], "wheel", "exec")
