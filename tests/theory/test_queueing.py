"""The engine against mean-value analysis, and mean-value analysis against older formulas.

Every random network is run with 16 seeds, which give the standard error of the mean: about 0.5 % if
each run asks for an interval of 4 %.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel.base.arrays import NONE
from perfmodel.engine.measures import Measures
from perfmodel.engine.simulation import simulate
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph
from tests import queueing
from tests.settings import examples, thinned

RUNS = 16
REL_CI = 0.04
ROUNDING = 1e-9


class Station(msgspec.Struct, frozen=True):
    """A station: ``cv`` of its service time; a shared link is processor sharing."""

    demand_s: float
    kind: Literal["slot", "link"] = "slot"
    cv: float = 1.0
    servers: int = 1


def network(n: int, think_s: float, stations: Sequence[Station], think_cv: float = 1.0) -> OpGraph:
    """``n`` workers that each think, then pass through the stations in turn, for ever."""
    b = GraphBuilder()
    devices = b.slots("device", (n,))
    ops = [b.ops("think", (n,), seconds=think_s, slot=devices, noise=noise(b, n, think_cv))]
    for station in stations:
        if station.kind == "link":
            path = b.links("link", [1.0 / station.demand_s])
            ops.append(b.ops("send", (n,), bytes=1.0, path=path))
        else:
            slot = b.slots("station", (1,), capacity=station.servers)
            seconds = station.demand_s
            ids = noise(b, n, station.cv)
            ops.append(b.ops("serve", (n,), seconds=seconds, slot=slot[0], noise=ids))
        b.probe("residence", ops[-1], ops[-1], at_ready=True)
    b.chain(np.stack(ops, axis=-1))
    b.edge(ops[-1], ops[0], lag=1)
    return b.build(device=devices, mark=ops[-1])


def noise(b: GraphBuilder, n: int, cv: float) -> np.ndarray:
    """A random stream per worker and op; gamma with cv 1 is exponential."""
    return b.streams((n,), cv=cv, kind="gamma") if cv else np.full(n, NONE)


def runs(graph: OpGraph, rel_ci: float = REL_CI) -> list[Measures]:
    return [simulate(graph, seed=seed, rel_ci=rel_ci) for seed in range(RUNS)]


def throughput(measures: Measures) -> float:
    return float(measures.iterations_per_s.sum())


def exact(
    n: int, think_s: float, stations: Sequence[Station]
) -> tuple[float, queueing.Floats, queueing.Floats]:
    demands, servers = [s.demand_s for s in stations], [s.servers for s in stations]
    return queueing.mva(n, demands, think_s, servers)


# -- the oracle itself -----------------------------------------------------------------------------


def test_mva_of_a_textbook_example() -> None:
    """Menasce, Almeida, Dowdy, Performance by Design, 2004, section 12.2: a database server.

    Two customers; 10 s at the processor, half of them 15 s at the fast disk, half 30 s at the slow
    one. The book solves the Markov chain: queues of 68/115, 48/115 and 114/115.
    """
    _, _, queues = queueing.mva(2, [10.0, 7.5, 15.0], 0.0)
    np.testing.assert_allclose(queues, np.array([68.0, 48.0, 114.0]) / 115.0, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("think_s", [0.5, 2.0, 8.0])
def test_mva_of_machines_and_repairmen(n: int, servers: int, think_s: float) -> None:
    """Palm's formula: the chance that j of n machines are broken, from a birth-death chain."""
    weight = [1.0]
    for j in range(1, n + 1):
        weight.append(weight[-1] * (n - j + 1) / think_s / min(j, servers))
    busy = sum(min(j, servers) * w for j, w in enumerate(weight)) / sum(weight)
    queue = sum(j * w for j, w in enumerate(weight)) / sum(weight)
    rate, residence, queues = queueing.mva(n, [1.0], think_s, [servers])
    assert rate == pytest.approx(busy, rel=1e-9)
    assert queues[0] == pytest.approx(queue, rel=1e-9)
    assert residence[0] == pytest.approx(queue / busy, rel=1e-9)


@examples(50)
@given(
    n=st.integers(1, 12),
    demands=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=4),
    think_s=st.floats(0.0, 10.0),
)
def test_mva_obeys_littles_law_and_the_bound(n: int, demands: list[float], think_s: float) -> None:
    rate, residence, queues = queueing.mva(n, demands, think_s)
    assert rate * think_s + queues.sum() == pytest.approx(n, rel=1e-9)
    assert rate <= queueing.bound(n, demands, think_s) * (1 + 1e-9)
    assert np.all(residence >= np.array(demands) * (1 - 1e-9))
    # one server each: R = D (1 + Q of one customer less), the textbook form
    fewer = queueing.mva(n - 1, demands, think_s)[2] if n > 1 else np.zeros(len(demands))
    np.testing.assert_allclose(residence, demands * (1.0 + fewer), rtol=1e-9)


# -- the engine: product-form networks -------------------------------------------------------------

FIFO, PS = Station(1.0), Station(1.0, "link")


class Network(msgspec.Struct, frozen=True):
    """A network; ``rel_ci`` is smaller if throughput hardly varies but other measures do."""

    n: int
    think_s: float
    stations: list[Station]
    think_cv: float = 1.0
    rel_ci: float = REL_CI


