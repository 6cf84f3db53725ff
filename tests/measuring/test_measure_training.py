"""Real training runs on this machine: servers' answers, measurements, and how runs end."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from perfmodel import InputError, Workload, WorkloadLayer, make_job, predict
from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import slices_of
from perfmodel.base.errors import PerfmodelError
from perfmodel.cli import cli
from perfmodel.inputs.job import Jitter
from perfmodel.measuring.processes.connecting import Listener
from perfmodel.measuring.processes.ranks import Place
from perfmodel.measuring.processes.tokens import Token
from perfmodel.measuring.training import summary
from perfmodel.measuring.training.emulated import EmulatedDevice, EmulatedModel, factors
from perfmodel.measuring.training.measure import Plan, measure, measured_of
from perfmodel.measuring.training.run import MeasuredRun, RunResults, read_run
from perfmodel.measuring.training.server import ParameterServer, Report
from perfmodel.measuring.training.shards import Applied, Shard, ShardPiece, pieces_of, update_cost
from perfmodel.measuring.training.worker import Client, Ran, train
from tests.namespaces import free_port

TIMEOUT_S = 60.0
TOKEN = Token(b"known to these threads", "these tests")
Array = NDArray[np.float32]


def workload(*layers: tuple[float, float, tuple[float, ...]], **more: Any) -> Workload:
    """A workload of layers (forward_s, backward_s, tensor_bytes)."""
    named = [WorkloadLayer(f"layer{i}", *layer) for i, layer in enumerate(layers)]
    return Workload.of("made up", named, **more)


TINY = workload((1e-3, 1e-3, (400.0, 40.0)), (1e-3, 2e-3, (4000.0,)), batch_size=8)


# -- server replies ---------------------------------------------------------------------------


def shard(workers: int, bound: float, sizes: Sequence[int] = (4,)) -> Shard:
    return Shard(sizes, workers=workers, bound=bound, learning_rate=1.0)


def ones(size: int = 4) -> Array:
    return np.ones(size, np.float32)


def pushed(one: Shard, worker: int) -> list[int]:
    """The workers that get an answer when ``worker`` pushes ones."""
    return [reply.worker for reply in one.push(0, worker, ones(), counted=True)]


def waits_for_all(one: Shard) -> bool:
    """Whether no worker gets an answer before all three have pushed, and then all do."""
    return [pushed(one, worker) for worker in (2, 0, 1)] == [[], [], [2, 0, 1]]


def test_bsp_replies_when_all_have_pushed() -> None:
    one = shard(3, 0.0)
    assert waits_for_all(one)
    assert waits_for_all(one)
    assert one.values[0].tolist() == [-6.0] * 4


@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_canary_an_early_reply_is_noticed(bound: float) -> None:
    assert not waits_for_all(shard(3, bound))


def test_asp_replies_immediately() -> None:
    one = shard(3, math.inf)
    assert [pushed(one, worker) for worker in (2, 2, 0)] == [[2], [2], [0]]


def test_a_reply_does_not_change_afterwards() -> None:
    one = shard(2, math.inf)
    (reply,) = one.push(0, 0, ones(), counted=True)
    pushed(one, 1)
    assert reply.values.tolist() == [-1.0] * 4


def test_no_worker_waits_for_one_that_has_left() -> None:
    one = shard(3, 0.0)
    pushed(one, 0)
    assert one.leave(1) == []
    assert [reply.worker for reply in one.leave(2)] == [0]


def random_run(one: Shard, workers: int, pushes: int, seed: int) -> tuple[list[int], list[int]]:
    """Random pushes of workers that are not waiting: the worker, and by how many answered pushes
    a worker was ahead of the slowest at each answer."""
    random = np.random.default_rng(seed)
    free, done = set(range(workers)), [0] * workers
    order, ahead = [], []
    while free and min(done) < pushes:
        worker = int(random.choice(sorted(free)))
        free.discard(worker)
        done[worker] += 1
        order.append(worker)
        for answered in pushed(one, worker):
            free.add(answered)
            ahead.append(done[answered] - min(done))
    return order, ahead


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bound", [0.0, 1.0, 3.0])
def test_the_bound_is_never_exceeded(bound: float, seed: int) -> None:
    order, ahead = random_run(shard(4, bound), 4, 50, seed)
    assert len(order) >= 200
    assert max(ahead) <= bound


def test_canary_an_exceeded_bound_is_noticed() -> None:
    _, ahead = random_run(shard(4, 2.0), 4, 50, seed=0)
    assert max(ahead) > 1.0


def test_staleness_counts_updates_of_others_since_the_last_reply() -> None:
    one = shard(3, math.inf)
    order, _ = random_run(one, 3, 40, seed=1)
    expected: Counter[int] = Counter()
    for i, worker in enumerate(order):
        before = [k for k in range(i) if order[k] == worker]
        expected[i - (before[-1] + 1 if before else 0)] += 1
    assert one.staleness == expected
    assert sum(one.staleness.values()) == len(order) == sum(one.updates)


def test_staleness_in_turn_is_the_number_of_other_workers() -> None:
    one = shard(4, math.inf)
    for i in range(40):
        one.push(0, i % 4, ones(), counted=i >= 4)
    assert one.staleness == {3: 36}


def test_ssp_staleness_counts_from_the_reply() -> None:
    one = shard(2, 0.0)
    pushed(one, 0)
    pushed(one, 1)  # both are answered, after two updates
    pushed(one, 0)
    assert one.staleness == {0: 2, 1: 1}


# -- tensor placement --------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_pieces_agree_with_the_simulated_placement(servers: int) -> None:
    job = workload((0.0, 0.0, (4e6, 400.0)), (0.0, 0.0, (40e6,)), (0.0, 0.0, (8e6, 44.0)))
    pieces, slices = pieces_of(job, servers), slices_of(job, Options(servers=servers))
    assert [piece.layer for piece in pieces] == slices.layer.tolist()
    assert [piece.server for piece in pieces] == slices.server.tolist()
    assert [piece.tensors for piece in pieces] == slices.tensors.tolist()
    np.testing.assert_allclose([4 * p.elements for p in pieces], slices.bytes, rtol=0, atol=4)
    for layer, size in enumerate((4_000_400, 40_000_000, 8_000_044)):
        parts = [piece for piece in pieces if piece.layer == layer]
        ends = [0, *(piece.last for piece in parts)]
        assert [piece.first for piece in parts] == ends[:-1]
        assert 4 * ends[-1] == size


# -- the cost of updates -----------------------------------------------------------------------


def test_update_costs_are_recovered() -> None:
    shapes = [(1.0, 4e2), (1.0, 4e6), (3.0, 2e6), (10.0, 1e4)]
    applied = [Applied(n, size, 2e-5 * n + 3e-10 * size) for n, size in shapes]
    per_tensor_s, per_byte_s = update_cost(applied)
    assert per_tensor_s == pytest.approx(2e-5)
    assert per_byte_s == pytest.approx(3e-10)


def test_costs_are_never_negative() -> None:
    per_tensor_s, per_byte_s = update_cost([Applied(1.0, 1e3, 2e-5), Applied(1.0, 1e6, 1e-5)])
    assert per_tensor_s is not None
    assert per_tensor_s > 0.0
    assert per_byte_s == 0.0


@pytest.mark.parametrize(
    "applied", [[], [Applied(1.0, 4e6, 1e-3)], [Applied(1.0, 4e6, 1e-3), Applied(2.0, 9e6, 2e-3)]]
)
def test_indistinguishable_costs_are_none(applied: list[Applied]) -> None:
    assert update_cost(applied) == (None, None)


# -- the emulated accelerator ------------------------------------------------------------------


class Clock:
    """A clock that only advances by sleeping, and always oversleeps by ``late_s``."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s, self.late_s = 100.0, late_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0.0
        self.now_s += seconds + self.late_s


