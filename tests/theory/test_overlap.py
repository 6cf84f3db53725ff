"""Duration of overlapping work: each recursion against an event-driven clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from perfmodel.phases.layers import Layers, Part, Stage
from perfmodel.theory.buckets import mg_wfbp_buckets
from perfmodel.theory.overlap import blend, fused_wait_free, merged_wait_free, wait_free
from tests.jobs import workload
from tests.oracles import equal
from tests.settings import examples

few = examples(150)
seconds = st.one_of(st.just(0.0), st.floats(0.01, 10.0))
sizes = st.sampled_from([1.0, 7.0, 40.0])


@st.composite
def gradients(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Ready times of one to six messages, in order, and their bytes."""
    n = draw(st.integers(1, 6))
    ready = list(itertools.accumulate(draw(st.lists(seconds, min_size=n, max_size=n))))
    return ready, draw(st.lists(sizes, min_size=n, max_size=n))


# -- event-driven clocks ---------------------------------------------------------------------------


def sent_one_by_one(ready_s: list[float], seconds: list[float]) -> float:
    """An idle link takes the first waiting message; otherwise time advances to the next event."""
    now, waiting = 0.0, list(zip(ready_s, seconds, strict=True))
    while waiting:
        if waiting[0][0] > now:
            now = waiting[0][0]
        else:
            now += waiting.pop(0)[1]
    return now


def sent_at_ticks(
    ready_s: list[float],
    size_bytes: list[float],
    startup_s: float,
    per_byte_s: float,
    cycle_s: float,
    cap_bytes: float,
) -> float:
    """At each tick an idle link takes as many ready messages as allowed."""
    end, tick, first = 0.0, 0, 0
    while first < len(ready_s):
        now = tick * cycle_s
        tick += 1
        if now < end or ready_s[first] > now:
            continue
        last, taken = first + 1, size_bytes[first]
        while (
            last < len(ready_s) and ready_s[last] <= now and taken + size_bytes[last] <= cap_bytes
        ):
            taken += size_bytes[last]
            last += 1
        first, end = last, now + startup_s + taken * per_byte_s
    return end


def through_stages(
    layers: Layers, scale: float, stages: list[tuple[float, float]], *, overlap: bool
) -> list[float]:
    """Backward layer by layer; at every place each stage serves first come, first served."""
    made: list[tuple[float, Part]] = []
    now = 0.0
    rows = zip(layers.backward_s[::-1], layers.parts[::-1], strict=True)
    for duration, parts in rows:
        now += duration * scale
        made += [(now, part) for part in parts]
    computed = now + layers.last_s * scale
    ends = [computed]
    arriving = [(ready if overlap else computed, part) for ready, part in made]
    for per_tensor_s, per_byte_s in stages:
        leaving: list[tuple[float, Part]] = []
        for place in {part.place for _, part in arriving}:
            here = [(ready, part) for ready, part in arriving if part.place == place]
            for k, (_, part) in enumerate(here):
                held = [p.tensors * per_tensor_s + p.bytes * per_byte_s for _, p in here[: k + 1]]
                ready_s = [ready for ready, _ in here[: k + 1]]
                leaving.append((sent_one_by_one(ready_s, held), part))
        arriving = leaving
        ends.append(max([computed, *(end for end, _ in leaving)]))
    return ends


def waits_for_parameters(layers: Layers, per_byte_s: float, scale: float) -> float:
    """Forward layer by layer, each once its parts have arrived over the links of their places."""
    free: dict[int, float] = {}
    now = layers.first_s * scale
    for duration, parts in zip(layers.forward_s, layers.parts, strict=True):
        for part in parts:
            free[part.place] = free.get(part.place, 0.0) + part.bytes * per_byte_s
        now = max([now, *(free[part.place] for part in parts)]) + duration * scale
    return now


# -- messages --------------------------------------------------------------------------------------


@few
@given(given_=gradients(), rate=st.sampled_from([0.1, 1.0, 10.0]))
def test_wait_free_back_propagation(given_: tuple[list[float], list[float]], rate: float) -> None:
    ready, size = given_
    durations = [s / rate for s in size]
    equal(float(wait_free(ready, durations)), sent_one_by_one(ready, durations))


@few
@given(
    given_=gradients(),
    startup=st.sampled_from([0.0, 0.5, 5.0]),
    per_byte=st.sampled_from([0.01, 0.3]),
)
def test_messages_are_merged_into_buckets(
    given_: tuple[list[float], list[float]], startup: float, per_byte: float
) -> None:
    """A bucket is ready with its last layer."""
    ready, size = given_
    figures = {"startup_s": startup, "per_byte_s": per_byte}
    buckets = mg_wfbp_buckets(ready, size, **figures)
    together = [sum(size[k] for k in bucket) for bucket in buckets]
    expected = sent_one_by_one(
        [ready[bucket[-1]] for bucket in buckets],
        [startup + per_byte * sent for sent in together],
    )
    equal(float(merged_wait_free(ready, size, **figures)), expected)


