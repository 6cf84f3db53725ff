"""Fixtures and settings of all tests.

Property tests draw the same examples on every machine, however busy it is. Linear algebra uses one
thread per process: fits take a fifth of the time if threads do not compete. The garbage collector
rests while tests are collected, and then leaves alone what was collected: to look through all of
that again and again took 6 of 18 seconds of collection, and up to half a second each time later.
Compiled modules are kept even if the environment says otherwise, as images of containers do: tests
start many processes, and rewriting the assertions of all tests takes half the time of collection.
Where nothing has been rewritten yet, two processes begin at different ends.

``--hypothesis-profile=long`` draws forty times as many, different ones each time. ``--drawn N``
runs one in N of the selected cases of each rule, or of every second rule with
``--drawn-by half``: the same ``--seed`` draws the same ones again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import settings as profiles

settings.load_profile(profiles.FIXED)

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when NumPy is imported
os.environ["PERFMODEL_CONFIG"] = ""  # no configuration
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # tests in the background of a shell: the
    signal.signal(signal.SIGINT, signal.default_int_handler)  # commands they start would ignore it

gc.disable()


def pytest_collection(session: pytest.Session) -> None:
    """In every second process, import all test modules from the last to the first beforehand: what
    another process has rewritten by then is read from its file, and the other way round."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    root = session.config.rootpath
    whole = any(Path(given).resolve() == root / "tests" for given in session.config.args)
    if int(number) % 2 == 0 or not whole:
        return
    for path in sorted((root / "tests").rglob("test_*.py"), reverse=True):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting it reports it
            importlib.import_module(module)


def pytest_collection_finish() -> None:
    """Collect garbage again, but none of what now exists."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process one half of the tests; the first to finish takes over from the other.

    This makes most fixtures of a module in one process, unless ``--dist`` says otherwise.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cases")
    group.addoption("--drawn", type=int, default=1, metavar="N", help="run one in N cases")
    group.addoption("--drawn-by", choices=["rule", "half", "file"], default="rule", help="of what")
    group.addoption("--seed", default="0", help="what --drawn draws by")


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Mark the cases that a sampled test leaves out, before slow tests are left out; afterwards
    leave out those that are not drawn. Run modules with expensive fixtures first, so that processes
    only take over single tests without fixtures at the end."""
    items.sort(key=lambda item: "tests/validation/" not in item.nodeid)
    profiles.mark_unsampled(items)
    yield
    share, seed, by = (config.getoption(name) for name in ("drawn", "seed", "drawn_by"))
    if share > 1:
        kept = profiles.drawn(items, share, seed, by)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]
