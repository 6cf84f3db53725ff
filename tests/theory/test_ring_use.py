"""Steps and bytes of collectives on a ring, counted on four ranks."""

from __future__ import annotations

import pytest

from perfmodel.theory.collective_times import RingOperation, RingUse, ring_use


@pytest.mark.parametrize(
    ("operation", "steps", "sent", "added"),
    [
        # three quarters are sent and added on, then three quarters of sums are handed on
        ("all_reduce", 6, 1.5, 0.75),
        ("reduce_scatter", 3, 0.75, 0.75),
        ("all_gather", 3, 0.75, 0.0),  # copies, without sums
        ("broadcast", 3, 1.0, 0.0),  # all bytes pass through each rank
    ],
)
def test_four_ranks_pass_on_quarters(
    operation: RingOperation, steps: int, sent: float, added: float
) -> None:
    assert ring_use(operation, 4) == RingUse(steps, sent, added)


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_one_rank_sends_nothing(operation: RingOperation) -> None:
    assert ring_use(operation, 1) == RingUse(0, 0.0, 0.0)