@few
@given(
    given_=gradients(),
    startup=st.sampled_from([0.0, 0.5]),
    cycle=st.sampled_from([0.3137, 1.0171, 7.0313]),
    cap=st.sampled_from([0.0, 8.0, 50.0, math.inf]),
)
def test_messages_are_fused_at_ticks(
    given_: tuple[list[float], list[float]], startup: float, cycle: float, cap: float
) -> None:
    """Tick intervals that avoid ties, which rounding would decide."""
    ready, size = given_
    found = fused_wait_free(
        ready, size, startup_s=startup, per_byte_s=0.1, cycle_s=cycle, cap_bytes=cap
    )
    equal(float(found), sent_at_ticks(ready, size, startup, 0.1, cycle, cap))


def test_canary_messages_that_do_not_wait_are_noticed() -> None:
    """Not waiting for each other, for their layer, or for the tick."""
    ready, size = [1.0, 2.0, 2.5], [4.0, 1.0, 3.0]
    right = sent_one_by_one(ready, size)
    equal(float(wait_free(ready, size)), right)
    for wrong in (
        max(r + s for r, s in zip(ready, size, strict=True)),
        float(wait_free([0.0] * 3, size)),
        float(wait_free(ready, size[::-1])) + size[0],
    ):
        with pytest.raises(AssertionError):
            equal(wrong, right)
    at_ticks = sent_at_ticks(ready, size, 0.0, 1.0, 0.7, math.inf)
    for cycle_s, cap_bytes in ((0.01, math.inf), (0.7, 1.0)):
        figures = {"cycle_s": cycle_s, "cap_bytes": cap_bytes}
        other = float(fused_wait_free(ready, size, startup_s=0.0, per_byte_s=1.0, **figures))
        with pytest.raises(AssertionError):
            equal(other, at_ticks)


def test_canary_unmerged_layers_are_noticed() -> None:
    ready, size = [1.0, 2.0, 9.0], [1.0, 1.0, 1.0]
    merged = float(merged_wait_free(ready, size, startup_s=8.0, per_byte_s=1.0))
    with pytest.raises(AssertionError):
        equal(float(wait_free(ready, [8.0 + s for s in size])), merged)


# -- layers ----------------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> Layers:
    """One to five layers, some without parameters, in parts on up to three places."""
    n = draw(st.integers(1, 5))
    durations = st.lists(seconds, min_size=n, max_size=n)
    held = draw(st.lists(st.sampled_from([0.0, 7.0, 40.0]), min_size=n, max_size=n))
    if not any(held):
        held[0] = 10.0
    layers = Layers.of(workload(draw(durations), draw(durations), held))
    places = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)
    return layers.placed(
        {
            number: [Part(place, size / (k + 1), 1.0) for k, place in enumerate(draw(places))]
            for number, size in zip(layers.index, layers.bytes, strict=True)
        }
    )


rates = st.sampled_from([0.0, 0.01, 0.3])


@few
@given(
    layers=chains(),
    stages=st.lists(st.tuples(rates, rates), min_size=1, max_size=3),
    scale=st.sampled_from([1.0, 2.5]),
    overlap=st.booleans(),
)
def test_gradients_pass_stages(
    layers: Layers, stages: list[tuple[float, float]], scale: float, overlap: bool
) -> None:
    found = layers.backward_and_send_s(
        scale, [Stage(*each) for each in stages], overlap=overlap, latency_s=0.0
    )
    expected = through_stages(layers, scale, stages, overlap=overlap)
    for end, right in zip(found, [*expected, expected[-1]], strict=True):
        equal(float(end), right)


@few
@given(layers=chains(), per_byte=rates, scale=st.sampled_from([1.0, 2.5]))
def test_forward_waits_for_its_parameters(layers: Layers, per_byte: float, scale: float) -> None:
    expected = waits_for_parameters(layers, per_byte, scale)
    equal(float(layers.pull_and_forward_s(per_byte, scale)), expected)


