"""Traces of ranks become a job whose prediction is compared with them, and which can be changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from perfmodel import InputError
from perfmodel.calibration.traced import Replay, link_of, replay
from perfmodel.cli import cli
from perfmodel.traces.collectives import TracedCollective
from perfmodel.traces.workload import import_trace
from tests.measured import measured
from tests.traces.test_traces import AUTOGRAD, SENDING, Made, accumulate, backward, shaped

BANDWIDTH, LATENCY_US = 8e9, 10.0
"""Of the links of traced jobs, in bytes per second and microseconds."""

SIZES = (32_000_000, 8_000_000)
"""Bytes of the gradients of the layers that are reduced, in order."""


def seconds_us(size: float, ranks: int) -> float:
    """An all-reduce in a ring."""
    return 2 * (ranks - 1) * (size / ranks / BANDWIDTH * 1e6 + LATENCY_US)


def rank_trace(
    path: Path, rank: int, ranks: int = 2, slower: float = 1.0, slowest: float = 1.0
) -> Path:
    """Two steps of two linear layers on a rank that takes ``slower`` times as long, of a job whose
    slowest rank takes ``slowest`` times as long; both all-reduces wait for that one.

    A rank computes 4,000 us forward (2,000 each) and 8,000 backward (4,000 each), and 1,000 in the
    update. Both buckets are reduced one after the other.
    """
    made = Made()
    job_s = [seconds_us(size, ranks) for size in SIZES]
    ready = [2 * 2000 * slowest + 4000 * slowest, 2 * 2000 * slowest + 8000 * slowest]
    first_end = ready[0] + job_s[0]
    second_end = max(ready[1], first_end) + job_s[1]
    length = second_end + 1000
    for n in range(2):
        t, number = length * n, 10 + 3 * n
        made.host(f"ProfilerStep#{4 + n}", t, t + length - 1, cat="user_annotation")
        for k, shape in enumerate(([1000, 2000], [1000, 8000])):
            at, kernel = t + 5 + 10 * k, t + 2000 * k * slower
            first = shaped([64, shape[0]], [shape[1], shape[0]])
            made.host("aten::linear", at, at + 8, Sequence_number=number + 2 * k, **first)
            made.kernel(at + 1, kernel, kernel + 2000 * slower)
        for k, (at, elements) in enumerate(((60.0, 8_000_000), (120.0, 2_000_000))):
            begin = t + (4000 + 4000 * k) * slower
            backward(
                made, "MmBackward0", number + 2 - 2 * k, t + at, (begin, begin + 4000 * slower)
            )
            accumulate(made, [elements // 1000, 1000], t + at + 10)
            size: dict[str, Any] = {
                "In_msg_nelems": elements,
                "dtype": "Float",
                "Collective_name": "allreduce",
                "Group_size": ranks,
            }
            made.host("record_param_comms", t + at + 20, t + at + 30, AUTOGRAD, **size)
            own = begin + 4000 * slower
            start = own if k == 0 else max(own, t + first_end)
            end = t + (first_end if k == 0 else second_end)
            made.kernel(t + at + 24, start, end, "ncclDevKernel_AllReduce", AUTOGRAD, SENDING)
        made.host("Optimizer.step#SGD.step", t + 200, t + 220, cat="user_annotation")
        made.kernel(t + 210, t + second_end, t + length, "sgd")
    data = {
        "traceEvents": made.events,
        "deviceProperties": made.properties,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
    }
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def even(tmp_path: Path) -> Replay:
    return replay([rank_trace(tmp_path / f"{k}.json", k) for k in (1, 0)])


def test_links_are_those_of_the_collectives(even: Replay) -> None:
    assert even.link is not None
    assert even.link.bandwidth_bytes_per_s == pytest.approx(BANDWIDTH, rel=1e-3)
    assert even.link.latency_s == pytest.approx(LATENCY_US * 1e-6, rel=1e-3)
    assert [trace.rank for trace in even.traces] == [0, 1]
    assert [c.bytes for c in even.traces[0].collectives] == 2 * list(SIZES)


def test_the_replay_gives_the_traced_step(even: Replay) -> None:
    """By hand: 8 ms until the first bucket, 4.02 ms for it, 1.02 ms for the second, 1 ms update."""
    by_hand = 8e-3 + 4.02e-3 + 1.02e-3 + 1e-3
    assert even.step_s == pytest.approx(by_hand, rel=1e-3)
    assert even.error == pytest.approx(0.0, abs=0.01)
    assert even.job.stragglers == ()


def test_stragglers_are_kept(tmp_path: Path) -> None:
    """One of four ranks takes 1.5 times as long, but for the update. The others wait for it,
    in the traces and in the replay, and it stays slow among 16."""
    factors = (1.0, 1.0, 1.5, 1.0)
    paths = [
        rank_trace(tmp_path / f"{k}.json", k, 4, slower, 1.5) for k, slower in enumerate(factors)
    ]
    told = replay(paths)
    slow = [(s.worker, s.factor) for s in told.job.stragglers]
    assert slow == [(2, pytest.approx(19.0 / 13.0, rel=1e-3))]
    assert told.error == pytest.approx(0.0, abs=0.02)
    wide = told.job.with_(workers=16)
    assert [s.worker for s in wide.stragglers] == [2]
    from perfmodel import predict

    alike = predict(wide.with_(stragglers=()), fidelity="coarse").iteration_s
    assert predict(wide, fidelity="coarse").iteration_s > 1.2 * alike
    # canary: without the slow rank the replay no longer gives the traced step
    without = predict(told.job.with_(stragglers=()), fidelity="coarse").iteration_s
    assert without < 0.85 * told.step_s


def test_what_if_by_hand(even: Replay, tmp_path: Path) -> None:
    """Sixteen ranks: rings of 30 steps. On links ten times as fast only the last bucket shows."""
    from perfmodel import predict

    wide = predict(even.job.with_(workers=16), fidelity="coarse").iteration_s
    assert wide == pytest.approx(
        8e-3 + (seconds_us(SIZES[0], 16) + seconds_us(SIZES[1], 16) + 1000) * 1e-6, rel=0.01
    )
    fast = predict(even.job.with_(bandwidth_bytes_per_s=10 * BANDWIDTH), fidelity="coarse")
    last_us = 2 * (SIZES[1] / 2 / (10 * BANDWIDTH) * 1e6 + LATENCY_US)
    assert fast.iteration_s == pytest.approx(12e-3 + last_us * 1e-6 + 1e-3, rel=0.01)
    slow = predict(even.job.with_(options={"overlap": False}), fidelity="coarse").iteration_s
    assert slow == pytest.approx(even.step_s + 4e-3, rel=0.01)


def test_a_rank_alone_gives_the_fastest_collectives() -> None:
    """The second waited 3 ms for another rank: it says nothing about the links."""
    told = [
        TracedCollective(operation="all_reduce", ranks=4, bytes=size, seconds=seconds)
        for size, seconds in ((4e8, 0.6), (4e8, 0.603), (4e3, 0.0006))
    ]
    link = link_of([told], 4)
    assert link.bandwidth_bytes_per_s == pytest.approx(6 * 1e8 / 0.6)
    assert link.latency_s == pytest.approx(0.0)
    with pytest.raises(InputError, match="no collectives of known size"):
        link_of([[]], 4)


def test_the_command_scales_a_trace(tmp_path: Path) -> None:
    paths = [rank_trace(tmp_path / f"{k}.json", k) for k in (0, 1)]
    flags = [text for path in paths for text in ("--from-trace", str(path))]
    answer = CliRunner().invoke(
        cli, ["predict", *flags, "--workers", "16", "--bandwidth", "100Gbps", "--json"]
    )
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    assert told["workers"] == 16
    assert told["replay"]["workers"] == 2
    assert told["replay"]["error"] == pytest.approx(0.0, abs=0.01)
    text = CliRunner().invoke(cli, ["predict", *flags, "--workers", "16"]).stdout
    assert text.startswith("replayed from traces of 2 of 2 ranks: 14.0")


def test_ranks_that_divide_a_model_are_refused(tmp_path: Path) -> None:
    """All-reduces among 4 of 8 ranks; those of a few bytes may be among any."""
    path = rank_trace(tmp_path / "0.json", 0, 8)
    assert replay([path]).job.workers == 8
    told = json.loads(path.read_text())
    records = [e["args"] for e in told["traceEvents"] if "Group size" in e["args"]]
    assert len(records) == 4
    for args in records:
        args["Group size"] = 4
    path.write_text(json.dumps(told))
    with pytest.raises(InputError, match="all-reduce is among 4 of 8 ranks, which divide"):
        replay([path])
    from perfmodel.calibration import traced

    few = TracedCollective(operation="all_reduce", ranks=4, bytes=8.0, seconds=1e-5)
    trace = msgspec.structs.replace(import_trace(path), collectives=(few,))
    traced._among_all([trace], 8)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--model", "resnet50"], "--from-trace: has its own model"),
        (["--from-trace", "0.json"], "two traces are of rank 0"),
        (["--traced-ranks", "0"], "at least 1"),
    ],
)
def test_wrong_uses_are_one_line(
    flags: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rank_trace(Path("0.json"), 0)
    with pytest.raises(InputError) as raised:
        CliRunner().invoke(
            cli,
            ["predict", "--from-trace", "0.json", *flags],
            catch_exceptions=False,
            standalone_mode=False,
        )
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_real_trace_of_two_devices_is_replayed() -> None:
    """ResNet-50 on two A100, whose host is too slow: only one rank was traced."""
    name = "hta_resnet50_ddp_2xA100_rank0.json.gz"
    told = replay([measured("kineto_traces", name) / name], batch_size=32, fidelity="coarse")
    assert told.job.workers == 2
    assert abs(told.error) < 0.1
