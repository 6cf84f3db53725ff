"""The links of emulated nodes on which gloo was measured."""

import pytest

from benchmarks.accuracy.gloo import cluster_of

NET = {"tcp_goodput_bps": 72e6, "rtt_s": 1e-4, "burst": 32768, "gso": 8192}


def config(pipeline: int) -> dict[str, object]:
    mesh = {"tp": 1, "dp": 1, "pp": pipeline}
    return {"rate": 80e6, "rates_bps": [80e6, 40e6], "n_nodes": 2, "mesh": mesh}


def test_a_connection_queues_two_segments_or_what_its_link_sends_meanwhile() -> None:
    """2 * 1.2 times the link's rate in 1/1024 s: 2.34375 ms."""
    made = cluster_of(config(2), NET, [])
    assert (made.send_queue_bytes, made.burst_bytes) == (16384.0, 32768.0)
    assert made.send_queue_s == pytest.approx(2.34375e-3)
    assert cluster_of(config(2), NET | {"gso": 16384}, []).send_queue_bytes == 32768.0


def test_stages_wait_for_the_runtime_of_their_schedule() -> None:
    assert cluster_of(config(1), NET, []).nic.latency_s == 5e-5
    made = cluster_of(config(2), NET, [])
    assert made.nic.latency_s == 4.3e-4
    assert [one.nic.latency_s for one in made.overrides] == [4.3e-4]
    slow = NET | {"msg_time_after_idle_s": {"1": 5e-4}}
    assert cluster_of(config(2), slow, []).nic.latency_s == 5e-4
