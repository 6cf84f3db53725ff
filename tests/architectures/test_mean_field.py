"""Many equal workers simulated by a few, against simulations of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import Straggler, build_graph, make_job, predict
from perfmodel.architectures import mean_field as few_workers
from perfmodel.architectures.mean_field import mean_field_of
from perfmodel.base.arrays import Floats
from perfmodel.engine import mean_field as engine
from perfmodel.engine.mean_field import simulate_many, simulate_mean_field
from perfmodel.engine.measures import Measures
from perfmodel.engine.run import Simulation
from perfmodel.engine.simulation import simulate
from perfmodel.graph.mean_field import MeanField
from perfmodel.graph.op_graph import CAUSES
from perfmodel.inputs.cluster import NodeOverride
from perfmodel.inputs.job import Job
from perfmodel.inputs.sites import Site, SiteLink
from tests.jobs import cluster, workload

FAR = Straggler(270, 4.0)

COMPUTE_S, UPDATE_S, SENT_BYTES, RATE_BYTES_PER_S = 3.0, 0.002, 10.0, 1000.0
"""Of :func:`job`: computation of a step, updates of a gradient on the server, bytes pushed and
pulled, and the rate of each link."""


def job(workers: int = 256, update_s: float = UPDATE_S, **more: Any) -> Job:
    """Workers that push and pull 10 bytes in two layers over links of 1000 bytes/s: a server's link
    is full with 300 workers, its thread with 1500."""
    half = [SENT_BYTES / 2.0] * 2
    return make_job(
        workload=workload([0.5, 0.5], [1.0, 1.0], half, batch_size=4),
        cluster=cluster(RATE_BYTES_PER_S, update_per_tensor_s=update_s / 2.0),
        workers=workers,
        **({"arch": "asp"} | more),
    )


def field_of(given: Job) -> MeanField:
    field = mean_field_of(given)
    assert field is not None
    return field


def link_s(field: MeanField) -> Floats:
    """What each worker of the graph takes of each link that is shared, (groups, links)."""
    slots, links = len(field.graph.slot_capacity), len(field.graph.link_place)
    found = np.zeros((field.graph.n_groups, slots + links))
    found[:, field.shared] = field.own_s
    return found[:, slots:]


def rate_of(found: Measures, field: MeanField) -> float:
    """Iterations per second of all workers."""
    return float((found.iterations_per_s * field.graph.group_count).sum())


# -- the graph of a few -----------------------------------------------------------------------


def test_what_workers_take_of_a_server_by_hand() -> None:
    """10 bytes each way at 1000 bytes/s, and 0.002 s of updates; nothing of other links."""
    field = field_of(job())
    graph = field.graph
    slots = len(graph.slot_capacity)
    taken = dict(zip(field.shared.tolist(), field.own_s.mean(axis=0).tolist(), strict=True))
    links = {graph.link_name(i - slots): taken[i] for i in taken if i >= slots}
    assert links == {
        "link out of node 256 (server 0)": pytest.approx(0.01),
        "link into node 256 (server 0)": pytest.approx(0.01),
    }
    threads = {graph.slot_name(i): taken[i] for i in taken if i < slots}
    assert threads == {"update threads of server 0": pytest.approx(UPDATE_S)}
    assert field.most(np.ones(graph.n_groups)) == pytest.approx(1.0 / (256 * 0.01))


def test_what_the_others_leave_by_hand() -> None:
    """128 of 256 workers are in the graph. The other 128 at 0.25 iterations per second take 0.32 of
    each direction, and 0.064 of the thread's time."""
    field = field_of(job())
    assert (field.graph.n_groups, field.workers) == (128, 256)
    assert (field.graph.group_count == 2).all()
    quarter = np.full(128, 0.25)
    slot, link = field.left(quarter)
    assert link.min() == pytest.approx(0.68)
    assert slot.min() == pytest.approx(0.936)
    graph = field.at(quarter)
    assert graph.link_capacity_bytes_per_s.min() == pytest.approx(680.0)
    assert graph.op_seconds[graph.op_seconds > 0.0].min() == pytest.approx(0.001 / 0.936)
    assert (field.at(np.zeros(128)).op_seconds == field.graph.op_seconds).all()


def test_an_exchange_every_few_steps_counts_as_often_by_hand() -> None:
    every = field_of(job(arch="easgd", options={"period": 1}))
    fourth = field_of(job(arch="easgd", options={"period": 4}))
    assert every.own_s.max() == pytest.approx(0.01)
    assert fourth.own_s == pytest.approx(every.own_s / 4.0)