def device(clock: Clock) -> EmulatedDevice:
    return EmulatedDevice(clock, clock.sleep)


class Adding(EmulatedDevice):
    """Sleeps for each piece of work from its last wake-up."""

    def compute(self, seconds: float, ready_s: float = -math.inf) -> None:
        super().compute(seconds, self.clock())


def late_s(kind: type[EmulatedDevice]) -> float:
    """How late a device is after 100 pieces of work of 1 s if each sleep is 0.125 s too long."""
    clock = Clock(late_s=0.125)
    one = kind(clock, clock.sleep)
    for _ in range(100):
        one.compute(1.0)
        assert clock.now_s >= one.free_s
    return clock.now_s - 200.0


def test_lateness_does_not_accumulate() -> None:
    assert late_s(EmulatedDevice) == 0.125


def test_canary_accumulating_lateness_is_seen() -> None:
    assert late_s(Adding) == 12.5


def test_work_waits_for_its_inputs() -> None:
    clock = Clock()
    one = device(clock)
    one.compute(1.0)
    one.compute(1.0, ready_s=103.0)
    one.compute(1.0, ready_s=101.0)
    assert (clock.now_s, one.busy_s) == (105.0, 3.0)


class Answers:
    """Parameters that arrive ``later_s`` after a push; records the pushes and their times."""

    def __init__(self, clock: Clock, later_s: Sequence[float]) -> None:
        self.clock, self.later_s = clock, later_s
        self.ready_s: dict[int, float] = {}
        self.events: list[tuple[str, int, float]] = []

    def wait(self, layer: int) -> float:
        self.events.append(("wait", layer, self.clock.now_s))
        return self.ready_s.get(layer, -math.inf)

    def push(self, layer: int, gradient: Array) -> None:
        self.events.append(("push", layer, self.clock.now_s))
        self.ready_s[layer] = self.clock.now_s + self.later_s[layer]


