"""Training steps of devices that divide sequences or experts as graphs of delays and transfers.

Written from the papers, with nothing of the package: Liu et al., "Ring attention", 2023, arXiv
2310.01889 (a block is computed while the next one is sent round); Jacobs et al., "DeepSpeed
Ulysses", 2023, arXiv 2309.14509 (all-to-all before and after attention); Lepikhin et al., "GShard",
2020, arXiv 2006.16668 (all-to-all of tokens before and after experts). Every device is a node of
its own, with one link in each direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.simgrid import Dag, Op, by_simgrid

Exchange = Literal["ring", "all-gather", "all-to-all"]


@dataclass(frozen=True)
class Layer:
    """Seconds of a device's passes, and what the devices of a group exchange, all bytes of one.

    ``ring`` are bytes that it sends to the next device while it computes each block but the last;
    ``before`` and ``after`` those that it sends to each other device before and after it computes.
    In backward there are ``back`` times as many, and ``before`` and ``after`` change places.
    """

    forward_s: float
    backward_s: float
    ring: int = 0
    before: int = 0
    after: int = 0
    back: int = 1


@dataclass(frozen=True)
class Devices:
    """Groups of ``size`` devices that compute ``passes`` of the same layers, and then sum gradients
    on a ring: ``gradients`` bytes over all devices, ``of_experts`` over those of all groups at the
    same place. The update takes ``update_s``. Links have ``rate`` bytes/s each way."""

    groups: int
    size: int
    passes: int
    layers: tuple[Layer, ...]
    gradients: int
    of_experts: int
    rate: float
    update_s: float = 0.0


class _Steps:
    """Builds the graph of some steps; devices are numbered group by group."""

    def __init__(self, d: Devices) -> None:
        self.d, self.count = d, d.groups * d.size
        self.ops: list[Op] = []
        self.last: list[tuple[int, ...]] = [()] * self.count

    def add(self, after: tuple[int, ...], *, seconds: float = 0.0, bytes: int = 0,
            path: tuple[int, ...] = ()) -> int:  # fmt: skip
        """Add an op after others."""
        self.ops.append(Op(seconds=seconds, bytes=bytes, path=path, after=tuple(sorted({*after}))))
        return len(self.ops) - 1

    def compute(self, seconds: float) -> None:
        """All devices compute."""
        self.last = [(self.add(after, seconds=seconds),) for after in self.last]

    def send(self, source: int, target: int, size: int, after: tuple[int, ...]) -> int:
        """A device sends to another."""
        return self.add(after, bytes=size, path=(source, self.count + target))

    def peers(self, device: int) -> list[int]:
        """The devices of a group, this one first."""
        first, place = device - device % self.d.size, device % self.d.size
        return [first + (place + k) % self.d.size for k in range(self.d.size)]

    def all_to_all(self, size: int) -> None:
        """Each device sends so many bytes to each other one of its group, all at once."""
        if not size:
            return
        arrived: list[list[int]] = [list(after) for after in self.last]
        for source in range(self.count):
            for target in self.peers(source)[1:]:
                arrived[target].append(self.send(source, target, size, self.last[source]))
        self.last = [tuple(after) for after in arrived]

    def rounds(self, seconds: float, size: int) -> None:
        """Blocks of a layer, each with the part that arrived while the one before was computed."""
        block_s = seconds / self.d.size
        for _ in range(self.d.size - 1):
            done = [self.add(after, seconds=block_s) for after in self.last]
            sent = [self.send(k, self.peers(k)[1], size, self.last[k]) for k in range(self.count)]
            before = [self.peers(k)[-1] for k in range(self.count)]
            self.last = [(done[k], sent[k], sent[before[k]]) for k in range(self.count)]
        self.compute(block_s)

    def layer(self, one: Layer, *, backward: bool) -> None:
        """A pass of a layer."""
        seconds, times = (one.backward_s, one.back) if backward else (one.forward_s, 1)
        first, then = (one.after, one.before) if backward else (one.before, one.after)
        self.all_to_all(times * first)
        if one.ring:
            self.rounds(seconds, times * one.ring)
        else:
            self.compute(seconds)
        self.all_to_all(times * then)

    def reduce(self, size: int, rings: list[list[int]]) -> None:
        """Members of each ring sum ``size`` bytes: 2 (n - 1) sends of a part to the next."""
        for ring in rings:
            n = len(ring)
            for _ in range(2 * (n - 1) if size else 0):
                sent = {k: self.send(k, ring[(i + 1) % n], size // n, self.last[k])
                        for i, k in enumerate(ring)}  # fmt: skip
                for i, k in enumerate(ring):
                    self.last[k] = (sent[k], sent[ring[i - 1]])

    def step(self) -> None:
        """A step of all devices."""
        for _ in range(self.d.passes):
            for one in self.d.layers:
                self.layer(one, backward=False)
            for one in reversed(self.d.layers):
                self.layer(one, backward=True)
        self.reduce(self.d.gradients, [list(range(self.count))])
        places = [list(range(k, self.count, self.d.size)) for k in range(self.d.size)]
        self.reduce(self.d.of_experts, places)
        self.compute(self.d.update_s)


def period_s(d: Devices, steps: int = 3) -> float:
    """Seconds of a step according to SimGrid: the mean of all but the first."""
    making = _Steps(d)
    marks = []
    for _ in range(steps):
        making.step()
        making.last = [(making.add(after),) for after in making.last]
        marks.append(making.last[0][0])
    ends = by_simgrid(Dag((d.rate,) * (2 * making.count), tuple(making.ops)))[marks]
    return float(np.diff(ends).mean())