def test_the_core_is_as_large_as_for_all_workers() -> None:
    """257 nodes of 1000 bytes/s share half of that; a step crosses it in both directions."""
    spec = msgspec.structs.replace(job().cluster, core_oversubscription=2.0)
    field = field_of(msgspec.structs.replace(job(), cluster=spec))
    core = field.graph.link_place == -1
    assert link_s(field)[:, core] == pytest.approx(20.0 / (257 * 500.0))


def test_the_graph_does_not_grow_with_the_workers() -> None:
    sizes = {field_of(job(workers)).graph.n_ops for workers in (300, 1000, 50_000)}
    assert len(sizes) == 1
    few = field_of(make_job(model="resnet50", arch="asp", workers=1024, options={"servers": 8}))
    least = field_of(make_job(model="resnet50", arch="asp", workers=1024, options={"servers": 64}))
    assert 16 <= least.graph.n_groups < few.graph.n_groups < few_workers.MOST
    assert few.graph.n_ops <= few_workers.OPS


@pytest.mark.parametrize(
    "given",
    [
        {"workers": 255},
        {"arch": "ssp", "options": {"staleness_bound": 0}, "start": "together"},
        {"arch": "ring", "workers": 1024},
        {"arch": "gosgd", "workers": 511},
    ],
)
def test_few_workers_or_ones_of_many_kinds_are_simulated_one_by_one(
    given: dict[str, Any],
) -> None:
    assert mean_field_of(job(**given)) is None


def on_links(given: Job, **more: Any) -> Job:
    return msgspec.structs.replace(given, cluster=msgspec.structs.replace(given.cluster, **more))


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "workers"), [("asp", 300), ("gosgd", 800)])
def test_a_few_represent_workers_of_which_each_has_a_link_like_no_other(
    arch: str, workers: int
) -> None:
    """Pushing takes from a tenth of the time of computing to as long as that, and pulling, too."""
    one = job(workers, 1e-5, arch=arch, jitter=0.05)
    nic, drawn = one.cluster.nic, np.random.default_rng(7).lognormal(0.0, 0.6, workers)
    links = [msgspec.structs.replace(nic, bandwidth_bytes_per_s=10.0 * float(r)) for r in drawn]
    unlike = tuple(NodeOverride(node=node, nic=link) for node, link in enumerate(links))
    one = on_links(one, overrides=unlike)
    field = field_of(one)
    found, whole = simulate_mean_field(field), simulate(build_graph(one), seed=2)
    assert field.graph.n_groups < 400
    width = found.ci_fraction + whole.ci_fraction
    assert rate_of(found, field) == pytest.approx(float(whole.iterations_per_s.sum()), rel=width)


@pytest.mark.parametrize(
    "more", [{}, {"arch": "ssp", "options": {"staleness_bound": 1}}, {"arch": "easgd"}]
)
def test_a_few_represent_workers_of_which_each_is_as_fast_as_no_other(more: dict[str, Any]) -> None:
    """400 workers on nodes of four; the slowest tenth takes twice as long as the fastest."""
    factors = np.random.default_rng(5).lognormal(0.0, 0.27, 400)
    unlike = [Straggler(worker, float(factor)) for worker, factor in enumerate(factors)]
    options = {"servers": 2} | more.pop("options", {})
    one = on_nodes(job(400, 1e-4, stragglers=unlike, options=options, **more), 4)
    field = field_of(one)
    assert field.graph.n_groups <= 150
    found, whole = simulate_mean_field(field), simulate(build_graph(one), seed=2)
    width = found.ci_fraction + whole.ci_fraction
    assert rate_of(found, field) == pytest.approx(float(whole.iterations_per_s.sum()), rel=width)


@pytest.mark.parametrize("more", [{}, {"arch": "easgd", "options": {"period": 1}}])
def test_a_few_represent_workers_whose_links_let_bursts_pass(more: dict[str, Any]) -> None:
    """300 workers of 3 s would fill a server's link if they never waited. With bursts of four
    messages it makes up for the time that it was idle."""
    without, one = (on_links(job(300, jitter=0.1, **more), burst_bytes=b) for b in (0.0, 40.0))
    field = field_of(one)
    found, whole = simulate_mean_field(field), simulate(build_graph(one), seed=2)
    width = found.ci_fraction + whole.ci_fraction
    assert width < 0.025
    assert rate_of(found, field) == pytest.approx(float(whole.iterations_per_s.sum()), rel=width)
    assert rate_of(found, field) > 1.02 * float(
        simulate(build_graph(without)).iterations_per_s.sum()
    )


