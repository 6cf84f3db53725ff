"""The compiled loop: when its library is used or rejected, and that results are the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel import InputError, Jitter, build_graph
from perfmodel.base.errors import PerfmodelWarning
from perfmodel.engine import library, twins
from perfmodel.engine.library import LIBRARY, NOTE, find
from perfmodel.engine.simulation import Simulation, makespan, simulate
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from tests.jobs import cluster, job, workload

ROOT = Path(__file__).parents[2]

needs_library = pytest.mark.skipif(
    bool(find().reason), reason=f"there is no compiled code: {find().reason}"
)


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as if nothing had been simulated yet, and nothing could be built."""
    monkeypatch.delenv(twins.VARIABLE, raising=False)
    monkeypatch.setattr(twins.importlib.util, "find_spec", lambda name: None)
    forget()


def forget() -> None:
    """Clear the caches about the library."""
    for known in (twins._compiled, twins._build, twins._warn):
        known.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the library that this process uses."""
    for name in (LIBRARY, NOTE):
        shutil.copy(library.FOLDER / name, tmp_path)
    monkeypatch.setattr(library.find, "__defaults__", (tmp_path,))
    return tmp_path


def noted(folder: Path, **changes: str) -> None:
    """Change fields of the note."""
    note = json.loads((folder / NOTE).read_text()) | changes
    (folder / NOTE).write_text(json.dumps(note))


def spoilt(folder: Path) -> None:
    code = bytearray((folder / LIBRARY).read_bytes())
    code[len(code) // 2] ^= 1
    (folder / LIBRARY).write_bytes(code)


def shortened(folder: Path) -> None:
    code = (folder / LIBRARY).read_bytes()
    (folder / LIBRARY).write_bytes(code[: len(code) // 2])


SPOILT: dict[str, tuple[Any, str]] = {
    "damaged": (spoilt, "is damaged"),
    "truncated": (shortened, "is damaged"),
    "removed": (lambda f: (f / LIBRARY).unlink(), "cannot read"),
    "of another version": (lambda f: noted(f, source="0" * 64), "another version of the source"),
    "for another platform": (lambda f: noted(f, platform="pdp11"), "was built for pdp11"),
    "without a note": (lambda f: (f / NOTE).unlink(), "has no valid note beside it"),
    "with a broken note": (lambda f: (f / NOTE).write_text("{"), "has no valid note beside it"),
    "with another note": (lambda f: (f / NOTE).write_text('{"source": 1}'), "has no valid note"),
    "with numbers": (lambda f: noted(f, source=3), "has no valid note beside it"),  # type: ignore[arg-type]
}


def chain(ops: int) -> OpGraph:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    ids = b.ops("op", (ops,), seconds=0.5, slot=device[0])
    b.chain(ids)
    return b.build(device=device, mark=ids[-1:])


@needs_library
def test_every_job_is_simulated_by_the_library() -> None:
    assert twins.choose() is not twins.PLAIN
    with Simulation(chain(3), 0) as run:
        assert not isinstance(run.world.ops, list)


@needs_library
@pytest.mark.parametrize("kind", SPOILT)
def test_an_incompatible_library_is_refused_in_one_line(folder: Path, kind: str) -> None:
    assert not find().reason
    spoil, reason = SPOILT[kind]
    spoil(folder)
    with pytest.warns(PerfmodelWarning, match=f"plain Python.*{reason}") as told:
        found = [makespan(chain(40)) for _ in range(2)]
    assert found == [20.0, 20.0]
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    with pytest.raises(InputError, match=f"{reason}.*reinstall perfmodel or install Numba"):
        twins.choose(True)


@needs_library
def test_an_invalid_library_that_passes_the_check_is_refused(folder: Path) -> None:
    (folder / LIBRARY).write_bytes(b"text")
    noted(folder, library=library.digest(b"text"))
    with pytest.warns(PerfmodelWarning, match="cannot load"):
        assert twins.choose() is twins.PLAIN


def test_without_a_library_only_a_long_job_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library.find, "__defaults__", (tmp_path,))
    note = library.Note(library.source_digest(), library.PLATFORM, "", "no linker")
    (tmp_path / NOTE).write_text(json.dumps(note._asdict()))
    assert makespan(chain(40)) == 20.0  # a warning would be an error here
    monkeypatch.setattr(twins, "LONG_OPS", 100)
    with pytest.warns(PerfmodelWarning, match="could not be built: no linker") as told:
        times = [simulate(chain(ops)).rounds for ops in (101, 102)]
    assert min(times) > 0
    assert len(told) == 1


def test_the_environment_variable_selects_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(twins.VARIABLE, "0")
    assert twins.requested(None) is False
    assert twins.requested(True) is True
    with Simulation(chain(3), 0) as run:
        assert isinstance(run.world.ops, list)
    monkeypatch.setenv(twins.VARIABLE, "yes")
    with pytest.raises(InputError, match="PERFMODEL_COMPILED must be 0 or 1, got 'yes'"):
        simulate(chain(3))


@needs_library
def test_a_simulation_goes_on_compiled_in_the_middle() -> None:
    """A random job with gates, transfers and probes gives the same bits."""

    def ends(rounds: int, switch: bool) -> Any:
        graph = build_graph(
            job(
                workload([1.0, 0.5], [1.0, 0.5], [30.0, 7.0]),
                cluster(20.0, 0.01, update_per_tensor_s=0.1),
                3,
                "ps",
                {"sync": "asp", "softsync": 2, "transmission": "quantum", "quantum_bytes": 4.0},
                jitter=Jitter(0.3),
            )
        )
        with Simulation(graph, 5, False, depth=4) as run:
            for done in range(1, rounds + 1):
                run.advance(done)
                if switch and done == rounds // 2:
                    assert isinstance(run.world.ops, list)
                    run.switch_to(twins.choose(True))
                    assert not isinstance(run.world.ops, list)
            return run.totals()

    plain, switched = ends(40, switch=False), ends(40, switch=True)
    for name in plain.__struct_fields__:
        assert np.array_equal(getattr(plain, name), getattr(switched, name)), name


def test_another_source_is_another_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Caches on disk are keyed by this digest."""
    for path in library.FOLDER.glob("*.py"):
        shutil.copy(path, tmp_path)
    before = library.source_digest()
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert library.source_digest() == before
    for name in (*library.COMPILED, "world", "numba_world", "building"):
        source = (tmp_path / f"{name}.py").read_text()
        (tmp_path / f"{name}.py").write_text(f"{source}\nX = 1\n")
        assert library.source_digest() != before, name
        (tmp_path / f"{name}.py").write_text(source)
    assert library.source_digest() == before


