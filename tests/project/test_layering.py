"""Rooms import only from the rooms below them, and imports are not circular."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import networkx as nx
import pytest

import perfmodel

PACKAGE = Path(perfmodel.__file__).parent

ROOT = frozenset({"__init__", "__main__", "api"})
"""Modules outside the rooms."""

ABOVE_BASE = "base theory pipelines inputs times replicas graph phases results"
ROOMS: Mapping[str, frozenset[str]] = {
    room: frozenset(may.split())
    for room, may in {
        "base": "",
        "foreign": "base",
        "launchers": "base",
        "theory": "base",
        "pipelines": "base",
        "graph": "base",
        "reporting": "base",
        "results": "base reporting",
        "inputs": "base launchers theory pipelines",
        "times": "base theory inputs",
        "replicas": "base theory pipelines inputs times",
        "catalogue": "base theory inputs times",
        "engine": "base graph",
        "phases": "base theory pipelines inputs",
        "profiler": "base foreign theory inputs",
        "traces": "base inputs",
        "training": ABOVE_BASE,
        "communication": f"{ABOVE_BASE} training",
        "architectures": f"{ABOVE_BASE} training communication",
        "predicting": f"{ABOVE_BASE} catalogue engine training communication architectures",
        "replay": "base foreign theory reporting results",
        "measuring": "base foreign launchers theory inputs reporting results architectures "
        "profiler",
        "api": "base inputs catalogue graph results engine architectures predicting",
        "sweeping": f"{ABOVE_BASE} catalogue reporting architectures predicting replay api",
        "studies": f"{ABOVE_BASE} catalogue reporting architectures predicting api sweeping",
        "planning": "base theory inputs catalogue reporting results architectures predicting api "
        "sweeping studies",
        "calibration": f"{ABOVE_BASE} catalogue engine launchers reporting architectures "
        "predicting measuring traces api",
        "validation": "base inputs catalogue reporting results measuring api",
        "cli": f"{ABOVE_BASE} catalogue foreign launchers reporting architectures predicting "
        "replay sweeping studies planning calibration validation measuring profiler traces api",
        "__main__": "cli",
    }.items()
}
"""Rooms that each room may import, lowest first; each names only rooms of earlier rows."""

DRAWING = frozenset({"matplotlib", "bokeh", "jinja2"})
"""Libraries that draw figures and write pages: only ``reporting`` imports them. All other rooms say
what a figure or a page shows, in the language of :mod:`perfmodel.reporting.contents`."""

FACADE = frozenset({"__version__"})
"""Names that modules may import from the package itself; others are imported where defined."""

TOLD = ("does not know", "through the package", "is of no room", "in a circle")


def room_of(module: str) -> str:
    """Room of a module that is named without the package."""
    return module.partition(".")[0]


def imports(source: str, module: str, modules: frozenset[str]) -> list[tuple[int, str]]:
    """Line and target of each import of the package's own names, anywhere in the file.

    A target is a module without the package's name; "" is the package itself, "?name" a name
    imported from the package that is not a module.
    """
    found: list[tuple[int, str]] = []
    inside = any(other.startswith(f"{module}.") for other in modules)  # itself a package
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package, _, rest = alias.name.partition(".")
                if package == "perfmodel":
                    found.append((node.lineno, rest))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = ["perfmodel", *module.split(".")]
                here = here[: len(here) - node.level + inside]
                base = ".".join([*here, *filter(None, [base])])
            package, _, rest = base.partition(".")
            if package != "perfmodel":
                continue
            for alias in node.names:
                name = f"{rest}.{alias.name}" if rest else alias.name
                if name in modules or (room_of(name) in ROOMS and not rest):
                    found.append((node.lineno, name))
                else:
                    found.append((node.lineno, rest or f"?{alias.name}"))
    return found


def violations(sources: Mapping[str, str]) -> list[str]:
    """Imports that break the rules, by module name without the package."""
    modules = frozenset(sources)
    found = []
    graph = nx.DiGraph()
    for module, source in sources.items():
        own = room_of(module)
        if own not in ROOMS:
            found.append(f"{module} {TOLD[2]}")
            continue
        for line, target in imports(source, module, modules):
            said = f"{module}:{line} imports"
            if target.startswith("?") or not target:
                if target.removeprefix("?") not in FACADE:
                    found.append(f"{said} {target[1:] or 'perfmodel'} {TOLD[1]}")
                continue
            other = room_of(target)
            if other not in ROOMS:
                found.append(f"{said} {target}, which {TOLD[2]}")
            elif other != own and other not in ROOMS[own]:
                found.append(f"{said} {target}, which {own} {TOLD[0]}")
            elif target in modules:
                graph.add_edge(module, target)
    for circle in nx.strongly_connected_components(graph):
        if len(circle) > 1:
            found.append(f"{' '.join(sorted(circle))} import each other {TOLD[3]}")
    return found


def drawing(sources: Mapping[str, str]) -> list[str]:
    """Modules outside ``reporting`` that import a drawing library, except for type checking."""
    found = []
    for module, source in sources.items():
        if room_of(module) == "reporting" or not any(name in source for name in DRAWING):
            continue
        tree = ast.parse(source)
        typing = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            if node not in typing and any(name.partition(".")[0] in DRAWING for name in names):
                found.append(module)
    return found


def package_sources() -> dict[str, str]:
    """Source of each module except the package's own file, which lazily imports from all."""
    sources = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if parts:
            sources[".".join(parts)] = path.read_text(encoding="utf-8")
    return sources