@pytest.mark.parametrize("servers", [1, 2])
def test_a_few_have_shares_as_unequal_as_the_queue_makes_those_of_all(servers: int) -> None:
    """260 workers keep the servers' threads busy, and share queues of 1000 bytes."""
    slow = job(260, update_s=0.02 * servers, jitter=0.05, options={"servers": servers})
    one = on_links(slow, queue_bytes=1000.0)
    field, all_of_them = field_of(one), build_graph(one)
    assert field.graph.n_groups == 128
    few, many = (np.log(graph.route_weight) for graph in (field.graph, all_of_them))
    few, many = few[few != 0.0], many[many != 0.0]
    assert few.std() == pytest.approx(many.std(), rel=0.05)
    whole = simulate(all_of_them, seed=2)
    found = simulate_mean_field(field)
    assert rate_of(found, field) == pytest.approx(float(whole.iterations_per_s.sum()), rel=0.01)


def on_nodes(given: Job, devices: int, **more: Any) -> Job:
    spec = msgspec.structs.replace(given.cluster, devices_per_node=devices, **more)
    return msgspec.structs.replace(given, cluster=spec)


def test_slow_workers_represent_themselves_by_hand() -> None:
    """Worker 201 is slow, on node 50 of four, whose workers represent themselves; the other 124 of
    the graph represent the other 252. If all make 0.25 iterations per second, the 128 that the
    graph lacks take 0.01 s each of the server's link. If it is slower by half, 255.5 times 0.01 s
    fill the link."""
    field = field_of(on_nodes(job(stragglers=[Straggler(201, 2.0)]), 4))
    graph, count = field.graph, field.graph.group_count
    assert (count[-4:] == 1).all()
    assert (len(count), count.sum(), count[:-4].sum()) == (128, 256, 252)
    assert graph.worker_group[200:204].tolist() == [124, 125, 126, 127]
    assert graph.worker_group[[0, 1, 4, 124, 255]].tolist() == [0, 1, 4, 0, 123]
    assert len(set(field.kind[:-4])) == 1
    assert field.kind[[124, 126, 127]].tolist() == [field.kind[124]] * 3
    assert len({field.kind[0], field.kind[124], field.kind[125]}) == 3
    assert graph.slot_name(int(graph.group_device[125])) == "device of worker 201"
    assert graph.slot_name(int(graph.group_device[0])) == "device of worker 0"
    assert field.left(np.full(128, 0.25))[1].min() == pytest.approx(1.0 - 128 * 0.25 * 0.01)
    half = np.where(np.arange(128) == 125, 0.5, 1.0)
    assert field.most(half) == pytest.approx(1.0 / (255.5 * 0.01))


def test_half_of_the_workers_are_slow_by_hand() -> None:
    """Every second worker computes twice as long; pairs of one slow and one fast represent two
    pairs each. At 0.2 and 0.1 iterations per second, 64 missing workers of each take 0.01 s each
    of the link."""
    slow = [Straggler(i, 2.0) for i in range(1, 256, 2)]
    field = field_of(job(stragglers=slow))
    assert (field.graph.group_count == 2).all()
    rates = np.where(field.kind == field.kind[0], 0.2, 0.1)
    assert rates.mean() == pytest.approx(0.15)
    assert field.left(rates)[1].min() == pytest.approx(1.0 - 64 * 0.3 * 0.01)
    assert field.by_kind(np.arange(128.0))[:2].tolist() == [63.0, 64.0]


