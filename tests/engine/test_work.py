"""The work of ops at resources, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel import build_graph, make_job
from perfmodel.architectures import ad_psgd, gosgd
from perfmodel.engine.progress import progress
from perfmodel.engine.run import Simulation
from perfmodel.graph.op_graph import OpGraph
from perfmodel.graph.work import computation_s, work_of
from perfmodel.inputs.job import Job
from tests.jobs import cluster, workload

COMPUTE_S = 3.0


def gossip(arch: str = "gosgd", workers: int = 3, bytes_per_s: float = 2.0, **options: Any) -> Job:
    """Workers that compute for 3 s, and send 10 bytes over links of 2 bytes/s."""
    return make_job(
        workload=workload([0.5, 0.5], [1.0, 1.0], [6.0, 4.0], batch_size=4),
        cluster=cluster(bytes_per_s),
        workers=workers,
        arch=arch,
        options=options,
    )


def at_links(graph: OpGraph) -> dict[str, float]:
    """Seconds of each link for an iteration in which all ops are active."""
    op, resource, seconds = work_of(graph)
    link = resource - len(graph.slot_capacity)
    total = np.bincount(link[link >= 0], (graph.activity[op] * seconds)[link >= 0])
    return {graph.link_name(i): float(each_s) for i, each_s in enumerate(total) if each_s > 0.0}


def test_a_model_is_work_at_the_links_of_all_that_it_may_go_to() -> None:
    """Each of three workers sends 5 s of bytes in every fifth iteration, to both others equally
    often."""
    found = at_links(build_graph(gossip(probability=0.2)))
    assert len(found) == 6
    assert found == pytest.approx(dict.fromkeys(found, 0.2 * 5.0))


def test_the_computation_of_an_iteration() -> None:
    graph = build_graph(gossip(probability=0.2))
    assert computation_s(graph) == pytest.approx(np.full(3, COMPUTE_S))
    merging = build_graph(gossip(probability=0.2, merge_per_model_s=0.1))
    assert np.isnan(computation_s(merging)).all()  # it depends on how many have arrived


@pytest.mark.parametrize(("arch", "options"), [("easgd", {"period": 4}), ("ps", {"sync": "asp"})])
def test_the_computation_of_an_iteration_is_what_devices_are_busy_for(
    arch: str, options: dict[str, Any]
) -> None:
    graph = build_graph(gossip(arch, **options))
    assert computation_s(graph) == pytest.approx(np.full(3, COMPUTE_S))


def test_progress_counts_models_that_are_sent_at_random() -> None:
    """On slow links, each model that has moved stands for five iterations."""
    graph = build_graph(gossip(workers=40, bytes_per_s=0.2, probability=0.2, queue=1))
    with Simulation(graph, 1) as run:
        run.advance(60)
        before, moved = progress(graph, run.world).sum(), run.totals().moved.sum()
        run.advance(120)
        more = progress(graph, run.world).sum() - before
        sent = (run.totals().moved.sum() - moved) / 10.0
    assert more == pytest.approx(5.0 * sent, rel=0.03)  # a worker sends nothing over its own link


@pytest.mark.parametrize("module", [gosgd, ad_psgd], ids=["gosgd", "ad_psgd"])
def test_whole_models_do_not_depend_on_layers(module: Any) -> None:
    """A pass of one op takes as long as one of an op for each layer: runs are the same."""
    job = gossip(module.ARCHITECTURE.name, workers=5)
    both = [module.build(job), module.build(job, np.arange(5))]
    assert both[1].n_ops == both[0].n_ops - 2 * 5
    times = []
    for graph in both:
        with Simulation(graph, 7) as run:
            run.advance(50)
            times.append((run.now, *run.totals().marked_at))
    assert times[1] == pytest.approx(times[0], rel=1e-9)


def test_layers_that_vary_on_their_own_stay() -> None:
    job = make_job(
        workload=workload([0.5, 0.5], [1.0, 1.0], [6.0, 4.0], batch_size=4),
        cluster=cluster(2.0),
        workers=3,
        arch="gosgd",
        jitter="0.1:op",
    )
    assert gosgd.build(job, np.arange(3)).n_ops == gosgd.build(job).n_ops