def test_rooms_import_only_from_below() -> None:
    assert violations(package_sources()) == []


def test_only_reporting_draws() -> None:
    assert drawing(package_sources()) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f():\n    from matplotlib.figure import Figure", ["results.a"]),
        ("import bokeh.plotting as p", ["results.a"]),
        ("if TYPE_CHECKING:\n    from matplotlib.figure import Figure", []),
        ("from perfmodel.reporting import images", []),
    ],
)
def test_canary_a_result_that_draws_is_reported(source: str, expected: list[str]) -> None:
    assert drawing({"results.a": source, "reporting.b": "import bokeh"}) == expected


def test_each_row_names_only_earlier_rows() -> None:
    seen: set[str] = set()
    for room, may in ROOMS.items():
        assert may <= seen
        seen.add(room)


def test_every_row_is_a_room() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms | ROOT - {"__init__"} == set(ROOMS)


def test_only_the_listed_modules_are_outside_rooms() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == ROOT
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("room", sorted(set(ROOMS) - ROOT))
def test_each_room_has_a_one_sentence_purpose(room: str) -> None:
    text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()))
    assert text
    assert text.splitlines()[0].endswith(".")


def planted(module: str, source: str) -> list[str]:
    """Violations in a package whose modules are empty except for one."""
    names = (
        "base.units base.errors inputs.job inputs.catalogue graph.op_graph engine.loop "
        "engine.world architectures.ps architectures.base profiler.record api cli predicting.fine"
    )
    return violations({**dict.fromkeys(names.split(), ""), module: source})


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("base.units", "from perfmodel.api import predict", "base.units:1 imports api, which base"),
        ("inputs.job", "import perfmodel.graph.op_graph", "inputs.job:1 imports graph.op_graph, "),
        ("inputs.job", "from perfmodel import graph", "inputs.job:1 imports graph, which inputs "),
        ("inputs.job", "from perfmodel import Cluster", "inputs.job:1 imports Cluster through the"),
        ("inputs.job", "import perfmodel", "inputs.job:1 imports perfmodel through the package"),
        (
            "inputs.job",
            "def f():\n    from perfmodel import api",
            "inputs.job:2 imports api, which",
        ),
        (
            "inputs.job",
            "from ..engine import loop",
            "inputs.job:1 imports engine.loop, which inputs",
        ),
        (
            "graph.op_graph",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import perfmodel.engine.loop",
            "graph.op_graph:3 imports engine.loop, which graph does not know",
        ),
        (
            "engine.loop",
            "from perfmodel import architectures",
            "engine.loop:1 imports architectures",
        ),
        (
            "architectures.ps",
            "import perfmodel.engine.loop",
            "architectures.ps:1 imports engine.lo",
        ),
        (
            "profiler.record",
            "from perfmodel.graph import op_graph",
            "profiler.record:1 imports gra",
        ),
        ("engine.loop", "from perfmodel.engine import loop as x", ""),
        ("brand_new", "", "brand_new is of no room"),
        ("cli", "import perfmodel.brand_new", "cli:1 imports brand_new, which is of no room"),
    ],
)
def test_canary_a_planted_import_is_reported(module: str, source: str, expected: str) -> None:
    found = planted(module, source)
    assert [text[: len(expected)] for text in found] == ([expected] if expected else [])


def test_canary_a_circular_import_is_reported() -> None:
    sources = {"base.a": "import perfmodel.base.b", "base.b": "from perfmodel.base import a"}
    assert violations(sources) == ["base.a base.b import each other in a circle"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("inputs.job", "from perfmodel.base.errors import InputError"),
        ("inputs.job", "from perfmodel.inputs.profile import Layer"),
        ("base.units", "from perfmodel import __version__"),
        ("architectures.ps", "from .base import Architecture"),
        ("predicting.fine", "from perfmodel.engine import loop"),
    ],
)
def test_canary_an_allowed_import_is_not_reported(module: str, source: str) -> None:
    assert planted(module, source) == []