def emulated(job: Workload, clock: Clock, jitter: Jitter | None = None) -> EmulatedModel:
    return EmulatedModel(job, jitter or Jitter(), 0, 0, device(clock))


def test_layers_are_pushed_backwards_and_waited_for_forwards() -> None:
    clock = Clock()
    one = emulated(workload((1.0, 2.0, (8.0,)), (3.0, 4.0, (4.0,))), clock)
    answers = Answers(clock, [10.0, 30.0])
    assert one.iteration(answers) == 10.0
    assert answers.events == [
        ("wait", 0, 100.0),
        ("wait", 1, 101.0),
        ("push", 1, 108.0),
        ("push", 0, 110.0),
    ]
    answers.events.clear()
    one.iteration(answers)
    # layer 0 arrives at 120 and starts; layer 1 arrives at 138 and starts only then
    assert answers.events[2:] == [("push", 1, 138.0 + 3.0 + 4.0), ("push", 0, 147.0)]


def test_a_layer_without_tensors_is_not_pushed() -> None:
    clock = Clock()
    one = emulated(workload((1.0, 1.0, ()), (1.0, 1.0, (4.0,))), clock)
    answers = Answers(clock, [0.0, 0.0])
    one.iteration(answers)
    assert [event[:2] for event in answers.events if event[0] == "push"] == [("push", 1)]


def test_a_worker_waits_for_its_data() -> None:
    clock = Clock()
    one = emulated(workload((1.0, 1.0, (4.0,)), data_loading_s=5.0), clock)
    answers = Answers(clock, [0.0])
    for _ in range(10):
        one.iteration(answers)
    ends = [when for kind, _, when in answers.events if kind == "push"]
    assert np.diff(ends).tolist() == [5.0] * 9


def test_jitter_has_mean_one_and_the_requested_spread() -> None:
    for text in ("lognormal:0.3", "gamma:0.3"):
        source = factors(Jitter.parse(text), seed=7, worker=1)
        drawn = np.array([next(source) for _ in range(20_000)])
        assert drawn.mean() == pytest.approx(1.0, abs=0.01)
        assert drawn.std() == pytest.approx(0.3, abs=0.01)


def test_jitter_depends_on_seed_and_worker() -> None:
    def first(seed: int, worker: int) -> float:
        return next(factors(Jitter(0.3), seed, worker))

    assert first(1, 2) == first(1, 2)
    assert len({first(1, 2), first(2, 2), first(1, 1)}) == 3
    assert next(factors(Jitter(), 0, 0)) == 1.0


@pytest.mark.parametrize("text", ["measured", "0.1:op"])
def test_other_jitter_cannot_be_emulated(text: str) -> None:
    with pytest.raises(InputError, match="cannot emulate"):
        next(factors(Jitter.parse(text), 0, 0))


