"""Measuring a network: what is computed from times, the ranks, and how a measurement ends."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from perfmodel import InputError, PerfmodelError, __version__
from perfmodel.measuring.measurements import Measurements, read_measurements
from perfmodel.measuring.network import measure as network
from perfmodel.measuring.network import plan, tcp
from perfmodel.measuring.network.measure import Leader, follow, measure, net
from perfmodel.measuring.network.plan import NetworkCase, cases, chosen_operations, within
from perfmodel.measuring.processes.connecting import Listener, connect
from perfmodel.measuring.processes.group import Hello, Welcome, meet
from perfmodel.measuring.processes.ranks import Place
from perfmodel.measuring.processes.sockets import Connection, LostError, transfer
from perfmodel.measuring.processes.tokens import Token
from tests.namespaces import free_port

PATIENCE_S = 60.0
IMPATIENCE_S = 0.3
HOST = "127.0.0.1"
TOKEN = Token(os.environ["PERFMODEL_TOKEN"].encode(), "these tests")


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Results or errors of ``act`` for 0 to ``count`` - 1, run concurrently in threads."""
    found: list[Any] = [None] * count

    def run(i: int) -> None:
        try:
            found[i] = act(i)
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    try:
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            thread.join(2 * PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    return found


def all_ranks(ranks: int, act: Callable[[Place], Any]) -> list[Any]:
    """Result or error of ``act`` on each rank."""
    with free_port() as port:
        return at_once(ranks, lambda rank: act(Place(rank, ranks, HOST, port)))


@contextmanager
def connected(timeout_s: float = PATIENCE_S) -> Iterator[tuple[Connection, Connection]]:
    """Both ends of a connection."""
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(HOST, 0, PATIENCE_S, TOKEN))
        acts: Any = (
            lambda: connect(HOST, listener.port, PATIENCE_S, TOKEN, peer="there"),
            lambda: listener.accept(PATIENCE_S, "here"),
        )
        here, there = [stack.enter_context(one) for one in at_once(2, lambda i: acts[i]())]
        here.timeout_s = timeout_s
        yield here, there


# connections


def test_sent_messages_arrive() -> None:
    with connected() as (here, there):
        for data in (b"", b"x", bytes(range(256)) * 1000):
            here.send_message(data)
            assert there.receive_message() == data
        here.send_object({"a": [1, "b"]})
        assert there.receive_object() == {"a": [1, "b"]}


def test_both_directions_at_once_need_no_buffer() -> None:
    size = 20_000_000
    data: list[Any] = [np.full(size, i + 1, dtype=np.uint8) for i in range(2)]
    into: list[Any] = [np.zeros(size, dtype=np.uint8) for _ in range(2)]
    with connected() as ends:
        found = at_once(2, lambda i: transfer([(ends[i], data[i])], [(ends[i], into[i])]))
    assert found == [None, None]
    np.testing.assert_array_equal(into[0], data[1])
    np.testing.assert_array_equal(into[1], data[0])


def test_a_closed_connection_is_detected() -> None:
    with connected() as (here, there):
        there.close()
        with pytest.raises(LostError, match=r"^there disconnected$"):
            here.receive_message()


@pytest.mark.parametrize(
    "wait",
    [lambda one: one.receive_message(), lambda one: transfer([], [(one, bytearray(1))])],
    ids=["message", "transfer"],
)
def test_silence_ends(wait: Callable[[Connection], None]) -> None:
    line = f"^there: no data transferred for {IMPATIENCE_S:g} s$"
    with connected(IMPATIENCE_S) as (here, _), pytest.raises(LostError, match=line):
        wait(here)


def test_invalid_messages_are_reported() -> None:
    with connected() as (here, there):
        here.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(LostError, match=r"^here sent an invalid message$"):
            there.receive_message()
    with connected() as (here, there):
        here.send_message(b"GET")
        with pytest.raises(LostError, match=r"^here sent an invalid message$"):
            there.receive_object()


def test_a_peer_that_does_not_answer() -> None:
    with (
        free_port() as port,
        pytest.raises(LostError, match=f"^rank 0: no answer at {HOST}:{port} "),
    ):
        connect(HOST, port, IMPATIENCE_S, TOKEN, peer="rank 0")


