"""How large graphs may become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from perfmodel.base.errors import TooLargeError
from perfmodel.graph.op_graph import MOST

most_ops: ContextVar[int] = ContextVar("most ops of a graph", default=MOST)
"""Most ops that builders allow, at most MOST."""


@contextmanager
def bounded(most: int) -> Iterator[None]:
    """Make builders reject graphs of more than ``most`` ops as early as possible."""
    token = most_ops.set(min(most, MOST))
    try:
        yield
    finally:
        most_ops.reset(token)


def too_large(kind: str, label: str, size: int, most: int) -> TooLargeError:
    """Return the error that ``size`` ops, slots, links or probes (``kind``), with those of a block,
    are more than ``most``."""
    return TooLargeError(
        f"the job is too large to simulate: {size} {kind}s with {label!r}, the limit is {most}"
    )