# -- over sockets ------------------------------------------------------------------------------


class Computed:
    """Trains integers: a gradient depends on the parameters, the worker and the iteration."""

    def __init__(self, worker: int, client: Client, before: Callable[[int], None]) -> None:
        self.worker, self.client, self.before = worker, client, before
        self.done = 0

    def iteration(self, exchange: Any) -> float:
        layers = sorted(self.client.parameters)
        for layer in layers:
            self.client.wait(layer)
        self.before(self.done)
        made = [gradient(self.client.parameters[la], self.worker, self.done) for la in layers]
        for layer in reversed(layers):
            self.client.push(layer, made[layer])
        self.done += 1
        return 0.0


def gradient(parameters: Array, worker: int, iteration: int) -> Array:
    made: Array = (parameters % 5 + worker + 2 * iteration).astype(np.float32)
    return made


def sequential(sizes: Sequence[int], workers: int, iterations: int) -> list[Array]:
    """Parameters after plain SGD with the sum of all workers' gradients."""
    values = [np.zeros(size, np.float32) for size in sizes]
    for i in range(iterations):
        values = [v - sum(gradient(v, w, i) for w in range(workers)) for v in values]
    return values


LAYERS = workload((0.0, 0.0, (40.0, 8.0)), (0.0, 0.0, (6e6,)))
SIZES = (12, 1_500_000)


def served(server: ParameterServer) -> Report:
    server.accept()
    return server.serve()


@contextmanager
def serving(
    pieces: Sequence[ShardPiece], workers: int, servers: int, bound: float, warmup: int = 0
) -> Iterator[tuple[list[tuple[str, int]], Callable[[], list[tuple[Shard, Report]]]]]:
    """Servers in threads: their addresses, and a function that waits for their reports."""
    with ThreadPoolExecutor(servers) as pool:
        listeners = [Listener("127.0.0.1", 0, TIMEOUT_S, TOKEN) for _ in range(servers)]
        started, shards = [], []
        try:
            for index, listener in enumerate(listeners):
                own = [piece for piece in pieces if piece.server == index]
                made = shard(workers, bound, [piece.elements for piece in own])
                server = ParameterServer(
                    listener, own, made, workers=workers, warmup=warmup, timeout_s=TIMEOUT_S
                )
                shards.append(made)
                started.append((server, pool.submit(served, server)))
            addresses = [("127.0.0.1", listener.port) for listener in listeners]
            yield (
                addresses,
                lambda: [
                    (made, future.result(TIMEOUT_S))
                    for made, (_, future) in zip(shards, started, strict=True)
                ],
            )
        finally:
            for server, _ in started:
                server.fail()
                server.close()
            for listener in listeners:
                listener.close()


def trained(
    bound: float,
    *,
    workers: int = 3,
    servers: int = 1,
    iterations: int = 6,
    warmup: int = 0,
    before: Callable[[int, int], None] = lambda worker, iteration: None,
    ended: Callable[[int], None] = lambda worker: None,
) -> tuple[list[list[Array]], list[tuple[Shard, Report]], list[Ran]]:
    """Final parameters of each worker, and the records of servers and workers."""
    pieces = pieces_of(LAYERS, servers)

    def work(worker: int, addresses: list[tuple[str, int]]) -> tuple[list[Array], Ran]:
        client = Client(worker, addresses, pieces, timeout_s=TIMEOUT_S, token=TOKEN)
        try:
            one = Computed(worker, client, lambda iteration: before(worker, iteration))
            ran = train(client, one, iterations=iterations)
            ended(worker)
            return [client.parameters[layer] for layer in sorted(client.parameters)], ran
        finally:
            client.close()

    with (
        serving(pieces, workers, servers, bound, warmup) as (addresses, seen),
        ThreadPoolExecutor(workers) as pool,
    ):
        futures = [pool.submit(work, worker, addresses) for worker in range(workers)]
        found = [future.result(TIMEOUT_S) for future in futures]
        return [values for values, _ in found], seen(), [ran for _, ran in found]