def test_an_address_in_use_is_reported() -> None:
    line = f"^--address, --listen: cannot listen on {HOST}:"
    with Listener(HOST, 0, PATIENCE_S, TOKEN) as one, pytest.raises(InputError, match=line):
        Listener(HOST, one.port, PATIENCE_S, TOKEN)


@pytest.mark.skipif(sys.platform != "linux", reason="congestion control is chosen on Linux only")
def test_congestion_control() -> None:
    with pytest.raises(InputError, match="congestion"):
        connect(HOST, 1, PATIENCE_S, TOKEN, "no-such-control")
    with connected() as (here, there):
        assert here.congestion == there.congestion != ""
        used = here.congestion
    with Listener(HOST, 0, PATIENCE_S, TOKEN, used) as listener:
        acts: Any = (
            lambda: connect(HOST, listener.port, PATIENCE_S, TOKEN, used),
            lambda: listener.accept(PATIENCE_S),
        )
        for one in at_once(2, lambda i: acts[i]()):
            assert one.congestion == used
            one.close()


# the ring


def ring(values: list[np.ndarray[Any, Any]]) -> int:
    """All-reduce the ``values`` of each rank in place; return the bytes sent."""
    ranks = len(values)
    sent = []

    def counted(outgoing: Any, incoming: Any) -> None:
        sent.append(sum(memoryview(data).nbytes for _, data in outgoing))
        transfer(outgoing, incoming)

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tcp, "transfer", counted)
        pairs = [stack.enter_context(connected()) for _ in range(ranks)]
        found = at_once(
            ranks,
            lambda i: tcp.ring_all_reduce(values[i], i, ranks, pairs[i][0], pairs[i - 1][1]),
        )
    assert found == [None] * ranks
    return sum(sent)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [1, 3, 1000, 100_003])
def test_a_ring_adds_up(ranks: int, size: int) -> None:
    rng = np.random.default_rng(ranks * size)
    values = [rng.integers(-1000, 1000, size).astype(np.float32) for _ in range(ranks)]
    before = np.array(values)
    sent = ring(values)
    for found in values:
        np.testing.assert_array_equal(found, before.sum(axis=0))
    # each rank sends every value twice, except its own part
    assert sent == 2 * (ranks - 1) * size * 4


def test_canary_a_ring_that_stops_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfmodel.measuring.network.tcp.np.add", lambda a, b, out: None)
    values = [np.ones(10, dtype=np.float32) for _ in range(3)]
    ring(values)
    assert not all((found == 3.0).all() for found in values)


# results computed from times


class Emulated:
    """A network whose notifications take ``one_way_s`` and operations ``takes_s``, on its clock."""

    def __init__(self, one_way_s: float, takes_s: float) -> None:
        self.one_way_s, self.takes_s = one_way_s, takes_s
        self.place = Place(0, 3, HOST, 1)
        self.now = 100.0
        self.said: list[Any] = []
        self.case: NetworkCase | None = None

    def send(self, rank: int, value: Any) -> None:
        self.said.append(value)

    def receive(self, rank: int) -> str:
        last = self.said[-1]
        # a notification makes a round trip; the end of an operation only a one-way trip
        self.now += 2.0 * self.one_way_s if last == "word" else self.one_way_s
        return "done"

    def prepare(self, operation: str, size: int, ranks: int, count: int) -> Callable[[], None]:
        def act() -> None:
            trips = 2.0 if operation == "ping_pong" else 1.0
            # a rank that waits for a notification begins later
            late_s = self.one_way_s if self.said[-1] == "go" else 0.0
            self.now += self.takes_s * trips + late_s

        self.now += 5.0  # allocating buffers is not measured
        return act


def measured_once(world: Emulated, operation: str) -> float:
    leader = Leader(world, world, 0.0, lambda: world.now)  # type: ignore[arg-type]
    return leader.once(NetworkCase(operation, 8, 2))  # type: ignore[arg-type]


