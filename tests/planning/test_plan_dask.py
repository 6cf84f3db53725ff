"""Plans on a Dask cluster give the answer of one process."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs the extra 'dask'")

from perfmodel import PlanLimits, plan
from perfmodel.planning.plans import Plan
from perfmodel.sweeping.executors import opened
from tests.sweeping.test_dask import Cluster, dask

pytestmark = pytest.mark.slow

__all__ = ["dask"]

SPACE: dict[str, Any] = {"model": "resnet50", "arch": ["ring", "ps", "p2p", "zero1", "zero3"]}
SPACE |= {"workers": range(8, 513, 8), "servers": range(1, 33), "batch_size": range(32, 257, 32)}
SPACE |= {"dataset_size": 1281167, "epochs": 90}
SPACE |= {"instance": ["p3.16xlarge", "p4d.24xlarge", "g5.48xlarge"]}


def planned(**more: Any) -> Plan:
    return plan(**SPACE, limits=PlanLimits(deadline_s=24 * 3600.0, confidence=0.9), **more)


def test_a_plan_on_a_dask_cluster_is_that_of_one_process(dask: Cluster) -> None:
    with opened(None, dask.address) as executor:
        there = planned(executor=executor)
    assert dask.count() > 10  # the workers did it
    here = planned()
    assert here.candidates > 50_000
    assert there.to_json() == here.to_json()
    # canary: another space has another answer
    assert plan(**{**SPACE, "batch_size": [32]}).to_json() != here.to_json()