SIMULATE = """
import importlib.util, sys
if sys.argv.pop(1) == "without Numba":
    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "numba" else found(name, *rest)
from perfmodel.cli import main
main()
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout without a library."""
    copy = tmp_path_factory.mktemp("checkout")
    left = shutil.ignore_patterns("__pycache__", LIBRARY, NOTE)
    shutil.copytree(ROOT / "perfmodel", copy / "perfmodel", ignore=left)
    shutil.copytree(ROOT / "profiles", copy / "profiles")
    return copy


def command(checkout: Path, *words: str, numba: bool = False) -> tuple[str, str]:
    """Standard output and error of a command in this checkout."""
    done = subprocess.run(
        [sys.executable, "-c", SIMULATE, "with Numba" if numba else "without Numba", *words],
        env={**os.environ, "PYTHONPATH": str(checkout)}, cwd=checkout,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


JOB = ("predict", "--model", "resnet18", "--arch", "asp", "--workers", "2", "--rel-ci", "5%")


@needs_library
def test_commands_report_plain_simulation_in_one_line(checkout: Path) -> None:
    expected, told = command(ROOT, *JOB)
    assert told == ""
    version, _ = command(ROOT, "--version")
    assert version.splitlines()[1] == "simulates with compiled code"
    assert command(checkout, *JOB) == (expected, "")  # no library was built, and the job is small
    version, _ = command(checkout, "--version")
    assert "simulates in plain Python" in version
    assert "has not been built" in version
    for name in (LIBRARY, NOTE):
        shutil.copy(library.FOLDER / name, checkout / "perfmodel" / "engine")
    try:
        shortened(checkout / "perfmodel" / "engine")
        found, told = command(checkout, *JOB)
        assert found == expected
        (line,) = told.splitlines()
        assert line.startswith("perfmodel: warning: simulating in plain Python")
        assert line.endswith("is damaged")
    finally:
        for name in (LIBRARY, NOTE):
            (checkout / "perfmodel" / "engine" / name).unlink()


@pytest.mark.slow
def test_a_checkout_builds_in_the_background(checkout: Path) -> None:
    """The first command starts the build, later ones are compiled; two at once build only once."""
    pytest.importorskip("numba", reason="builds the library")
    first, told = command(checkout, *JOB, numba=True)
    assert told == ""
    command(checkout, *JOB, numba=True)
    for _ in range(600):
        if not find(checkout / "perfmodel" / "engine").reason:
            break
        time.sleep(0.2)
    version, _ = command(checkout, "--version")
    assert "simulates with compiled code" in version
    assert command(checkout, *JOB) == (first, "")
    left = {path.name for path in (checkout / "perfmodel" / "engine").glob("[!_]*.*[!y]")}
    assert left == {LIBRARY, NOTE}


@pytest.mark.slow
def test_a_simulation_switches_when_the_library_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plain loop runs until then, and the result is the same as with one loop."""
    pytest.importorskip("numba", reason="builds the library")
    monkeypatch.undo()
    forget()
    monkeypatch.setattr(library.find, "__defaults__", (tmp_path,))
    with Simulation(chain(300), 0) as run, Simulation(chain(300), 0, False) as plain:
        assert isinstance(run.world.ops, list)
        done = 0
        while isinstance(run.world.ops, list) and done < 100_000:
            done += 1
            run.advance(done)
        assert 0 < done < 100_000
        run.advance(done + 10)
        plain.advance(done + 10)
        assert run.now == plain.now


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
