"""Imports among the package's modules go one way, from the command line down to the errors."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

import perfmodel

PACKAGE = Path(perfmodel.__file__).parent

ORDER: tuple[tuple[str, ...], ...] = (
    ("limits",),
    ("errors",),
    ("units", "provenance", "algebra", "scaling", "uncertainty"),
    ("files",),
    ("tables",),
    ("profile", "measurements"),
    ("workload",),
    ("device", "cluster"),
    ("transfer",),
    ("catalogue", "job"),
    ("order_statistics", "queueing", "overlap", "graph"),
    ("phases", "contention"),
    ("noise", "measures", "ahead"),
    ("sharing",),
    ("costs", "buckets", "collectives", "incast"),
    ("architectures", "eventloop"),
    ("architectures._links", "architectures._workers", "world"),
    ("architectures._network", "layout", "snapshot"),
    ("architectures._measured", "architectures._members"),
    ("architectures._reduction",),
    ("architectures._collectives", "architectures._gossip", "architectures._messages"),
    ("architectures._rates",),
    ("architectures._ps_options",),
    ("architectures._placement",),
    ("architectures._ps_phases",),
    ("compiledworld", "critical", "leads", "steady"),
    ("compiled",),
    ("run",),
    ("warmup",),
    ("engine", "architectures.*"),
    ("plot",),
    ("prediction", "bands"),
    ("bottlenecks", "budget", "particulars"),
    ("fine", "coarse"),
    ("intervals",),
    ("api",),
    ("grids", "formulas"),
    ("sweeps", "crossovers"),
    ("comparison",),
    ("report",),
    ("profiler.libraries",),
    (
        *("profiler.clocks", "profiler.layers", "profiler.overhead", "profiler.saving"),
        "profiler.steps",
    ),
    ("profiler.averages", "profiler.marks", "profiler.training"),
    ("profiler.profiler",),
    ("profiler.record",),
    ("profiler.tables",),
    ("profiler",),
    (
        *("measuring.run", "measuring.sockets", "measuring.tokens", "measuring.plan"),
        *("measuring.emulated", "measuring.interfaces"),
    ),
    ("measuring.connecting", "measuring.ranks"),
    ("measuring.torchrun",),
    ("measuring.group", "measuring.shards", "measuring.summary"),
    ("measuring.meeting", "measuring.server", "measuring.tcp", "measuring.torch_backend"),
    ("measuring.worker",),
    ("measuring.data_parallel", "measuring.hooks"),
    ("calibration.statistics",),
    ("calibration.robust",),
    (
        *("calibration.collectives", "calibration.links"),
        *("calibration.asynchronous_model", "calibration.synchronous_model"),
    ),
    ("calibration.parameters", "calibration.runs_table", "calibration.asynchronous_fit"),
    ("calibration.likelihood", "calibration.placements"),
    ("calibration.trainings",),
    ("traces.events",),
    ("traces.attribution",),
    ("traces.steps", "traces.gradients"),
    ("calibration.*", "measuring.*", "traces.*"),
    ("calibration.series", "calibration.server"),
    ("calibration.report",),
    ("validation.scores", "validation.cases"),
    ("validation.validate",),
    ("validation.report", "validation"),
    ("calibration", "measuring", "traces"),
    ("cli.options",),
    ("cli.jobs", "cli.meeting"),
    ("cli.*",),
    ("cli.measure", "cli.calibrate"),
    ("cli",),
    ("__main__",),
)
"""Lowest first: a module imports from lower rows only, never from its own row."""

ONLY: Mapping[str, frozenset[str]] = {
    # what measures a model knows of inputs, not of predictions
    "profiler": frozenset(
        f"profiler.{name}" for name in ("averages", "overhead", "profiler", "record", "training")
    ),
}
ENGINE = "measures ahead sharing eventloop world compiledworld compiled critical steady engine"
BRANCHES = (frozenset({"architectures"}), frozenset(ENGINE.split()))
"""Architectures draw op graphs, the engine runs any: neither knows of the other."""
FACADE_NAMES = frozenset({"__version__"})
"""All that modules may take from the package itself; the rest they take where it is defined."""


def rank(module: str) -> int | None:
    """Row of a module (named without the package), None when it has none."""
    parent = module.rpartition(".")[0]
    for row, names in enumerate(ORDER):
        if module in names:
            return row
    for row, names in enumerate(ORDER):
        if parent and f"{parent}.*" in names:
            return row
    return None


def branch(module: str) -> int | None:
    """Branch that a module belongs to, None when it belongs to none."""
    top = module.partition(".")[0]
    return next((i for i, names in enumerate(BRANCHES) if top in names), None)


def imports(source: str, module: str, modules: frozenset[str]) -> list[tuple[int, str]]:
    """Line and target of each import of the package's own names, wherever in the file it stands.

    A target is a module without the package's name; "" is the package, "?name" a name that is
    taken from the package but is not a module.
    """
    found: list[tuple[int, str]] = []
    inside = module in {m.rpartition(".")[0] for m in modules}  # module is itself a package
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package, _, rest = alias.name.partition(".")
                if package == "perfmodel":
                    found.append((node.lineno, rest))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = ["perfmodel", *filter(None, module.split("."))]
                here = here[: len(here) - node.level + (inside or not module)]
                base = ".".join([*here, *filter(None, [base])])
            package, _, rest = base.partition(".")
            if package != "perfmodel":
                continue
            for alias in node.names:
                name = f"{rest}.{alias.name}" if rest else alias.name
                if name in modules:
                    found.append((node.lineno, name))
                else:
                    found.append((node.lineno, rest or f"?{alias.name}"))
    return found


def violations(sources: Mapping[str, str]) -> list[str]:
    """Imports that break the order, by module name without the package."""
    modules = frozenset(sources)
    found = []
    for module, source in sources.items():
        own = rank(module)
        if own is None:
            found.append(f"{module}: not in the order of the layers")
            continue
        for line, target in imports(source, module, modules):
            said = f"{module}:{line}"
            if target.startswith("?") or not target:
                if target.removeprefix("?") not in FACADE_NAMES:
                    found.append(f"{said} imports {target[1:] or 'perfmodel'} through the package")
                continue
            other = rank(target)
            if other is None:
                found.append(f"{said} imports {target}, which is not in the order of the layers")
            elif other >= own or {branch(module), branch(target)} == {0, 1}:
                found.append(f"{said} imports {target}, which is not below it")
            elif module in ONLY and target not in ONLY[module]:
                found.append(f"{said} imports {target}, which is more than it may know")
    return found


def package_sources() -> dict[str, str]:
    """Source of each module but the package's own file, which imports lazily from all of them."""
    sources = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if parts:
            sources[".".join(parts)] = path.read_text(encoding="utf-8")
    return sources


