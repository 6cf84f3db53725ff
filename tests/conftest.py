"""What all tests share.

Property tests see the same examples on every machine, however busy it is. Linear algebra has one
thread in each process: fits take a fifth of the time where threads do not wait for each other.

``--hypothesis-profile=long`` draws twenty times as many, other ones each time. Processes that tests
start know one token, and none of the user's files is made or read.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

from tests import settings as profiles

settings.load_profile(profiles.FIXED)

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when NumPy is imported
os.environ["PERFMODEL_TOKEN"] = "known to all tests, and to nobody else"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process one half of the tests, and whoever is done first what the other has left.

    So that most fixtures of a module are made in one process, unless ``--dist`` says otherwise.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with expensive fixtures first: what processes take from each other at the end is
    single tests without any."""
    items.sort(key=lambda item: "tests/validation/" not in item.nodeid)