def equal(found: Sequence[Array], expected: Sequence[Array]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("servers", [1, 2])
def test_bsp_is_sequential_sgd(servers: int) -> None:
    found, seen, ran = trained(0.0, servers=servers)
    expected = sequential(SIZES, workers=3, iterations=6)
    assert all(equal(values, expected) for values in found)
    assert sum(sum(made.updates) for made, _ in seen) == 3 * 6 * len(pieces_of(LAYERS, servers))
    assert [one.sent_bytes for one in ran] == [6 * 4 * sum(SIZES)] * 3


def test_canary_a_server_that_replies_early_is_noticed() -> None:
    through = threading.Event()

    def before(worker: int, iteration: int) -> None:
        if worker == 1:  # pushes nothing until worker 0 has had its last answer
            assert through.wait(TIMEOUT_S)

    def ended(worker: int) -> None:
        if worker == 0:
            through.set()

    found, _, _ = trained(math.inf, workers=2, before=before, ended=ended)
    assert not equal(found[0], sequential(SIZES, workers=2, iterations=6))


@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_every_update_is_counted_after_the_warmup(bound: float) -> None:
    _, seen, _ = trained(bound, workers=2, iterations=8, warmup=3, servers=2)
    for made, report in seen:
        assert sum(made.updates) == 2 * 8 * len(made.values)
        # updates after a worker has left belong to a smaller job
        assert sum(report.staleness.values()) <= 2 * 5 * len(made.values)
        assert set(report.staleness) <= set(range(2 * 8))
        assert {one.bytes for one in report.applied} == {4.0 * len(v) for v in made.values}
        assert all(one.seconds > 0.0 for one in report.applied)


def test_a_worker_alone_is_never_stale() -> None:
    _, seen, _ = trained(math.inf, workers=1, iterations=4)
    assert [report.staleness for _, report in seen] == [{0: 4 * 2}]


# -- whole runs --------------------------------------------------------------------------------


def runs(
    plans: Sequence[Plan], *, told: Sequence[Any] = ()
) -> list[MeasuredRun | PerfmodelError | None]:
    """Result or error of :func:`measure` on each rank, in threads."""
    with free_port() as port, ThreadPoolExecutor(len(plans)) as pool:

        def one(rank: int) -> MeasuredRun | PerfmodelError | None:
            progress = told[rank] if told else None
            try:
                return measure(plans[rank], Place(rank, len(plans), "127.0.0.1", port), progress)
            except PerfmodelError as error:
                return error

        futures = [pool.submit(one, rank) for rank in range(len(plans))]
        return [future.result(2 * TIMEOUT_S) for future in futures]


def plan(**changed: Any) -> Plan:
    values: dict[str, Any] = {"workload": TINY, "steps": 6, "warmup": 2, "timeout_s": TIMEOUT_S}
    return Plan(**values | changed)


def predicted(run: MeasuredRun, job: Workload = TINY) -> Any:
    return predict(make_job(workload=job, cluster="ethernet-10g", **run.arguments()))


@pytest.mark.parametrize(("sync", "servers"), [("bsp", 1), ("bsp", 2), ("asp", 1), ("ssp", 1)])
def test_a_run_is_measured_and_can_be_predicted(sync: str, servers: int, tmp_path: Path) -> None:
    run, *others = runs([plan(sync=sync, servers=servers, jitter=Jitter(0.1))] * (2 + servers))
    assert isinstance(run, MeasuredRun)
    assert others == [None] * (1 + servers)
    measured = run.measured
    assert (run.workers, run.batch_size, run.emulated, run.jitter) == (2, 8, True, "lognormal:0.1")
    assert measured.warmup == 2
    assert measured.sent_bytes == TINY.gradient_bytes
    if sync == "bsp":
        assert measured.iterations == 6
        assert measured.staleness is None
    else:
        assert measured.iterations >= 2
        assert measured.staleness is not None
    assert measured.samples_per_s == pytest.approx(8 * 2 / measured.iteration_s)
    path = tmp_path / "run.json"
    path.write_bytes(msgspec.json.encode(run))
    again = read_run(path)
    assert again == run
    prediction = predicted(again)
    assert prediction.iteration_s >= 4e-3
    options = make_job(workload=TINY, **run.arguments()).options
    assert (options.sync, options.servers, options.duplex, options.overlap) == (
        sync,
        servers,
        True,
        True,
    )


class Instant:
    """Servers that answer too early."""

    sent_bytes = 0

    def wait(self, layer: int) -> float:
        return -math.inf

    def push(self, layer: int, gradient: Array) -> None:
        pass

    def leave(self) -> None:
        pass


def took_s(sleep: Callable[[float], None]) -> tuple[float, float]:
    """Measured seconds of ten real iterations, and their requested computing time."""
    one = EmulatedModel(TINY, Jitter(0.2), 0, 0, EmulatedDevice(sleep=sleep))
    client: Any = Instant()
    found = train(client, one, iterations=10)
    return found.ends_s[-1] - found.ends_s[0], sum(found.computed_s)


def test_emulated_computation_takes_at_least_the_requested_time() -> None:
    took, asked = took_s(time.sleep)
    assert took >= asked > 0.0


def test_the_bound_can_be_infinite(tmp_path: Path) -> None:
    run, *_ = runs([plan(sync="ssp", staleness_bound=math.inf)] * 3)
    assert isinstance(run, MeasuredRun)
    path = tmp_path / "run.json"
    path.write_bytes(msgspec.json.encode(run))
    job = make_job(workload=TINY, **read_run(path).arguments())
    assert job.options.staleness_bound == math.inf


def test_the_time_limit_ends_a_run() -> None:
    (run, *_) = runs([plan(steps=1_000_000, time_limit_s=1.0)] * 3)
    if isinstance(run, InputError):  # the machine may be too busy for two iterations
        assert "--time-limit" in str(run)
    else:
        assert isinstance(run, MeasuredRun)
        assert run.measured.iterations < 1_000_000


def test_a_missing_rank_is_named() -> None:
    (found,) = runs_alone(plan(timeout_s=0.5), ranks=3)
    assert "1, 2 did not connect within 0.5 s" in str(found)


def runs_alone(alone: Plan, ranks: int) -> list[PerfmodelError]:
    with free_port() as port, pytest.raises(PerfmodelError) as caught:
        measure(alone, Place(0, ranks, "127.0.0.1", port))
    return [caught.value]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"steps": 7}, "--steps"),
        ({"sync": "asp"}, "--sync"),
        ({"servers": 2}, "--servers"),
        ({"jitter": Jitter(0.5)}, "--jitter"),
        ({"workload": workload((1e-3, 1e-3, (44.0,)))}, "--workload"),
    ],
)
def test_a_rank_with_different_arguments_is_named(other: dict[str, Any], named: str) -> None:
    for found in runs([plan(), plan(), plan(**other)]):
        assert isinstance(found, InputError)
        assert "rank 2" in str(found)
        assert named in str(found)
        assert "\n" not in str(found)


