"""The event loop runs both plain and compiled, and the results agree to the last bit."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import special

from perfmodel.engine import library, noise
from perfmodel.engine.draws import philox
from perfmodel.engine.simulation import makespan, simulate, timeline
from perfmodel.graph.builder import KINDS, GraphBuilder
from perfmodel.graph.op_graph import Distribution, OpGraph
from tests.settings import examples

needs_library = pytest.mark.skipif(
    bool(library.compiled()[1]), reason=f"there is no compiled code: {library.compiled()[1]}"
)

few = examples(15)


class Shape(msgspec.Struct, frozen=True):
    """The parameters of a random graph."""

    numbers: int
    workers: int
    layers: int
    lag: int
    threads: int
    noise: str
    words: frozenset[str]
    gate: str


WORDS = [
    *("priority", "units", "two-slots", "latency", "weights", "caps", "path-units", "quantum"),
    *("every", "chance", "choice", "stagger", "burst", "queued"),
]
GATES = ("", "", "quorum", "every", "mailbox", "batch")

shapes = st.builds(
    Shape,
    numbers=st.integers(0, 1 << 20),
    workers=st.integers(1, 4),
    layers=st.integers(1, 3),
    lag=st.integers(1, 3),
    threads=st.integers(1, 3),
    noise=st.sampled_from(["none", *KINDS]),
    words=st.frozensets(st.sampled_from(WORDS)),
    gate=st.sampled_from(GATES),
)


def random_graph(shape: Shape) -> OpGraph:
    """Workers that compute layer by layer, push each layer over shared links, and wait for a
    server."""
    rng = np.random.default_rng(shape.numbers)
    n, layers, words = shape.workers, shape.layers, shape.words
    some = (n, layers)
    b = GraphBuilder()
    device, line = b.slots("device", (n,)), b.slots("line", (n,))
    threads = b.slots("threads", (1,), capacity=shape.threads + 1)
    out = b.links("out", rng.uniform(1.0, 3.0, n), latency_s=0.1 if "latency" in words else 0.0)
    server = b.links("server", rng.uniform(1.0, 2.0 * n, 2))
    groups = np.arange(n)[:, None]
    draws = b.streams(some)
    kind: Distribution = "gamma" if shape.noise == "gamma" else "lognormal"
    factors = b.streams(some, cv=0.0 if shape.noise == "none" else 0.4, kind=kind)
    compute = b.ops(
        "compute",
        some,
        seconds=rng.uniform(0.1, 1.0, some),
        slot=device[:, None],
        noise=factors,
        group=groups,
    )
    held = np.stack(np.broadcast_arrays(line[:, None], threads[0]), -1)
    if "two-slots" not in words:
        held[..., 1] = -1
    path = np.stack(np.broadcast_arrays(out[:, None], server[0]), -1)
    options: dict[str, Any] = {}
    if "caps" in words:
        caps = rng.uniform(0.5, 2.0, some)
        options["rate_cap_bytes_per_s"] = np.where(rng.random(some) < 0.5, caps, np.inf)
    if "weights" in words:
        options["weight"] = rng.integers(1, 4, some) * 0.7
    if "path-units" in words:
        options["path_units"] = rng.uniform(0.5, 2.0, 2)
    if "burst" in words:
        options["burst_bytes"] = rng.uniform(0.0, 0.6, some)
    push = b.ops(
        "push",
        some,
        bytes=rng.uniform(0.1, 1.0, some),
        path=path,
        slots=held,
        units=[1, 2] if "units" in words else 1,
        priority=np.arange(layers)[::-1] if "priority" in words else 0,
        latency_s=rng.uniform(0.0, 0.2, some) if "latency" in words else 0.0,
        group=groups,
        **options,
    )
    update = b.ops("update", (1,), seconds=0.05, bytes=0.1, path=server[1], slot=threads[0])
    pull = b.ops("pull", (n,), bytes=rng.uniform(0.1, 1.0, n), path=server[1], group=np.arange(n))
    b.chain(compute)
    b.edge(compute, push)
    b.edge(push[:, :-1], compute[:, :-1], lag=shape.lag)
    lag = 1 if shape.gate == "quorum" else shape.lag  # ops that skip iterations must not run ahead
    b.edge(pull, compute[:, 0], lag=lag)
    if "queued" in words:
        request = b.ops("request", (n,), path=path[:, 0], queued_bytes=0.2, group=np.arange(n))
        b.edge(compute[:, 0], request)
        b.edge(request, pull)
    if shape.gate == "batch":
        b.batch(int(update[0]), push[:, -1], pull, 0.3, cycle_s=0.5, cap_bytes=0.7)
    else:
        b.edge(push, pull[:, None])
        if shape.gate in ("", "quorum"):
            b.edge(update, pull)
        if shape.gate == "mailbox":
            b.mailbox(int(update[0]), push[:, -1], 0.01)
            b.edge(pull[0], update)  # else it would run all the time and starve others
        else:
            b.edge(push[:, -1], update)
        if shape.gate == "quorum":
            b.quorum(int(update[0]), (n + 1) // 2)
        if shape.gate == "every":
            b.every(int(update[0]), 2)
    every = 2 if "every" in words else 1
    b.active(push[:, 1:], every=every)
    b.active(
        push[:, :1], every=every, probability=0.6 if "chance" in words else 1.0, draw=draws[:, :1]
    )
    if "quantum" in words:
        b.quantum(push, 0.15)
    if "choice" in words:
        paths = np.stack([np.broadcast_to(server[0], (n,)), out], -1)[:, :, None]
        b.choose(push[:, -1], draw=draws[:, -1], paths=paths, slots=line[:, None])
    if "stagger" in words:
        b.stagger(compute[:, 0], 1.0)
    counter = b.counters(push[:, -1:])
    b.probe("whole", compute[:, 0], push[:, -1], at_ready=True)
    b.probe("stale", pull, push[:, -1], lag=lag, counter=counter[0], group=np.arange(n))
    return b.build(device=device, mark=compute[:, -1])


def differences(a: Any, b: Any) -> list[str]:
    """Fields in which two results differ by even one bit."""
    names = a.__struct_fields__
    return [name for name in names if not _same(getattr(a, name), getattr(b, name))]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    return bool(a == b)


def test_canary_the_comparison_notices_one_bit() -> None:
    """Canary: one duration off by a relative 1e-15 shows in timeline and measures."""
    shape = Shape(1, 2, 2, 1, 1, "lognormal", frozenset(), "")
    graph = random_graph(shape)
    seconds = graph.op_seconds.copy()
    seconds[0] *= 1.0 + 1e-15
    assert seconds[0] != graph.op_seconds[0]
    planted = msgspec.structs.replace(graph, op_seconds=seconds)
    assert timeline(graph, compiled=False) == timeline(graph, compiled=False)
    assert timeline(graph, compiled=False) != timeline(planted, compiled=False)
    found = [simulate(g, rel_ci=0.5, compiled=False) for g in (graph, graph, planted)]
    assert differences(found[0], found[1]) == []
    assert differences(found[0], found[2]) != []  # NumPy's version decides in which measures


@needs_library
@given(shape=shapes, seed=st.integers(0, 1 << 32))
@few
def test_timelines_are_the_same_to_the_last_bit(shape: Shape, seed: int) -> None:
    graph = random_graph(shape)
    plain, compiled = (
        timeline(graph, seed=seed, iterations=6, compiled=which) for which in (False, True)
    )
    assert plain == compiled


@needs_library
@given(shape=shapes, seed=st.integers(0, 1 << 32))
@few
def test_measures_are_the_same_to_the_last_bit(shape: Shape, seed: int) -> None:
    graph = random_graph(shape)
    plain, compiled = (
        simulate(graph, seed=seed, rel_ci=0.5, compiled=which) for which in (False, True)
    )
    assert differences(plain, compiled) == []


@needs_library
@given(shape=shapes)
@examples(3)
def test_a_graph_remembers_nothing_of_an_earlier_run(shape: Shape) -> None:
    """A run's memory is reused for the next run, which must not be affected."""
    graph, fresh = random_graph(shape), random_graph(shape)
    for which in (True, False, True):
        simulate(graph, seed=5, rel_ci=0.5, compiled=which)
        assert timeline(graph, seed=1, compiled=which) == timeline(fresh, seed=1, compiled=which)


