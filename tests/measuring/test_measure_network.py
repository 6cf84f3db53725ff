"""Measuring a network: what is computed from times, the ranks, and how a measurement ends."""

from __future__ import annotations

import ast
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import perfmodel
from perfmodel import InputError, __version__
from perfmodel.cli import cli
from perfmodel.measuring import torchrun
from perfmodel.measuring.measurements import read_measurements
from perfmodel.measuring.network import measure as network, plan
from perfmodel.measuring.network.measure import GO, READY, WORD, Leader, net
from perfmodel.measuring.network.operations import OPERATIONS
from perfmodel.measuring.network.plan import NetworkCase, cases, chosen_operations, within
from perfmodel.measuring.torchrun import ProcessPlace
from tests.measuring.processes import command, outcomes, place, started

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")

# results computed from times


class Emulated:
    """A network whose notifications take ``one_way_s`` and operations ``takes_s``, on its clock."""

    def __init__(self, one_way_s: float, takes_s: float) -> None:
        self.one_way_s, self.takes_s = one_way_s, takes_s
        self.place = ProcessPlace(0, 3)
        self.now = 100.0
        self.sent: list[int] = []

    def send(self, rank: int, *numbers: int) -> None:
        self.sent.append(numbers[0])

    def receive(self, rank: int) -> list[int]:
        # a notification makes a round trip; the end of an operation only a one-way trip
        self.now += (2.0 if self.sent[-1] == WORD else 1.0) * self.one_way_s
        return [READY]

    def prepare(self, operation: str, size: int, ranks: int, count: int) -> Callable[[], None]:
        def act() -> None:
            trips = 2.0 if operation == "ping_pong" else 1.0
            # a rank that waits for a notification begins later
            late_s = self.one_way_s if self.sent[-1] == GO else 0.0
            self.now += self.takes_s * trips + late_s

        self.now += 5.0  # allocating buffers is not measured
        return act


def measured_once(world: Emulated, operation: str) -> float:
    leader = Leader(world, world, 0.0, lambda: world.now)
    return leader.once(NetworkCase(operation, 8, 2))  # type: ignore[arg-type]


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
    series = cases(OPERATIONS, ranks, sizes, exact)
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
    found = link.measured(cases(OPERATIONS, 2, None, exact), 20.0)
    assert [len(one.seconds) for one in found] == [20] * len(found)
    assert {one.bytes for one in found} == set(plan.SIZES_BYTES)
    assert link.notes == []


def test_canary_without_a_limit_a_slow_network_takes_long() -> None:
    link = Link(*SLOW)
    link.measured(cases(OPERATIONS, 2, None, exact), 1e9)
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
    series = cases(OPERATIONS, 3, None, exact)
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
    assert chosen_operations(None, OPERATIONS, 2) == [one for one in OPERATIONS if one != "incast"]
    assert chosen_operations(["stream", "ping_pong"], OPERATIONS, 3) == ["ping_pong", "stream"]
    with pytest.raises(InputError, match="unknown operation 'strem'; did you mean 'stream'"):
        chosen_operations(["strem"], OPERATIONS, 2)
    with pytest.raises(InputError, match=r"^--operations: incast needs at least 3 ranks, got 2"):
        chosen_operations(["incast"], OPERATIONS, 2)


