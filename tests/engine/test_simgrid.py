"""Random graphs of transfers end at the same times in the engine and in SimGrid.

SimGrid's flow-level model also shares links max-min fairly once its TCP corrections are off. The
two programs have nothing else in common.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from perfmodel import Cluster, Link, Source
from perfmodel.base.arrays import NONE
from perfmodel.communication.fabric import Fabric
from perfmodel.engine.simulation import makespan
from perfmodel.inputs.sites import Site, SiteLink
from tests import simgrid
from tests.simgrid import Dag, Op, by_engine, by_simgrid, deviation

pytestmark = pytest.mark.skipif(bool(simgrid.missing()), reason=simgrid.missing())

AGREED = 1e-9
Random = np.random.Generator
Network = tuple[list[float], Callable[[], tuple[int, ...]]]
"""Link capacities, and a function that draws a path."""


def star(rng: Random) -> Network:
    """Nodes with an uplink and a downlink on a non-blocking switch."""
    n = int(rng.integers(3, 40))

    def path() -> tuple[int, ...]:
        source, target = rng.choice(n, 2, replace=False)
        return int(source), int(n + target)

    return _capacities(rng, 2 * n), path


def racks(rng: Random) -> Network:
    """Racks of nodes, joined by oversubscribed links."""
    n_racks, size = int(rng.integers(2, 6)), int(rng.integers(2, 9))
    n = n_racks * size

    def path() -> tuple[int, ...]:
        source, target = (int(node) for node in rng.choice(n, 2, replace=False))
        up, down = 2 * n + source // size, 2 * n + n_racks + target // size
        return (source, *(() if source // size == target // size else (up, down)), n + target)

    return [*_capacities(rng, 2 * n), *_capacities(rng, 2 * n_racks)], path


def core(rng: Random) -> Network:
    """Nodes on a shared core with half to a tenth of their total bandwidth."""
    n = int(rng.integers(4, 40))
    capacity = _capacities(rng, 2 * n)
    total = sum(capacity[:n]) / rng.uniform(2.0, 10.0)

    def path() -> tuple[int, ...]:
        source, target = rng.choice(n, 2, replace=False)
        return int(source), 2 * n, int(n + target)

    return [*capacity, total], path


def sites(rng: Random) -> Network:
    """Workers at a few sites, with a link between each pair of sites."""
    places = tuple(Site(f"site {k}", int(rng.integers(1, 6))) for k in range(rng.integers(2, 5)))
    pairs = itertools.permutations((place.name for place in places), 2)
    cluster = Cluster(
        name="sites",
        nic=Link(_capacities(rng, 1)[0]),
        sites=places,
        site_links=tuple(SiteLink(_capacities(rng, 1)[0] / 5, between=pair) for pair in pairs),
        source=Source("exact", "test"),
    )
    n = cluster.workers_nodes or 0
    fabric = Fabric.of(cluster, n)

    def path() -> tuple[int, ...]:
        links = fabric.path(*rng.choice(n, 2, replace=False))
        return tuple(int(link) for link in links if link != NONE)

    return np.nan_to_num(fabric.capacity, posinf=1e12).tolist(), path


def mesh(rng: Random) -> Network:
    """Any one to six links at a time, unlike real networks."""
    n = int(rng.integers(6, 30))

    def path() -> tuple[int, ...]:
        return tuple(int(x) for x in rng.choice(n, int(rng.integers(1, 7)), replace=False))

    return _capacities(rng, n), path


def _capacities(rng: Random, n: int) -> list[float]:
    """A few nominal speeds, as in real networks, or any speed within two decades."""
    if rng.random() < 0.5:
        return [float(x) for x in rng.choice([1.25e8, 1.25e9, 3.125e9], n)]
    return [float(x) for x in 10 ** rng.uniform(8, 10, n)]


TOPOLOGIES = {build.__name__: build for build in (star, racks, core, mesh, sites)}
SIMPLE = tuple(TOPOLOGIES)[:-1]


def random_dag(topology: str, transfers: int, seed: int, *, capped: bool = False) -> Dag:
    """Transfers over four decades of size in chains, forks and joins, with random pauses."""
    rng = np.random.default_rng([seed, transfers, list(TOPOLOGIES).index(topology)])
    capacity, path = TOPOLOGIES[topology](rng)
    breadth = float(rng.uniform(0.05, 0.5)) * transfers
    pause = float(10 ** rng.uniform(-4, -1))
    ops: list[Op] = []
    sent: list[int] = []
    while len(sent) < transfers:
        after: tuple[int, ...] = ()
        if len(sent) > breadth:  # joins of recent transfers
            recent = sent[-int(breadth) - 1 :]
            joined = min(int(rng.geometric(0.6)), len(recent))
            after = tuple(int(op) for op in rng.choice(recent, joined, replace=False))
        if not after or rng.random() < 0.3:
            ops.append(Op(seconds=float(rng.exponential(pause)), after=after))
            after = (len(ops) - 1,)
        for _ in range(int(rng.choice([1, 1, 2, 8]))):  # a fork, or part of a burst
            sent.append(len(ops))
            size = int(10 ** rng.uniform(4, 8))
            cap = float(10 ** rng.uniform(7, 9)) if capped and rng.random() < 0.5 else np.inf
            ops.append(Op(bytes=size, path=path(), after=after, rate_cap_bytes_per_s=cap))
    return Dag(tuple(capacity), tuple(ops))


def push_pull(workers: int) -> Dag:
    """Every worker sends 62 tensors to one server, one after another, and receives them again."""
    rng = np.random.default_rng(62)
    sizes = [int(4 * 10**exponent) for exponent in rng.uniform(2, 6, 62)]
    ops: list[Op] = []
    for worker in range(workers):
        ops.append(Op(seconds=float(rng.uniform(0.0, 0.05))))
        for up, order in ((True, sizes[::-1]), (False, sizes)):
            path = (2 + worker, 0) if up else (1, 2 + workers + worker)
            slot = 2 * worker + up
            for size in order:
                ops.append(Op(bytes=size, path=path, after=(len(ops) - 1,), slot=slot))
    return Dag((1.25e9,) * (2 + 2 * workers), tuple(ops))


def agree(dag: Dag) -> bool:
    return deviation(by_engine(dag), by_simgrid(dag)) <= AGREED


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("transfers", [50, 300])
@pytest.mark.parametrize("topology", SIMPLE)
def test_random_transfers_end_as_in_simgrid(topology: str, transfers: int, seed: int) -> None:
    assert agree(random_dag(topology, transfers, seed))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("topology", SIMPLE)
def test_two_thousand_transfers_end_as_in_simgrid(topology: str) -> None:
    assert agree(random_dag(topology, 2000, 0))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("topology", SIMPLE)
@pytest.mark.parametrize("when", ["seconds", "latency_s"])
def test_delays_before_and_after_the_bytes_count(when: str, topology: str, seed: int) -> None:
    dag = random_dag(topology, 200, seed)
    late = np.random.default_rng(seed).uniform(1e-5, 1e-2, len(dag.ops)).tolist()
    ops = tuple(
        replace(op, **{when: delay}) if op.bytes else op
        for op, delay in zip(dag.ops, late, strict=True)
    )
    assert agree(replace(dag, ops=ops))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_capped_transfers_end_when_simgrid_says(topology: str, seed: int) -> None:
    """A rate cap is a number in the engine, and an extra link in SimGrid."""
    assert agree(random_dag(topology, 200, seed, capped=True))


@pytest.mark.parametrize("workers", [8, 64])
def test_pushes_and_pulls_end_as_in_simgrid(workers: int) -> None:
    dag = push_pull(workers)
    ends = by_simgrid(dag)
    assert deviation(by_engine(dag), ends) <= AGREED
    assert makespan(simgrid.graph(dag)) == pytest.approx(ends.max(), rel=AGREED)


def _busiest(dag: Dag) -> int:
    return max(range(len(dag.capacity)), key=lambda link: sum(link in op.path for op in dag.ops))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_wrong_capacity_is_noticed(topology: str) -> None:
    dag = random_dag(topology, 50, 0)
    wrong = by_engine(dag.scaled(_busiest(dag), 1.001))
    assert not deviation(wrong, by_simgrid(dag)) <= AGREED


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_forgotten_link_is_noticed(topology: str) -> None:
    dag = random_dag(topology, 50, 0)
    wrong = by_engine(dag.without(_busiest(dag)))
    assert not deviation(wrong, by_simgrid(dag)) <= AGREED


def test_a_forgotten_dependency_is_noticed() -> None:
    dag = random_dag("star", 50, 0)
    last = max(k for k, op in enumerate(dag.ops) if op.after)
    ops = (replace(op, after=()) if k == last else op for k, op in enumerate(dag.ops))
    wrong = by_engine(replace(dag, ops=tuple(ops)))
    assert not deviation(wrong, by_simgrid(dag)) <= AGREED


def test_an_op_that_never_ends_is_noticed() -> None:
    ends = by_simgrid(Dag((1.0,), (Op(bytes=3, path=(0,)), Op(seconds=1.0, after=(0,)))))
    assert ends.tolist() == [3.0, 4.0]
    assert not deviation(np.array([3.0, np.nan]), ends) <= AGREED


def test_a_missing_simgrid_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert simgrid.missing.__wrapped__() == simgrid.NEEDED
