"""Symbolic formulas: substituting numbers gives the numeric results."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
import sympy

from perfmodel import InputError, Job, Workload, WorkloadLayer
from perfmodel.architectures import ad_psgd, easgd
from perfmodel.architectures.ps import formulas as ps_formulas
from perfmodel.architectures.registry import names
from perfmodel.phases.quantities import quantities_of
from perfmodel.predicting import coarse
from perfmodel.studies import formulas
from tests.jobs import VARIANTS, cluster, job
from tests.oracles import equal
from tests.settings import thinned

replace = msgspec.structs.replace

SLOW = {"ps": (0, 1, 2, 4, 5, 6, 13, 23)}
"""Variants of the parameter server that are tested; SymPy is slow for some others."""

CHOSEN = [
    (arch, index, options)
    for arch in names()
    for index, options in enumerate(VARIANTS[arch])
    if index in SLOW.get(arch, range(99)) and "partition_bytes" not in options
]


def one_in(kept: int) -> Any:
    """Parametrise a test by all variants, of which one in ``kept`` runs every time."""
    cases = thinned(((arch, index) for arch, index, _ in CHOSEN), kept)
    ids = ["-".join([arch, *(f"{k}={v}" for k, v in o.items())]) for arch, _, o in CHOSEN]
    return pytest.mark.parametrize(("arch", "index"), cases, ids=ids)


each = one_in(2)


def a_job(arch: str, options: Mapping[str, Any], *, seed: int = 0, workers: int = 5) -> Job:
    """A random job with nodes of one device; parameters are split evenly over servers."""
    rng = np.random.default_rng(seed)
    layers = [
        WorkloadLayer(f"layer{i}", float(f), float(b), (float(s),))
        for i, (f, b, s) in enumerate(rng.uniform(1.0, 5.0, (3, 3)) * [1.0, 1.0, 10.0])
    ]
    work = Workload.of("chain", layers, optimizer_s=float(rng.uniform(0.1, 1.0)))
    given = dict(options)
    if arch == "ps":
        given["split_above_bytes"] = 0
    several = given.get("servers", 1) > 1  # each server has a part of every tensor
    where = cluster(
        float(rng.uniform(5.0, 50.0)),
        float(rng.uniform(0.0, 0.1)),
        update_per_tensor_s=0.0 if several else float(rng.uniform(0.0, 0.1)),
        update_per_byte_s=float(rng.uniform(0.0, 0.01)),
    )
    return job(work, where, workers, arch, given)


@functools.cache
def read(arch: str, index: int) -> tuple[dict[str, sympy.Expr], formulas.Formula]:
    asked = a_job(arch, VARIANTS[arch][index])
    parts = formulas.expressions(asked)
    return parts, formulas.formula(asked, parts)


def test_known_expressions_give_the_same_formula() -> None:
    one = a_job("ps", {"sync": "bsp", "overlap": False})
    assert formulas.formula(one, formulas.expressions(one)) == formulas.formula(one)


# -- substituting numbers --------------------------------------------------------------------------


class Found:
    """Records queue lengths found by numeric mean-value analysis, by symbol."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.others: dict[str, float] = {}
        for module in (ps_formulas, easgd, ad_psgd):
            monkeypatch.setattr(module, "contended", self._watched(module.contended))

    def _watched(self, contended: Any) -> Any:
        def watched(*args: Any, **how: Any) -> Any:
            answer = contended(*args, **how)
            for name, others in zip(how["stations"], answer[0], strict=True):
                self.others[f"Q_{name}"] = others
            return answer

        return watched


def numbers(asked: Job, others: Mapping[str, float], symbols: set[sympy.Symbol]) -> dict[Any, Any]:
    """Values of symbols for a job without jitter, whose slowest worker equals the others."""
    q = quantities_of(asked)
    values: dict[Any, Any] = {
        symbol: (int if symbol.is_integer else float)(getattr(q, name))
        for name, symbol in formulas.symbols().items()
    }
    for symbol in symbols - set(values):
        values[symbol] = 1 if str(symbol).startswith("S_") else float(others[str(symbol)])
    return values


def value(expression: sympy.Expr, at: Mapping[sympy.Symbol, float]) -> float:
    """Value of an expression; all symbols are substituted at once, which is faster."""
    return float(expression.xreplace({symbol: sympy.sympify(v) for symbol, v in at.items()}))


