"""Four concurrent threads give the same results as one, to the last digit."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from perfmodel import Job, evaluate, make_job, predict
from perfmodel.base import quantities
from tests.jobs import ETHERNET

THREADS, SIZE, MANY = 4, 300, 12

WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bsp", {}),
    ("asp", {"servers": 2}),
    ("ssp", {"staleness_bound": 2}),
    ("ring", {}),
    ("p2p", {}),
    ("zero3", {}),
    ("easgd", {}),
    ("ad_psgd", {}),
    ("gosgd", {"probability": 0.2}),
)


@pytest.fixture(autouse=True)
def switching_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    monkeypatch.setattr(quantities, "MANY", MANY)
    yield
    sys.setswitchinterval(before)


def job(arch: str, options: dict[str, Any], seed: int = 1) -> Job:
    return make_job(
        model="alexnet",
        device="v100",
        cluster=ETHERNET,
        arch=arch,
        workers=3,
        options=options,
        jitter=0.1,
        seed=seed,
    )


def both_routes(way: tuple[str, dict[str, Any]]) -> str:
    one = job(*way)
    draw = np.random.default_rng(0)
    many = evaluate(
        one,
        workers=draw.integers(2, 20, SIZE),
        bandwidth_bytes_per_s=10.0 ** draw.uniform(8.0, 11.0, SIZE),
    )
    answers = [predict(one, rel_ci=0.05), predict(one, fidelity="coarse")]
    found = [answer.to_dict() for answer in answers]
    return json.dumps([found, many.iteration_s.tolist(), many.staleness.tolist()], default=str)


def differ(work: Callable[[Any], Any], given: tuple[Any, ...]) -> int:
    """Number of results of four threads that differ from those of one thread; the threads start
    together, each at another element of ``given``."""
    alone = [work(each) for each in given]
    begin = threading.Barrier(THREADS)

    def all_from(first: int) -> int:
        begin.wait()
        order = [(first + k) % len(given) for k in range(len(given))]
        return sum(work(given[k]) != alone[k] for k in order)

    with ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(all_from, range(THREADS)))


def coarse_route(way: tuple[str, dict[str, Any]]) -> str:
    one = job(*way)
    many = evaluate(one, workers=np.arange(2, 2 + MANY), bandwidth_bytes_per_s=1e9)
    answer = predict(one, fidelity="coarse").to_dict()
    return json.dumps([answer, many.iteration_s.tolist(), many.staleness.tolist()], default=str)


def test_threads_evaluate_as_one_does() -> None:
    assert differ(coarse_route, WAYS[:4]) == 0


def test_threads_simulate_as_one_does() -> None:
    assert differ(lambda way: predict(job(*way), iterations=5).to_json(), WAYS[:4]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 3, 5])
def test_threads_find_intervals_as_one_does(first: int) -> None:
    assert differ(both_routes, WAYS[first : first + THREADS]) == 0


def test_canary_shared_state_is_noticed() -> None:
    shared: dict[str, Any] = {}

    def work(way: tuple[str, dict[str, Any]]) -> float:
        shared["job"] = job(*way)
        time.sleep(0.001)
        return predict(shared["job"], fidelity="coarse").iteration_s

    assert differ(work, WAYS[:4]) > 0
