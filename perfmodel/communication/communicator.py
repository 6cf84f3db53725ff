"""Collective operations in an op graph: one flow over all members' links, or individual sends."""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats, Ids
from perfmodel.communication.costs import Cost
from perfmodel.communication.network import Network
from perfmodel.communication.schedules import NONE, SendSchedule, waits_of
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import ADDING, Axis

ROUNDING = 1e-12
"""Relative difference from the rate of its links below which a collective gets no rate cap."""


class Flow(TypedDict):
    """Fields of ops that are collectives."""

    bytes: Floats
    path: Ids | None
    path_units: Floats | float
    rate_cap_bytes_per_s: Floats
    weight: float
    seconds: Floats
    spent: dict[str, Floats | float]


class Communicator:
    """Collectives among a group of workers, each modelled as one flow over all the group's links.

    ``capacity`` is the number of concurrent collectives, or the credit in bytes. On a folded
    network costs are symmetric, and the first node represents all. ``group`` names one of several
    groups. ``slot`` is the slot of another communicator to take turns with; None for its own.
    """

    def __init__(
        self,
        b: GraphBuilder,
        network: Network,
        *,
        capacity: int = 1,
        group: str | None = None,
        slot: Ids | None = None,
    ) -> None:
        self._b, self._fabric = b, network.fabric
        self._axes: tuple[Axis, ...] = () if group is None else (("group", (group,)),)
        if slot is None:
            slot = b.slots("communicator", (1,), capacity=capacity, axes=self._axes)
        self.slot = slot
        numbers = np.arange(len(self._fabric.capacity))
        if network.folded:
            numbers = np.array([kind.start for kind in self._fabric.kinds])
        self._numbers, self._links = numbers, network.ids(numbers)

    def flow(self, cost: Cost) -> Flow:
        """Return the arguments of ops that are collectives of this cost, one for each size."""
        loads, capacity = cost.loads[:, self._numbers], self._fabric.capacity[self._numbers]
        used = (loads > 0.0).any(axis=0) & (self._links != NONE)
        loads, links = loads[:, used], self._links[used]
        loaded = loads > 0.0
        units = np.where(loaded, loads, 1.0)
        fastest = np.where(loaded, capacity[used] / units, math.inf).min(axis=1, initial=math.inf)
        moving = cost.transfer_s > 0.0
        rate = cost.bytes / np.where(moving, cost.transfer_s, 1.0)
        binding = moving & (rate < fastest * (1 - ROUNDING))
        return {
            "bytes": cost.bytes,
            "path": np.where(loaded, links, NONE) if used.any() else None,
            "path_units": units if used.any() else 1.0,
            "rate_cap_bytes_per_s": np.where(binding, rate, math.inf),
            "weight": cost.weight,
            "seconds": cost.startup_s,
            "spent": {ADDING: cost.adding_s},
        }

    def add(
        self,
        label: str,
        cost: Cost,
        *,
        axis: str,
        among: tuple[Axis, ...] = (),
        priority: ArrayLike = 0,
        units: ArrayLike = 1,
    ) -> Ids:
        """Add a collective for each size, (sizes,), one at a time on the communicator.

        ``among`` are further axes of size 1, such as the pass of an update.
        """
        axes = (*among, *self._axes)
        collectives = self._b.ops(
            label,
            (*(1 for _ in axes), len(cost.bytes)),
            **self.flow(cost),
            slot=self.slot,
            axes=(*axes, (axis, None)),
            priority=priority,
            units=units,
        )
        return collectives.ravel()


def add_sends(
    b: GraphBuilder,
    network: Network,
    schedule: SendSchedule,
    sizes: Floats,
    ready: Ids,
    after: Ids,
    *,
    reduce_per_byte_s: float,
) -> None:
    """Add every send of a collective for each of ``sizes`` bytes, one collective after the other.

    A member enters after its ops ``ready`` (members, sizes); ``after`` (members,) waits for
    everything it sends and receives. A send waits until both its ends have entered and have
    completed their sends of earlier rounds.
    """
    sends = schedule.unrolled()
    waits = waits_of(sends)
    count = ready.shape[1]
    moved = sizes[:, None] * sends.part
    adding_s = np.where(sends.adds, moved * reduce_per_byte_s, 0.0)
    send = b.ops(
        "send",
        (count, len(sends.part)),
        bytes=moved,
        seconds=adding_s,
        spent={ADDING: adding_s},
        **network.between(sends.source[None], sends.target[None]),
        group=sends.source,
        axes=(("bucket", None), ("send", None)),
    )
    b.edge(send[:, waits.before], send[:, waits.after])
    b.edge(ready.T[:, waits.entry_member], send[:, waits.entry])
    for direction in (0, 1):
        before = waits.last[waits.entry_member, direction]
        known = before != NONE
        b.edge(send[:-1, before[known]], send[1:, waits.entry[known]])
        known = waits.last[:, direction] != NONE
        b.edge(send[-1, waits.last[known, direction]], after[known])
    first, last = send[:, waits.first].T, send[:, waits.last.max(axis=1)].T
    b.probe("all-reduce", first, last, at_ready=True)
