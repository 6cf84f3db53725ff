"""Links that let a burst pass after they were idle, and requests behind data, by hand."""

from typing import Any

import pytest

import perfmodel as pm
from perfmodel.predicting import coarse
from tests.predicting.test_replicas import MB, cluster, job, step_s, work


@pytest.mark.parametrize(("burst_mb", "expected_s"), [(0.0, 8.0), (0.25, 7.5), (5.0, 6.0)])
def test_a_burst_shortens_what_stages_send(burst_mb: float, expected_s: float) -> None:
    """Two stages of 1 s forward and 2 s backward send 1 MB each way, at 1 MB/s."""
    made = job(work([(1.0, 2.0, 1e-9, 1.0)] * 2, 1), 2, cluster=cluster(burst_bytes=burst_mb * MB))
    assert step_s(made) == pytest.approx(expected_s, rel=1e-6)


def test_a_burst_shortens_a_push_and_a_pull() -> None:
    """A worker of 3 s pushes 1 MB to its server, and pulls it: 3 + 2 * 0.75 s."""
    made = pm.make_job(
        workload=pm.Workload.of("made", [pm.WorkloadLayer("a", 1.0, 2.0, (MB,))]),
        cluster=cluster(burst_bytes=0.25 * MB),
        workers=1,
        arch="ps",
    )
    assert step_s(made) == pytest.approx(4.5)
    assert "bursts" in (coarse.leaves_out(made) or "")
    assert not coarse.exact(made)


@pytest.mark.parametrize(("queue_mb", "expected_s"), [(0.0, 18.8), (0.3, 19.4)])
def test_a_stage_asks_behind_what_it_sends(queue_mb: float, expected_s: float) -> None:
    """Three stages, two micro-batches, 0.1 s of latency.

    The first stage waits for the request of the second, which leaves 0.1 s after its result of
    1 MB, and so 0.3 s later if 0.3 MB are in the queue; in the backward pass the third waits so.
    """
    where = cluster(nic=pm.Link(MB, 0.1), send_queue_bytes=queue_mb * MB)
    three = work([(1.0, 2.0, 1e-9, 1.0)] * 3, 2)
    made = job(three, 3, cluster=where, transfers="gloo", schedule="gpipe")
    assert step_s(made) == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize("name", ["burst_bytes", "send_queue_bytes"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_impossible_bytes_are_refused(name: str, value: float) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(pm.InputError, match=name):
        cluster(**given)
