"""Which event loop a job is simulated by, and that nobody can tell from the answer."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from perfmodel import InputError, Jitter, build_graph
from perfmodel.engine import compiled
from perfmodel.engine.compiled import PLAIN, choose
from perfmodel.engine.simulation import Simulation, makespan
from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import OpGraph

numba = pytest.importorskip("numba", reason="compiled simulation needs Numba")


@pytest.fixture(autouse=True)
def no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "_spent_s", 0.0)
    # as in a process that has not simulated anything yet
    monkeypatch.setattr(compiled, "_load", functools.cache(compiled._load.__wrapped__))


def chain(ops: int) -> OpGraph:
    b = GraphBuilder()
    device = b.slots("device", (1,))
    ids = b.ops("op", (ops,), seconds=0.5, slot=device[0])
    b.chain(ids)
    return b.build(device=device, mark=ids[-1:])


def test_a_small_job_is_simulated_plainly() -> None:
    assert choose(1000) is PLAIN


def test_a_large_job_is_worth_compiling_even_if_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "_is_ready", lambda loop: False)
    nothing = dict.fromkeys(("order", "begin", "advance"))
    monkeypatch.setattr(compiled, "_functions", lambda: nothing)
    between = (compiled.LOADING_S + compiled.COMPILING_S) / 2 / compiled.PLAIN_OP_S
    assert choose(between) is PLAIN
    assert choose(2 * compiled.COMPILING_S / compiled.PLAIN_OP_S) is not PLAIN


def test_what_is_compiled_already_is_used_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_is_ready", lambda loop: True)
    assert choose(2 * compiled.LOADING_S / compiled.PLAIN_OP_S) is not PLAIN


def test_many_jobs_are_worth_compiling_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_is_ready", lambda loop: False)
    monkeypatch.setattr(
        compiled, "_functions", lambda: dict.fromkeys(("order", "begin", "advance"))
    )
    ops = 0.4 * compiled.COMPILING_S / compiled.PLAIN_OP_S
    chosen = []
    for _ in range(4):
        chosen.append(choose(ops) is PLAIN)
        compiled.spent(ops)
    assert chosen == [True, True, False, False]
    assert choose(100) is PLAIN


def test_a_run_that_takes_longer_than_expected_goes_on_compiled() -> None:
    """In the middle of a random job with gates, transfers and probes; the bits are the same."""
    from tests.jobs import cluster, job, workload

    def ends(rounds: int, switch: bool) -> Any:
        graph = build_graph(
            job(
                workload([1.0, 0.5], [1.0, 0.5], [30.0, 7.0]),
                cluster(20.0, 0.01, update_per_tensor_s=0.1),
                3,
                "ps",
                {"sync": "asp", "softsync": 2, "transmission": "quantum", "quantum_bytes": 4.0},
                jitter=Jitter(0.3),
            )
        )
        with Simulation(graph, 5, 10, None if switch else False, depth=4) as run:
            for done in range(1, rounds + 1):
                run.advance(done)
                if switch and done == rounds // 2:
                    assert isinstance(run.world.ops, list)
                    run._wish = True
                    run._go_on_compiled(rounds)
                    assert not isinstance(run.world.ops, list)
            return run.totals()

    plain, switched = ends(40, switch=False), ends(40, switch=True)
    for name in plain.__struct_fields__:
        assert np.array_equal(getattr(plain, name), getattr(switched, name)), name


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "0")
    assert choose(1e12) is PLAIN
    monkeypatch.setenv(compiled.VARIABLE, "yes")
    with pytest.raises(InputError, match="PERFMODEL_COMPILED must be 0 or 1, got 'yes'"):
        choose(1)


def test_without_numba_everything_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose(1e12) is PLAIN
    with pytest.raises(InputError, match="needs Numba: pip install numba"):
        choose(1, True)


def test_where_nothing_can_be_kept_it_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a read-only installation of a user without a cache directory."""
    from numba.core import caching

    places = getattr(caching, "CacheImpl", None) or caching._CacheImpl  # older versions
    monkeypatch.setattr(places, "_locator_classes", [])
    entry = compiled._entry(lambda x: x + 1)
    assert entry(1) == 2
    assert not compiled._is_kept(entry, (numba.float64,))


def test_another_source_is_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on disk goes by this number."""
    before = compiled._digest()
    assert before == compiled._digest()
    monkeypatch.setattr(compiled.sharing, "ROUNDING", 2.0)
    assert compiled._digest() != before


def test_small_jobs_do_not_import_numba() -> None:
    program = (
        "import sys; from perfmodel import make_job, predict\n"
        "predict(make_job(model='resnet18', workers=4)); print('numba' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_the_answer_depends_neither_on_the_loop_nor_on_the_hash_seed() -> None:
    program = (
        "from perfmodel import Jitter, make_job, predict\n"
        "for arch, options in (('ps', {'sync': 'asp', 'servers': 2}), ('ring', {})):\n"
        "    j = make_job(model='resnet18', workers=3, arch=arch, options=options,\n"
        "                 jitter=Jitter(0.2), seed=5)\n"
        "    print(predict(j, rel_ci=0.5).to_json())"
    )

    def answer(**variables: str) -> str:
        environment = {**os.environ, **variables}
        words: Any = [sys.executable, "-c", program]
        return subprocess.run(
            words, env=environment, capture_output=True, text=True, check=True
        ).stdout

    plain = answer(PERFMODEL_COMPILED="0", PYTHONHASHSEED="0")
    assert '"throughput_samples_per_s"' in plain
    for seed in ("0", "1", "12345"):
        assert answer(PERFMODEL_COMPILED="1", PYTHONHASHSEED=seed) == plain


def test_both_loops_count_a_chain() -> None:
    assert makespan(chain(40), compiled=False) == makespan(chain(40), compiled=True) == 20.0