DYING = """
import os, sys
import msgspec
from perfmodel import Workload
from perfmodel.measuring.processes.connecting import Listener
from perfmodel.measuring.processes.ranks import Place
from perfmodel.measuring.training.measure import Plan, measure

plan = Plan(workload=msgspec.json.decode(sys.argv[1], type=Workload), steps=100000, warmup=2)
measure(plan, Place(1, 3, "127.0.0.1", int(sys.argv[2])), lambda *_: os._exit(3))
"""


def test_a_worker_that_dies_ends_all_others() -> None:
    dying = plan(steps=100_000)
    with free_port() as port, ThreadPoolExecutor(2) as pool:
        program = [sys.executable, "-c", DYING, msgspec.json.encode(TINY).decode(), str(port)]
        process = subprocess.Popen(program, stdin=subprocess.DEVNULL)
        try:
            futures = [
                pool.submit(measure, dying, Place(rank, 3, "127.0.0.1", port)) for rank in (0, 2)
            ]
            errors = [future.exception(2 * TIMEOUT_S) for future in futures]
            assert process.wait(TIMEOUT_S) == 3
        finally:
            process.kill()
            process.wait()
    for error in errors:
        assert isinstance(error, PerfmodelError)
        assert "rank 1" in str(error)
        assert "disconnected" in str(error)
        assert "\n" not in str(error)


def test_a_mistake_in_one_process_ends_all_others() -> None:
    def fail(done: int, total: int) -> None:
        raise InputError("out of paper")

    found = runs([plan(steps=100_000)] * 3, told=[None, fail, None])
    assert all("out of paper" in str(error) for error in found)
    assert all(isinstance(error, InputError) for error in found)


