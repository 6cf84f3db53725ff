"""The dominant phase, its crossovers, and crossovers between architectures."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import sympy
from click.testing import CliRunner

from perfmodel import Cluster, InputError, Job, evaluate, explain, formula, make_job
from perfmodel.catalogue.instances import read_instances
from perfmodel.cli import cli
from perfmodel.phases.quantities import quantities_of
from perfmodel.studies import formulas
from perfmodel.studies.crossovers import Explanation, between
from tests.jobs import ETHERNET
from tests.settings import thinned

WHOLE = ("workers", "batch_size")


def measured(
    arch: str,
    options: dict[str, Any] | None = None,
    workers: int = 8,
    cluster: Cluster | None = None,
) -> Job:
    return make_job(
        model="resnet50", device="v100", arch=arch, options=options or {}, workers=workers,
        cluster=cluster,
    )  # fmt: skip


def longest(one: Job, variable: str, value: float) -> str:
    phases = evaluate(one, **{variable: value}).phases_s
    return max(phases, key=lambda name: float(phases[name]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arch", "options"),
    [("bsp", {}), ("bsp", {"overlap": False}),
     pytest.param("asp", {}, marks=pytest.mark.slow),
     pytest.param("ring", {}, marks=pytest.mark.slow), ("easgd", {}), ("p2p", {"overlap": False})],
)  # fmt: skip
def test_phases_change_places_at_the_reported_value(arch: str, options: dict[str, Any]) -> None:
    one = measured(arch, options)
    result = explain(one)
    assert result.crossovers
    for c in result.crossovers:
        step = 1.0 if c.variable in WHOLE else 1e-6 * c.value
        assert longest(one, c.variable, c.value - step) == c.below
        assert longest(one, c.variable, c.value + (0.0 if c.variable in WHOLE else step)) == c.above


def test_islands_are_explained_by_their_number() -> None:
    """Bandwidth and batch size change the steps inside islands, which are predicted alone."""
    islands = make_job(model="gpt2-medium", device="a100", arch="diloco", workers=4,
                       island_devices=8, bandwidth="1Gbps")  # fmt: skip
    assert {c.variable for c in explain(islands).crossovers} == {"workers"}
    other = make_job(model="gpt2-medium", device="a100", arch="ring", workers=4, island_devices=8)
    with pytest.raises(InputError, match="cannot be varied if steps inside islands depend on it"):
        between(islands, other, "bandwidth_bytes_per_s", ("diloco", "ring"))
    command = "explain --model resnet50 --device v100 --arch diloco --workers 4 --island-devices 2"
    shown = CliRunner().invoke(cli, command.split(), catch_exceptions=False).stdout
    assert shown.startswith("resnet50 on 4 islands of 2 x v100, diloco")


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_crossovers_on_one_node_have_the_defaults_of_one_node(workers: int) -> None:
    """Copies through the memory of a single node hold up the backward pass."""
    node = next(row for row in read_instances() if row.name == "g4dn.12xlarge")
    one = make_job(model="alexnet", device="t4", cluster=node.cluster(), arch="ring",
                   workers=workers, batch_size=32)  # fmt: skip
    found = [
        (c.value, c.below, c.above) for c in explain(one).crossovers if c.variable == "workers"
    ]
    assert found == [(3.0, "compute", "all-reduce")]
    dominant = [explain(one.with_(workers=count)).rules for count in range(1, 6)]
    assert dominant == ["compute", "compute", "all-reduce", "all-reduce", "all-reduce"]


@pytest.mark.slow
def test_the_longest_phase_is_reported_as_dominant() -> None:
    result = explain(measured("easgd"))
    assert result.rules == next(iter(result.phases_s))
    assert result.phases_s[result.rules] == max(result.phases_s.values())
    assert sum(result.phases_s.values()) == pytest.approx(result.iteration_s)


def test_a_symbolic_crossover_equals_the_numeric_one() -> None:
    """Without overlap nothing depends on layers: B = M N / (P (F + G))."""
    one = measured("bsp", {"overlap": False}, cluster=ETHERNET)
    (crossover,) = [c for c in explain(one).crossovers if c.variable == "bandwidth_bytes_per_s"]
    assert crossover.formula is not None
    value = solved(one, crossover.formula)
    goodput = crossover.value * one.cluster.nic.efficiency
    assert value == pytest.approx(goodput, rel=1e-6)


def test_canary_a_wrong_crossover_is_noticed() -> None:
    one = measured("bsp", {"overlap": False}, cluster=ETHERNET)
    (crossover,) = [c for c in explain(one).crossovers if c.variable == "bandwidth_bytes_per_s"]
    assert crossover.formula is not None
    goodput = crossover.value * one.cluster.nic.efficiency
    assert solved(one, crossover.formula.replace("M*N", "2*M*N")) != pytest.approx(goodput, rel=0.1)


def solved(one: Job, text: str) -> float:
    """The right side of an equation, with the job's numbers."""
    q = quantities_of(one)
    names = {str(symbol): symbol for symbol in formulas.symbols().values()}
    values = {symbol: getattr(q, name) for name, symbol in formulas.symbols().items()}
    expression = sympy.sympify(text.partition(" = ")[2], locals=names)
    return float(expression.subs(values))


