"""The compiled loop: when it is used or rejected, and that results are the same."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfmodel import InputError
from perfmodel.base.errors import PerfmodelWarning
from perfmodel.engine import library, twins
from perfmodel.engine.simulation import Simulation, makespan, simulate
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph

ROOT = Path(__file__).parents[2]

needs_library = pytest.mark.skipif(
    bool(library.compiled()[1]), reason=f"there is no compiled code: {library.compiled()[1]}"
)


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Act as if nothing had been simulated yet."""
    monkeypatch.delenv(twins.VARIABLE, raising=False)
    forget()
    yield
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Clear the caches about the compiled loop."""
    library.compiled.cache_clear()
    twins._warn.cache_clear()


def importing(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    """Let the import of the extension module fail."""

    def fails(name: str) -> Any:
        assert name == library.EXTENSION
        raise error

    monkeypatch.setattr(library.importlib, "import_module", fails)


def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module(library.EXTENSION), "SOURCE", "0")


def damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    importing(monkeypatch, ImportError("_loop.abi3.so: file too short\nand more"))


UNUSABLE: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "of other source": (stale, "was compiled from other source: reinstall perfmodel"),
    "damaged": (damaged, "cannot be loaded: _loop.abi3.so: file too short$"),
}


def chain(ops: int) -> OpGraph:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    ids = b.ops("op", (ops,), seconds=0.5, slot=device[0])
    b.chain(ids)
    return b.build(device=device, mark=ids[-1:])


@needs_library
def test_every_job_is_simulated_by_the_library() -> None:
    assert twins.choose() != twins.plain()
    with Simulation(chain(3), 0) as run:
        assert not isinstance(run.world.ops, list)


@needs_library
@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_unusable_loop_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    assert not library.compiled()[1]
    forget()
    spoil, reason = UNUSABLE[kind]
    spoil(monkeypatch)
    with pytest.warns(PerfmodelWarning, match=f"plain Python.*{reason}") as warned:
        times = [makespan(chain(40)) for _ in range(2)]
    assert times == [20.0, 20.0]
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    with pytest.raises(InputError, match=f"no compiled event loop: .*{reason}"):
        twins.choose(True)


def test_without_a_compiled_loop_only_a_long_job_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    importing(monkeypatch, ModuleNotFoundError(library.EXTENSION))
    assert makespan(chain(40)) == 20.0  # a warning would be an error here
    monkeypatch.setattr(twins, "LONG_OPS", 100)
    with pytest.warns(PerfmodelWarning, match="not compiled when perfmodel was inst") as warned:
        rounds = [simulate(chain(ops)).rounds for ops in (101, 102)]
    assert min(rounds) > 0
    assert len(warned) == 1


def test_the_environment_variable_selects_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(twins.VARIABLE, "0")
    assert twins.requested(None) is False
    assert twins.requested(True) is True
    with Simulation(chain(3), 0) as run:
        assert isinstance(run.world.ops, list)
    monkeypatch.setenv(twins.VARIABLE, "yes")
    with pytest.raises(InputError, match="PERFMODEL_COMPILED must be 0 or 1, got 'yes'"):
        simulate(chain(3))


def test_another_source_is_another_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Caches on disk are keyed by this digest."""
    for path in Path(library.FOLDER).glob("*.py"):
        shutil.copy(path, tmp_path)
    before = library.source_digest()
    monkeypatch.setattr(library, "FOLDER", str(tmp_path))
    assert library.source_digest() == before
    for name in (*library.MODULES, "world"):
        source = (tmp_path / f"{name}.py").read_text()
        (tmp_path / f"{name}.py").write_text(f"{source}\nX = 1\n")
        assert library.source_digest() != before, name
        (tmp_path / f"{name}.py").write_text(source)
    assert library.source_digest() == before


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without the extension module."""
    left = shutil.ignore_patterns("__pycache__", "_loop.*")
    shutil.copytree(ROOT / "perfmodel", tmp_path / "perfmodel", ignore=left)
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    return tmp_path


def command(checkout: Path, *words: str) -> tuple[str, str]:
    """Standard output and error of a command in this checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", *words],
        env={**os.environ, "PYTHONPATH": str(checkout)}, cwd=checkout,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


JOB = ("predict", "--model", "resnet18", "--arch", "asp", "--workers", "2", "--rel-ci", "5%")


@pytest.mark.slow
@needs_library
def test_commands_report_plain_simulation_in_one_line(checkout: Path) -> None:
    expected = command(ROOT, *JOB)
    assert expected[1] == ""
    assert command(ROOT, "--version")[0].splitlines()[1] == "simulates with compiled code"
    assert command(checkout, *JOB) == expected  # the job is small
    version = command(checkout, "--version")[0]
    assert "simulates in plain Python" in version
    assert "it was not compiled when perfmodel was installed; to compile it, get a C" in version
    file = Path(importlib.import_module(library.EXTENSION).__file__ or "")
    (checkout / "perfmodel" / "engine" / file.name).write_text("text")
    output, warned = command(checkout, *JOB)
    assert output == expected[0]
    (line,) = warned.splitlines()
    assert line.startswith("perfmodel: warning: simulating in plain Python")
    assert "it cannot be loaded" in line


@pytest.mark.family("hash seeds")
@pytest.mark.slow
def test_results_do_not_depend_on_the_loop_or_the_hash_seed() -> None:
    program = (
        "from perfmodel import Jitter, make_job, predict\n"
        "for arch, options in (('ps', {'sync': 'asp', 'servers': 2}), ('ring', {})):\n"
        "    j = make_job(model='resnet18', workers=3, arch=arch, options=options,\n"
        "                 jitter=Jitter(0.2), seed=5)\n"
        "    print(predict(j, rel_ci=0.5).to_json())"
    )

    def answer(**variables: str) -> str:
        environment = {**os.environ, **variables}
        words: Any = [sys.executable, "-c", program]
        return subprocess.run(
            words, env=environment, capture_output=True, text=True, check=True
        ).stdout

    plain = answer(PERFMODEL_COMPILED="0", PYTHONHASHSEED="0")
    assert '"throughput_samples_per_s"' in plain
    for seed in ("1", "12345"):
        assert answer(PERFMODEL_COMPILED="1", PYTHONHASHSEED=seed) == plain


@needs_library
def test_both_loops_count_a_chain() -> None:
    assert makespan(chain(40), compiled=False) == makespan(chain(40), compiled=True) == 20.0