def test_nodes_with_servers_and_unusual_nodes_are_there_by_hand() -> None:
    """Servers on nodes 0 to 2, a slow link on node 200: the pairs of nodes 0 and 1, 2 and 3, 200
    and 201 represent themselves. A push of another worker to server 0 takes a third of 10 bytes
    at 1000 bytes/s of the link into its node."""
    one = job(options={"servers": 3, "split_above_bytes": 0.0})
    spec = one.cluster
    slow = msgspec.structs.replace(spec.nic, bandwidth_bytes_per_s=500.0)
    server = msgspec.structs.replace(spec.server, placement="colocated")
    overrides = (NodeOverride(node=200, nic=slow),)
    spec = msgspec.structs.replace(spec, server=server, overrides=overrides)
    field = field_of(msgspec.structs.replace(one, cluster=spec))
    graph = field.graph
    count = graph.group_count
    assert (count == 1).tolist() == [True] * 4 + [False] * (graph.n_groups - 6) + [True] * 2
    names = [graph.link_name(i) for i in range(len(graph.link_place))]
    shared = {names[i] for i in np.flatnonzero(link_s(field).any(axis=0))}
    kinds = ("link out of", "link into")
    assert shared == {f"{kind} node {i} (server {i})" for kind in kinds for i in range(3)}
    into = names.index("link into node 0 (server 0)")
    assert link_s(field)[4:-2, into] == pytest.approx(10.0 / 3.0 / 1000.0)
    slowest = graph.link_capacity_bytes_per_s == 500.0
    assert {names[i] for i in np.flatnonzero(slowest)} == {f"{kind} node 200" for kind in kinds}
    last = graph.n_groups - 1
    assert graph.worker_group[[0, 3, 200, 201]].tolist() == [0, 3, last - 1, last]


def test_shared_resources_in_proportion_by_hand() -> None:
    """128 of 256 workers: half of the server's links, twice the time of its updates."""
    field = field_of(job())
    graph, scaled = field.graph, field.in_proportion()
    shared = link_s(field).any(axis=0)
    capacity = scaled.link_capacity_bytes_per_s / graph.link_capacity_bytes_per_s
    assert capacity[shared] == pytest.approx(0.5)
    assert capacity[~shared] == pytest.approx(1.0)
    updates = np.flatnonzero(scaled.op_seconds != graph.op_seconds)
    assert {graph.op_name(int(op)).split(" ")[0] for op in updates} == {"update"}
    assert scaled.op_seconds[updates] == pytest.approx(2.0 * graph.op_seconds[updates])


def test_a_server_on_a_node_is_there_in_proportion_to_its_work_by_hand() -> None:
    """All of 256 workers but worker 0, beside which the server is, push over its link. Workers 0
    and 1 represent themselves, so of these there are more in the graph than of the others."""
    server = msgspec.structs.replace(job().cluster.server, placement="colocated")
    spec = msgspec.structs.replace(job().cluster, server=server)
    field = field_of(msgspec.structs.replace(job(), cluster=spec))
    graph, scaled = field.graph, field.in_proportion()
    assert (graph.group_count[:2].tolist(), graph.group_count.sum()) == ([1, 1], 256)
    names = [graph.link_name(i) for i in range(len(graph.link_place))]
    into = names.index("link into node 0 (server 0)")
    part = (scaled.link_capacity_bytes_per_s / graph.link_capacity_bytes_per_s)[into]
    assert part == pytest.approx((graph.n_groups - 1) / 255.0, rel=1e-9)
    assert part != pytest.approx(graph.n_groups / 256.0, rel=1e-3)


@pytest.mark.parametrize("servers", [64, 256])
def test_many_nodes_with_servers_are_represented_by_a_few_by_hand(servers: int) -> None:
    """A push to each server takes 10 bytes / servers, at 1000 bytes/s, of the link into its node;
    the worker on this node pulls from all others. So each link of such a node has 255 pushes and
    these pulls to do, whether or not its worker is in the graph."""
    split = {"servers": servers, "split_above_bytes": 0.0}
    field = field_of(placed(options=split, colocated=True, update_s=1e-6))
    graph, few = field.graph, field.graph.n_groups
    assert (few <= 128, graph.group_count.sum(), graph.group_count.min() > 1) == (True, 256, True)
    push_s, pulls_s = 0.01 / servers, 0.01 * (servers - 1) / servers
    all_s = 255 * push_s + pulls_s
    assert field.most(np.ones(few)) == pytest.approx(1.0 / all_s)
    left = field.left(np.full(few, 0.25))[1]
    scaled = field.in_proportion().link_capacity_bytes_per_s / graph.link_capacity_bytes_per_s
    hosts = graph.worker_group[:servers]
    represented = int(np.flatnonzero(np.diff(hosts, prepend=-1) <= 0)[0])
    names = [graph.link_name(i) for i in range(len(graph.link_place))]
    for server, few_s in ((0, pulls_s + (few - 1) * push_s), (represented, few * push_s)):
        for way in ("out of", "into"):
            link = names.index(f"link {way} node {server} (server {server})")
            assert left[link] == pytest.approx(1.0 - 0.25 * (all_s - few_s))
            assert scaled[link] == pytest.approx(few_s / all_s)


