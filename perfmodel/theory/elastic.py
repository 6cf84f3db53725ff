r"""Time and cost of a run that goes on with fewer nodes when some are taken away.

Each of the k nodes that are there is taken away at the rate :math:`\nu`; each of the N - k missing
ones is replaced after an exponential time of mean D. With k nodes, work has the relative speed
:math:`s_k`, with :math:`s_N = 1`. Every change stops the work for c. Seen over work instead of
time, k is a Markov chain that stays :math:`1 / s_k` as long per unit of work, so that with the
generator Q over work, the moments of the time for the work w solve linear differential equations:

.. math:: f' = Q f, \quad m' = Q m + r f + C f, \quad v' = Q v + 2 r m + 2 C m + c \, C f

f is the probability that the run ends, which it does not where no node is left and none comes; m
and v are the first and second moment of the time of the runs that end, :math:`r_k = 1 / s_k`, and C
has c times the rates of changes. Cost is the same with k times as much for each unit of time. The
chain is that of machines that fail and are repaired (see for example Trivedi, "Probability and
statistics with reliability, queuing and computer science applications", 2nd edition, chapter 8).

Changes during a stop do not lengthen it: c is short compared with the time between changes.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import InputError
from perfmodel.theory.failures import TINY, RunTime

MOST_STATES = 257
"""Largest range of numbers of nodes: the matrices have four times as many rows."""

FARTHEST = 8.0
"""Standard deviations below the mean number of nodes, beyond which fewer nodes are not looked at
where all are replaced."""


class ElasticRun(msgspec.Struct, frozen=True):
    """A run on nodes that come and go.

    Attributes
    ----------
    time : of the runs that end.
    ends : probability that a node is left until the end.
    node_s : expected time of all nodes that are there together, in node-seconds.
    """

    time: RunTime
    ends: float
    node_s: float

    def nodes(self) -> float:
        """Mean number of nodes that are there."""
        return self.node_s / float(self.time.mean_s)


def fewest_nodes(nodes: int, taken_per_s: float, replacement_s: float) -> int:
    """Smallest number of nodes that a run practically ever has; at least 1.

    >>> fewest_nodes(1000, 1e-5, 1000.0), fewest_nodes(4, 1e-5, 1000.0)
    (962, 1)
    """
    if math.isinf(replacement_s):
        return 1
    there = 1.0 / (1.0 + taken_per_s * replacement_s)
    spread = math.sqrt(nodes * there * (1.0 - there))
    return max(math.floor(nodes * there - FARTHEST * spread - 3.0), 1)


def elastic_run(
    work_s: float,
    nodes: int,
    speeds: Floats,
    taken_per_s: float,
    replacement_s: float,
    change_s: float,
) -> ElasticRun:
    """Time and node-seconds of a run that starts with all nodes.

    Parameters
    ----------
    work_s : time that the work takes with all nodes.
    nodes : N, their number.
    speeds : with N - n + 1 to N nodes, relative to N, (n,); see :func:`fewest_nodes`.
    taken_per_s : rate at which a node is taken away.
    replacement_s : mean time until it is replaced; infinite for never.
    change_s : time that work stands still at each change.

    Raises
    ------
    InputError : there are more than :data:`MOST_STATES` numbers of nodes.

    >>> run = elastic_run(1000.0, 2, np.array([0.5, 1.0]), 0.0, 60.0, 5.0)
    >>> float(run.time.mean_s), run.ends, round(run.node_s, 6)
    (1000.0, 1.0, 2000.0)
    """

    count = len(speeds)
    if count > MOST_STATES:
        raise InputError(f"nodes: {count} numbers of nodes are possible (at most {MOST_STATES})")
    from scipy.linalg import expm

    k = np.arange(nodes - count + 1, nodes + 1.0)
    ends = np.zeros(4 * count)
    ends[:count] = 1.0
    taken, wait, change = taken_per_s * work_s, replacement_s / work_s, change_s / work_s
    done = (expm(_moments(k, nodes, speeds, taken, wait, change)) @ ends)[count - 1 :: count]
    probability = float(done[0])
    if probability <= 0.0:
        return ElasticRun(RunTime(work_s, 0.0, math.inf, math.inf), 0.0, math.inf)
    mean, square, node_time = (done[1:] / probability).tolist()
    time = RunTime(
        work_s,
        min(math.exp(-taken * nodes) / probability, 1.0),
        max(mean, 1.0) * work_s,
        max(square - mean**2, 0.0) * work_s**2,
    )
    return ElasticRun(time, min(probability, 1.0), node_time * work_s)


def _moments(
    k: Floats, nodes: int, speeds: Floats, taken: float, wait: float, change: float
) -> Floats:
    """Return the matrix of the equations of f, m, v and node-seconds; times in units of the work.

    ``k`` are the numbers of nodes, (n,); the matrix is (4 n, 4 n).
    """
    count, slow = len(k), 1.0 / speeds
    comes = np.zeros(count) if math.isinf(wait) else (nodes - k) / max(wait, TINY)
    goes = np.where(np.arange(count) > 0, taken * k, 0.0)
    off = np.diag((slow * goes)[1:], -1) + np.diag((slow * comes)[:-1], 1)
    chain = off - np.diag(off.sum(axis=1))
    emptied = np.zeros(count)  # the last node is taken away
    if k[0] == 1.0:
        emptied[0] = slow[0] * taken
    first = second = 0.0
    if math.isinf(wait):
        chain -= np.diag(emptied)
        emptied = np.zeros(count)
    else:  # until the first of all nodes is replaced, and a change
        first = wait / nodes + change
        second = (wait / nodes) ** 2 + first**2
    none = np.zeros((count, count))
    once = np.diag(slow + first * emptied) + change * off
    twice = change**2 * off + second * np.diag(emptied)
    bills = np.diag(k * slow + change * emptied) + change * off * k
    matrix: Floats = np.block([
        [chain, none, none, none],
        [once, chain, none, none],
        [twice, 2.0 * once, chain, none],
        [bills, none, none, chain],
    ])  # fmt: skip
    return matrix