# -- results from the times --------------------------------------------------------------------


def ran(*ends_s: float, computed_s: float = 0.5) -> Ran:
    return Ran(list(ends_s), [computed_s] * (len(ends_s) - 1), 0)


def test_rates_cover_the_time_in_which_all_ran() -> None:
    # worker 0 takes 1 s from 0 to 20; worker 1 takes 2 s, from 4 to 24, and 10 s at its start
    fast = ran(*range(21))
    slow = ran(-6.0, *range(4, 26, 2))
    found = measured_of([fast, slow], warmup=1, batch_size=10)
    assert found.worker_iteration_s == (1.0, 2.0)
    assert found.iteration_s == pytest.approx(2 / (1 / 1 + 1 / 2))
    assert found.samples_per_s == pytest.approx(10 * 1.5)
    assert found.idle_fraction == pytest.approx((0.5 + 0.75) / 2)
    assert found.compute_s == 0.5
    assert found.iteration_std_s == 0.0


def test_synchronous_workers_are_measured_in_the_same_iterations() -> None:
    found = measured_of(
        [ran(0.0, 5.0, 6.0, 7.0, 8.0), ran(0.1, 5.1, 6.1, 7.1, 8.1)],
        warmup=1,
        batch_size=1,
        synchronous=True,
    )
    assert found.iterations == 3
    assert found.iteration_s == pytest.approx(1.0)


def test_the_spread_is_between_iterations() -> None:
    found = measured_of([ran(0.0, 1.0, 2.0, 5.0, 6.0, 9.0)], warmup=1, batch_size=1)
    assert found.iteration_s == pytest.approx(2.0)
    assert found.iteration_std_s == pytest.approx(1.0)


def test_too_few_iterations_are_an_error() -> None:
    with pytest.raises(InputError, match="worker 1 completed fewer than 2 iterations"):
        measured_of([ran(*range(20)), ran(0, 3, 8)], warmup=1, batch_size=1)


def a_run(**changed: Any) -> MeasuredRun:
    values: dict[str, Any] = {
        "iterations": 10,
        "warmup": 1,
        "iteration_s": 2.0,
        "iteration_std_s": 0.1,
        "worker_iteration_s": (2.0, 2.0),
        "samples_per_s": 16.0,
        "compute_s": 1.0,
        "idle_fraction": 0.5,
        "staleness": {"0": 1, "2": 1},
    }
    from perfmodel import Source

    return MeasuredRun(
        name="made up",
        workload="made up",
        batch_size=16,
        workers=2,
        arch="ps",
        options={"sync": "asp"},
        measured=RunResults(**values | changed),
        source=Source("measured", "made up"),
    )


def test_predictions_are_shown_beside_measurements() -> None:
    said = {
        "iteration_s": 2.2,
        "throughput_samples_per_s": 14.4,
        "idle_fraction": 0.53,
        "staleness_mean": 0.9,
    }
    found = summary.quantities(a_run(), said)
    errors = {one.name: one.error for one in found}
    assert errors == pytest.approx(
        {
            "iteration_s": 0.1,
            "throughput_samples_per_s": -0.1,
            "idle_fraction": 0.03,
            "staleness_mean": -0.1,
        }
    )
    text = "\n".join(summary.lines(a_run(), found))
    for part in ("+10.0%", "-10.0%", "+3.0 points", "-0.1 updates", "predicted 2.2 s"):
        assert part in text
    assert summary.to_dict(a_run(), found)["measured"]["staleness"] == {"0": 1, "2": 1}


def test_nothing_is_predicted_without_a_cluster() -> None:
    found = summary.quantities(a_run(staleness=None))
    assert [one.name for one in found] == [
        "iteration_s",
        "throughput_samples_per_s",
        "idle_fraction",
    ]
    assert "predicted" not in "\n".join(summary.lines(a_run(), found))


# -- the command -------------------------------------------------------------------------------