# processes


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No torchrun around this process."""
    for name in torchrun.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_the_place_is_that_of_torchrun() -> None:
    assert torchrun.place({}) is None
    variables = place(2, 4, 1, "node0", 29500)
    assert torchrun.place(variables | {"LOCAL_RANK": "3"}) == ProcessPlace(2, 4, 1, 3)
    with pytest.raises(InputError, match=r"^RANK: expected a whole number, got '-1'$"):
        torchrun.place(variables | {"RANK": "-1"})
    with pytest.raises(InputError, match=r"^torchrun: number of processes: must be at least 2"):
        torchrun.place(variables | {"WORLD_SIZE": "1"})


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("more", [[], ["--processes", "2"]])
def test_without_pytorch_the_error_names_other_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    words = ["measure", "network", "--output", str(tmp_path / "net.json"), *more]
    error = CliRunner().invoke(cli, words).exception
    assert isinstance(error, InputError)
    text = str(error)
    assert "\n" not in text
    for program in ("all_reduce_perf", "osu_latency", "iperf3 -c NODE --json", "ib_write_bw NODE"):
        assert program in text
    assert "perfmodel calibrate network FILE" in text


LISTENING = ("listen", "bind", "create_server")


def listeners(source: str) -> list[str]:
    """Calls of a program that make it listen on a port; parsed only if it has one of the words."""
    if not any(name in source for name in LISTENING):
        return []
    names = [
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
    ]
    return [name for name in names if name in LISTENING]


def test_nothing_in_the_package_listens_on_a_port() -> None:
    for path in Path(perfmodel.__file__).parent.rglob("*.py"):
        assert listeners(path.read_text(encoding="utf-8")) == [], path


def test_canary_a_program_that_listens_is_noticed() -> None:
    assert listeners("import socket\nsocket.create_server(('', 80)).listen()") != []


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "--processes: needed"),
        (["--processes", "1"], "--processes: must be at least 2, got 1"),
        (["--backend", "tpc"], "unknown backend 'tpc' (known: gloo, nccl)"),
        (["--operations", "strem"], "unknown operation 'strem'; did you mean 'stream'"),
        (["--repetitions", "0"], "--repetitions: must be at least 1, got 0"),
        (["--seconds", "0"], "--seconds: must be more than 0, got 0"),
        (["--pause", "-1s"], "--pause: must be at least 0, got '-1s'"),
        (["--timeout", "0"], "--timeout: must be more than 0, got 0"),
        (["--sizes", "0B"], "--sizes: must be at least 1, got 0"),
        (["--output", "no/such/place.json"], "no/such/place.json: cannot write"),
    ],
)
def test_arguments_are_checked_before_processes_start(
    words: list[str], line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torchrun, "import_distributed", lambda: None)
    words = ["measure", "network", "--output", "net.json", *words]
    error = CliRunner().invoke(cli, words).exception
    assert isinstance(error, InputError)
    assert str(error).startswith(line)
    assert list(tmp_path.iterdir()) == []


QUICK = ("--sizes", "1KB", "--repetitions", "2", "--seconds", "60")


@needs_torch
def test_the_command_starts_processes_and_writes_files(tmp_path: Path) -> None:
    plot = ["--plot", "net.svg"] if importlib.util.find_spec("matplotlib") else []
    words = ["measure", "network", "--processes", "3", "--output", "net.json", *QUICK, *plot]
    done = command(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    wrote = ["wrote net.json; next: perfmodel calibrate network net.json"]
    assert done.stderr.splitlines()[-2:][: 1 + len(plot)] == [
        *wrote, *(["wrote net.svg"] if plot else [])
    ][-2:]  # fmt: skip
    measured = read_measurements(tmp_path / "net.json")
    assert (measured.name, measured.backend, measured.nodes) == ("net", "gloo", (0, 0, 0))
    assert measured.source.kind == "measured"
    assert __version__ in measured.source.text
    rows = [line.split()[0] for line in done.stdout.splitlines()[2:]]
    assert [one.operation for one in measured.measurements] == rows
    assert {one.bytes for one in measured.measurements} <= {1000.0, 1008.0}
    ranks = {(one.operation, one.ranks) for one in measured.measurements}
    pairs = {(one, 2) for one in ("ping_pong", "stream", "messages", "duplex")}
    assert ranks >= pairs | {("incast", 3), ("all_reduce", 2), ("all_reduce", 3)}


@needs_torch
def test_an_error_of_the_processes_is_the_error_of_the_command(tmp_path: Path) -> None:
    words = ["measure", "network", "--processes", "2", "--output", "net.json"]
    done = command(*words, "--operations", "incast", folder=tmp_path)
    assert done.returncode == 2
    line = "perfmodel: error: --operations: incast needs at least 3 ranks, got 2"
    assert line in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def lines(folder: Path, *more: Sequence[str]) -> list[list[str]]:
    """Command lines of ranks that differ in the options ``more``."""
    words = ["measure", "network", "--output", str(folder / "net.json"), *QUICK]
    return [[*words, *each] for each in more]


@needs_torch
def test_ranks_report_their_nodes_and_only_rank_0_prints(tmp_path: Path) -> None:
    first, other = outcomes(lines(tmp_path, *[["--operations", "ping_pong"]] * 2))
    assert first[0] == 0, first
    assert (other[0], other[1]) == (0, "")
    assert read_measurements(tmp_path / "net.json").nodes == (0, 1)


@needs_torch
def test_all_ranks_end_if_they_disagree(tmp_path: Path) -> None:
    ended = outcomes(lines(tmp_path, [], ["--repetitions", "3"]))
    line = "perfmodel: error: rank 1 was given --repetitions '3', rank 0 '2'"
    assert [(code, out) for code, out, _ in ended] == [(2, "")] * 2
    assert all(err.splitlines()[-1] == line for _, _, err in ended), ended
    assert list(tmp_path.iterdir()) == []


@needs_torch
def test_all_ranks_end_when_one_dies(tmp_path: Path) -> None:
    more = ["--seconds", "1000", "--repetitions", "100000", "--operations", "all_reduce"]
    words = [[*line, *more] for line in lines(tmp_path, [], [], [])]
    words[1] += ["--timeout", "1001"]  # the timeout may differ
    with started(words) as running:
        with pytest.raises(Exception, match="timed out"):
            running[1].communicate(timeout=15.0)
        os.kill(running[1].pid, signal.SIGKILL)
        ends = [running[rank].communicate(timeout=60.0) for rank in (0, 2)]
        codes = [running[rank].returncode for rank in (0, 2)]
    assert codes == [2, 2]
    for rank, (out, err) in zip((0, 2), ends, strict=True):
        assert out == ""
        assert err.splitlines()[-1].startswith(f"perfmodel: error: rank {rank}: ")
    assert list(tmp_path.iterdir()) == []


@needs_torch
def test_a_missing_rank_ends_the_wait(tmp_path: Path) -> None:
    words = [*lines(tmp_path, ["--timeout", "1", "--seconds", "1"]), ["--version"]]
    first, _ = outcomes(words)
    assert first[0] == 2
    assert first[2].splitlines()[-1].startswith("perfmodel: error: rank 0: ")