@needs_library
@pytest.mark.parametrize("word", ["noise", "chance", "choice", "stagger"])
def test_another_seed_gives_another_result(word: str) -> None:
    kind = "gamma" if word == "noise" else "none"
    graph = random_graph(Shape(7, 3, 2, 1, 1, kind, frozenset({word} & {*WORDS}), ""))
    found = [
        timeline(graph, seed=seed, iterations=8, compiled=which)
        for seed in (0, 1)
        for which in (False, True)
    ]
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert found[0] != found[2]


@needs_library
def test_the_seed_does_not_matter_without_randomness() -> None:
    graph = random_graph(Shape(7, 3, 2, 1, 1, "none", frozenset({"every", "quantum"}), ""))
    assert not graph.random
    assert timeline(graph, seed=0, compiled=False) == timeline(graph, seed=1, compiled=True)


@pytest.mark.slow
@needs_library
def test_the_room_for_timers_grows() -> None:
    """Due to its latency, an op has far more instances in flight than there are ops."""
    b = GraphBuilder()
    device = b.slots("device", (1,))
    ops = b.ops("send", (200,), seconds=1.0, latency_s=50.0)
    last = b.ops("last", (1,))
    b.edge(ops, last)
    graph = b.build(device=device, mark=last)
    plain, compiled = (timeline(graph, iterations=60, compiled=which) for which in (False, True))
    assert plain == compiled
    assert plain[-1].end_s == 110.0
    assert makespan(graph, iterations=60, compiled=False) == 110.0


