"""Formulas where one resource is far slower than all others; most values are by hand."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel import Cluster, Job, Link, NodeOverride, Prediction, predict
from perfmodel.inputs.cluster import Server
from perfmodel.predicting import coarse
from tests.jobs import cluster, job, workload

WORK = workload([0.02, 0.03], [0.04, 0.06], [4e6, 6e6])
"""A step of 0.15 s that makes 10 MB of gradients."""

RATE = 1e8
"""Bytes per second of a node's link."""


def both(one: Job, rel: float = 0.03) -> Prediction:
    """The simulation, after comparing the formulas with it."""
    found, near = predict(one, rel_ci=0.02), predict(one, fidelity="coarse")
    assert near.iteration_s == pytest.approx(found.iteration_s, rel=rel)
    return found


THROUGH_SERVERS: list[tuple[str, dict[str, Any], float]] = [
    ("asp", {}, 2.0),
    ("ssp", {}, 2.0),
    ("bsp", {"overlap": False}, 2.0),
    ("asp", {"compression": "quantised"}, 1.25),
    ("easgd", {"period": 1}, 2.0),
    ("easgd", {"period": 4}, 0.5),
    ("diloco", {"exchange": "server", "period": 2}, 1.0),
]
"""Architectures, options, and models that a worker sends and receives per step."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("arch", "options", "models"), THROUGH_SERVERS)
@pytest.mark.parametrize("links", [1, 2])
def test_an_oversubscribed_core_limits_transfers_to_servers(
    arch: str, options: dict[str, Any], models: float, links: int
) -> None:
    """Six workers and a server, each on its node: a hundredth of the rate of their links."""
    where = cluster(RATE, core_oversubscription=100.0, nics_per_node=links)
    found = both(job(WORK, where, 6, arch, options, jitter=0.05, start="staggered"))
    seconds = 6 * models * 10e6 / (7 * links * RATE / 100.0)
    assert seconds <= 1.001 * found.iteration_s <= 1.001 * (seconds + 0.2)


@pytest.mark.parametrize("servers", [1, 2])
def test_links_of_servers_count_for_the_core(servers: int) -> None:
    """Three workers with links of 100 MB/s, and servers with ten times that: a core of a hundredth
    of 1.3 GB/s, or of 2.3 GB/s. With two servers the core is idle now and then."""
    where = cluster(RATE, core_oversubscription=100.0, server=Server(nic=Link(10 * RATE)))
    found = both(job(WORK, where, 3, "asp", {"servers": servers}, jitter=0.05), rel=0.05)
    rate = (3 + 10 * servers) * RATE / 100.0
    assert found.iteration_s == pytest.approx(3 * 2 * 10e6 / rate, rel=0.05)


@pytest.mark.parametrize(("arch", "options", "seconds"), [
    ("allreduce", {"algorithm": "ring", "bucketing": "one"}, 3.0 + 48.0 / 4.5),
    ("local_sgd", {"period": 1, "algorithm": "ring"}, 3.0 + 48.0 / 4.5),
    ("diloco", {"period": 1, "algorithm": "ring"}, 3.0 + 48.0 / 4.5),
    ("fsdp", {"unit_bytes": 1e9}, None),
    ("allreduce", {"algorithm": "halving_doubling"}, None),
])  # fmt: skip
def test_a_core_is_as_fast_as_all_links_together(
    arch: str, options: dict[str, Any], seconds: float | None
) -> None:
    """Links of 8, 2 and 8 bytes/s, and a core of a quarter of their sum: a ring moves 48 bytes."""
    slow = (NodeOverride(1, Link(2.0)),)
    where = cluster(8.0, core_oversubscription=4.0, overrides=slow)
    found = both(job(workload([1.0], [2.0], [12.0]), where, 3, arch, options), rel=1e-9)
    if seconds is not None:
        assert found.iteration_s == pytest.approx(seconds)


@pytest.mark.parametrize("servers", [1, 2])
def test_slow_connections_limit_easgd(servers: int) -> None:
    """A pull and a push over a connection of 0.1 MB/s to each server, every four steps."""
    where = cluster(RATE, flow_bytes_per_s=1e5)
    found = both(job(WORK, where, 3, "easgd", {"period": 4, "servers": servers}))
    assert found.iteration_s == pytest.approx(2 * 10e6 / servers / 1e5 / 4, rel=0.01)


def left_to_the_simulation(one: Job, words: str) -> None:
    band = coarse.error_band(one)
    assert band.p90 is None
    assert words in band.text
    assert predict(one, fidelity="auto", rel_ci=0.1).fidelity == "fine"


def slow_node(node: int = 2) -> Cluster:
    return cluster(RATE, overrides=(NodeOverride(node, Link(RATE / 30.0)),))


def test_backup_workers_behind_slow_links_are_not_waited_for() -> None:
    """Without the slow worker, three pull and push 10 MB each. Formulas would wait for it."""
    one = job(WORK, slow_node(), 4, "bsp", {"backup_workers": 1, "overlap": False})
    left_to_the_simulation(one, "backup workers on unequal links")
    assert predict(one).iteration_s < 0.5 * predict(one, fidelity="coarse").iteration_s
    equal = job(WORK, cluster(RATE), 4, "bsp", {"backup_workers": 1, "overlap": False})
    assert coarse.error_band(equal).p90 is not None


def test_merged_messages_that_are_cut_are_simulated() -> None:
    options = {"bucketing": "mg_wfbp", "compression": "dgc"}
    where = cluster(RATE, 0.01)
    left_to_the_simulation(
        job(WORK, where, 4, "allreduce", {**options, "partition_bytes": 1e5}),
        "partitions of merged messages",
    )
    whole = job(WORK, where, 4, "allreduce", options)
    assert coarse.error_band(whole).p90 is not None
    both(whole)


def test_canary_a_core_without_servers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    where = cluster(RATE, core_oversubscription=100.0)
    one = job(WORK, where, 6, "asp", jitter=0.05)
    both(one)
    from perfmodel.phases.quantities import Quantities

    monkeypatch.setattr(
        Quantities, "core_with_servers_bytes_per_s", property(lambda q: float("inf"))
    )
    with pytest.raises(AssertionError):
        both(one)