NETWORKS = {
    "one customer": Network(1, 1.0, [FIFO]),
    "fifo, light": Network(2, 4.0, [FIFO]),
    "fifo, balanced": Network(4, 3.0, [FIFO]),
    "fifo, saturated": Network(5, 1.0, [FIFO]),
    "fifo, other think times": Network(4, 3.0, [FIFO], think_cv=0.3),
    "ps": Network(4, 3.0, [PS]),
    "ps, saturated": Network(5, 1.0, [PS], rel_ci=0.02),
    "two servers": Network(5, 2.0, [Station(1.5, servers=2)]),
    "three servers": Network(5, 1.0, [Station(3.0, servers=3)]),
    "parameter server": Network(4, 2.0, [PS, Station(0.5), Station(0.8, "link")]),
}


@functools.cache
def samples(name: str) -> tuple[Measures, ...]:
    net = NETWORKS[name]
    graph = network(net.n, net.think_s, net.stations, net.think_cv)
    return tuple(runs(graph, net.rel_ci))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", thinned(NETWORKS))
def test_product_form_networks_match_mva(name: str) -> None:
    """Throughput, utilisation and residence times; Little's law gives queue lengths from these."""
    net, many = NETWORKS[name], samples(name)
    n, laps = net.n, min(m.rounds for m in many)
    rate, residence, _ = exact(n, net.think_s, net.stations)
    queueing.agrees([throughput(m) for m in many], rate, laps)
    thinking = [float(m.slot_utilisation[:n].mean()) for m in many]
    queueing.agrees(thinking, rate * net.think_s / n, laps)
    slots, links = n, 0
    for index, station in enumerate(net.stations):
        if station.kind == "link":
            used = [float(m.link_utilisation[links]) for m in many]
            links += 1
        else:
            used = [float(m.slot_utilisation[slots]) for m in many]
            slots += 1
        queueing.agrees(used, rate * station.demand_s / station.servers, laps)
        these = slice(index * n, (index + 1) * n)
        took = [m.probe_seconds[these].sum() / m.probe_count[these].sum() for m in many]
        queueing.agrees(took, float(residence[index]), laps)


def intervals_hold(narrower: float = 1.0) -> None:
    """Check that at least 143 of 160 95 % intervals cover the exact throughput.

    A correct engine fails with probability 0.001 (binomial).
    """
    hold = 0
    for name, net in NETWORKS.items():
        rate, _, _ = exact(net.n, net.think_s, net.stations)
        for measures in samples(name):
            found = throughput(measures)
            assert measures.ci_fraction <= net.rel_ci
            hold += abs(found - rate) <= narrower * measures.ci_fraction * found
    assert hold >= 143, hold


@pytest.mark.slow
def test_confidence_intervals_have_their_coverage() -> None:
    intervals_hold()
    with pytest.raises(AssertionError):
        intervals_hold(narrower=0.6)


# -- the engine: deterministic service -------------------------------------------------------------


@examples(40)
@given(
    n=st.integers(1, 6),
    think_s=st.integers(0, 8),
    demands=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    links=st.lists(st.booleans(), min_size=3, max_size=3),
    servers=st.lists(st.integers(1, 3), min_size=3, max_size=3),
)
def test_no_service_beats_the_bound(
    n: int, think_s: int, demands: list[int], links: list[bool], servers: list[int]
) -> None:
    stations = [
        Station(float(d), "link") if link else Station(float(d), cv=0.0, servers=k)
        for d, link, k in zip(demands, links, servers, strict=False)
    ]
    measures = simulate(network(n, float(think_s), stations, 0.0))
    most = queueing.bound(n, demands, think_s, [s.servers for s in stations])
    if n == 1:
        assert throughput(measures) == pytest.approx(most, rel=ROUNDING)
    assert measures.periodic
    assert throughput(measures) <= most * (1 + ROUNDING)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_one_station_of_fixed_service_attains_the_bound(n: int) -> None:
    """Workers become staggered: none waits until the station is saturated."""
    measures = simulate(network(n, 3.0, [Station(1.0, cv=0.0)], 0.0))
    assert throughput(measures) == pytest.approx(queueing.bound(n, [1.0], 3.0), rel=ROUNDING)


# -- canaries --------------------------------------------------------------------------------------

WRONG = {
    "10 % more": network(4, 3.0, [Station(1.1)]),
    "10 % less on a link": network(4, 3.0, [Station(0.9, "link")]),
    "capacity 2": network(4, 3.0, [Station(1.0, servers=2)]),
    "fixed service, one at a time": network(4, 3.0, [Station(1.0, cv=0.0)]),
    "half as random": network(4, 3.0, [Station(1.0, cv=0.5)]),
    "one worker more": network(5, 3.0, [FIFO]),
    "shorter thinking": network(4, 2.7, [FIFO]),
}


SUBTLE = ("fixed service, one at a time", "half as random")
"""Off by about 3 %, which needs longer runs to distinguish from chance."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("error", thinned(WRONG, 3))
def test_a_wrong_network_is_noticed(error: str) -> None:
    expected, _, _ = exact(4, 3.0, [FIFO])
    many = runs(WRONG[error], rel_ci=0.012 if error in SUBTLE else REL_CI)
    with pytest.raises(AssertionError, match="expected"):
        queueing.agrees([throughput(m) for m in many], expected, min(m.rounds for m in many))


def test_a_station_that_serves_two_breaks_the_bound() -> None:
    measures = simulate(network(8, 3.0, [Station(1.0, cv=0.0, servers=2)], 0.0))
    assert throughput(measures) > queueing.bound(8, [1.0], 3.0)


def test_too_few_or_too_noisy_runs_are_refused() -> None:
    with pytest.raises(AssertionError, match="too few runs"):
        queueing.agrees([1.0] * 15, 1.0, 1000)
    with pytest.raises(AssertionError, match="too noisy"):
        queueing.agrees([0.9, 1.1] * 8, 1.0, 1000)
