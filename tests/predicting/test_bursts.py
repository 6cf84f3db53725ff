"""Links that let a burst pass after they were idle, and requests behind data, by hand."""

from typing import Any

import pytest

import perfmodel as pm
from perfmodel.predicting import coarse
from perfmodel.replicas.seats import of_groups
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


@pytest.mark.parametrize("queue", [{"send_queue_bytes": 0.3 * MB}, {"send_queue_s": 0.3}])
def test_a_queue_is_as_long_as_its_bytes_or_its_time_whichever_is_more(
    queue: dict[str, float],
) -> None:
    """As above: 0.3 s behind data; less of the other does not matter."""
    three = work([(1.0, 2.0, 1e-9, 1.0)] * 3, 2)
    for more in ({}, {"send_queue_bytes": 0.1 * MB, "send_queue_s": 0.1} | queue):
        where = cluster(nic=pm.Link(MB, 0.1), **queue | more)
        made = job(three, 3, cluster=where, transfers="gloo", schedule="gpipe")
        assert step_s(made) == pytest.approx(19.4, rel=1e-6)


def test_the_time_of_a_queue_is_that_of_each_link() -> None:
    """As above, but the node of the second stage sends 2 MB/s, and its neighbours receive half of
    it. Its two requests wait for 0.6 MB, 0.3 s of its link, or for 0.3 MB, 0.15 s."""
    three = work([(1.0, 2.0, 1e-9, 1.0)] * 3, 2)
    waits = []
    for queue in ({}, {"send_queue_s": 0.3}, {"send_queue_bytes": 0.3 * MB}):
        where = cluster(
            nic=pm.Link(MB, 0.1),
            overrides=(pm.NodeOverride(1, pm.Link(2 * MB, 0.1)),),
            **queue,
        )
        made = job(three, 3, cluster=where, transfers="gloo", schedule="gpipe")
        waits.append(step_s(made))
    assert waits[1] - waits[0] == pytest.approx(0.6)
    assert waits[2] - waits[0] == pytest.approx(0.3)


def sums(where: pm.Cluster) -> pm.Job:
    """Two devices on two nodes, and two replicas: the sum of the first layer is beside the
    reduction of the second."""
    layers = [
        pm.WorkloadLayer("layer0", 1.0, 2.0, (1.0,), backward_summed_bytes=4 * MB),
        pm.WorkloadLayer("layer1", 1.0, 2.0, (8 * MB,)),
    ]
    return pm.make_job(
        workload=pm.Workload.of("made", layers),
        tensor=2,
        workers=2,
        cluster=where,
        arch="ring",
        options={"bucketing": "layer"},
    )


@pytest.mark.parametrize("queue", [{"send_queue_bytes": 0.5 * MB}, {"send_queue_s": 0.5}])
def test_each_message_of_a_sum_waits_behind_a_reduction(queue: dict[str, float]) -> None:
    """Two devices send 1 MB/s each. F 0-2, backward of layer 1 2-4 and of layer 0 4-6.

    Layer 1 is reduced from 4 on, 4 MB on each device. Its sum among two has two messages; each
    waits for 0.5 MB, until 7, when 1 MB of the reduction is left. Both have half of the link until
    9, and 3 MB of the sum take 3 s more. In all it is 12 instead of 6 + 2 + 4 s, as the link always
    sends; but the reduction ends at 9 instead of 10."""
    made = sums(cluster(**queue))
    timeline = pm.predict(made).timeline()
    first = [one for one in timeline.operations if one.iteration == timeline.first]
    reduced = next(one for one in first if one.kind == "all-reduce")
    assert reduced.end_s - min(one.start_s for one in first) == pytest.approx(9.0)
    assert step_s(made) == pytest.approx(12.0, rel=1e-6)


def test_devices_that_count_as_one_have_bursts_and_queues_of_all() -> None:
    """Two stages of two devices on four nodes: each device sends 1 MB, as one did above."""
    layers = [
        pm.WorkloadLayer("layer0", 1.0, 2.0, (1.0,), MB, backward_summed_bytes=1.0),
        pm.WorkloadLayer("layer1", 1.0, 2.0, (1.0,), MB),
    ]
    workload = pm.Workload.of("made", layers)
    made = job(workload, 2, tensor=2, cluster=cluster(burst_bytes=0.25 * MB))
    assert step_s(made) == pytest.approx(7.5, rel=1e-5)
    every = of_groups(cluster(send_queue_bytes=3.0, send_queue_s=0.5), 2)
    assert (every.send_queue_bytes, every.send_queue_s) == (6.0, 0.5)


@pytest.mark.parametrize("name", ["burst_bytes", "send_queue_bytes", "send_queue_s"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_impossible_bytes_are_refused(name: str, value: float) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(pm.InputError, match=name):
        cluster(**given)
