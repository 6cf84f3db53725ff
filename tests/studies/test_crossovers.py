"""Crossovers between phases or jobs happen at the values that are reported."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import hypothesis
import msgspec
import numpy as np
import pytest
import sympy
from hypothesis import given, settings, strategies as st

from perfmodel import InputError, Jitter, Job, NodeOverride, Straggler
from perfmodel.phases.quantities import quantities_of
from perfmodel.predicting import coarse, variants
from perfmodel.studies import crossovers, formulas
from perfmodel.studies.crossovers import Crossover, against, between, explain
from perfmodel.studies.solving import EQUAL
from perfmodel.studies.variables import WHOLE
from tests.jobs import ALL, cluster, job, workload
from tests.oracles import equal
from tests.predicting.test_coarse import changed, never_rises
from tests.settings import examples, thinned

ONCE = [hypothesis.Phase.generate]
"""Runs without shrinking, which would take minutes here."""

few = settings(examples(3), phases=ONCE)

replace = msgspec.structs.replace

LEFT_OUT = {"partition_bytes", "compression", "transmission", "softsync", "fusion_cycle_s"}
"""Options left out: parts of a few bytes, of which there would be millions; ticks, at which phases
jump; and options that only change numbers."""

CHOSEN = [(arch, options) for arch, options in ALL if not LEFT_OUT & set(options)]
IDS = ["-".join([arch, *(f"{k}={v}" for k, v in o.items())]) for arch, o in CHOSEN]
each = pytest.mark.parametrize(
    ("arch", "options"),
    [
        # a staleness bound above 0 takes a hundred times as long to evaluate
        pytest.param(
            a, o, id=name, marks=[pytest.mark.slow] if n % 4 or o.get("staleness_bound") else []
        )
        for n, ((a, o), name) in enumerate(zip(CHOSEN, IDS, strict=True))
    ],
)


@st.composite
def large_jobs(draw: st.DrawFn, arch: str, options: dict[str, Any]) -> Job:
    """Jobs on fast links with millions of bytes and one to eight workers, varied by explain()."""
    n = draw(st.integers(1, 4))
    durations = st.lists(st.floats(0.01, 5.0), min_size=n, max_size=n)
    sizes = st.lists(st.sampled_from([1e6, 4e7, 1e9]), min_size=n, max_size=n)
    work = workload(
        draw(durations),
        draw(durations),
        draw(sizes),
        batch_size=draw(st.sampled_from([1, 32])),
        optimizer_s=draw(st.sampled_from([0.0, 0.3])),
    )
    where = cluster(
        draw(st.sampled_from([1e8, 1e9, 1e10])),
        draw(st.sampled_from([0.0, 1e-4])),
        update_per_byte_s=draw(st.sampled_from([0.0, 1e-10])),
    )
    where = replace(where, nic=replace(where.nic, efficiency=draw(st.sampled_from([1.0, 0.8]))))
    least = 1 + options.get("backup_workers", 0)
    return job(work, where, draw(st.integers(least, 8)), arch, options)


def ranked(one: Job, **axis: Any) -> list[tuple[float, str]]:
    """The phases at these values, longest first; ties keep their order."""
    seconds = coarse.phases(changed(one, **axis)).parts
    rounded = [(float(f"{float(p.seconds):.9e}"), name) for name, p in seconds.items()]
    return sorted(rounded, key=lambda row: -row[0])


def longest(one: Job, **axis: Any) -> set[str]:
    """The dominant phases if ties are within a tenth of, and ten times, the rounding tolerance."""
    seconds = {n: float(p.seconds) for n, p in coarse.phases(changed(one, **axis)).parts.items()}
    most = max(seconds.values())
    return {
        next(name for name, value in seconds.items() if value >= most * (1.0 - tolerance))
        for tolerance in (0.1 * crossovers.ROUNDING, 10.0 * crossovers.ROUNDING)
    }


def rules_change(one: Job, c: Crossover) -> None:
    """Check that two phases are equally long and no phase is longer, or that they change places.

    For integers, each dominates on its side; within rounding, either may.
    """
    if c.variable in WHOLE:
        step = one.options.group_size if c.variable == "workers" else 1
        before, after = (longest(one, **{c.variable: v}) for v in (c.value - step, c.value))
        assert c.below in before
        assert c.above in after
        assert c.below != c.above
        return
    rows = ranked(one, **{c.variable: c.value})
    seconds = {name: value for value, name in rows}
    equal(seconds[c.below], rows[0][0], 1e-6)
    equal(seconds[c.above], rows[0][0], 1e-6)
    leads = []
    for factor in (0.999, 1.001):
        near = {name: t for t, name in ranked(one, **{c.variable: factor * c.value})}
        leads.append(near[c.below] - near[c.above])
    assert leads[0] > leads[1]


@pytest.mark.sampled(9)
@each
@few
@given(data=st.data())
def test_phases_change_places_at_the_reported_value(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    asked = data.draw(large_jobs(arch, options))
    # with a core nothing is solved in symbols, which would take most of the time
    core = data.draw(st.sampled_from([1.0, 4.0, None]))
    asked = replace(asked, cluster=replace(asked.cluster, core_oversubscription=core))
    result = explain(asked)
    longest, first = ranked(asked)[0]
    assert result.rules == first
    equal(result.phases_s[first], longest, 1e-8)
    never_rises(list(result.phases_s.values()), 1e-8)
    equal(sum(result.phases_s.values()), result.iteration_s)
    for c in result.crossovers:
        rules_change(asked, c)


SYNCHRONOUS = job(
    workload([1.0, 2.0], [2.0, 3.0], [3e9, 5e9], batch_size=8),
    cluster(1e9, 1e-4, update_per_byte_s=1e-11),
    4,
    "ps",
    {"overlap": False},
)
"""8 s of computation; all workers pull 8e9 bytes over 1e9 bytes/s at once: 32 s."""


def test_crossovers_by_hand() -> None:
    """4 x 8e9 / B = 8 s; N x 8 s = 8 s for one worker, and the pull dominates for two; 8 s at
    batch 8 grow to 32 s at batch 32."""
    result = {c.variable: c for c in explain(SYNCHRONOUS).crossovers}
    assert (result["workers"].below, result["workers"].above) == ("compute", "pull")
    assert result["workers"].value == 2.0
    equal(result["bandwidth_bytes_per_s"].value, 4e9, 1e-6)
    assert result["bandwidth_bytes_per_s"].below == "pull"
    assert result["bandwidth_bytes_per_s"].above == "compute"
    assert (result["batch_size"].value, result["batch_size"].above) == (32.0, "compute")


def test_canary_a_crossover_elsewhere_is_noticed() -> None:
    for c in explain(SYNCHRONOUS).crossovers:
        rules_change(SYNCHRONOUS, c)
        step = 1.0 if c.variable in WHOLE else 1e-4 * c.value
        for wrong in (
            replace(c, value=c.value + step),
            replace(c, below=c.above, above=c.below),
            replace(c, above="update"),
        ):
            with pytest.raises((AssertionError, InputError)):
                rules_change(SYNCHRONOUS, wrong)


def test_a_single_phase_has_no_crossover() -> None:
    """A worker alone without a server."""
    alone = job(workload([1.0], [2.0], [1e6]), cluster(1e9), 1, "ring")
    result = explain(alone)
    assert [c for c in result.crossovers if c.variable != "workers"] == []
    assert result.rules == "compute"
    assert result.saturations == ()


def test_only_the_batch_size_varies_for_unequal_workers() -> None:
    """Only the batch size can be varied."""
    for unlike in (
        replace(SYNCHRONOUS, stragglers=(Straggler(0, 2.0),)),
        replace(
            SYNCHRONOUS,
            cluster=replace(SYNCHRONOUS.cluster, overrides=(NodeOverride(0, speed=0.5),)),
        ),
    ):
        assert {c.variable for c in explain(unlike).crossovers} <= {"batch_size"}


@pytest.mark.slow
def test_backup_workers_limit_the_smallest_number_of_workers() -> None:
    """One worker plus one backup worker is the smallest number evaluated, also with jitter."""
    backed = replace(
        SYNCHRONOUS,
        options=replace(SYNCHRONOUS.options, backup_workers=1),
        jitter=Jitter(0.1),
    )
    assert all(c.value >= 2.0 for c in explain(backed).crossovers if c.variable == "workers")


# -- in symbols ------------------------------------------------------------------------------------

SOLVED: list[tuple[str, dict[str, Any]]] = [
    ("ps", {"overlap": False}),
    ("p2p", {"overlap": False}),
    ("allreduce", {"overlap": False, "bucketing": "one"}),
    ("allreduce", {"overlap": False, "bucketing": "one", "compression": "top_k", "density": 0.1}),
    ("allreduce", {"overlap": False, "bucketing": "one", "algorithm": "tree"}),
    ("local_sgd", {"period": 2}),
    ("d_psgd", {"overlap": False}),
]
"""Jobs for which the whole-model formula is exact."""


def root(c: Crossover, one: Job) -> float:
    """Value of a formula with the numbers of a job."""
    assert c.formula is not None
    name, text = c.formula.split(" = ")
    symbols = {str(symbol): symbol for symbol in formulas.symbols().values()}
    assert name == str(formulas.symbols()[c.variable])
    expression = sympy.sympify(text, locals=symbols)
    q = quantities_of(one)
    values = {symbol: sympy.sympify(getattr(q, key)) for key, symbol in formulas.symbols().items()}
    others = expression.free_symbols - set(values)
    assert all(str(symbol).startswith("S_") for symbol in others)
    return float(expression.xreplace({**values, **dict.fromkeys(others, sympy.Integer(1))}))


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("arch", "options"), thinned(SOLVED, 3))
@settings(examples(6), phases=ONCE)
@given(data=st.data())
def test_formulas_agree_with_the_search(
    arch: str, options: dict[str, Any], data: st.DataObject
) -> None:
    """The achieved bandwidth, and the smallest integer number of workers that reaches the value."""
    asked: Job = data.draw(large_jobs(arch, options))
    if arch == "p2p":  # waits only for the update of the first layer
        asked = replace(asked, workload=replace(asked.workload, optimizer_s=0.0))
    for c in explain(asked).crossovers:
        if c.formula is None:
            continue
        if c.variable == "workers":
            assert c.value - 1.0 <= root(c, asked) <= c.value * (1.0 + 1e-6)
        else:
            equal(root(c, asked), asked.cluster.nic.efficiency * c.value, 1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("arch", "options"), thinned(SOLVED, 3, 1))
def test_simple_crossovers_have_a_formula(arch: str, options: dict[str, Any]) -> None:
    asked = job(SYNCHRONOUS.workload, SYNCHRONOUS.cluster, 4, arch, options)
    result = [c for c in explain(asked).crossovers if c.variable == "bandwidth_bytes_per_s"]
    assert [c.formula is not None for c in result] == [True]


def test_a_formula_by_hand() -> None:
    result = {c.variable: c.formula for c in explain(SYNCHRONOUS).crossovers}
    assert result["bandwidth_bytes_per_s"] == "B = M*N/(P*(F + G))"
    assert result["workers"] == "N = B*P*(F + G)/M"
    assert result["batch_size"] is None


def test_canary_a_formula_with_an_error_is_noticed() -> None:
    (right,) = (c for c in explain(SYNCHRONOUS).crossovers if c.variable == "bandwidth_bytes_per_s")
    equal(root(right, SYNCHRONOUS), right.value, 1e-6)
    for text in ("B = M*(N - 1)/(P*(F + G))", "B = M*N/(P*(F + G + O + 1))"):
        with pytest.raises(AssertionError):
            equal(root(replace(right, formula=text), SYNCHRONOUS), right.value, 1e-6)


@pytest.mark.parametrize(
    "where",
    [
        {"devices_per_node": 2},
        {"core_oversubscription": 3.0},
    ],
)
def test_unequal_links_have_no_formula(where: Mapping[str, Any]) -> None:
    beyond = replace(SYNCHRONOUS, cluster=replace(SYNCHRONOUS.cluster, **where))
    assert {c.formula for c in explain(beyond).crossovers} <= {None}


# -- two jobs --------------------------------------------------------------------------------------

RING = job(SYNCHRONOUS.workload, SYNCHRONOUS.cluster, 4, "ring", {"overlap": False})


def rates(variable: str, value: float, *of: Job) -> list[float]:
    return [
        float(variants.evaluate(one, **{variable: value}).throughput_samples_per_s)  # type: ignore[arg-type]
        for one in of
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variable", crossovers.VARIABLES)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("ps", {"overlap": False, "servers": 4, "split_above_bytes": 0}), ("ring", {})),
        (("ps", {}), ("p2p", {"overlap": False})),
        (("asp", {}), ("ring", {"overlap": False})),
        (("ring", {"algorithm": "ring"}), ("allreduce", {"algorithm": "tree"})),
    ],
)
def test_two_jobs_are_equally_fast_at_the_reported_value(
    variable: str, first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]]
) -> None:
    """Or change places between two consecutive integers."""
    where = replace(SYNCHRONOUS.cluster, nic=replace(SYNCHRONOUS.cluster.nic, latency_s=0.05))
    one, other = (job(SYNCHRONOUS.workload, where, 4, *named) for named in (first, second))
    for c in between(one, other, variable, ("first", "second")):
        assert {c.below, c.above} == {"first", "second"}
        sign = 1.0 if c.below == "first" else -1.0
        if variable in WHOLE:
            before, after = (rates(variable, v, one, other) for v in (c.value - 1.0, c.value))
            assert sign * (before[0] / before[1] - 1.0) > -EQUAL
            assert sign * (after[0] / after[1] - 1.0) < EQUAL
        else:
            equal(*rates(variable, c.value, one, other), 1e-5)
            near = [rates(variable, f * c.value, one, other) for f in (0.99, 1.01)]
            assert sign * (near[0][0] - near[0][1]) > 0.0 > sign * (near[1][0] - near[1][1])


def test_two_jobs_by_hand() -> None:
    """4 servers without latency, 8e9 bytes pulled and pushed per worker: 16 s at 1e9 bytes/s. A
    ring of 4 moves 12e9 bytes, and waits 6 times for the latency: equally fast if that is 4e9 /
    B."""
    latency_s = 0.05
    where = replace(SYNCHRONOUS.cluster, nic=replace(SYNCHRONOUS.cluster.nic, latency_s=latency_s))
    free = replace(where, server=replace(where.server, update_per_byte_s=0.0))
    options = {"overlap": False, "servers": 4, "split_above_bytes": 0}
    ring = {"overlap": False, "bucketing": "one"}
    servers = job(SYNCHRONOUS.workload, free, 4, "ps", options)
    around = job(SYNCHRONOUS.workload, free, 4, "ring", ring)
    (c,) = between(servers, around, "bandwidth_bytes_per_s", ("ps", "ring"))
    # reported where the rates agree within EQUAL: here they hardly differ at all
    equal(c.value, 4e9 / (4.0 * latency_s), 100.0 * EQUAL)
    assert (c.below, c.above) == ("ring", "ps")


def test_a_job_has_no_crossover_with_itself() -> None:
    for variable in crossovers.VARIABLES:
        assert between(RING, RING, variable, ("a", "b")) == []


def test_a_job_that_is_always_faster_has_no_crossover() -> None:
    """With twice the bandwidth; and with less to compute."""
    quick = replace(RING, workload=replace(RING.workload, forward_s=0.5 * RING.workload.forward_s))
    assert between(quick, RING, "batch_size", ("quick", "ring")) == []


def test_against_searches_every_variable() -> None:
    result = against(SYNCHRONOUS, RING, "ps", "ring")
    along = [c for v in crossovers.VARIABLES for c in between(SYNCHRONOUS, RING, v, ("ps", "ring"))]
    assert list(result) == along
    assert {c.variable for c in result} <= set(crossovers.VARIABLES)
    unlike = replace(SYNCHRONOUS, stragglers=(Straggler(0, 2.0),))
    assert {c.variable for c in against(unlike, RING, "ps", "ring")} <= {"batch_size"}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: between(RING, SYNCHRONOUS, "worker", ("a", "b")),
            "unknown variable 'worker'; did you mean 'workers'? "
            "(known: bandwidth_bytes_per_s, batch_size, workers)",
        ),
        (
            lambda: between(
                RING, replace(SYNCHRONOUS, stragglers=(Straggler(0, 2.0),)), "workers", ("a", "b")
            ),
            "workers: cannot be varied if workers or links differ",
        ),
        (lambda: against(RING, RING, "ring", "ring"), "against: both architectures are ring"),
    ],
)
def test_a_mistake_is_one_clear_line(call: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == text


# -- saturation ------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", ["asp", "ssp", "easgd"])
@pytest.mark.parametrize("workers", thinned([4, 1]))
def test_saturation_is_the_knee_of_the_bounds(arch: str, workers: int) -> None:
    """N* = T(1) / D, independent of the number of workers; far beyond N* that resource is the
    limit."""
    asked = job(SYNCHRONOUS.workload, SYNCHRONOUS.cluster, workers, arch)
    alone = coarse.phases(replace(asked, workers=1))
    result = explain(asked).saturations
    busy = {name: float(s) for name, s in alone.busy_s.items() if float(s) > 0.0}
    assert {s.resource for s in result} == set(busy)
    for s in result:
        equal(s.workers, float(alone.iteration_s) / busy[s.resource])
    assert [s.workers for s in result] == sorted(s.workers for s in result)
    crowd = variants.evaluate(asked, workers=math.ceil(40.0 * result[0].workers))
    assert float(crowd.utilisation[result[0].resource]) == pytest.approx(1.0, abs=0.03)


def test_saturation_by_hand() -> None:
    """Alone: 8 s of computation, 8 s for either way, 0.08 s of update and two latencies."""
    asked = job(SYNCHRONOUS.workload, SYNCHRONOUS.cluster, 4, "asp", {"overlap": False})
    result = {s.resource: s.workers for s in explain(asked).saturations}
    equal(result["link into the servers"], (8.0 + 2.0 * 8.0 + 0.08 + 2e-4) / 8.0)
    equal(result["servers"], (8.0 + 2.0 * 8.0 + 0.08 + 2e-4) / 0.08)


def test_synchronous_jobs_do_not_saturate() -> None:
    assert explain(SYNCHRONOUS).saturations == ()


# -- words -----------------------------------------------------------------------------------------


def test_sentences_give_the_crossovers() -> None:
    lines = crossovers.sentences(explain(SYNCHRONOUS), SYNCHRONOUS)
    assert lines[0].startswith("pull dominates: 32 s of ")
    workers = "workers: compute dominates below 2, pull from 2 up (now 4)"
    assert any(line.startswith(workers) for line in lines)
    bandwidth = next(line for line in lines if line.startswith("bandwidth:"))
    assert "pull dominates below 32 Gbps, compute from 32 Gbps up (now 8 Gbps)" in bandwidth
    assert bandwidth.endswith("B = M*N/(P*(F + G))")


def test_an_explanation_survives_json() -> None:
    result = explain(SYNCHRONOUS)
    again = msgspec.convert(json.loads(json.dumps(result.to_dict())), type(result))
    assert again == msgspec.structs.replace(result, job=None)
    assert np.isfinite([c.value for c in result.crossovers]).all()
