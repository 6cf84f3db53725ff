"""Commands import only what they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HELP_NEEDS_NONE_OF = frozenset({"numpy", "msgspec", "rich", "scipy", "pandas"})
NOBODY_NEEDS = frozenset({"Cython", "scipy", "pandas", "sympy", "torch", "matplotlib", "networkx"})

PROBE = """
import json, sys
before = set(sys.modules)
try:
    exec(sys.argv.pop(1))
except SystemExit as end:
    assert end.code in (0, None), end.code
finally:
    print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)
"""
RUN = "from perfmodel.cli import main; main()"


def imported(code: str, *arguments: str, depth: int = 1) -> set[str]:
    """Packages that ``code`` imports in a fresh interpreter; ``depth`` parts of their names."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, code, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stderr.splitlines()[-1])
    return {".".join(name.split(".")[:depth]) for name in names}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["predict", "--help"], ["list", "--help"]]
)
def test_help_imports_only_what_it_needs(arguments: list[str]) -> None:
    found = imported(RUN, *arguments)
    assert "click" in found
    assert found & (HELP_NEEDS_NONE_OF | NOBODY_NEEDS) == set()


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_predict_imports_only_what_it_needs(more: list[str]) -> None:
    found = imported(RUN, "predict", "--model", "resnet18", "--arch", "ps", "--workers", "8", *more)
    assert "numpy" in found
    # zipfile is for schedule files, Rich for tables
    assert found & (NOBODY_NEEDS | {"zipfile", "rich"}) == set()


@pytest.mark.slow
def test_only_jobs_with_replicas_of_several_devices_import_pipelines() -> None:
    for_replicas = {"perfmodel.pipelines", "perfmodel.replicas"}
    job = ("predict", "--model", "gpt2-xl", "--device", "a100", "--workers", "2")
    assert imported(RUN, *job, depth=2) & for_replicas == set()
    assert imported(RUN, *job, "--pipeline", "2", depth=2) >= for_replicas


def test_json_needs_no_table() -> None:
    assert "rich" not in imported(RUN, "predict", "--model", "resnet18", "--json")


def test_importing_the_package_imports_no_dependencies() -> None:
    found = imported("import perfmodel")
    assert "perfmodel" in found
    assert found & (HELP_NEEDS_NONE_OF | NOBODY_NEEDS | {"click"}) == set()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("package", ["numpy", "pandas"])
def test_canary_an_import_is_noticed(package: str) -> None:
    assert package in imported(f"import {package}; {RUN}", "--help")


ENDS = """
import atexit, sys, threading, time
import perfmodel.__main__ as command
atexit.register(lambda: print("registered", flush=True))
def main():
    print("answer")
    {before}
    sys.exit(3)
command.main = main
command.run()
"""


@pytest.mark.parametrize(
    "before",
    ["pass", "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()"],
)
def test_the_process_ends_with_all_output_written(before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS.format(before=before)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    said = ["answer", "thread", "registered"] if "thread" in before else ["answer", "registered"]
    assert (done.returncode, done.stdout.split(), done.stderr) == (3, said, "")


THREADS = """
import os, sys
import perfmodel.__main__ as command
def main():
    import numpy
    print(len(os.listdir("/proc/self/task")))
    sys.exit(0)
command.main = main
command.run()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads by Linux's /proc")
@pytest.mark.parametrize(("given", "threads"), [({}, 1), ({"OPENBLAS_NUM_THREADS": "2"}, 2)])
def test_linear_algebra_uses_one_thread(given: dict[str, str], threads: int) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("NumPy starts no more threads than there are cores")
    kept = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", THREADS],
        env=kept | given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert int(done.stdout) == threads
