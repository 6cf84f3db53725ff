"""A parameter server's answers, measurements from times, and the command's arguments."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from perfmodel import InputError, Workload, WorkloadLayer
from perfmodel.architectures.ps.options import Options
from perfmodel.architectures.ps.placement import slices_of
from perfmodel.base.errors import PerfmodelError
from perfmodel.cli import cli
from perfmodel.measuring import torchrun
from perfmodel.measuring.torchrun import ProcessPlace
from perfmodel.measuring.training import summary
from perfmodel.measuring.training.measure import clock_offset_s, measured_of
from perfmodel.measuring.training.run import MeasuredRun, RunResults
from perfmodel.measuring.training.server import ParameterServer, ServerReport
from perfmodel.measuring.training.shards import Applied, Shard, pieces_of, update_cost
from perfmodel.measuring.training.worker import Client, Ran, train

TIMEOUT_S = 60.0
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


# -- servers and workers in threads --------------------------------------------------------------


class Messages:
    """Messages between ranks in memory, as torch.distributed sends them between processes."""

    def __init__(self) -> None:
        self.queues: defaultdict[tuple[int, int, int], queue.SimpleQueue[Any]] = defaultdict(
            queue.SimpleQueue
        )
        self.lock = threading.Lock()

    def of(self, rank: int, ranks: int = 0) -> Any:
        """The group as a rank sees it."""
        return Member(rank, ranks, self)


class Done:
    """A transfer that has ended."""

    def wait(self) -> None:
        """Return at once."""


class Member:
    """A rank of a group in memory."""

    def __init__(self, rank: int, ranks: int, messages: Messages) -> None:
        self.place, self._messages = ProcessPlace(rank, ranks), messages

    def isend(self, rank: int, values: Any, tag: int) -> Done:
        self._queue(self.place.rank, rank, tag).put(values.copy())
        return Done()

    def irecv(self, rank: int, into: Any, tag: int) -> Any:
        member = self

        class Receiving:
            def wait(self) -> None:
                source = member._queue(rank, member.place.rank, tag)
                into[:] = source.get(timeout=TIMEOUT_S)

        return Receiving()

    def send(self, rank: int, *numbers: int) -> None:
        self._queue(self.place.rank, rank, -1).put(list(numbers))

    def receive(self, rank: int) -> list[int]:
        numbers: list[int] = self._queue(rank, self.place.rank, -1).get(timeout=TIMEOUT_S)
        return numbers

    def _queue(self, *key: int) -> queue.SimpleQueue[Any]:
        with self._messages.lock:
            return self._messages.queues[key]  # type: ignore[index]


class Computed:
    """Trains integers: a gradient depends on the parameters, the worker and the iteration."""

    def __init__(self, worker: int, client: Client, before: Callable[[int], None]) -> None:
        self.worker, self.client, self.before = worker, client, before
        self.done = 0

    def iteration(self, client: Any) -> float:
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


def trained(
    bound: float,
    *,
    workers: int = 3,
    servers: int = 1,
    iterations: int = 6,
    warmup: int = 0,
    together: bool = True,
    before: Callable[[int, int], None] = lambda worker, iteration: None,
    ended: Callable[[int], None] = lambda worker: None,
) -> tuple[list[list[Array]], list[tuple[Shard, ServerReport]], list[Ran]]:
    """Final parameters of each worker, and the records of servers and workers."""
    pieces, messages = pieces_of(LAYERS, servers), Messages()
    ranks = range(workers, workers + servers)

    def work(worker: int) -> tuple[list[Array], Ran]:
        client = Client(messages.of(worker), ranks, pieces)
        one = Computed(worker, client, lambda iteration: before(worker, iteration))
        ran = train(client, one.iteration, iterations=iterations, together=together)
        ended(worker)
        return [client.parameters[layer] for layer in sorted(client.parameters)], ran

    def serve(server: int) -> tuple[Shard, ServerReport]:
        held = [piece for piece in pieces if piece.server == server]
        made = shard(workers, bound, [piece.elements for piece in held])
        group = messages.of(workers + server)
        return made, ParameterServer(group, held, made, workers, warmup).serve()

    with ThreadPoolExecutor(workers + servers) as pool:
        served = [pool.submit(serve, server) for server in range(servers)]
        worked = [pool.submit(work, worker) for worker in range(workers)]
        results = [future.result(TIMEOUT_S) for future in worked]
        reports = [future.result(TIMEOUT_S) for future in served]
    return [values for values, _ in results], reports, [ran for _, ran in results]


def equal(found: Sequence[Array], expected: Sequence[Array]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("servers", [1, 2])
def test_bsp_is_sequential_sgd(servers: int) -> None:
    found, seen, ran = trained(0.0, servers=servers)
    expected = sequential(SIZES, workers=3, iterations=6)
    assert all(equal(values, expected) for values in found)
    assert sum(sum(made.updates) for made, _ in seen) == 3 * 6 * len(pieces_of(LAYERS, servers))
    assert [one.sent_bytes for one in ran] == [6 * 4 * sum(SIZES)] * 3


@pytest.mark.slow
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


@pytest.mark.sampled(2)
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


@pytest.mark.slow
def test_asynchronous_workers_go_on_until_all_are_done() -> None:
    through = threading.Event()

    def before(worker: int, iteration: int) -> None:
        if worker == 0 and iteration == 20:  # long after its own 6 iterations
            through.set()
        if worker == 1 and iteration == 1:
            assert through.wait(TIMEOUT_S)

    _, _, (fast, slow) = trained(math.inf, workers=2, together=False, before=before)
    assert len(fast.computed_s) >= 20
    assert len(slow.computed_s) >= 6


@pytest.mark.slow
def test_canary_workers_that_stop_alone_are_noticed() -> None:
    _, _, (fast, _) = trained(math.inf, workers=2, together=True)
    assert len(fast.computed_s) == 6


def test_a_worker_that_is_lost_ends_its_server() -> None:
    class Lost(Member):
        def irecv(self, rank: int, into: Any, tag: int) -> Any:
            raise RuntimeError("Connection closed by peer\nand more")

    group: Any = Lost(1, 2, Messages())
    server = ParameterServer(group, pieces_of(LAYERS, 1), shard(1, 0.0, SIZES), 1, 0)
    with pytest.raises(torchrun.LostError, match=r"^rank 0: Connection closed by peer$"):
        server.serve()


def test_clocks_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = Messages()
    ahead_s = [0.0, 5.0, -3.0]

    def offset_s(rank: int) -> float:
        local.rank = rank
        return clock_offset_s(messages.of(rank, 3))

    local = threading.local()
    monotonic_ns = time.monotonic_ns
    monkeypatch.setattr(
        time, "monotonic_ns", lambda: monotonic_ns() + int(ahead_s[local.rank] * 1e9)
    )
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(offset_s, range(3))) == pytest.approx([0.0, -5.0, 3.0], abs=0.5)


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

MODEL = "--model x:y --batch-size 8"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--processes 2 --batch-size 8", "Missing option '--model'"),
        ("--processes 2 --model x:y", "Missing option '--batch-size'"),
        (MODEL, "--processes: needed"),
        (f"{MODEL} --processes 1 --arch ring", "--processes: must be at least 2"),
        ("@ --arch rings", "did you mean 'ring'"),
        ("@ --sync bps", "unknown --sync 'bps'; did you mean 'bsp'"),
        ("@ --servers 2", "--servers: 2 of 2 processes leave no worker"),
        ("@ --servers 0", "--servers: must be at least 1"),
        ("@ --staleness-bound 2", "--staleness-bound: needs --sync ssp"),
        ("@ --sync ssp --staleness-bound 1.5", "expected a whole number or inf"),
        ("@ --arch ring --sync asp", "--sync: has no meaning with --arch ring"),
        ("@ --bucket-cap 5", "--bucket-cap: has no meaning with --arch ps"),
        ("@ --arch ring --bucket-cap 0", "--bucket-cap: must be more than 0"),
        ("@ --arch ring --backend mpi", "unknown --backend 'mpi'"),
        ("@ --steps 1", "--steps: must be at least 2"),
        ("@ --warmup 0", "--warmup: must be at least 1"),
        ("@ --time-limit 0s", "--time-limit: must be more than 0"),
        ("@ --timeout 0s", "--timeout: must be more than 0"),
        ("@ --threads 0", "--threads: must be at least 1"),
        ("@ --cluster no-such", "unknown cluster 'no-such'"),
        ("@ --cluster ethernet-10g", "--cluster: a prediction needs --workload"),
        ("@ --cluster ethernet-10g --workload no.json", "no.json: cannot read"),
        ("@ --output no/such/place.json", "no/such/place.json: cannot write"),
        ("@ --plot no/such/place.png", "no/such/place.png: cannot write"),
    ],
)
def test_a_mistake_is_one_line_before_processes_start(
    arguments: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in torchrun.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torchrun, "import_distributed", lambda: None)
    monkeypatch.chdir(tmp_path)
    words = arguments.replace("@", f"--processes 2 {MODEL}").split()
    result = CliRunner().invoke(cli, ["measure", "training", *words], standalone_mode=False)
    assert isinstance(result.exception, PerfmodelError | click.UsageError), result.output
    text = getattr(result.exception, "message", str(result.exception))
    assert named in getattr(result.exception, "format_message", lambda: text)()
    assert "\n" not in str(result.exception)
    assert list(tmp_path.iterdir()) == []
