"""Incast: unequal losses give senders unequal shares of a link, at a cost."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, NodeOverride, Server, predict
from perfmodel.engine.simulation import simulate, timeline
from perfmodel.inputs.job import Job
from perfmodel.predicting.fine import build_graph
from perfmodel.theory.incast import DECREASE, GROWTH, SEGMENT_BYTES, SLOWER, losses, parts, spread
from tests.jobs import VARIANTS, cluster, job, workload
from tests.settings import thinned

BANDWIDTH = 1e6
QUEUE_BYTES = 2.0**17
FIRST, LAST = 4e5, 6e5
"""Bytes of the two layers; backward makes the gradients of the last layer first."""
NO_TIME = 1e-9
WORK = workload([NO_TIME, NO_TIME], [NO_TIME, NO_TIME], [FIRST, LAST])
DUPLEX = {"sync": "bsp", "duplex": True}


def incast(workers: int, queue_bytes: float | None, **options: Any) -> Job:
    """A job of two layers without compute time, pushed to one server and pulled from it."""
    where = cluster(BANDWIDTH, queue_bytes=queue_bytes)
    return job(WORK, where, workers, "ps", DUPLEX | options)


def averages(k: float, *, decrease: float = DECREASE) -> np.ndarray:
    """Simulated windows that grow steadily and lose at random: average of each over k losses."""
    rng = np.random.default_rng(1)
    found = np.empty(20_000)
    for i in range(len(found)):
        at, window, area = 0.0, 1.0, 0.0
        for end in [*np.sort(rng.random(rng.poisson(k))), 1.0]:
            grown = window + (1.0 - DECREASE) * k * (end - at)
            area += (window + grown) / 2.0 * (end - at)
            at, window = end, grown * decrease
        found[i] = area
    return found


# -- the shares ------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("k", [0.3, 1.6, 8.0])
def test_the_spread_equals_that_of_windows_with_random_losses(k: float) -> None:
    sent = k * QUEUE_BYTES / losses(4, QUEUE_BYTES, QUEUE_BYTES)
    assert losses(4, sent, QUEUE_BYTES) == pytest.approx(k)
    found = averages(k)
    assert found.mean() == pytest.approx(1.0, abs=0.01)
    assert found.std() == pytest.approx(spread(4, sent, QUEUE_BYTES), rel=0.03)


def test_canary_windows_with_more_losses_differ() -> None:
    sent = 1.6 * QUEUE_BYTES / losses(4, QUEUE_BYTES, QUEUE_BYTES)
    halved = averages(1.6, decrease=0.5).std()
    assert halved > 1.2 * spread(4, sent, QUEUE_BYTES)


def test_the_loss_rate_balances_window_growth() -> None:
    """Eight windows in a queue of 512 KiB: 45 segments each, of which a loss removes 14."""
    window = 2**19 / 8 / SEGMENT_BYTES
    round_trips = 8 * 2e6 / 2**19
    assert losses(8, 2e6, 2**19) == pytest.approx(round_trips / (0.3 * window / GROWTH))
    assert math.isclose(GROWTH, 3.0 * 0.3 / 1.7)


@pytest.mark.parametrize("sent", [1.0, 1e4, 1e6, 1e9])
def test_shares_are_within_bounds(sent: float) -> None:
    """More senders lose more often; the spread never exceeds that of the long run."""
    few, many = spread(2, sent, 1e6), spread(8, sent, 1e6)
    assert 0.0 < few <= math.sqrt(0.3 / 1.7)
    if sent <= 1e4:
        assert few < many
    found = parts(np.ones(5), spread(5, sent, 1e6), seed=3, link=0)
    assert np.sort(found) == pytest.approx(np.sort(1.0 / found))
    assert np.std(np.log(found)) <= math.sqrt(math.log1p(spread(5, sent, 1e6) ** 2))


def test_the_spread_vanishes_smoothly() -> None:
    found = [spread(4, sent, 1e6) / math.sqrt(sent) for sent in (1.0, 1e2, 1e3, 2e3, 5e3, 1e4)]
    assert found == pytest.approx([found[0]] * len(found), rel=5e-3)


def test_the_seed_determines_the_shares() -> None:
    first, again, other, elsewhere = (
        parts(np.ones(8), spread(8, 1e6, 1e6), seed=seed, link=link)
        for seed, link in [(1, 0), (1, 0), (2, 0), (1, 1)]
    )
    assert first.tolist() == again.tolist()
    for another in (other, elsewhere):
        assert first.tolist() != another.tolist()
        assert sorted(first) == sorted(another)


# -- a step ----------------------------------------------------------------------------------------


def step_by_hand(shares: np.ndarray) -> float:
    """Without computation: all push the last layer, then the first; pulls share the link evenly.

    The last copy of the last layer arrives when the slowest worker has pushed it; by then each
    other worker has pushed in proportion to its share, or everything.
    """
    n, whole = len(shares), FIRST + LAST
    last_in = np.minimum(whole, LAST * shares / shares.min()).sum() / BANDWIDTH
    pulled = last_in + n * LAST / BANDWIDTH
    return float(max(n * whole / BANDWIDTH, pulled) + n * FIRST / BANDWIDTH)


@pytest.mark.parametrize("workers", [3, 6])
def test_a_step_waits_for_the_smallest_share(workers: int) -> None:
    unequal = spread(workers, FIRST + LAST, QUEUE_BYTES)
    shares = parts(np.ones(workers), unequal, seed=0, link=0)
    found = predict(incast(workers, QUEUE_BYTES)).iteration_s
    assert found == pytest.approx(step_by_hand(shares), rel=1e-6)
    fair = predict(incast(workers, None)).iteration_s
    assert fair == pytest.approx(step_by_hand(np.ones(workers)), rel=1e-6)
    assert found > 1.01 * fair


def weights(of: Job) -> list[float]:
    return sorted(set(build_graph(of).route_weight.tolist()))


@pytest.mark.parametrize("options", thinned(VARIANTS["ps"], 4), ids=str)
def test_without_a_queue_all_share_equally(options: dict[str, Any]) -> None:
    where = cluster(BANDWIDTH, devices_per_node=2)
    assert weights(job(WORK, where, 4, "ps", options)) == [1.0]


def test_with_as_many_servers_as_workers_all_share_equally() -> None:
    """No queue fills."""
    assert weights(incast(4, QUEUE_BYTES, servers=4)) == [1.0]
    assert len(weights(incast(4, QUEUE_BYTES, sync="ssp"))) > 1
    assert len(weights(incast(4, QUEUE_BYTES, sync="asp"))) > 1
    assert len(weights(incast(4, QUEUE_BYTES, servers=2))) > 1


@pytest.mark.slow
def test_unequal_shares_break_the_lockstep_at_a_hot_server() -> None:
    """Most bytes are on one of two servers. With equal shares, asynchronous workers that begin
    together stay together: all compute while the hot link is idle."""
    work = workload([0.2, 0.2], [0.2, 0.2], [8e6, 1e6])
    options = DUPLEX | {"sync": "asp", "servers": 2, "split_above_bytes": math.inf}

    def step_s(queue_bytes: float | None) -> float:
        where = cluster(10e6, queue_bytes=queue_bytes)
        return predict(job(work, where, 4, "ps", options, start="together")).iteration_s

    bound = 4 * 8e6 / 10e6
    assert step_s(None) > 1.3 * bound
    assert bound <= step_s(2**19) < 1.15 * bound


def test_colocated_servers() -> None:
    """Four servers with four workers: no incast. One server: incast by the three other workers."""
    where = cluster(BANDWIDTH, queue_bytes=QUEUE_BYTES, server=Server("colocated"))
    for servers, kinds in ((4, 1), (1, 3)):
        found = weights(job(WORK, where, 4, "ps", DUPLEX | {"servers": servers}))
        assert len(found) == kinds


def test_a_long_queue_is_fair() -> None:
    fair = predict(incast(4, None)).iteration_s
    steps = [predict(incast(4, queue)).iteration_s for queue in (1e6, 1e8, 1e12)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == pytest.approx(fair, rel=1e-4)


def test_a_worker_on_a_slow_link_cannot_catch_up() -> None:
    """A smaller share costs it more than the others, which have the link to themselves later."""

    def slow(queue_bytes: float | None) -> Job:
        where = cluster(BANDWIDTH, queue_bytes=queue_bytes)
        link = msgspec.structs.replace(where.nic, bandwidth_bytes_per_s=BANDWIDTH / 4.0)
        where = msgspec.structs.replace(where, overrides=(NodeOverride(0, link),))
        return job(WORK, where, 4, "ps", DUPLEX)

    assert predict(slow(QUEUE_BYTES)).iteration_s >= predict(slow(None)).iteration_s


def test_plain_and_compiled_loops_agree() -> None:
    graph = build_graph(incast(5, QUEUE_BYTES))
    plain, compiled = (timeline(graph, iterations=3, compiled=which) for which in (False, True))
    assert plain == compiled
    first, second = (simulate(graph, compiled=which) for which in (False, True))
    assert first.iterations_per_s.tolist() == second.iterations_per_s.tolist()


# -- limits ---------------------------------------------------------------------------------------


def test_the_coarse_model_notes_that_it_omits_incast() -> None:
    found = predict(incast(4, QUEUE_BYTES), fidelity="coarse")
    assert found.error_band is not None
    assert found.error_band.p90 is None
    assert "unequal shares of a full link" in found.error_band.text
    for alike in (incast(4, None), incast(4, None, sync="asp")):
        found = predict(alike, fidelity="coarse")
        assert found.error_band is not None
        assert found.error_band.p90 is not None


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan])
def test_invalid_queue_lengths_are_refused(wrong: float) -> None:
    with pytest.raises(InputError, match="queue_bytes: "):
        cluster(BANDWIDTH, queue_bytes=wrong)


def test_a_slower_link_has_a_smaller_share() -> None:
    equal = parts(np.ones(4), 0.2, seed=1, link=0)
    slow = parts(np.array([0.5, 1.0, 1.0, 1.0]), 0.2, seed=1, link=0)
    assert slow[1:].tolist() == equal[1:].tolist()
    assert slow[0] == pytest.approx(equal[0] * 0.5**SLOWER)
    assert parts(np.full(4, 3e7), 0.2, seed=1, link=0).tolist() == equal.tolist()


@pytest.mark.parametrize("servers", [1, 4])
def test_a_request_waits_behind_the_pushes_of_others(servers: int) -> None:
    """Half of the queue, once, as all pushes of the only layer end before; not with as many servers
    as workers, which leave no queue, and not for replies."""
    one = workload([NO_TIME], [NO_TIME], [FIRST])
    for pull, waits in (("request", servers == 1), ("reply", False)):
        options = DUPLEX | {"pull": pull, "servers": servers, "split_above_bytes": 1.0}
        fair, queued = (
            predict(job(one, cluster(BANDWIDTH, queue_bytes=q), 4, "ps", options)).iteration_s
            for q in (None, QUEUE_BYTES)
        )
        expected = QUEUE_BYTES / 2.0 / BANDWIDTH if waits else 0.0
        assert queued - fair == pytest.approx(expected, abs=1e-6)
