"""The cost of a simulation is estimated before it begins."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from perfmodel import make_job, predict
from perfmodel.architectures import registry
from perfmodel.base.errors import InputError, TooLargeError
from perfmodel.graph.op_graph import OpGraph
from perfmodel.inputs.job import Job, Straggler
from perfmodel.predicting import budget
from perfmodel.predicting.fine import build_graph
from perfmodel.sweeping.sweeps import sweep
from tests.clock import at_most


def job(arch: str, workers: int, **more: Any) -> Job:
    return make_job(model="resnet50", device="v100", arch=arch, workers=workers, **more)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", [*registry.names(), "asp", "ring"])
@pytest.mark.parametrize("stragglers", [(), (Straggler(70, 1.5),)])
def test_the_size_of_a_graph_is_known_without_building_it(
    arch: str, stragglers: tuple[Straggler, ...]
) -> None:
    one = job(arch, 80, stragglers=stragglers, start="staggered")
    exact = budget.cost_of(build_graph(one), one)
    workers_built: list[int] = []

    def build(smaller: Job) -> OpGraph:
        workers_built.append(smaller.workers)
        return one.architecture.build(smaller)

    with pytest.raises(TooLargeError) as error:
        budget.built(one, build, max_ops=1000.0)
    assert max(workers_built) < 80
    assert said_ops(str(error.value)) == pytest.approx(exact.ops, rel=0.02)


def said_ops(text: str) -> float:
    """Number of operations that a refusal names."""
    found = re.search(r"takes about ([0-9.]+)( million)? operations", text)
    assert found, text
    return float(found[1]) * (1e6 if found[2] else 1.0)


@pytest.mark.parametrize(("arch", "workers"), [("asp", 10_000), ("gosgd", 4096)])
def test_expensive_simulations_are_refused_immediately(arch: str, workers: int) -> None:
    one = job(arch, workers, start="together", jitter=0.1)  # else a few workers represent all
    with at_most(60), pytest.raises(InputError) as error:
        predict(one)  # formerly took over a minute, or never ended
    said = str(error.value)
    for words in ("million operations", " GB of memory", "--fidelity coarse", "--max-ops"):
        assert words in said


def test_the_suggested_limit_is_enough() -> None:
    one = job("asp", 4)
    with pytest.raises(InputError) as error:
        predict(one, max_ops=1000)
    suggested = float(str(error.value).rpartition("--max-ops ")[2].split()[0])
    assert predict(one, max_ops=suggested).fidelity == "fine"
    assert build_graph(one, max_ops=suggested).n_ops == build_graph(one).n_ops


def test_many_tensors_of_few_workers_are_refused_while_building() -> None:
    one = job("p2p", 8, options={"partition_bytes": 1000.0}, start="staggered")
    with pytest.raises(InputError, match="takes more than about 50 million operations"):
        predict(one)


def test_auto_falls_back_to_coarse_and_notes_it() -> None:
    together = job("asp", 10_000, start="together", jitter=0.1)
    answer = predict(together, fidelity="auto", tolerance=1e-6)
    assert answer.fidelity == "coarse"
    assert "million operations" in answer.notes[-1]


def test_a_sweep_skips_jobs_that_are_too_large() -> None:
    such = {"model": "resnet50", "device": "v100", "start": "together", "jitter": 0.1}
    found = sweep(**such, arch="asp", workers=[128, 10_000], fidelity="fine")
    assert [p["workers"] for p in found.points] == [128]
    assert "--max-ops" in found.skipped[0].reason


@pytest.mark.slow
def test_folded_jobs_are_small_however_many_workers_but_their_traces_are_not() -> None:
    answer = predict(job("ring", 100_000))
    assert answer.fidelity == "fine"
    with pytest.raises(InputError, match="million operations"):
        answer.to_chrome_trace()


@pytest.mark.parametrize("wrong", [0, -1, math.nan, "many", 10**400])
def test_invalid_limits_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="max_ops: "):
        predict(job("ps", 2), max_ops=wrong)


def test_an_infinite_limit_is_allowed() -> None:
    assert predict(job("ps", 2), max_ops=math.inf).fidelity == "fine"


def test_first_iterations_have_their_own_cost() -> None:
    one = job("asp", 8)
    assert predict(one, iterations=2).fidelity == "fine"
    with pytest.raises(InputError, match="million operations"):
        predict(one, iterations=100_000)


def test_a_large_staleness_bound_takes_more_rounds() -> None:
    short, long = (job("ssp", 4, options={"staleness_bound": bound}) for bound in (3, 3000))
    costs = [budget.cost_of(build_graph(one), one) for one in (short, long)]
    assert costs[0].graph_ops == costs[1].graph_ops
    assert costs[1].rounds >= 100 * costs[0].rounds
    with pytest.raises(InputError, match="million operations"):
        predict(long)