def test_latency_hides_behind_the_last_backward_and_the_first_forward() -> None:
    """Two layers without parameters around one with parameters: gradients made at 2 s, sent at 3 s,
    arriving at 8 s; backward ends at 6 s, and the next first layer at 7 s."""
    layers = Layers.of(workload([1.0, 0.0, 0.0], [4.0, 1.0, 1.0], [0.0, 10.0, 0.0]))
    stages = [Stage(0.0, 0.1)]
    assert layers.backward_and_send_s(1.0, stages, latency_s=5.0) == [6.0, 6.0, 8.0]
    following = layers.backward_and_send_s(1.0, stages, latency_s=5.0, next_forward=True)
    assert following == [7.0, 7.0, 8.0]
    assert layers.backward_and_send_s(1.0, stages, latency_s=5.0, overlap=False) == [6.0, 7.0, 12.0]


def test_canary_one_place_for_all_is_noticed() -> None:
    """Parts on two places are handled concurrently."""
    layers = Layers.of(workload([1.0], [1.0], [40.0]))
    halves = layers.placed({0: [Part(0, 20.0, 1.0), Part(1, 20.0, 1.0)]})
    expected = through_stages(halves, 1.0, [(0.0, 1.0)], overlap=True)
    equal(float(halves.backward_and_send_s(1.0, [Stage(0.0, 1.0)])[1]), expected[1])
    with pytest.raises(AssertionError):
        equal(float(layers.backward_and_send_s(1.0, [Stage(0.0, 1.0)])[1]), expected[1])


# -- blends ----------------------------------------------------------------------------------------


@few
@given(first=seconds, second=seconds)
def test_a_blend_lies_between_full_and_no_overlap(first: float, second: float) -> None:
    equal(float(blend(first, second, 1.0)), first + second)
    assert blend(first, second, math.inf) == max(first, second)
    values = [float(blend(first, second, p)) for p in (1.0, 1.5, 2.0, 4.0, 64.0, math.inf)]
    for before, after in itertools.pairwise(values):
        assert after <= before * (1.0 + 1e-12)
    equal(float(blend(second, first, 3.0)), float(blend(first, second, 3.0)), 1e-12)


def test_a_blend_with_zero() -> None:
    assert blend(0.0, 0.0, 2.0) == 0.0
    assert blend(3.0, 0.0, 2.0) == 3.0
    assert blend(np.array([0.0, 3.0]), np.array([0.0, 4.0]), 2.0).tolist() == [0.0, 5.0]


def test_a_blend_of_symbols() -> None:
    import sympy

    a, b = sympy.symbols("a b", positive=True)
    assert blend(a, b, math.inf) == sympy.Max(a, b)
    assert float(blend(a, b, 2.0).subs({a: 3, b: 4})) == 5.0


# -- arrays ----------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[list[Any], list[Any], Any], Any]] = {
    "wait_free": lambda ready, size, rate: wait_free(ready, [s / rate for s in size]),
    "merged": lambda ready, size, rate: merged_wait_free(
        ready, size, startup_s=3.0 / rate, per_byte_s=1.0 / rate
    ),
    "fused": lambda ready, size, rate: fused_wait_free(
        ready, size, startup_s=1.0, per_byte_s=1.0 / rate, cycle_s=2.0, cap_bytes=20.0
    ),
    "blend": lambda ready, size, rate: blend(ready[-1], size[-1] / rate, 2.0),
    "hidden": lambda ready, size, rate: blend(ready[-1], size[-1] / rate, math.inf),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@examples(30)
@given(given_=gradients(), seed=st.integers(0, 2**32))
def test_arrays_equal_scalars(
    name: str, given_: tuple[list[float], list[float]], seed: int
) -> None:
    ready, size = given_
    rng = np.random.default_rng(seed)
    rate, late = rng.uniform(0.1, 10.0, 5), rng.uniform(0.5, 2.0, 5)
    together = FUNCTIONS[name]([late * r for r in ready], size, rate)
    for k in range(5):
        alone = FUNCTIONS[name]([float(late[k]) * r for r in ready], size, float(rate[k]))
        equal(float(together[k]), float(alone), 1e-12)


def test_layers_of_a_workload_share_what_is_not_of_the_job() -> None:
    work = workload([1.0, 1.0], [1.0, 1.0], [2.0, 1.0])
    one, other = Layers.of(work), Layers.of(work)
    assert one.once("layers", lambda: 1) == other.once("layers", lambda: 2) == 1
    assert one.once("job", lambda: 1, of_job=True) == 1
    assert other.once("job", lambda: 2, of_job=True) == 2


def test_layers_keep_a_bounded_number_of_values() -> None:
    layers = Layers.of(workload([1.0], [1.0], [2.0]))
    made: list[int] = []
    for k in range(200):
        layers.once(("value", k), lambda k=k: made.append(k))
    layers.once(("value", 199), lambda: made.append(-1))
    layers.once(("value", 0), lambda: made.append(0))
    assert made == [*range(200), 0]