# -- random numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_philox_gives_the_published_answers(
    counter: tuple[int, int], key: int, expected: tuple[int, int]
) -> None:
    """The known answers of Random123 (kat_vectors, philox2x32, 10 rounds)."""
    assert tuple(philox(*counter, key, word) for word in (0, 1)) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cv", "close"), [(0.05, 1e-3), (0.3, 1e-3), (1.0, 2e-2)])
def test_factors_have_mean_one_and_given_variation(kind: str, cv: float, close: float) -> None:
    """A table of 65536 values lacks the far tail, and so a little of a large variation."""
    values = noise.table(cv, KINDS.index(kind))
    assert len(values) == noise.TABLE
    assert (np.diff(values) > 0.0).all()
    assert (values > 0.0).all()
    assert values.mean() == pytest.approx(1.0, rel=1e-12)
    assert values.std() == pytest.approx(cv, rel=close)


@pytest.mark.parametrize("cv", [0.05, 0.3, 1.0])
def test_factors_have_the_same_digits_on_all_processors(cv: float) -> None:
    """NumPy's exponentials differ in the last digit between processors with and without AVX-512."""
    sigma = math.sqrt(math.log1p(cv**2))
    parts = (np.arange(noise.TABLE) + 0.5) / noise.TABLE
    logs = [sigma * float(special.ndtri(one)) - 0.5 * sigma**2 for one in parts]
    values = np.array([math.exp(log) for log in logs])
    assert (noise.table(cv, KINDS.index("lognormal")) == values / values.mean()).all()


def test_streams_are_independent_and_uniform() -> None:
    """16-bit words, as factors use them, are equally likely and independent between streams."""
    n = 4096
    words = np.array([[philox(i, stream, 12345, 0) >> 16 for i in range(n)] for stream in (0, 1)])
    counts = np.bincount(words.ravel() >> 12, minlength=16)
    expected = 2 * n / 16
    assert ((counts - expected) ** 2 / expected).sum() < 44.3  # chi squared, 15 degrees, p = 1e-4
    assert abs(np.corrcoef(words)[0, 1]) < 4 / np.sqrt(n)


def test_staggered_starts_fall_one_into_each_equal_part() -> None:
    parts = noise.offsets(3, 10)
    assert sorted((parts * 10).astype(int).tolist()) == list(range(10))
    assert (noise.offsets(3, 10) == parts).all()
    assert (noise.offsets(4, 10) != parts).any()