@pytest.mark.slow
def test_two_jobs_are_equally_fast_at_their_crossover() -> None:
    first = measured("ring", {"overlap": False}, cluster=ETHERNET)
    second = measured("asp", cluster=ETHERNET)
    result = between(first, second, "bandwidth_bytes_per_s", ("ring", "asp"))
    assert result
    for c in result:
        rates = [
            evaluate(one, bandwidth_bytes_per_s=c.value).throughput_samples_per_s
            for one in (first, second)
        ]
        assert float(rates[0]) == pytest.approx(float(rates[1]), rel=1e-6)
        before = [
            float(evaluate(one, bandwidth_bytes_per_s=0.9 * c.value).throughput_samples_per_s)
            for one in (first, second)
        ]
        assert ("ring" if before[0] > before[1] else "asp") == c.below


@pytest.mark.slow
def test_a_server_saturates_at_the_reported_number_of_workers() -> None:
    """N* = (Z + D) / D_max, and more workers do not increase throughput."""
    one = measured("asp", {"overlap": False})
    result = explain(one)
    least = min(s.workers for s in result.saturations)
    rates = evaluate(one, workers=np.array([1, 200, 400])).throughput_samples_per_s
    assert rates[1] / rates[0] == pytest.approx(least, rel=0.02)
    assert rates[2] == pytest.approx(rates[1], rel=0.01)


def test_unequal_workers_are_explained_by_batch_size_alone() -> None:
    from perfmodel import Straggler

    one = make_job(
        model="resnet50", device="v100", arch="bsp", workers=8, stragglers=[Straggler(0, 2.0)]
    )
    assert {c.variable for c in explain(one).crossovers} <= {"batch_size"}


# -- what is printed ---------------------------------------------------------------------------


def run(line: str) -> str:
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_explain_prints_sentences() -> None:
    text = run("explain --model resnet50 --device v100 --arch asp --workers 8 --against ring")
    assert "compute dominates" in text
    assert "saturated from" in text
    assert "ring is faster below" in text


@pytest.mark.slow
def test_explain_as_json_has_the_fields_of_an_explanation() -> None:
    line = "explain --model resnet18 --workers 4 --arch ring --json --against ps"
    values = json.loads(run(line))
    assert set(values) == {*Explanation.__struct_fields__, "against"} - {"job"}
    assert values["schema"] == "perfmodel.explanation/1"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", thinned(["ps", "asp", "ring", "p2p", "fsdp", "easgd", "gosgd", "ad_psgd"])
)
def test_formulas_are_printed_with_all_their_symbols(name: str) -> None:
    text = run(f"show {name} --formula")
    assert "LaTeX" in text
    values = json.loads(run(f"show {name} --formula --json"))
    total = " ".join(term["text"] for term in values["phases"])
    for entry in values["legend"]:
        assert entry["symbol"] in total
        assert entry["meaning"]
    assert values["latex"].count("{") == values["latex"].count("}")


@pytest.mark.slow
def test_options_change_the_formula() -> None:
    overlapping = formula(measured("bsp"))
    apart = formula(measured("bsp", {"overlap": False}))
    assert overlapping.latex != apart.latex
    assert "max" in overlapping.latex
    option = run("show bsp --formula --option overlap=false --json")
    assert json.loads(option)["latex"] == apart.latex
