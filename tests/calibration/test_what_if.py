"""Traces of pipeline and tensor parallel ranks are replayed; changed ones give known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import InputError
from perfmodel.calibration import what_if as module
from perfmodel.calibration.exchange_times import TraceChange
from perfmodel.calibration.what_if import TracedRanks, what_if
from perfmodel.cli import cli
from tests.calibration.pipelined_traces import Pipeline
from tests.schemas import breaches
from tests.traces.test_traces import COMPUTE, MAIN, Made

US = 1e-6
P2P = ("p2p",)

STEP, TENSOR_STEP, SLOW_STEP = 12700.0, 14300.0, 18800.0
"""Steps by hand (us). The last gradient arrives after a forward pass of the first stage, a message,
three passes of each kind of the second, and a message; the first stage then does its last backward
pass and the update: 1000 + 100 + 3 (1000 + 2000) + 100 + 2000 + 500. With two ranks per stage eight
of these passes end in an all-reduce of 200. Rank 3 slower by half makes six of them slower."""


def traced(folder: Path, job: Pipeline, **how: Any) -> TracedRanks:
    return TracedRanks(job.write(folder, **how))


def near(us: float) -> Any:
    return pytest.approx(us * US, rel=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("skew", [0.0, 7_654_321.0])
@pytest.mark.parametrize(
    ("job", "step"),
    [
        (Pipeline(), STEP),
        (Pipeline(tensor=2), TENSOR_STEP),
        (Pipeline(tensor=2, slower=(1.0, 1.0, 1.0, 1.5)), SLOW_STEP),
    ],
)
def test_a_replay_takes_as_long_as_by_hand(
    job: Pipeline, step: float, skew: float, steps: int, tmp_path: Path
) -> None:
    told = traced(tmp_path, job, steps=steps, skew=skew)
    assert told.step_s == near(step)
    assert told.traced.step_s == near(step)
    assert told.error == pytest.approx(0.0, abs=1e-6)
    assert told.formula_error == pytest.approx(0.0, abs=1e-6)


def test_the_bubble_is_idle(tmp_path: Path) -> None:
    """Each rank computes 3 (1000 + 2000) + 500, and waits 3200 of 12700."""
    told = traced(tmp_path, Pipeline())
    for rank in told.traced.ranks:
        assert rank.compute_s == near(9500)
        assert sum(rank.waits_s.values()) == near(3200)
        assert rank.waits_s["pipeline"] == pytest.approx(3100 * US, rel=1e-3)
        assert rank.waits_s["network"] == pytest.approx(100 * US, rel=1e-3)


@pytest.mark.parametrize(
    ("tensor", "change", "step"),
    [
        (1, TraceChange(compute_speed=2.0), 6450),
        (1, TraceChange(communication_speed=0.1), 12700 + 2 * 900),
        (1, TraceChange(bandwidth_bytes_per_s=4e9), 12700 + 2 * 900),
        (1, TraceChange(latency_s=400 * US), 12700 + 2 * 400),
        (2, TraceChange(compute_speed=2.0), 6450 + 8 * 200),
        (2, TraceChange(communication_speed=0.1, groups=P2P), 14300 + 2 * 900),
        (2, TraceChange(communication_speed=2.0, groups=("2x1",)), 14300 - 8 * 100),
        (2, TraceChange(group_ranks=4, groups=("all_reduce",)), 14300 + 8 * 100),
        (2, TraceChange(bandwidth_bytes_per_s=5e9, groups=("1",)), 15500),
    ],
)
def test_changes_by_hand(tensor: int, change: TraceChange, step: float, tmp_path: Path) -> None:
    """A message of 4 MB takes 100, an all-reduce of 2 MB in a ring of two 200. A ring of four
    sends 6/4 of the size, in place of 2/2. With all-reduces of 400 the first stage takes 1400 and
    2400 per pass, and is the slower one: its three backward passes begin when the first gradient
    is there, at 3 * 1400 + 100 + 1200 + 2200 + 100, and then comes the update."""
    told = traced(tmp_path, Pipeline(tensor=tensor))
    assert told.replay(change).step_s == near(step)


def test_links_are_those_of_the_exchanges(tmp_path: Path) -> None:
    tensor, messages = traced(tmp_path, Pipeline(tensor=2)).kinds
    assert (tensor.kind, tensor.groups, tensor.ranks, tensor.per_step) == ("2x1", 2, 2, 12.0)
    assert tensor.link is not None
    assert tensor.link.bandwidth_bytes_per_s == pytest.approx(2e6 / (200 * US))
    assert (messages.kind, messages.per_step, messages.bytes) == ("p2p", 12.0, 4e6)
    assert messages.link is not None
    assert messages.link.bandwidth_bytes_per_s == pytest.approx(4e6 / (100 * US))


def test_a_slow_rank_is_found_and_can_be_as_others(tmp_path: Path) -> None:
    told = traced(tmp_path, Pipeline(tensor=2, slower=(1.0, 1.0, 1.0, 1.5)))
    assert told.slow == {3: pytest.approx(1.5)}
    assert told.replay(TraceChange(as_others=(3,))).step_s == near(TENSOR_STEP)
    with pytest.raises(InputError, match="no trace is of rank 7"):
        told.replay(TraceChange(as_others=(7,)))


def test_a_rank_without_others_cannot_be_as_others(tmp_path: Path) -> None:
    told = traced(tmp_path, Pipeline())
    with pytest.raises(InputError, match="no other traced rank does the same as rank 1"):
        told.replay(TraceChange(as_others=(1,)))


def test_one_rank_of_each_stage_is_enough(tmp_path: Path) -> None:
    paths = Pipeline(tensor=2).write(tmp_path)
    answer = what_if([paths[2], paths[0]])
    assert answer.ranks == (0, 2)
    assert answer.traced.step_s == near(TENSOR_STEP)
    assert not answer.kinds[0].complete
    assert "some ranks of 2x1 were not traced" in answer.notes[0]


def test_without_a_slow_rank_its_peer_does_not_wait(tmp_path: Path) -> None:
    """Rank 2 waited for rank 3 in its all-reduces; the shortest one says how long they take. The
    second stage is then as in even ranks."""
    paths = Pipeline(tensor=2, slower=(1.0, 1.0, 1.0, 1.5)).write(tmp_path)
    answer = what_if([paths[0], paths[2]])
    assert answer.recorded_s == near(SLOW_STEP)
    assert answer.traced.step_s < 0.95 * answer.recorded_s


def test_overlap(tmp_path: Path) -> None:
    """A (1000), then an all-reduce (1000) beside B (2000), and C (500) that waits for both."""
    paths = []
    for rank in (0, 1):
        made = Made()
        made.host("ProfilerStep#0", 0, 3500, cat="user_annotation")
        made.kernel(0.1, 0.1, 1000, "a")
        told: dict[str, Any] = {
            "Collective_name": "allreduce",
            "In_msg_nelems": 1000,
            "dtype": "Float",
            "Group_size": 2,
        }
        made.host("record_param_comms", 1, 3, **told)
        made.kernel(2, 1000, 2000, "ncclDevKernel_AllReduce", MAIN, 30)
        made.kernel(4, 1000, 3000, "b")
        made._add("cuda_runtime", "cudaStreamWaitEvent", 100, MAIN, 5, 5, {})
        made.kernel(6, 3000, 3500, "c", MAIN, COMPUTE)
        paths.append(tmp_path / f"{rank}.json")
        job = {"rank": rank, "world_size": 2}
        paths[-1].write_text(json.dumps({"traceEvents": made.events, "distributedInfo": job}))
    told_ranks = TracedRanks(paths)
    assert told_ranks.traced.step_s == near(3500)
    for slower, overlap, step in (
        (1.0, "none", 1000 + 1000 + 2000 + 500),
        (0.1, "traced", 1000 + 10_000 + 500),
        (0.1, "full", 1000 + 10_000),
    ):
        change = TraceChange(communication_speed=slower, overlap=overlap)  # type: ignore[arg-type]
        assert told_ranks.replay(change).step_s == near(step)


def changed(path: Path, change: Any) -> None:
    """Change the events of a trace in place."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def records(data: Any) -> list[dict[str, Any]]:
    return [e["args"] for e in data["traceEvents"] if e["name"] == "record_param_comms"]


