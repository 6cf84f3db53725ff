"""The works of a rank, its exchanges, and what works and the host wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel import InputError
from perfmodel.calibration.exchange_times import TraceChange
from perfmodel.calibration.rank_set import read_ranks
from perfmodel.calibration.what_if import TracedRanks
from perfmodel.traces.exchanges import operation_of
from perfmodel.traces.ranks import RankTrace, read_rank
from tests.traces.test_traces import COMPUTE, FOLDER, MAIN, Made

NCCL = 30


def of(made: Made, path: Path, rank: int = 0, **job: Any) -> RankTrace:
    job = {"rank": rank, "world_size": 4, **job}
    path.write_text(json.dumps({"traceEvents": made.events, "distributedInfo": job}))
    return read_rank(path)


def begun(length: float = 1000.0) -> Made:
    made = Made()
    made.host("ProfilerStep#0", 0, length, cat="user_annotation")
    made.kernel(1, 10, 100, "a")
    return made


def record(made: Made, at: float, name: str, elements: int = 10, **more: Any) -> None:
    args = {"Collective_name": name, "In_msg_nelems": elements, "dtype": "Float", **more}
    made.host("record_param_comms", at, at + 2, **args)


def call(made: Made, name: str, start: float, end: float, cat: str = "", **args: Any) -> None:
    made._add(cat or "cuda_runtime", name, 100, MAIN, start, end, args)


def test_a_kernel_has_the_records_since_the_one_before(tmp_path: Path) -> None:
    """Batched: a send and a receive, then a record of both and one kernel. Then a collective."""
    made = begun()
    group = {"Process_Group_Name": "7", "Process_Group_Ranks": "[0, 2]", "Group_size": 2}
    record(made, 20, "send", 10, **group)
    record(made, 23, "recv", 20, **group)
    record(made, 26, "coalesced", 0, **group)
    made.kernel(27, 100, 200, "ncclDevKernel_SendRecv", MAIN, NCCL)
    record(made, 30, "_allgather_base", 5, Out_msg_nelems=20, Process_Group_Name="0", Group_size=4)
    made.kernel(31, 200, 300, "ncclDevKernel_AllGather_RING_LL", MAIN, NCCL)
    works = of(made, tmp_path / "a.json").works
    assert [len(work.exchanges) for work in works] == [0, 2, 1]
    sent, received = works[1].exchanges
    assert (sent.operation, sent.peer, sent.bytes, sent.group) == ("send", 2, 40.0, "7")
    assert (received.operation, received.peer, received.bytes) == ("recv", 2, 80.0)
    (gather,) = works[2].exchanges
    assert (gather.operation, gather.members, gather.bytes) == ("all_gather", (0, 1, 2, 3), 80.0)


def test_members_are_listed_or_follow_from_distance(tmp_path: Path) -> None:
    made = begun()
    told: list[dict[str, Any]] = [
        {"Process_Group_Ranks": "[4, 5]", "Group_size": 2},
        {"Process_Group_Ranks": "[0, 8, ..., 504]", "Group_size": 64},
        {"Global_rank_start": 1, "Global_rank_stride": 2, "Group_size": 3},
        {"Group_size": 4},
        {"Group_size": 3},
    ]
    for n, more in enumerate(told):
        record(made, 20 + 5 * n, "allreduce", Process_Group_Name=f"g{n}", **more)
        made.kernel(21 + 5 * n, 100 + n, 101 + n, "ncclDevKernel_AllReduce", MAIN, NCCL)
    listed = {"pg_name": "g1", "pg_size": 64, "ranks": list(range(0, 512, 8))}
    works = of(made, tmp_path / "a.json", pg_config=[listed, {"pg_name": "x"}, 5]).works[1:]
    members = [work.exchanges[0].members for work in works]
    assert members == [(4, 5), tuple(range(0, 512, 8)), (1, 3, 5), (0, 1, 2, 3), ()]


def test_unknown_communication_stays_as_long_as_traced(tmp_path: Path) -> None:
    made = begun()
    made.kernel(20, 100, 200, "ncclDevKernel_AllReduce", MAIN, NCCL)
    told = of(made, tmp_path / "a.json")
    assert told.works[1].exchanges == ()
    assert told.notes == ("1 communications without a record: as long as traced",)


def test_streams_of_waits_are_told_by_cuda_sync(tmp_path: Path) -> None:
    """b on stream 9 waits for what was on stream 7 when the event was recorded: a, not c."""
    made = begun()
    call(made, "cudaEventRecord", 2, 3, correlation=900)
    made.kernel(4, 100, 250, "c", MAIN, COMPUTE)
    more: dict[str, Any] = {
        "stream": 9,
        "wait_on_stream": COMPUTE,
        "wait_on_cuda_event_record_corr_id": 900,
    }
    call(made, "Stream Wait Event", 5, 6, "cuda_sync")
    made.events[-1]["args"] = more  # Kineto writes these names with underscores
    made.kernel(7, 180, 300, "b", MAIN, 9)
    told = of(made, tmp_path / "a.json")
    assert told.after == ((), (), (0,))


def test_a_communication_waits_for_what_was_launched_before(tmp_path: Path) -> None:
    """The later kernel does not wait for it without a call; with one it does."""
    for waits, expected in ((False, ((), (0,), ())), (True, ((), (0,), (1,)))):
        made = begun()
        record(made, 20, "allreduce")
        call(made, "cudaStreamWaitEvent", 20.5, 20.6)
        made.kernel(21, 100, 200, "ncclDevKernel_AllReduce", MAIN, NCCL)
        if waits:
            call(made, "cudaStreamWaitEvent", 30, 31)
        made.kernel(32, 300, 400, "b")
        assert of(made, tmp_path / "a.json").after == expected


def test_a_pause_that_ends_with_a_work_of_another_stream_is_a_wait(tmp_path: Path) -> None:
    made = begun()
    made.kernel(3, 100, 500, "other", MAIN, 9)
    made.kernel(5, 505, 600, "late")
    made.kernel(6, 650, 700, "later")
    assert of(made, tmp_path / "a.json").after == ((), (0,), (1,), ())


@pytest.mark.parametrize(
    ("name", "start", "end", "works"),
    [
        ("cudaDeviceSynchronize", 20, 300, (0, 1)),
        ("cudaStreamSynchronize", 20, 101, (0,)),
        ("cudaMemcpyAsync", 20, 290, (1,)),
        ("cudaMemcpyAsync", 20, 90, ()),
        ("cudaLaunchKernel", 110, 290, (1,)),
        ("cudaLaunchKernel", 290, 600, ()),
    ],
)
def test_the_host_waits(
    name: str, start: float, end: float, works: tuple[int, ...], tmp_path: Path
) -> None:
    """For all works, the last that ended, or one that ended during a long call."""
    made = begun()
    made.kernel(3, 50, 280, "b", MAIN, 9)
    call(made, name, start, end)
    assert tuple(i for w in of(made, tmp_path / "a.json").waits for i in w.works) == works


def gloo(rank: int, path: Path, *, asynchronous: bool = False, size: int = 256) -> Path:
    """Two ranks: the first computes 1000, sends (taking 20), and both add 100 later; by hand the
    second receives until 1020, and all-reduces of 50 end at 1170."""
    made = Made()
    made.host("ProfilerStep#0", 0, 1300, cat="user_annotation")
    made.host("aten::mm", 0, 10)
    shape: dict[str, Any] = {"Input_Dims": [[size]], "Input_type": ["float"]}
    way = ("send", 1000.0, 1020.0) if rank == 0 else ("recv", 5.0, 1020.0)
    inputs = ["", "", str(1 - rank), "0"]
    name = {"send": "c10d::send", "recv": "c10d::recv_"}[way[0]]
    made.host(name, way[1], way[1] + 1, Concrete_Inputs=inputs)
    made.host(f"gloo:{way[0]}", way[1] + 1, way[2], cat="user_annotation", **shape)
    inputs = ["", "", "", "", str(asynchronous), "-1"]
    made.host("c10d::allreduce_", 1120, 1121, Concrete_Inputs=inputs)
    made.host("gloo:all_reduce", 1121, 1170, thread=9, cat="user_annotation", **shape)
    groups = [
        {"pg_name": "0", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": str(1 + rank), "pg_size": 1, "ranks": [rank]},
    ]
    job = {"rank": rank, "world_size": 2, "pg_config": groups}
    path.write_text(json.dumps({"traceEvents": made.events, "distributedInfo": job}))
    return path


def test_gloo_by_hand(tmp_path: Path) -> None:
    """Computing twice as fast: 500 + 20, then 50 + 50, and 65 at the end."""
    paths = [gloo(rank, tmp_path / f"{rank}.json") for rank in (0, 1)]
    told = TracedRanks(paths)
    assert told.traced.step_s == pytest.approx(1300e-6, rel=1e-3)
    exchange = told.traces[1].works[1].exchanges[0]
    assert (exchange.operation, exchange.peer, exchange.bytes) == ("recv", 0, 1024.0)
    faster = told.replay(TraceChange(compute_speed=2.0)).step_s
    assert faster == pytest.approx((500 + 20 + 50 + 50 + 65) * 1e-6, rel=0.01)


def test_gloo_beside_the_training_thread_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="beside the training thread"):
        read_rank(gloo(0, tmp_path / "a.json", asynchronous=True))


def test_groups_that_gloo_hides_must_fit(tmp_path: Path) -> None:
    paths = [gloo(rank, tmp_path / f"{rank}.json", size=2 + rank) for rank in (0, 1)]
    with pytest.raises(InputError, match="fits none of its groups"):
        read_ranks(paths)


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.exists(), reason="the traces are not here")
@pytest.mark.parametrize(
    ("name", "step_s"), [("hta_resnet50_ddp_2xA100_rank0", 0.222), ("hta_resnet50_1xV100", 0.0967)]
)
def test_public_traces_are_replayed(name: str, step_s: float) -> None:
    """Twice the speed halves the step of the V100, whose host was ahead by a full queue of
    launches, and changes nothing where the host is too slow."""
    told = TracedRanks([FOLDER / f"{name}.json.gz"])
    assert told.step_s == pytest.approx(step_s, rel=0.01)
    assert told.error == pytest.approx(0.0, abs=1e-3)
    faster = told.replay(TraceChange(compute_speed=2.0)).step_s / told.step_s
    assert faster == pytest.approx(0.5 if "V100" in name else 1.0, abs=0.02)


def test_operations_by_name() -> None:
    names = ("allreduce_coalesced", "reduce_scatter_tensor_coalesced", "all_to_allv", "alltoall")
    assert list(map(operation_of, names)) == [
        "all_reduce",
        "reduce_scatter",
        "all_to_all",
        "all_to_all",
    ]
    assert operation_of("coalesced") is None