def symbols_of(parts: Mapping[str, sympy.Expr]) -> set[sympy.Symbol]:
    return set().union(*(part.free_symbols for part in parts.values()))


def bounds(asked: Job) -> bool:
    """Return whether the formula is an upper bound: for double trees, or a ring where *auto*
    chooses."""
    return getattr(asked.options, "algorithm", None) in ("auto", "double_tree")


def agree(asked: Job, parts: Mapping[str, sympy.Expr], found: Found) -> None:
    """Check that every phase equals its numeric value; phases without a formula take no time."""
    right = coarse.phases(asked, sharpness=math.inf)
    at = numbers(asked, found.others, symbols_of(parts))
    assert set(parts) <= set(right.parts)
    for name, phase in right.parts.items():
        seconds = value(parts[name], at) if name in parts else 0.0
        off, rounding = seconds - float(phase.seconds), 1e-9 * float(right.iteration_s)
        assert -rounding <= off, name
        assert off <= rounding or bounds(asked), name


@pytest.mark.sampled(2)
@one_in(6)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_formulas_equal_numeric_phases(
    arch: str, index: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random values; order statistics are 1, and queue lengths are those of mean-value analysis."""
    parts, _ = read(arch, index)
    workers = int(np.random.default_rng(seed).integers(2, 40))
    result = Found(monkeypatch)
    agree(a_job(arch, VARIANTS[arch][index], seed=seed, workers=workers), parts, result)


def test_canary_a_formula_with_an_error_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each symbol in turn is 1 % larger in the formula."""
    result = Found(monkeypatch)
    parts, _ = read("ps", VARIANTS["ps"].index({"sync": "bsp", "overlap": False}))
    asked = a_job("ps", {"sync": "bsp", "overlap": False}, seed=1)
    agree(asked, parts, result)
    for symbol in symbols_of(parts):
        wrong = {name: part.subs(symbol, 1.01 * symbol) for name, part in parts.items()}
        with pytest.raises(AssertionError):
            agree(asked, wrong, result)


LAYERED: list[tuple[str, dict[str, Any]]] = [
    ("ring", {"bucket_cap_bytes": 0, "first_bucket_bytes": 0}),
    ("allreduce", {"algorithm": "tree", "bucketing": "one"}),
    ("fsdp", {"stage": 2, "unit_bytes": 0}),
    ("p2p", {}),
    ("ps", {}),
    ("ps", {"duplex": True}),
    ("local_sgd", {"period": 2, "algorithm": "ring"}),
    ("d_psgd", {}),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("arch", "options"), LAYERED)
def test_numeric_layers_with_symbolic_workers(arch: str, options: dict[str, Any]) -> None:
    """Three layers, of which times and bytes are numbers; workers and bandwidth are symbols."""
    asked = a_job(arch, options, seed=3)
    q = quantities_of(asked)
    symbols = formulas.symbols()
    n, bandwidth = symbols["workers"], symbols["bandwidth_bytes_per_s"]
    mixed = replace(
        q, workers=n, bandwidth_bytes_per_s=bandwidth, server_bandwidth_bytes_per_s=bandwidth
    )
    total = sum(part.seconds for part in coarse.phases(asked, among=mixed).parts.values())
    steady = {s: 1 for s in total.free_symbols if str(s).startswith("S_")}
    for workers, rate in ((2, 3.0), (7, 20.0), (16, 500.0)):
        single = replace(
            asked,
            workers=workers,
            cluster=replace(
                asked.cluster, nic=replace(asked.cluster.nic, bandwidth_bytes_per_s=rate)
            ),
        )
        seconds = value(total, {**steady, n: workers, bandwidth: rate})
        equal(seconds, float(coarse.phases(single).iteration_s))


# -- output ----------------------------------------------------------------------------------------

FUNCTIONS = {"Max", "Min", "floor", "ceiling", "log"}
WORD = re.compile(r"S_\(N-\d+\)\w*|[A-Za-z_]\w*")


def words(text: str) -> set[str]:
    """The names of symbols in a text; an order statistic such as S_(N-1) is one."""
    return set(WORD.findall(text)) - FUNCTIONS


@one_in(6)
def test_text_and_legend_have_the_same_symbols(arch: str, index: int) -> None:
    parts, result = read(arch, index)
    legend = [row.symbol for row in result.legend]
    assert len(set(legend)) == len(legend)
    assert set().union(*(words(term.text) for term in result.phases)) == set(legend)
    assert [term.name for term in result.phases] == list(parts)
    assert all(row.meaning for row in result.legend)
    assert result.text == "T = " + " + ".join(f"({name})" for name in parts)


@one_in(6)
def test_text_can_be_parsed_back(arch: str, index: int) -> None:
    """By SymPy: the same numbers, to the digits shown."""
    parts, result = read(arch, index)
    at = {symbol: 3 if symbol.is_integer else 0.7 for symbol in symbols_of(parts)}
    names_ = {symbol: f"x{k}" for k, symbol in enumerate(sorted(map(str, at), key=len))}
    values = {sympy.Symbol(names_[str(symbol)]): value for symbol, value in at.items()}
    for term in result.phases:
        text = WORD.sub(lambda word: names_.get(word[0], word[0]), term.text)
        again = value(sympy.sympify(text), values)
        assert again == pytest.approx(value(parts[term.name], at), rel=1e-9, abs=1e-9)


def test_canary_a_legend_without_a_symbol_is_noticed() -> None:
    assert words("M*Max(1/B, S_(N-1)*(Q_pull + 1)/(B*P)) - floor(log(N)/log(2))") == {
        *("M", "B", "P", "N", "Q_pull", "S_(N-1)"),
    }


@pytest.mark.sampled(4)
@each
def test_latex_is_balanced(arch: str, index: int) -> None:
    _, result = read(arch, index)
    for latex in (result.latex, *(term.latex for term in result.phases)):
        assert latex
        assert latex.count("{") == latex.count("}")
        assert latex.count(r"\left") == latex.count(r"\right")
    assert result.latex.startswith("T = ")


def test_formulas_survive_json() -> None:
    _, result = read("allreduce", 0)
    again = msgspec.convert(json.loads(json.dumps(result.to_dict())), formulas.Formula)
    assert again == result


def test_an_all_reduce_formula_by_hand() -> None:
    """All-reduce after backward, by hand; and what its symbols mean."""
    result = formulas.of_architecture("ring", {"overlap": False})
    assert result.architecture == "ring"
    names_ = {row.symbol: sympy.Symbol(row.symbol) for row in result.legend}
    message = {term.name: sympy.sympify(term.text, locals=names_) for term in result.phases}
    expected = {
        "compute": "F + G + O",
        "wait for the slowest": "(S_N - 1)*(F + G + O)",
        "all-reduce": "2*(N - 1)*alpha + 2*(N - 1)/N*M/B",
    }
    assert set(message) == set(expected)
    for name, text in expected.items():
        assert sympy.simplify(message[name] - sympy.sympify(text, locals=names_)) == 0
    assert result.text == "T = (compute) + (wait for the slowest) + (all-reduce)"
    assert [row.symbol for row in result.legend] == [*"NB", "alpha", *"FGOM", "S_N"]
    assert result.legend[-1].meaning == (
        "time of the slowest of N workers relative to the mean; 1 without jitter"
    )


def test_numbers_are_shown_without_extra_digits() -> None:
    result = formulas.of_architecture("gosgd", {"probability": 0.5, "merge_per_model_s": 0.1})
    assert {term.name: term.text for term in result.phases}["merge"] == "0.05"


def test_order_statistics_are_explained_in_the_legend() -> None:
    backed = formulas.of_architecture("ps", {"backup_workers": 2})
    (slowest,) = [row for row in backed.legend if row.symbol.startswith("S_")]
    assert slowest.symbol == "S_(N-2)"
    assert slowest.meaning.startswith("time of the worker ranked N-2 of N relative to the mean")
    several = formulas.of_architecture("local_sgd", {"period": 3})
    (slowest,) = [row for row in several.legend if row.symbol.startswith("S_")]
    assert "in sums of 3 iterations" in slowest.meaning


def test_unknown_architectures_and_options_are_refused() -> None:
    with pytest.raises(InputError, match="unknown architecture 'rign'; did you mean 'ring'"):
        formulas.of_architecture("rign")
    with pytest.raises(InputError, match="option 'overlp' does not apply to allreduce"):
        formulas.of_architecture("ring", {"overlp": False})
