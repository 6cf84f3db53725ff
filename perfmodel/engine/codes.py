"""Integer codes for op states, event kinds and outcomes of the event loop."""

from __future__ import annotations

NONE = -1
IDLE, QUEUED, WORKING, MOVING, PASSING = range(5)
"""Phases of an op; an op that is PASSING is not active in this iteration."""
PLAIN, DRAIN, TO_QUORUM, TO_EVERY, TO_MAILBOX, TO_BATCH, FROM_BATCH = range(7)
"""Kinds of edges. Consuming from a DRAIN edge removes all of its tokens."""
NO_GATE, QUORUM, EVERY, MAILBOX, BATCH = range(5)
OP_ENDS, TOKENS_ARRIVE, FLOW_STARTS, START_DUE, TICK = range(5)
"""Kinds of timers, in the order in which they fire."""
KIND = 1 << 32
"""A timer is encoded as its kind times this, plus its op."""
DONE, PAUSED, STUCK, FULL, UNOPENED, OVERRUN, ENDLESS, CROWDED, FLOODED = range(9)
"""How a call of :func:`advance` ended."""
CAUSES, BOUND = 8, 3
"""Number of graph.CAUSES, and the index of the staleness bound. Waits for the bound are charged to
it, and not traced further back."""

LOG_READY, LOG_END = 1, 2
"""Flags of what is logged for an op: when it is ready, and when its tokens arrive."""

Id = int