def test_imports_go_down() -> None:
    assert violations(package_sources()) == []


def test_the_order_names_no_module_that_is_gone() -> None:
    listed = {name for names in ORDER for name in names if not name.endswith(".*")}
    assert listed - set(package_sources()) == set()


def planted(module: str, source: str) -> list[str]:
    """Violations in a package of empty modules, but for one."""
    names = [name for row in ORDER for name in row if not name.endswith(".*")]
    empty = dict.fromkeys([*names, "architectures.ps", "architectures.allreduce"], "")
    return violations({**empty, module: source})


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("units", "from perfmodel.api import predict", "units:1 imports api, which is not below"),
        ("job", "import perfmodel.catalogue", "job:1 imports catalogue, which is not below"),
        ("job", "from perfmodel import catalogue", "job:1 imports catalogue, which is not below"),
        ("job", "from . import catalogue", "job:1 imports catalogue, which is not below"),
        ("job", "from .catalogue import model", "job:1 imports catalogue, which is not below"),
        ("job", "from perfmodel import Cluster", "job:1 imports Cluster through the package"),
        ("job", "import perfmodel", "job:1 imports perfmodel through the package"),
        ("job", "def f():\n    from perfmodel import api", "job:2 imports api, which is not"),
        (
            "graph",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import perfmodel.engine as e",
            "graph:3 imports engine, which is not below",
        ),
        ("engine", "from perfmodel import architectures", "engine:1 imports architectures, which"),
        ("eventloop", "from perfmodel import architectures", "eventloop:1 imports architectures, "),
        ("architectures.ps", "import perfmodel.measures", "architectures.ps:1 imports measures, "),
        ("engine", "from .architectures import ps", "engine:1 imports architectures.ps, which"),
        ("architectures.ps", "import perfmodel.engine", "architectures.ps:1 imports engine, which"),
        (
            "architectures.ps",
            "from perfmodel.architectures import allreduce",
            "architectures.ps:1 imports architectures.allreduce, which is not below",
        ),
        (
            "architectures.ps",
            "from .allreduce import build",
            "architectures.ps:1 imports architectures.allreduce, which is not below",
        ),
        (
            "architectures",
            "from . import ps",
            "architectures:1 imports architectures.ps, which is not below",
        ),
        ("profiler", "from perfmodel import job", "profiler:1 imports job, which is more than it"),
        ("brand_new", "", "brand_new: not in the order of the layers"),
        ("cli", "import perfmodel.brand_new", "cli:1 imports brand_new, which is not in the order"),
    ],
)
def test_canary_a_planted_import_is_reported(module: str, source: str, expected: str) -> None:
    found = planted(module, source)
    assert [text[: len(expected)] for text in found] == [expected]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("job", "from perfmodel.cluster import Cluster"),
        ("provenance", "from perfmodel import __version__"),
        ("architectures.ps", "from . import _workers, Architecture"),
        ("architectures.ps", "from perfmodel.architectures._workers import add_workers"),
        ("profiler.saving", "from perfmodel import files"),
    ],
)
def test_canary_an_allowed_import_is_not_reported(module: str, source: str) -> None:
    assert planted(module, source) == []