def test_the_note_says_who_represents_others() -> None:
    """Slow workers have their own figures."""
    equal, uneven = (predict(job(300, jitter=0.1, stragglers=some)) for some in ([], [FAR]))
    assert "128 workers are simulated; they represent all, which are equal" in equal.notes
    but = "128 workers are simulated; they represent all, but 2 of them only themselves"
    assert but in uneven.notes
    half = predict(job(300, jitter=0.1, stragglers=[Straggler(i, 1.5) for i in range(0, 300, 2)]))
    assert half.notes[-1].endswith("represent all, as many of each kind as among all")
    assert len(uneven.idle_fraction.per_worker) == 300
    assert np.argmin(uneven.idle_fraction.per_worker) == FAR.worker
    assert f"worker {FAR.worker}" in uneven.utilisation.workers


def test_nodes_are_filled() -> None:
    """Of 24 devices per node, the graph has whole nodes, and servers keep their numbers."""
    spec = msgspec.structs.replace(job().cluster, devices_per_node=24)
    field = field_of(msgspec.structs.replace(job(480), cluster=spec))
    assert field.graph.n_groups == 120
    assert any(
        "node 20 (server 0)" in field.graph.link_name(i) for i in range(len(field.graph.link_place))
    )


# -- against simulations of all ---------------------------------------------------------------

LOADED = [
    {"workers": 280},
    {"workers": 280, "options": {"overlap": False}, "jitter": 0.05},
    {"workers": 256, "update_s": 0.02, "jitter": 0.1},
    {"workers": 290, "arch": "easgd", "options": {"period": 1}, "jitter": 0.1},
    {"workers": 260, "options": {"duplex": True}, "jitter": 0.1},
    {"workers": 260, "options": {"softsync": 4}, "jitter": 0.1},
    {"workers": 280, "stragglers": [Straggler(3, 2.0)], "jitter": 0.05},
    {"workers": 420, "stragglers": [Straggler(0, 9.0), Straggler(5, 1.5)], "jitter": 0.05},
    {"workers": 280, "stragglers": [Straggler(i, 2.0) for i in range(140)], "jitter": 0.05},
    {"workers": 420, "stragglers": [Straggler(300, 2.0)], "colocated": True, "jitter": 0.05},
    {"workers": 280, "slow_nodes": range(200, 280), "jitter": 0.05},
    pytest.param({"workers": 512, "arch": "adpsgd", "jitter": 0.03}, marks=pytest.mark.slow),
    {"workers": 600, "arch": "adpsgd", "stragglers": [Straggler(501, 3.0)], "jitter": 0.03},
    {"workers": 512, "arch": "gosgd", "jitter": 0.03},
]


def placed(*, colocated: bool = False, slow_nodes: Iterable[int] = (), **given: Any) -> Job:
    """A job with servers on the workers' nodes, or with slow links of some nodes."""
    one = job(**given)
    server, nic = one.cluster.server, one.cluster.nic
    if colocated:
        server = msgspec.structs.replace(server, placement="colocated")
    slow = msgspec.structs.replace(nic, bandwidth_bytes_per_s=20.0)
    overrides = tuple(NodeOverride(node=node, nic=slow) for node in slow_nodes)
    spec = msgspec.structs.replace(one.cluster, server=server, overrides=overrides)
    return msgspec.structs.replace(one, cluster=spec)


@pytest.mark.parametrize("given", LOADED)
def test_a_few_workers_tell_what_all_do(given: dict[str, Any]) -> None:
    """Servers that are idle for a part of the time, full ones, and none."""
    all_of_them = placed(**given)
    field = field_of(all_of_them)
    few = simulate_mean_field(field, seed=1, rel_ci=0.005)
    whole = simulate(build_graph(all_of_them), seed=2, rel_ci=0.005)
    workers = all_of_them.workers
    width = few.ci_fraction + whole.ci_fraction
    assert rate_of(few, field) == pytest.approx(float(whole.iterations_per_s.sum()), rel=width)
    assert few.busy_fraction.mean() == pytest.approx(whole.busy_fraction.mean(), abs=0.01)
    assert few.wait_fraction.mean(axis=0) == pytest.approx(
        whole.wait_fraction.mean(axis=0), abs=0.03
    )
    assert few.updates_per_s == pytest.approx(whole.updates_per_s, rel=0.05)
    assert few.link_utilisation.max() == pytest.approx(whole.link_utilisation.max(), abs=0.03)
    if whole.staleness.sum():
        assert stale(few) == pytest.approx(stale(whole), abs=0.03 * workers)