FILE = """
{"schema": "perfmodel.workload/1", "name": "tagger",
 "source": {"kind": "exact", "text": "made up"},
 "layers": [{"name": "a", "tensors": [{"name": "a.w", "bytes": 4000}]},
            {"name": "b", "tensors": [{"name": "b.w", "bytes": 40000}]}],
 "timings": [{"device": "lab", "batch_size": 16, "forward_s": [0.001, 0.001],
              "backward_s": [0.002, 0.002], "source": {"kind": "exact", "text": "made up"}}]}
"""


def test_the_command_measures_writes_and_compares(tmp_path: Path) -> None:
    (tmp_path / "tagger.json").write_text(FILE)
    common = ["--workload", "tagger.json", "--emulate", "--sync", "asp", "--ranks", "3"]
    common += ["--steps", "5", "--warmup", "1"]
    more = ["--output", "run.json", "--cluster", "ethernet-10g"]
    plot = ["--plot", "run.png"] if importlib.util.find_spec("matplotlib") else []
    more += plot
    with free_port() as port:
        address = ["--address", f"127.0.0.1:{port}"]
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "perfmodel", "measure", "training"),
                    *(*common, *address, "--rank", str(rank), *(more if rank == 0 else [])),
                ],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                encoding="utf-8",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for rank in range(3)
        ]
        try:
            said = [process.communicate(timeout=2 * TIMEOUT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert said[1:] == ["", ""]
    for word in ("iteration", "throughput", "idle", "staleness", "predicted", "wrote run.json"):
        assert word in said[0]
    assert not plot or (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    run = read_run(tmp_path / "run.json")
    assert (run.workload, run.workers, run.arch) == ("tagger", 2, "ps")
    make_job(workload=tmp_path / "tagger.json", cluster="ethernet-10g", **run.arguments())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "--rank: needed"),
        ("--rank 0 --ranks 1", "--ranks: must be at least 2"),
        ("--rank 0 --ranks 2", "one of them is needed"),
        ("--rank 0 --ranks 2 --emulate", "--emulate: needs --workload"),
        ("--rank 0 --ranks 2 --model x:y", "--batch-size: a real model needs it"),
        ("--rank 0 --ranks 2 --workload no.json --emulate", "no.json: cannot read"),
        ("@ --arch rings", "did you mean 'ring'"),
        ("@ --sync bps", "unknown --sync 'bps'; did you mean 'bsp'"),
        ("@ --servers 2", "--servers: 2 of 2 ranks leave no worker"),
        ("@ --servers 0", "--servers: must be at least 1"),
        ("@ --staleness-bound 2", "--staleness-bound: needs --sync ssp"),
        ("@ --sync ssp --staleness-bound 1.5", "expected a whole number or inf"),
        ("@ --arch ring --sync asp", "--sync: has no meaning with --arch ring"),
        ("@ --bucket-cap 5", "--bucket-cap: has no meaning with --arch ps"),
        ("@ --arch ring --bucket-cap 0", "--bucket-cap: must be more than 0"),
        ("@ --arch ring --backend mpi", "unknown --backend 'mpi'"),
        ("@ --optimizer sgd", "--optimizer: applies to a real model"),
        ("@ --jitter 0.1:op", "cannot emulate"),
        ("@ --steps 1", "--steps: must be at least 2"),
        ("@ --warmup 0", "--warmup: must be at least 1"),
        ("@ --time-limit 0s", "--time-limit: must be more than 0"),
        ("@ --timeout 0s", "--timeout: must be more than 0"),
        ("@ --threads 0", "--threads: must be at least 1"),
        ("@ --device h2000", "unknown device"),
        ("@ --cluster no-such", "unknown cluster 'no-such'"),
        ("@ --output no/such/place.json", "no/such/place.json: cannot write"),
        ("@ --congestion warp", "'warp'"),
        ("@ --plot no/such/place.png", "no/such/place.png: cannot write"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("tagger.json").write_text(FILE)
    with free_port() as port:
        given = f"--rank 0 --ranks 2 --workload tagger.json --emulate --address 127.0.0.1:{port}"
        words = arguments.replace("@", given).split()
        found = CliRunner().invoke(cli, ["measure", "training", *words])
    assert isinstance(found.exception, PerfmodelError), found.output
    assert said in str(found.exception)
    assert "\n" not in str(found.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["tagger.json"]
