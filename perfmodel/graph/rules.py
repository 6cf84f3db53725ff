"""Rules for operations, beyond fixed edges: draws, gates, mailboxes and batches."""

from __future__ import annotations

import msgspec

from perfmodel.base.arrays import Floats, Ids


class Activity(msgspec.Struct, frozen=True, eq=False):
    """Iterations in which ops (ids, any shape) are active; in others they pass on their tokens.

    Iteration i is active if i % every == phase, and the draw u of (seed, ``draw``, i) is below
    ``probability``. If ``among`` is above 0, a choice among this many alternatives by that draw
    must also be number ``chosen`` (ops,). ``draw`` is a stream for each op, NONE if nothing is
    drawn.
    """

    ops: Ids
    every: int
    phase: int
    probability: float
    draw: Ids
    chosen: Ids
    among: int

    @property
    def drawn(self) -> bool:
        """Whether activity is random."""
        return self.probability < 1.0 or self.among > 1


class Choice(msgspec.Struct, frozen=True, eq=False):
    """Ops (ops,) that take one of several routes and slots, by the draw of (seed, draw, i).

    ``routes``, ``slots`` (ops, alternatives); a slot may be NONE. Ops that share a stream choose
    the alternative with the same number. An op keeps its own routes or slots if these are None.
    """

    ops: Ids
    draw: Ids
    routes: Ids | None
    slots: Ids | None
    latency_s: Floats


class Quantum(msgspec.Struct, frozen=True, eq=False):
    """Ops that go to the back of their slots' queues whenever they have moved ``bytes``."""

    ops: Ids
    bytes: float


class Quorum(msgspec.Struct, frozen=True, eq=False):
    """``op`` fires at the ``count``-th token for an iteration; later ones are absorbed.

    An op that waits for it takes all available tokens and jumps to the latest iteration.
    """

    op: int
    count: int


class Every(msgspec.Struct, frozen=True, eq=False):
    """``op`` fires once for every ``count`` tokens, from any source."""

    op: int
    count: int


class Mailbox(msgspec.Struct, frozen=True, eq=False):
    """``op`` takes all tokens from ``sources`` that have arrived when it starts; it waits for none.

    Each token adds ``per_token_s`` to its duration.
    """

    op: int
    sources: Ids
    per_token_s: float


class Batch(msgspec.Struct, frozen=True, eq=False):
    """``op`` moves all items that are ready at a tick in one transfer, up to ``cap_bytes`` at a
    time.

    Ticks are at multiples of ``cycle_s``. ``sources``, ``targets``, ``bytes`` (items,): an item is
    ready when it has a token from its source; its target gets a token once it has been moved.
    """

    op: int
    sources: Ids
    targets: Ids
    bytes: Floats
    cycle_s: float
    cap_bytes: float


Rule = Activity | Choice | Quantum | Quorum | Every | Mailbox | Batch