def swap_sizes(data: Any) -> None:
    """Another order in the group of tensor parallel ranks."""
    own = [args for args in records(data) if args["Collective name"] == "allreduce"]
    own[2]["In msg nelems"] = own[2]["Out msg nelems"] = 7


def other_group(data: Any) -> None:
    for args in records(data):
        if args["Process Group Name"] == "1":
            args["Process Group Ranks"] = "[0, 2]"


def smaller_message(data: Any) -> None:
    next(a for a in records(data) if a["Collective name"] == "send").update(
        {"In msg nelems": 5, "Out msg nelems": 5}
    )


def no_peer(data: Any) -> None:
    for args in records(data):
        args.pop("Dst Rank", None)
        args["Process Group Ranks"] = "[0, 1, 2, 3]"
        args["Group size"] = 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap_sizes, r"exchange 3 of group '1' is all_reduce of 2 MB, but all_reduce of 28 B"),
        (other_group, r"group '1' has other ranks than in"),
        (smaller_message, r"message 1 from rank 0 to 2 is 4 MB where it is received, but 20 B"),
        (no_peer, r"a send in group '5' does not tell its peer"),
        (lambda d: d["distributedInfo"].update(rank=1), r"two traces are of rank 1"),
        (
            lambda d: d["distributedInfo"].update(world_size=8),
            r"of 4 ranks, but .* of 8: traces of",
        ),
        (lambda d: d.pop("distributedInfo"), r"does not tell its rank"),
    ],
)
def test_traces_that_do_not_match_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    """Among them is the canary of matching: a planted wrong order in a group."""
    paths = Pipeline(tensor=2).write(tmp_path)
    changed(paths[0], change)
    with pytest.raises(InputError, match=message):
        TracedRanks(paths)