OPERATIONS = (*tcp.OPERATIONS, "all_gather", "reduce_scatter", "broadcast")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("one_way_s", [0.0, 1e-4, 0.01])
def test_notifications_are_not_counted(operation: str, one_way_s: float) -> None:
    assert measured_once(Emulated(one_way_s, 0.5), operation) == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_canary_counted_notifications_show(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "net", lambda _, elapsed_s, __: elapsed_s)
    assert measured_once(Emulated(0.01, 0.5), operation) > 0.509


def test_no_measured_time_is_less_than_half() -> None:
    assert net("stream", 1.0, 0.9) == 0.5
    assert net("all_reduce", 1.0, 0.1) == 0.9


# sizes and repetitions


class Link:
    """A fake network with a clock: a repetition takes ``fixed_s`` and ``per_byte_s``."""

    def __init__(self, fixed_s: float, per_byte_s: float) -> None:
        self.fixed_s, self.per_byte_s = fixed_s, per_byte_s
        self.now = 0.0
        self.notes: list[str] = []

    def takes_s(self, case: NetworkCase) -> float:
        return self.fixed_s + self.per_byte_s * case.moved_bytes

    def once(self, case: NetworkCase) -> float:
        self.now += self.takes_s(case)
        return self.takes_s(case)

    def measured(self, series: Sequence[Sequence[NetworkCase]], seconds: float, **more: Any) -> Any:
        return within(
            series,
            self.once,
            seconds=seconds,
            say=self.notes.append,
            clock=lambda: self.now,
            **{"repetitions": 20, **more},
        )


def exact(operation: str, size: int, ranks: int) -> int:
    return size


FAST, SLOW = (1e-6, 1e-11), (2e-3, 1e-6)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("rate", [FAST, (5e-5, 1e-9), (1e-4, 5e-8), SLOW])
@pytest.mark.parametrize("sizes", [None, [1000, 10**9], [10**8]])
def test_the_time_limit_is_kept(
    ranks: int, rate: tuple[float, float], sizes: list[int] | None
) -> None:
    link = Link(*rate)
    series = cases(tcp.OPERATIONS, ranks, sizes, exact)
    try:
        found = link.measured(series, 20.0)
    except InputError:
        assert sizes is not None
        assert min(sizes) * rate[1] > 1.0
        found = []
    # the last size of each series may exceed a fair share of the remaining time
    assert link.now < 22.0
    for one in found:
        case = NetworkCase(one.operation, round(one.bytes), one.ranks, one.count)
        assert one.seconds == (link.takes_s(case),) * len(one.seconds)
        assert 1 <= len(one.seconds) <= 20
    left_out = sum(map(len, series)) - len(found)
    assert bool(left_out) == bool(link.notes)


def test_a_fast_network_is_measured_completely() -> None:
    link = Link(*FAST)
    found = link.measured(cases(tcp.OPERATIONS, 2, None, exact), 20.0)
    assert [len(one.seconds) for one in found] == [20] * len(found)
    assert {one.bytes for one in found} == set(plan.SIZES_BYTES)
    assert link.notes == []


def test_canary_without_a_limit_a_slow_network_takes_long() -> None:
    link = Link(*SLOW)
    link.measured(cases(tcp.OPERATIONS, 2, None, exact), 1e9)
    assert link.now > 1000.0


def test_skipped_sizes_are_reported() -> None:
    link = Link(0.0, 1e-6)
    found = link.measured(
        [[NetworkCase("stream", size) for size in (10**5, 10**6, 10**8, 10**9)]], 20.0
    )
    assert [one.bytes for one in found] == [10**5, 10**6]
    note = "stream among 2 ranks: skipped 100 MB and more: not enough time within 20 s"
    assert link.notes == [note]


def test_a_pause_does_not_grow_with_the_size() -> None:
    series = [[NetworkCase("stream", size) for size in (10**3, 10**6)]]
    assert len(Link(0.5, 1e-9).measured(series, 10.0, idle_s=0.5)) == 2
    # canary: if the pause counted as time for bytes, there would be no time for larger sizes
    assert len(Link(0.5, 1e-9).measured(series, 10.0)) == 1