@pytest.mark.slow
def test_a_few_of_many_nodes_with_servers_tell_what_all_do() -> None:
    """The busiest servers' links are full."""
    given = make_job(model="resnet18", arch="asp", workers=256, options={"servers": 128})
    server = msgspec.structs.replace(given.cluster.server, placement="colocated")
    spec = msgspec.structs.replace(given.cluster, server=server)
    all_of_them = msgspec.structs.replace(given, cluster=spec)
    field = field_of(all_of_them)
    assert field.graph.n_groups < 64
    few = simulate_mean_field(field, seed=1)
    whole = simulate(build_graph(all_of_them), seed=2)
    width = few.ci_fraction + whole.ci_fraction
    assert rate_of(few, field) == pytest.approx(float(whole.iterations_per_s.sum()), rel=width)
    assert few.busy_fraction.mean() == pytest.approx(whole.busy_fraction.mean(), abs=0.01)
    assert stale(few) == pytest.approx(stale(whole), rel=0.03)


def test_few_nodes_with_servers_represent_themselves_and_many_by_a_few() -> None:
    few, many = (placed(workers=512, options={"servers": s}, colocated=True) for s in (8, 128))
    assert (field_of(on_nodes(few, 4)).graph.group_count[:32] == 1).all()
    assert field_of(on_nodes(many, 4)).graph.n_groups == 64


@pytest.mark.parametrize("given", [{}, {"jitter": 0.1}, {"jitter": 0.1, "arch": "easgd"}])
def test_nodes_with_several_workers_and_servers_are_represented_if_links_have_room(
    given: dict[str, Any],
) -> None:
    """36 nodes of eight workers and a server, of whose links 48 % are used."""
    one = on_nodes(placed(workers=288, options={"servers": 36}, colocated=True, **given), 8)
    graph, few = simulate_many(field_of(one))
    assert graph.n_groups < 144
    assert few.ci_fraction < 0.03
    whole = simulate(build_graph(one), seed=2)
    width = few.ci_fraction + whole.ci_fraction
    rate = float(few.iterations_per_s @ graph.group_count)
    assert rate == pytest.approx(float(whole.iterations_per_s.sum()), rel=width)
    assert few.busy_fraction.mean() == pytest.approx(whole.busy_fraction.mean(), abs=0.01)


@pytest.mark.slow
def test_a_few_represent_nodes_with_several_workers_and_servers_roughly_if_links_are_busy() -> None:
    """The same with links of 450 bytes/s."""
    one = on_nodes(placed(workers=288, options={"servers": 36}, colocated=True), 8)
    nic = msgspec.structs.replace(one.cluster.nic, bandwidth_bytes_per_s=450.0)
    one = msgspec.structs.replace(one, cluster=msgspec.structs.replace(one.cluster, nic=nic))
    found, whole = predict(one, fidelity="fine"), simulate(build_graph(one), seed=2)
    assert any("represent" in note for note in found.notes)
    assert found.throughput_ci_fraction > 0.2
    rate = found.workers / found.iteration_s
    assert rate == pytest.approx(float(whole.iterations_per_s.sum()), rel=0.1)


@pytest.mark.parametrize(("rate", "wide"), [(RATE_BYTES_PER_S, True), (1e5, False)])
def test_workers_in_step_represent_nodes_with_many_servers_roughly_if_links_are_busy(
    rate: float, wide: bool
) -> None:
    options = {"servers": 36, "staleness_bound": 2}
    one = placed(workers=288, arch="ssp", options=options, colocated=True, jitter=0.05)
    nic = msgspec.structs.replace(one.cluster.nic, bandwidth_bytes_per_s=rate)
    field = field_of(
        msgspec.structs.replace(one, cluster=msgspec.structs.replace(one.cluster, nic=nic))
    )
    assert (simulate_mean_field(field).ci_fraction > 0.4) is wide