def test_groups_in_another_order_are_refused(tmp_path: Path) -> None:
    """Each rank is first in a group in which the other one is second, on one stream."""
    paths = []
    for rank, order in enumerate(("xy", "yx")):
        made = Made()
        made.host("ProfilerStep#0", 0, 500, cat="user_annotation")
        made.kernel(1, 1, 100, "a")
        for n, group in enumerate(order):
            told: dict[str, Any] = {"Collective_name": "allreduce", "In_msg_nelems": 10}
            told |= {"dtype": "Float", "Group_size": 2, "Process_Group_Name": group}
            made.host("record_param_comms", 10 + 5 * n, 12 + 5 * n, **told)
            made.kernel(11 + 5 * n, 200 + 100 * n, 290 + 100 * n, "ncclDevKernel", MAIN, 30)
        job = {"rank": rank, "world_size": 2}
        paths.append(tmp_path / f"{rank}.json")
        paths[-1].write_text(json.dumps({"traceEvents": made.events, "distributedInfo": job}))
    with pytest.raises(InputError, match=r"in different orders.* all_reduce in group x") as caught:
        what_if(paths)
    assert "\n" not in str(caught.value)


def test_a_missing_stage_is_refused(tmp_path: Path) -> None:
    paths = Pipeline(tensor=2).write(tmp_path)
    with pytest.raises(InputError, match="rank 1 sends to rank 3, whose trace is missing"):
        TracedRanks(paths[:3])


def test_different_numbers_of_steps_are_refused(tmp_path: Path) -> None:
    paths = Pipeline().write(tmp_path)
    (tmp_path / "other").mkdir()
    more = Pipeline().write(tmp_path / "other", steps=3)
    with pytest.raises(InputError, match="3 steps, but 2 in"):
        TracedRanks([paths[0], more[1]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": ("tp",)}, "no exchanges in 'tp' .known: 2x1, p2p"),
        ({"groups": P2P, "group_ranks": 4}, "exchanges of p2p are send, which divide a model"),
        ({"group_ranks": 4}, "group_ranks: needs at least 1 rank, and groups"),
        ({"compute_speed": 0.0}, "compute_speed: must be positive, got 0"),
        ({"overlap": "some"}, "overlap: traced, none or full, got 'some'"),
    ],
)
def test_changes_that_make_no_sense_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        traced(tmp_path, Pipeline(tensor=2)).replay(TraceChange(**change))


def test_canary_without_waits_between_streams_the_answer_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "perfmodel.traces.ranks.stream_waits", lambda works, *_: tuple(() for _ in works)
    )
    told = traced(tmp_path, Pipeline())
    faster = told.replay(TraceChange(compute_speed=2.0)).step_s
    assert abs(faster / (6450 * US) - 1.0) > 0.1


def test_the_command(tmp_path: Path) -> None:
    paths = Pipeline(tensor=2, slower=(1.0, 1.0, 1.0, 1.5)).write(tmp_path)
    run = CliRunner().invoke(cli, ["what-if", *map(str, paths), "--as-others", "3"])
    assert run.exit_code == 0, run.output
    lines = run.output.splitlines()
    assert lines[0].startswith("replayed from 2 steps of 4 of 4 ranks: 18.8 ms per step, 18.8 ms")
    assert "(+0.0%; +0.0% with exchanges by formulas)" in lines[0]
    assert lines[2].split() == ["step", "18.8", "ms", "14.3", "ms", "-23.9%"]
    assert "slow: rank 3 computes 1.50 times as long" in run.output
    run = CliRunner().invoke(cli, ["what-if", *map(str, paths), "--compute-speed", "2", "--json"])
    told = json.loads(run.output)
    assert breaches("what-if", told) == []
    assert told["changed"]["step_s"] == near(10300)
    assert told["speedup"] == pytest.approx(18800 / 10300, rel=1e-4)
    assert told["slow"] == {"3": pytest.approx(1.5)}
    assert told["traced"]["ranks"][3]["waits_s"].keys() == {"network", "pipeline"}


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.9])
def test_a_truncated_trace_is_one_line(cut: float, tmp_path: Path) -> None:
    paths = Pipeline().write(tmp_path)
    text = paths[1].read_text()
    paths[1].write_text(text[: int(cut * len(text))])
    run = CliRunner().invoke(cli, ["what-if", *map(str, paths)])
    assert isinstance(run.exception, InputError)
    assert "\n" not in str(run.exception)
    assert str(paths[1]) in str(run.exception)


def test_nothing_is_changed_in_words() -> None:
    assert set(module.WORDS) <= set(module.CAUSES)
