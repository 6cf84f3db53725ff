"""Rates of transfers along whole runs, against max-min fairness computed anew each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel import build_graph, make_job
from perfmodel.base.arrays import Floats
from perfmodel.engine import filling, pools, sharing
from perfmodel.engine.run import Simulation
from perfmodel.engine.world import World
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job
from tests.jobs import cluster, workload

INSTANTS = 400


def fair_rates(graph: OpGraph, counts: Floats) -> Floats:
    """Rates per unit of weight of routes with ``counts`` transfers: all rise together; those on a
    link that gets full, or at their cap, stop (Bertsekas, Gallager, section 6.5.2)."""
    links, routes = len(graph.link_capacity_bytes_per_s), len(counts)
    use = np.zeros((links, routes))
    of = np.repeat(np.arange(routes), np.diff(graph.route_start))
    np.add.at(use, (graph.route_links, of), graph.route_units)
    use *= counts * graph.route_weight
    rate = np.zeros(routes)
    cap = graph.route_cap_bytes_per_s / graph.route_weight
    rising = counts > 0
    while rising.any():
        load = use @ rising
        left = graph.link_capacity_bytes_per_s - use @ np.where(rising, 0.0, rate)
        level = np.where(load > 1e-9, left / np.maximum(load, 1e-9), np.inf)
        most = np.min(np.where(use > 0.0, level[:, None], np.inf), axis=0, initial=np.inf)
        most = np.minimum(most, cap)
        stops = rising & (most <= most[rising].min() * (1.0 + 1e-9))
        rate[stops] = most[stops]
        rising &= ~stops
    return rate


def compared(graph: OpGraph, instants: int = INSTANTS) -> tuple[float, int, int]:
    """The largest relative error of a rate in a run; how many instants had transfers, and in how
    many of these a link was crossed by routes of several independent pools."""
    worst, seen, shared = 0.0, 0, 0
    with Simulation(graph, 1, compiled=False) as run:
        for done, _ in enumerate(run.steps(1000, 1)):
            w: World = run.world
            sharing.settle(w)
            counts = np.array([float(r.count) for r in w.routes])
            active = np.flatnonzero(counts)
            if len(active):
                rates = np.array([w.pools[w.routes[r].home].rate for r in active])
                fair = fair_rates(graph, counts)[active]
                worst = max(worst, float(np.abs(rates / fair - 1.0).max()))
                seen += 1
                shared += any(several(w, link) for link in w.links)
            if done == instants:
                break
    return worst, seen, shared


def several(w: World, link: Any) -> bool:
    """Whether a link is crossed by routes of several pools, all independent."""
    homes = {w.routes[w.active[link.first + k].route].home for k in range(link.n)}
    return len(homes) > 1 and all(w.pools[home].independent for home in homes)


SMALL = workload([0.02, 0.03], [0.05, 0.04], [3e6, 5e6], batch_size=4)
FAST = cluster(1e8)


def servers(workers: int, count: int, duplex: bool = True, **more: Any) -> Job:
    options = {"servers": count, "duplex": duplex}
    return make_job(workload=SMALL, cluster=FAST, workers=workers, options=options, **more)


JOBS = {
    "full servers": servers(24, 3, arch="asp"),
    "servers in turn full": servers(9, 4, arch="asp", jitter="lognormal:0.3:op"),
    "half duplex": servers(12, 2, arch="asp", jitter="lognormal:0.1", duplex=False),
    "averaging with a peer": make_job(
        workload=SMALL, cluster=FAST, workers=8, arch="ad_psgd", jitter="lognormal:0.3"
    ),
    "gossip": make_job(
        workload=SMALL, cluster=FAST, workers=9, arch="gosgd", jitter="lognormal:0.3"
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", JOBS)
def test_rates_are_max_min_fair(name: str) -> None:
    worst, seen, _ = compared(build_graph(JOBS[name]))
    assert worst < 1e-9
    assert seen > INSTANTS / 4


def test_independent_pools_may_share_links() -> None:
    """Full servers are independent although all of them share the links of each worker."""
    _, seen, shared = compared(build_graph(JOBS["full servers"]))
    assert shared > seen / 4


@pytest.mark.slow
def test_canary_a_limit_that_is_not_lowered_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "tighten", lambda *_: None)
    monkeypatch.setattr(filling, "tighten", lambda *_: None)
    errors = [compared(build_graph(job))[0] for job in JOBS.values()]
    assert max(errors) > 0.01
