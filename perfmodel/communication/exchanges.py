"""All-to-alls: every member of a group has a part for every other."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from perfmodel.base.errors import InputError
from perfmodel.communication.fabric import Fabric
from perfmodel.communication.members import Members
from perfmodel.communication.schedules import (
    SendSchedule,
    hierarchical_all_to_all,
    pairwise_all_to_all,
)

Way = Literal["direct", "pairwise", "hierarchical"]


class AllToAllExchange(msgspec.Struct, frozen=True):
    """How members exchange their parts.

    Attributes
    ----------
    algorithm : *direct*: all messages at once, as NCCL's grouped sends and receives; their
        latencies overlap. *pairwise*: in rounds, as MPI libraries and gloo. *hierarchical*: across
        nodes to the member with the same number there, which passes the parts on inside its node,
        as DeepEP and DeepSpeed-MoE.
    across : share of the bytes between nodes that is sent there, with *hierarchical*: less than 1
        if nodes pass on copies of the same data.
    """

    algorithm: Way = "direct"
    across: float = 1.0


def exchange_schedule(members: Members, options: AllToAllExchange) -> SendSchedule:
    """Return the sends of an all-to-all, by position in a group.

    Raises
    ------
    InputError : *hierarchical*, and nodes have unequal numbers of members.
    """
    if options.algorithm != "hierarchical":
        return pairwise_all_to_all(members.count)
    nodes, each = _grid(members.fabric, members)
    return hierarchical_all_to_all(nodes, each, options.across)


def _grid(fabric: Fabric, members: Members) -> tuple[int, int]:
    """Return the number of nodes of a group, and of its members on each."""
    _, count = np.unique(fabric.place[members.ends[0]], return_counts=True)
    if (count != count[0]).any():
        raise InputError(
            "exchange: a hierarchical all-to-all needs as many members on every node "
            f"(here {int(count.min())} to {int(count.max())})"
        )
    return len(count), int(count[0])
