"""Numbers that stand for states, kinds of events and outcomes in the event loop."""

from __future__ import annotations

from typing import Any

NONE = -1
IDLE, QUEUED, WORKING, MOVING, PASSING = range(5)
"""Phases of an op; one that is passing is not active in this iteration."""
PLAIN, DRAIN, TO_QUORUM, TO_EVERY, TO_MAILBOX, TO_BATCH, FROM_BATCH = range(7)
"""Kinds of edges. Who takes a token from a drained one takes all that are there."""
NO_GATE, QUORUM, EVERY, MAILBOX, BATCH = range(5)
OP_ENDS, TOKENS_ARRIVE, FLOW_STARTS, START_DUE, TICK = range(5)
"""Kinds of timers, in the order in which they go off."""
DONE, PAUSED, STUCK, FULL, UNOPENED, OVERRUN, ENDLESS, CROWDED = range(8)
"""How a call of :func:`advance` ended."""
CAUSES, BOUND = 6, 3
"""As many as graph.CAUSES, and the place there of the cause that is not followed any further back:
who is held up by a bound waits for the bound, whatever the others are doing meanwhile."""

Id = int
World = Any
"""A perfmodel.engine.world.World; Any, because its records are arrays or objects."""
