"""How large graphs may become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from perfmodel.base.errors import TooLargeError
from perfmodel.graph.op_graph import MOST

_most_ops: ContextVar[int] = ContextVar("most ops of a graph", default=MOST)


@contextmanager
def bounded(most: int) -> Iterator[None]:
    """Make builders reject graphs of more than ``most`` ops as early as possible."""
    token = _most_ops.set(most)
    try:
        yield
    finally:
        _most_ops.reset(token)


def check_size(kind: str, label: str, size: int) -> None:
    """Raise TooLargeError if ``size`` ops, slots, links or probes (``kind``), with those of a
    block, are too many."""
    most = min(MOST, _most_ops.get()) if kind == "op" else MOST
    if size > most:
        raise TooLargeError(
            f"the job is too large to simulate: {size} {kind}s with {label!r}, the limit is {most}"
        )