@pytest.mark.parametrize("rate", [450.0, 1e4])
def test_nodes_with_several_workers_in_step_and_a_server_are_represented(rate: float) -> None:
    """36 nodes of eight and a server, of whose links much or little is used: eight nodes tell what
    all do, roughly after two short runs if links are busy."""
    options = {"servers": 36, "staleness_bound": 2}
    one = placed(workers=288, arch="ssp", options=options, colocated=True, jitter=0.1)
    nic = msgspec.structs.replace(one.cluster.nic, bandwidth_bytes_per_s=rate)
    one = on_nodes(one, 8, nic=nic)
    field = field_of(one)
    assert (field.graph.n_groups, field.graph.group_count.min()) == (64, 4)
    found = simulate_mean_field(field)
    assert (found.ci_fraction > 0.4) is (rate < 1e3)
    assert found.runs == (2 if rate < 1e3 else 4)
    with Simulation(build_graph(one), seed=2, steady=True) as whole:
        whole.advance(30)
        begin = whole.totals()
        whole.advance(100)
        measured = whole.totals() - begin
    of_all = float(measured.progress.sum() / measured.time)
    assert rate_of(found, field) == pytest.approx(of_all, rel=min(found.ci_fraction, 0.1) + 0.005)


def test_each_site_has_its_own_pace_by_hand() -> None:
    """The link between the sites carries 25 of the pulls a second of the 150 workers at the far
    one; those beside the server compute for 3 s and pull over a link that is three quarters busy.
    Alone, all would be equally fast."""
    one = job(300, jitter=0.05)
    sites = (Site("near", 151), Site("far", 150))
    link = SiteLink(bandwidth_bytes_per_s=250.0, latency_s=0.0)
    server = msgspec.structs.replace(one.cluster.server, site="near")
    spec = msgspec.structs.replace(one.cluster, server=server, sites=sites, site_links=(link,))
    field = field_of(msgspec.structs.replace(one, cluster=spec))
    found = simulate_mean_field(field, seed=1)
    near, far = np.split(found.iterations_per_s[field.graph.worker_group], 2)
    assert found.ci_fraction < 0.03
    assert far.sum() == pytest.approx(250.0 / SENT_BYTES, rel=found.ci_fraction)
    assert near.mean() == pytest.approx(1.0 / (COMPUTE_S + 0.05), rel=found.ci_fraction + 0.01)


def stale(found: Measures) -> float:
    """Mean staleness."""
    return float(found.staleness @ np.arange(len(found.staleness)) / found.staleness.sum())


def test_canary_without_the_others_a_few_workers_are_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = job(400)
    whole = simulate(build_graph(alone), seed=2)
    monkeypatch.setattr(MeanField, "at", lambda field, rates: field.graph)
    field = field_of(alone)
    few = simulate(field.graph, seed=1)
    right = float(whole.iterations_per_s.sum())
    assert rate_of(few, field) > 1.3 * right
    assert few.link_utilisation.max() < 0.6 * whole.link_utilisation.max()


@pytest.mark.parametrize("workers", [1024, 20_000])
def test_a_full_link_is_as_fast_as_its_bytes(workers: int) -> None:
    """100 iterations per second; every other worker updates once in between."""
    answer = predict(job(workers, jitter=0.1))
    assert answer.throughput_samples_per_s == pytest.approx(400.0, rel=5e-3)
    assert answer.staleness is not None
    assert answer.staleness.mean == pytest.approx(workers - 1, rel=0.01)
    assert len(answer.idle_fraction.per_worker) == workers
    assert answer.idle_fraction.mean == pytest.approx(1.0 - COMPUTE_S * 100.0 / workers, abs=0.002)
    link = f"link into node {workers} (server 0)"
    assert answer.utilisation.links[link] == pytest.approx(1.0, abs=0.01)
    assert "128 workers are simulated" in answer.notes[-1]


def test_a_server_that_nobody_waits_for_does_not_slow_workers() -> None:
    """1000 workers at 0.33 iterations per second use 0.33 of links that are ten times as fast."""
    fast = msgspec.structs.replace(job().cluster.nic, bandwidth_bytes_per_s=10_000.0)
    one = job(1000, update_s=0.0)
    answer = predict(
        msgspec.structs.replace(one, cluster=msgspec.structs.replace(one.cluster, nic=fast))
    )
    assert answer.throughput_samples_per_s == pytest.approx(4000.0 / 3.0, rel=0.01)
    assert max(answer.utilisation.links.values()) == pytest.approx(1000.0 / 3.0 / 1000.0, rel=0.02)