def test_no_time_for_anything() -> None:
    line = r"^--seconds: 1 s is too short to measure any of the sizes$"
    with pytest.raises(InputError, match=line):
        Link(0.0, 1e-3).measured([[NetworkCase("stream", 10**6)]], 1.0)


@pytest.mark.parametrize("rate", [FAST, SLOW])
def test_progress_reaches_the_total(rate: tuple[float, float]) -> None:
    told: list[tuple[int, int]] = []
    series = cases(tcp.OPERATIONS, 3, None, exact)
    Link(*rate).measured(series, 20.0, progress=lambda *done: told.append(done))
    total = sum(map(len, series))
    assert told[-1] == (total, total)
    assert told == sorted(told)


def members(ranks: int, operation: str) -> list[int]:
    return [series[0].ranks for series in cases([operation], ranks, [8], exact)]  # type: ignore[list-item]


def test_groups_show_how_times_grow_with_ranks() -> None:
    assert members(2, "all_reduce") == [2]
    assert members(5, "all_reduce") == [2, 3, 4, 5]
    assert members(5, "incast") == [3, 4, 5]
    assert members(5, "stream") == [2]
    assert members(24, "all_reduce") == [2, 4, 8, 16, 24]
    assert members(16, "incast") == [4, 8, 16]


def test_equal_sizes_are_measured_once() -> None:
    def rounded(operation: str, size: int, ranks: int) -> int:
        return -(-size // 12) * 12

    (series,) = cases(["all_gather"], 2, [4, 8, 12, 16], rounded)
    assert [case.bytes for case in series] == [12, 24]


def test_unknown_operations_are_refused() -> None:
    assert chosen_operations(None, tcp.OPERATIONS, 2) == [
        one for one in tcp.OPERATIONS if one != "incast"
    ]
    assert chosen_operations(["stream", "ping_pong"], tcp.OPERATIONS, 3) == ["ping_pong", "stream"]
    with pytest.raises(InputError, match="unknown operation 'strem'; did you mean 'stream'"):
        chosen_operations(["strem"], tcp.OPERATIONS, 2)
    with pytest.raises(InputError, match=r"^--operations: incast needs at least 3 ranks, got 2"):
        chosen_operations(["incast"], tcp.OPERATIONS, 2)


# all ranks together


def small(place: Place, **more: Any) -> Measurements | None:
    given: dict[str, Any] = {"sizes_bytes": [4, 1000], "repetitions": 2, "timeout_s": PATIENCE_S}
    return measure(place, **given | more)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_measure_together(ranks: int, tmp_path: Path) -> None:
    first, *others = all_ranks(ranks, lambda place: small(place, seconds=PATIENCE_S))
    assert others == [None] * (ranks - 1)
    assert isinstance(first, Measurements)
    assert first.backend == "tcp"
    assert first.nodes == (0,) * ranks
    assert first.source.kind == "measured"
    assert __version__ in first.source.text
    found = {(one.operation, one.ranks) for one in first.measurements}
    pairs = {(one, 2) for one in tcp.OPERATIONS if one != "incast"}
    assert found == (pairs if ranks == 2 else pairs | {("incast", 3), ("all_reduce", 3)})
    path = tmp_path / "network.json"
    path.write_bytes(network.to_json(first))
    assert read_measurements(path) == first


def test_ranks_report_their_nodes() -> None:
    first, *_ = all_ranks(3, lambda place: small(place, node=(0, 1, 1)[place.rank]))
    assert first.nodes == (0, 1, 1)


def ended(found: Sequence[Any]) -> set[str]:
    """The error lines of all ranks; each must be a single line."""
    assert all(isinstance(one, PerfmodelError) for one in found), found
    lines = {str(one) for one in found}
    assert all("\n" not in line for line in lines)
    return lines


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ([{}, {"repetitions": 3}], "rank 1 was given --repetitions '3', rank 0 '2'"),
        ([{}, {}, {"sizes_bytes": [8]}], "rank 2 was given --sizes '8B', rank 0 '4B,1000B'"),
        ([{}, {"pause_s": 0.1}], "rank 1 was given --pause '0.1s', rank 0 '0s'"),
        (
            [{"node": 0}, {}],
            "--node: give it to all ranks or to none; rank 0 and rank 1 differ",
        ),
        (
            [{"operations": ["incast"]}] * 2,
            "--operations: incast needs at least 3 ranks, got 2",
        ),
    ],
)
def test_all_ranks_end_if_they_disagree(given: list[dict[str, Any]], line: str) -> None:
    found = all_ranks(len(given), lambda place: small(place, **given[place.rank]))
    assert ended(found) == {line}


