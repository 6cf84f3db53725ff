"""Partners of a few workers that represent many."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.architectures import ad_psgd
from perfmodel.communication.partners import as_far, others
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.rules import Choice
from perfmodel.inputs.job import Job
from tests.jobs import cluster, job, workload

EACH = 4
"""Workers on a node."""


def placed(workers: int) -> Job:
    where = cluster(1.0, devices_per_node=EACH, intra_node=None)
    return job(workload([1.0], [2.0], [8.0]), where, workers, "ad_psgd")


@pytest.mark.parametrize(("of", "near"), [(16, 3), (32, 1), (64, 1), (1024, 0)])
def test_as_many_messages_leave_the_node_as_among_all(of: int, near: int) -> None:
    """Of 16 workers on four nodes, each has 3 others on its node and 12 beyond; among 32 it has 28
    beyond, so 3 * 12 / 28 = 1.3 are as many; among 64 0.6."""
    worker = np.arange(16)
    found = as_far(worker // EACH, worker, others(16), of - 1)
    assert found.shape == (16, near + 12)
    assert (np.sum(found // EACH == worker[:, None] // EACH, axis=1) == near).all()
    assert not (found == worker[:, None]).any()
    assert (np.bincount(found.ravel()) == near + 12).all()  # each is drawn as often


def test_partners_on_nodes_that_are_not_full_stay() -> None:
    worker = np.arange(6)
    assert as_far(worker // EACH, worker, others(6), 1023).tolist() == others(6).tolist()


def test_pairs_of_a_few_meet_as_often_by_hand() -> None:
    """Of eight workers on two nodes the even ones ask: each has two passive ones on its node and
    two beyond; of 64, 30 are beyond, and 2 * 2 / 30 = 0.13 none."""
    few = choices(ad_psgd.build(placed(64), np.arange(8)))
    assert few.routes is not None
    assert few.routes.shape == (4, 2)
    whole = choices(ad_psgd.build(placed(8)))
    assert whole.routes is not None
    assert whole.routes.shape == (4, 4)


def choices(graph: OpGraph) -> Choice:
    """The first rule by which ops draw their paths."""
    return next(rule for rule in graph.rules if isinstance(rule, Choice))