# -- the rate of the others -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "slope", "most"),
    [(1.0, -0.5, 10.0), (3.0, -7.0, 0.5), (0.2, 0.0, 1.0), (9.0, 0.0, 2.0)],
)
def test_the_rate_that_workers_and_others_have_in_common(
    base: float, slope: float, most: float
) -> None:
    """By hand: of base + slope * rate it is base / (1 - slope), but at most ``most``."""
    rates = engine._Rates(most, min(most, 10.0))
    for _ in range(engine.MOST_GUESSES):
        if rates.closed(min(base + slope * rates.guess, most), 1e-6):
            break
    assert rates.guess == pytest.approx(min(base / (1.0 - slope), most), rel=1e-5)


def test_a_field_without_shared_resources_needs_no_guess() -> None:
    field = field_of(job(512, arch="gosgd"))
    assert not len(field.shared)
    assert math.isinf(field.most(np.ones(256)))
    assert (field.left(np.full(256, 5.0))[1] == 1.0).all()
    assert field.graph.n_groups == 256


@pytest.mark.parametrize(
    "given",
    [
        {"stragglers": [Straggler(1, 1.3)], "jitter": 0.05},
        pytest.param(
            {"stragglers": [Straggler(1, 1.3)], "jitter": 0.05, "workers": 512},
            marks=pytest.mark.slow,
        ),
        pytest.param({"options": {"staleness_bound": 1}, "jitter": 0.3}, marks=pytest.mark.slow),
        {"options": {"staleness_bound": 1}, "jitter": 0.1},
        pytest.param(
            {"options": {"staleness_bound": 1}, "jitter": 0.3, "workers": 512},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"options": {"staleness_bound": 3, "servers": 4}, "jitter": 0.3, "workers": 512},
            marks=pytest.mark.slow,
        ),
        {"workers": 400, "jitter": 0.1},
    ],
)
def test_workers_that_wait_for_the_slowest_go_on_in_step(given: dict[str, Any]) -> None:
    """How slow the slowest is depends on how many they are, and their messages come at once: a few
    that others load evenly would be faster."""
    one = job(arch="ssp", **given)
    found = predict(one, fidelity="fine")
    whole = simulate(build_graph(one), seed=2)
    width = found.throughput_ci_fraction + whole.ci_fraction
    rate = found.throughput_samples_per_s / 4.0
    assert found.throughput_ci_fraction < 0.12
    assert rate == pytest.approx(float(whole.iterations_per_s.sum()), rel=width)
    assert any("represent all" in note for note in found.notes)
    assert found.idle_fraction.mean == pytest.approx(1.0 - whole.busy_fraction.mean(), abs=0.05)
    assert found.updates_per_s == pytest.approx(rate, rel=0.01)
    bound = found.idle_fraction.by_cause.get("staleness_bound", 0.0)
    column = CAUSES.index("staleness_bound")
    assert bound == pytest.approx(whole.wait_fraction[:, column].mean(), abs=0.05)


@pytest.mark.slow
def test_canary_a_few_do_not_tell_how_slow_the_slowest_of_all_is() -> None:
    one = job(512, arch="ssp", options={"staleness_bound": 1}, jitter=0.3)
    field = field_of(one)
    few = simulate(field.in_proportion(), seed=1)
    whole = simulate(build_graph(one), seed=2)
    assert rate_of(few, field) > 1.03 * float(whole.iterations_per_s.sum())


@pytest.mark.parametrize(
    ("arch", "options"),
    [("gosgd", {"probability": 0.5}), ("ad_psgd", {}), ("easgd", {"period": 2})],
)
def test_many_unequal_workers_take_as_long_without_their_layers(
    arch: str, options: dict[str, Any]
) -> None:
    slow = (Straggler(3, 1.5),)
    given = job(48, arch=arch, options=options, stragglers=slow, jitter=0.1)
    found = predict(given, fidelity="fine")
    whole = simulate(build_graph(given), seed=3)
    width = found.throughput_ci_fraction + whole.ci_fraction
    rate = found.throughput_samples_per_s / given.workload.batch_size
    assert rate == pytest.approx(float(whole.iterations_per_s.sum()), rel=width)
    assert found.idle_fraction.mean == pytest.approx(1.0 - whole.busy_fraction.mean(), abs=0.01)


def test_workers_that_start_together_are_folded() -> None:
    given = job(64, start="together", update_s=0.0)
    folded = simulate(build_graph(given, fold=True))
    found = predict(given, fidelity="fine")
    rate = float((folded.iterations_per_s * build_graph(given, fold=True).group_count).sum())
    assert found.throughput_samples_per_s == pytest.approx(4.0 * rate, rel=1e-12)