def with_places(change: Callable[[Place], Place], ranks: int) -> list[Any]:
    return all_ranks(ranks, lambda place: small(change(place)))


def test_a_different_number_of_ranks_is_detected() -> None:
    found = with_places(lambda p: msgspec.structs.replace(p, ranks=2 + p.rank), 2)
    assert ended(found) == {"rank 1 was given --ranks 3, rank 0 --ranks 2"}


def test_a_duplicate_rank_is_detected() -> None:
    found = with_places(lambda p: msgspec.structs.replace(p, rank=min(p.rank, 1)), 3)
    assert ended(found) == {"two processes were given --rank 1"}


def test_a_different_version_is_detected() -> None:
    def act(place: Place) -> Any:
        if place.rank == 0:
            return small(place)
        hello = Hello("perfmodel", "0.0.1", 1, 2, {}, None, HOST, 1)
        with connect(place.host, place.port, PATIENCE_S, TOKEN) as older:
            older.send_object(msgspec.to_builtins(hello))
            return PerfmodelError(older.receive_object(Welcome).error)

    line = f"rank 1 runs perfmodel 0.0.1, rank 0 runs {__version__}"
    assert ended(all_ranks(2, act)) == {line}


def test_a_missing_rank_is_named() -> None:
    with free_port() as port:
        line = f"^rank 1, 2 did not connect within {IMPATIENCE_S:g} s$"
        with pytest.raises(InputError, match=line):
            small(Place(0, 3, HOST, port), timeout_s=IMPATIENCE_S)
        with pytest.raises(LostError, match=f"^rank 0: no answer at {HOST}:{port} within "):
            small(Place(1, 3, HOST, port), timeout_s=IMPATIENCE_S)


class OneGuest(Listener):
    """All ranks that connect after the first are treated as missing."""

    guests = 0

    def accept(self, within_s: float, peer: str = "another process") -> Connection:
        self.guests += 1
        if self.guests > 1:
            raise LostError(f"{peer} did not connect")
        return super().accept(within_s, peer)


def test_connected_ranks_learn_which_rank_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfmodel.measuring.processes.group.Listener", OneGuest)
    found = with_places(lambda place: msgspec.structs.replace(place, ranks=3), 2)
    assert ended(found) == {f"rank 2 did not connect within {PATIENCE_S:g} s"}


