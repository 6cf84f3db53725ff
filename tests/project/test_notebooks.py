"""Each notebook still prints its committed outputs; images are drawn but not compared."""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base import files

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
UPDATE = os.environ.get("PERFMODEL_UPDATE_OUTPUTS") == "1"

by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def outputs(notebook: dict[str, Any]) -> list[list[str]]:
    """Outputs of each code cell: text, and for images only their presence."""
    found = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            texts = []
            for output in cell["outputs"]:
                picture = "image/png" in output.get("data", {})
                texts.append("picture" if picture else "".join(output.get("text", "?")))
            found.append(["".join(texts)])
    return found


def executed(path: Path) -> dict[str, Any]:
    """The notebook, executed in its folder, without parts that differ between runs."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("matplotlib")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    metadata = copy.deepcopy(notebook.metadata)
    nbclient.NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
    ).execute()
    notebook.metadata = metadata
    values: dict[str, Any] = json.loads(nbformat.writes(notebook))
    return values


LOCAL = re.compile(r"(?<![\w<:/.])/\w+/\w|[A-Z]:\\+\w")
"""Absolute paths, but not addresses, HTML tags, and units such as samples/s."""


def readable(notebook: dict[str, Any]) -> list[str]:
    """All texts of a notebook, without its images."""
    found = []
    for cell in notebook["cells"]:
        found.append("".join(cell["source"]))
        for output in cell.get("outputs", ()):
            found.append("".join(output.get("text", ())))
            found += output.get("traceback", ())
            data = output.get("data", {})
            found += ("".join(text) for kind, text in data.items() if kind.startswith("text/"))
    return found


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("see /srv/models/net.json", True),
        ('File "/opt/python/x.py", line 1', True),
        ("C:\\data\\net.json", True),
        ("<td>2</td> at 474.7 samples/s, https://ui.perfetto.dev/a/b, ../examples/net.json", False),
    ],
)
def test_canary_local_paths_are_noticed(text: str, local: bool) -> None:
    assert bool(LOCAL.search(text)) == local


def test_notebooks_contain_no_local_paths() -> None:
    assert len(NOTEBOOKS) >= 2
    gallery = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        texts = readable(json.loads(path.read_text(encoding="utf-8")))
        assert [text for text in texts if LOCAL.search(text)] == []
        assert f"](notebooks/{path.name})" in gallery


@by_notebook
def test_a_notebook_is_committed_with_its_outputs(path: Path) -> None:
    found = outputs(json.loads(path.read_text(encoding="utf-8")))
    assert any(text == ["picture"] for text in found) or UPDATE
    assert all(text != [""] for text in found) or UPDATE


@pytest.mark.slow
@pytest.mark.family("pages")
@by_notebook
@pytest.mark.filterwarnings("default")  # from the notebook packages
def test_a_notebook_prints_its_committed_outputs(path: Path) -> None:
    now = executed(path)
    if UPDATE:
        files.write(path, (json.dumps(now, indent=1, ensure_ascii=False) + "\n").encode())
    assert outputs(json.loads(path.read_text(encoding="utf-8"))) == outputs(now)


def test_canary_another_output_is_noticed() -> None:
    notebook = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    planted = copy.deepcopy(notebook)
    cell = next(c for c in planted["cells"] if c["cell_type"] == "code")
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1 samples/s\n"]}]
    assert outputs(planted) != outputs(notebook)
