"""Training steps of replicas of pipelines as graphs of delays and transfers, for SimGrid.

Written from the descriptions of the schedules in papers and of transfers in the documentation, with
nothing of the package: actions in a chain per rank, and a transfer between neighbours' actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.simgrid import Dag, Op, by_simgrid

Transfers = Literal["ahead", "blocking", "torch"]
Action = tuple[str, int, int]
"""``F`` or ``B``, chunk of layers, micro-batch."""


@dataclass(frozen=True)
class Pipelines:
    """Replicas of pipelines, and what they compute and send.

    ``forward_s`` and ``backward_s`` are of each chunk of layers, ``sent`` the bytes across each
    boundary between chunks, ``gradients`` the bytes of each rank. Node ``nodes[replica][rank]`` has
    one link in each direction, of ``rate`` bytes/s; on a node, transfers take no time.
    """

    ranks: int
    passes: int
    schedule: str
    chunks: int
    transfers: Transfers
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    sent: tuple[int, ...]
    gradients: tuple[int, ...]
    nodes: tuple[tuple[int, ...], ...]
    rate: float


def order(p: Pipelines, rank: int) -> list[Action]:
    """The actions of a rank in a step.

    GPipe: Huang et al., 2019, figure 2; 1F1B and interleaved 1F1B: Narayanan et al., 2021, sections
    2.2.1 and 2.2.2, with as many warm-up passes as Megatron-LM makes.
    """
    many, ranks = p.passes * p.chunks, p.ranks
    if p.chunks == 1:
        turns = [(rank, k) for k in range(many)]
        back = turns
        warm = many if p.schedule == "gpipe" else min(ranks - rank - 1, many)
    else:  # groups of as many micro-batches as ranks, chunk by chunk
        at = [((k // ranks) % p.chunks, k // (ranks * p.chunks) * ranks + k % ranks)
              for k in range(many)]  # fmt: skip
        turns = [(chunk * ranks + rank, number) for chunk, number in at]
        back = [((p.chunks - 1 - chunk) * ranks + rank, number) for chunk, number in at]
        warm = min(2 * (ranks - rank - 1) + (p.chunks - 1) * ranks, many)
    actions: list[Action] = [("F", *turn) for turn in turns[:warm]]
    for k in range(many):
        if warm + k < many:
            actions.append(("F", *turns[warm + k]))
        actions.append(("B", *back[k]))
    return actions


class _Steps:
    """Builds the graph of some steps."""

    def __init__(self, p: Pipelines) -> None:
        self.p = p
        self.ops: list[Op] = []
        self.after: list[set[int]] = []
        self.count = 1 + max(max(row) for row in p.nodes)
        self.orders = [order(p, rank) for rank in range(p.ranks)]

    def add(self, after: list[int | None], *, seconds: float = 0.0, bytes: int = 0,
            path: tuple[int, ...] = ()) -> int:  # fmt: skip
        """Add an op after others; None for nothing."""
        self.ops.append(Op(seconds=seconds, bytes=bytes, path=path))
        self.after.append({k for k in after if k is not None})
        return len(self.ops) - 1

    def step(self, ended: list[list[int | None]], lines: dict[tuple[int, int, int], int]) -> None:
        """Add a step after what ended the one before, per replica and rank.

        ``lines`` are the last transfers on each connection, by replica and ranks.
        """
        p = self.p
        last: list[list[int]] = []
        for replica in range(len(p.nodes)):
            last.append(self.replica(replica, ended[replica], lines))
        for rank in range(p.ranks):
            members = [last[replica][rank] for replica in range(len(p.nodes))]
            homes = [row[rank] for row in p.nodes]
            if len(set(homes)) == 1:
                reduced = self.add([*members])
            else:  # a ring of n members sends 2 (n - 1) / n of the bytes out of each node, once
                n = len(homes)
                path = tuple(x for home in sorted(set(homes)) for x in (home, self.count + home))
                moved = p.gradients[rank] * 2 * (n - 1) // n
                reduced = self.add([*members], bytes=moved, path=path)
            for replica in range(len(p.nodes)):
                ended[replica][rank] = reduced

    def replica(
        self, replica: int, ended: list[int | None], lines: dict[tuple[int, int, int], int]
    ) -> list[int]:
        """Add the actions of a replica; return the last of each rank."""
        p = self.p
        made: dict[Action, int] = {}
        for actions in self.orders:
            for action in actions:
                seconds = (p.forward_s if action[0] == "F" else p.backward_s)[action[1]]
                made[action] = self.add([], seconds=seconds)
        for rank, actions in enumerate(self.orders):
            before: int | None = ended[rank]
            for action in actions:
                if before is not None:
                    self.after[made[action]].add(before)
                before = made[action]
        for rank, actions in enumerate(self.orders):
            for place, action in enumerate(actions):
                target = self.target(action)
                if target is None:
                    continue
                receiver = target[1] % p.ranks
                if receiver == rank:
                    self.after[made[target]].add(made[action])
                    continue
                line = (replica, rank, receiver)
                needed = self.orders[receiver].index(target)
                asked = made[self.orders[receiver][needed - 1]] if needed else ended[receiver]
                sent = self.send(line, [made[action], lines.get(line),
                                        None if p.transfers == "ahead" else asked],
                                 p.sent[min(action[1], target[1])])  # fmt: skip
                lines[line] = sent
                self.after[made[target]].add(sent)
                follows = actions[place + 1] if place + 1 < len(actions) else None
                turns = follows is not None and follows[0] != action[0]
                if follows and (p.transfers == "blocking" or (p.transfers == "torch" and turns)):
                    self.after[made[follows]].add(sent)
        return [made[actions[-1]] for actions in self.orders]

    def send(self, line: tuple[int, int, int], after: list[int | None], bytes: int) -> int:
        """Add a transfer between two ranks of a replica."""
        replica, rank, receiver = line
        a, z = (self.p.nodes[replica][k] for k in (rank, receiver))
        if a == z:
            return self.add(after)
        return self.add(after, bytes=bytes, path=(a, self.count + z))

    def target(self, action: Action) -> Action | None:
        """The action that needs the result of another on another chunk."""
        kind, chunk, number = action
        chunk += 1 if kind == "F" else -1
        return (kind, chunk, number) if 0 <= chunk < self.p.ranks * self.p.chunks else None


def period_s(p: Pipelines, steps: int = 8, measured: int = 4) -> float:
    """Seconds of a step according to SimGrid: the mean of the last few of some."""
    making = _Steps(p)
    ended: list[list[int | None]] = [[None] * p.ranks for _ in p.nodes]
    lines: dict[tuple[int, int, int], int] = {}
    marks = []
    for _ in range(steps):
        making.step(ended, lines)
        marks.append(ended[0][0])
    ops = tuple(
        Op(one.seconds, one.bytes, one.path, tuple(sorted(after)))
        for one, after in zip(making.ops, making.after, strict=True)
    )
    ends = by_simgrid(Dag((p.rate,) * (2 * making.count), ops))[marks]
    return float(np.diff(ends)[-measured:].mean())