@pytest.mark.parametrize("dying", [0, 1, 2])
def test_all_ranks_end_when_one_dies(dying: int) -> None:
    def act(place: Place) -> Any:
        group = meet(place, {}, timeout_s=PATIENCE_S)
        with group.together():
            transport = tcp.Sockets(group)
            if place.rank == 0:
                leader = Leader(group, transport, 0.0)
                for _ in range(3):
                    leader.once(NetworkCase("all_reduce", 400, 3))
                if dying == 0:
                    return "died"
                while True:
                    leader.once(NetworkCase("all_reduce", 400, 3))
            if place.rank != dying:
                follow(group, transport)
            for _ in range(network.ROUND_TRIPS):
                group.send(0, group.receive(0))
            for _ in range(2):
                msgspec.convert(group.receive(0), NetworkCase)
                act = transport.prepare("all_reduce", 400, 3, 1)
                group.send(0, "ready")
                group.receive(0)
                act()
                group.send(0, "done")
            return "died"

    found = all_ranks(3, act)
    assert found.pop(dying) == "died"
    assert ended(found) == {f"rank {dying} disconnected"}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"backend": "glo"}, "unknown backend 'glo'; did you mean 'gloo'?"),
        ({"backend": "gloo", "congestion": "cubic"}, "--congestion: only for --backend tcp"),
        ({"repetitions": 0}, "--repetitions: must be at least 1, got 0"),
        ({"seconds": 0.0}, "--seconds: must be more than 0, got 0"),
        ({"pause_s": -1.0}, "--pause: must be at least 0, got -1"),
        ({"timeout_s": 0.0}, "--timeout: must be more than 0, got 0"),
        ({"node": -1}, "--node: must be at least 0, got -1"),
        ({"sizes_bytes": []}, "--sizes: at least one is needed"),
        ({"sizes_bytes": [0.0]}, "--sizes: must be at least 1, got 0"),
    ],
)
def test_arguments_are_checked_before_waiting(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        small(Place(0, 2, HOST, 1), **given)
    assert str(caught.value).startswith(line)


# as commands


def commands(given: Sequence[Sequence[str]], folder: Path) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each rank's process."""
    with free_port() as port:
        processes: list[subprocess.Popen[str]] = []
        try:
            for rank, more in enumerate(given):
                words = ["--rank", str(rank), "--ranks", str(len(given))]
                words += ["--address", f"{HOST}:{port}", "--output", str(folder / "net.json")]
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "perfmodel", "measure", "network", *words, *more],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        encoding="utf-8",
                        env=os.environ | {"PYTHONWARNINGS": "ignore"},
                    )
                )
            return [
                (process.returncode, *said)
                for process in processes
                for said in [process.communicate(timeout=4 * PATIENCE_S)]
            ]
        finally:
            for process in processes:
                process.kill()
                process.communicate()


QUICK = ["--sizes", "1KB", "--repetitions", "2", "--seconds", "60"]


def test_the_command_writes_a_file_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "net.svg"
    plot = ["--plot", str(picture)] if importlib.util.find_spec("matplotlib") else []
    (code, out, err), other = commands([[*QUICK, *plot], QUICK], tmp_path)
    assert code == 0, err
    assert other == (0, "", "")
    path = tmp_path / "net.json"
    listens, wrote, *drawn = err.splitlines()
    assert drawn == ([f"wrote {picture}"] if plot else [])
    assert not plot or picture.read_bytes().startswith(b"<?xml")
    assert listens.startswith(f"perfmodel: rank 0 listens on {HOST}, port ")
    assert listens.endswith("; token: PERFMODEL_TOKEN")
    assert wrote == f"wrote {path}; next: perfmodel calibrate network {path}"
    found = read_measurements(path)
    assert found.name == "net"
    assert [one.operation for one in found.measurements] == [
        line.split()[0] for line in out.splitlines()[2:]
    ]
    assert {one.bytes for one in found.measurements} == {1000.0}


def test_commands_that_disagree_end_with_one_line(tmp_path: Path) -> None:
    found = commands([QUICK, [*QUICK, "--operations", "stream"]], tmp_path)
    line = "perfmodel: error: rank 1 was given --operations 'stream', rank 0 ''"
    assert [(code, out, err.splitlines()[-1]) for code, out, err in found] == [(2, "", line)] * 2
    assert list(tmp_path.iterdir()) == []


def test_gloo_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    (code, _, err), other = commands([[*QUICK, "--backend", "gloo"]] * 2, tmp_path)
    assert code == 0, err
    assert other[0] == 0, other
    found = read_measurements(tmp_path / "net.json")
    assert found.backend == "gloo"
    assert {"ping_pong", "all_reduce", "broadcast"} <= {m.operation for m in found.measurements}


def test_the_store_of_torchrun_is_found_at_its_address() -> None:
    dist = pytest.importorskip("torch.distributed")
    store = dist.TCPStore(HOST, 0, None, is_master=True, wait_for_workers=False)
    environment = {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(store.port),
    }

    def act(rank: int) -> tuple[int, ...]:
        place = Place(rank, 2, HOST, store.port)
        with meet(place, {}, timeout_s=PATIENCE_S, environment=environment) as group:
            return tuple(group.links)

    assert at_once(2, act) == [(1,), (0,)]


def test_gloo_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = all_ranks(2, lambda place: small(place, backend="gloo"))
    assert ended(found) == {"--backend gloo: needs torch: pip install 'perfmodel[torch]'"}
