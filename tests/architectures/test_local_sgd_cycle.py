"""The critical cycle of workers that wait for each other every few steps only."""

from __future__ import annotations

import pytest

import perfmodel as pm
from tests.jobs import cluster, workload


@pytest.mark.parametrize("period", [12, 100])
def test_a_straggler_of_a_long_period_is_found_soon(period: int) -> None:
    """Permits take no time and enable each other: a walk back must not go round among them."""
    asked = pm.make_job(
        workload=workload([1.0], [2.0], [8.0]),
        cluster=cluster(4.0),
        workers=24,
        arch="local_sgd",
        options={"period": period, "algorithm": "ring"},
        stragglers=[pm.Straggler(0, 1.01)],
    )
    found = pm.predict(asked)
    assert found.iteration_s == pytest.approx(3.03 + 2 * 23 / 24 * 2.0 / period)
    assert found.bottleneck.resource.startswith("device")
