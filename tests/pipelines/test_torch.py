"""Orders and files are those of torch.distributed.pipelining."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.base.arrays import NONE
from perfmodel.base.errors import InputError
from perfmodel.inputs.replica import Replica
from perfmodel.pipelines import Schedule, check, read, schedule, text
from perfmodel.pipelines.actions import FORWARD
from perfmodel.replicas.stage_work import round_of
from perfmodel.training.transfers import handing_of

pytest.importorskip("torch", reason="compares with PyTorch")
theirs = pytest.importorskip("torch.distributed.pipelining.schedules")

CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved_1f1b": "ScheduleInterleaved1F1B",
    "looped_bfs": "ScheduleLoopedBFS",
    "interleaved_zb": "ScheduleInterleavedZeroBubble",
    "zb_v": "ScheduleZBVZeroBubble",
    "dualpipe_v": "ScheduleDualPipeV",
}
SINGLE = ("gpipe", "1f1b")
CASES = [
    (name, p, chunks)
    for name in CLASSES
    for p in (1, 2, 3, 4, 6)
    for chunks in ((1,) if name in SINGLE else (2,) if name in ("zb_v", "dualpipe_v") else (1, 3))
]


def orders(name: str, p: int, m: int, chunks: int) -> dict[int, list[Any]]:
    """PyTorch's order of each rank, without processes."""
    rounds = max(1, m // p)
    stub = SimpleNamespace(
        pp_group_size=p,
        n_local_stages=chunks,
        _stages=[None] * chunks,
        _n_microbatches=m,
        num_stages=p * chunks,
        _num_stages=p * chunks,
        number_of_rounds=rounds,
        microbatches_per_round=m // rounds,
    )
    kind = getattr(theirs, CLASSES[name])
    if name in SINGLE:
        return dict(kind._get_pipeline_order(stub))
    return {r: kind._calculate_single_rank_operations(stub, r) for r in range(p)}


def cells(order: list[Any]) -> list[str]:
    return [str(a) for a in order if a is not None and "REDUCE_GRAD" not in str(a)]


def ours(name: str, p: int, m: int, chunks: int) -> Schedule | None:
    try:
        return schedule(name, p, m, chunks=chunks)
    except InputError:
        assert m < 2 * p if name == "dualpipe_v" else m % max(1, m // p)
        return None


@pytest.mark.parametrize(("name", "p", "chunks"), CASES)
def test_each_rank_has_pytorchs_order(name: str, p: int, chunks: int) -> None:
    compared = 0
    for m in range(1, 3 * p + 5):
        s = ours(name, p, m, chunks)
        if s is None or (name == "1f1b" and m < p):  # its picture has forward passes not there
            continue
        lines = [line.split(",") for line in text(s).splitlines()]
        expected = [cells(order) for order in orders(name, p, m, chunks).values()]
        if name == "1f1b":  # its picture begins with micro-batch 1 on the last rank
            lines, expected = lines[:-1], expected[:-1]
        assert lines == expected
        compared += 1
    assert compared


@pytest.mark.parametrize(("name", "p", "chunks"), [case for case in CASES if case[1] > 1])
def test_files_of_pytorch_are_read(name: str, p: int, chunks: int, tmp_path: Path) -> None:
    m = 3 * p
    path = tmp_path / "order.csv"
    stub = SimpleNamespace(pipeline_order=orders(name, p, m, chunks))
    if name == "1f1b":
        stub.pipeline_order[p - 1] = [theirs._Action.from_str(str(a)) for a in last_1f1b(p, m)]
    theirs.PipelineScheduleMulti._dump_csv(stub, path)
    assert read(path) == schedule(name, p, m, chunks=chunks)


def last_1f1b(p: int, m: int) -> tuple[Any, ...]:
    return schedule("1f1b", p, m).order(p - 1)


def test_files_with_transfers_and_gathering_are_read(tmp_path: Path) -> None:
    p, m = 2, 4
    order = {r: [a for a in o if a] for r, o in orders("interleaved_1f1b", p, m, 2).items()}
    gathered = {r: theirs._add_unshard_reshard(actions) for r, actions in order.items()}
    sent = theirs._add_send_recv(gathered, lambda stage: stage % p, 2 * p)
    stub = SimpleNamespace(pipeline_order_with_comms=sent)
    path = tmp_path / "all.csv"
    theirs._PipelineScheduleRuntime._dump_csv(stub, path)
    assert {"RECV_F", "UNSHARD", "RESHARD", "SEND_B"} <= {
        word for word in ("RECV_F", "UNSHARD", "RESHARD", "SEND_B") if word in path.read_text()
    }
    assert read(path) == schedule("interleaved_1f1b", p, m)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "zb_h2", "zb_v", "zb_h1"])
def test_pytorch_accepts_our_files(name: str, tmp_path: Path) -> None:
    s = check(schedule(name, 3, 6))
    path = tmp_path / "ours.csv"
    path.write_text(text(s))
    stub = SimpleNamespace(pipeline_order={}, checked=None)
    stub._validate_and_set_stage_mapping = lambda actions: setattr(
        stub, "checked", theirs._validate_schedule(actions, 3, s.stages, 6)
    )
    theirs.PipelineScheduleMulti._load_csv(stub, path)
    assert stub.checked == {stage: rank for rank in range(3) for stage in s.held(rank)}


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 9), (4, 8)])
def test_inputs_of_pairs_are_asked_for_where_pytorch_receives_them(p: int, m: int) -> None:
    order = {r: [a for a in o if a] for r, o in orders("dualpipe_v", p, m, 2).items()}
    sent = theirs._add_send_recv(order, lambda stage: min(stage, 2 * p - 1 - stage), 2 * p)
    expected = {}
    for actions in sent.values():
        before = ""
        for action in actions:
            if "RECV" in str(action):
                kind = "F" if "RECV_F" in str(action) else "B"
                expected[action.stage_index, kind, action.microbatch_index] = before
            elif "SEND" not in str(action):
                before = str((action.sub_actions or [action])[-1])
    replica = Replica(pipeline=p, virtual_stages=2, schedule="dualpipe_v")
    handing = handing_of(round_of(replica, m), "torch")
    s = schedule("dualpipe_v", p, m)
    found = {}
    for target, posted in zip(handing.target.tolist(), handing.posted.tolist(), strict=True):
        kind = "F" if s.kind[target] == FORWARD else "B"
        key = (int(s.stage[target]), kind, int(s.micro_batch[target]))
        found[key] = "" if posted == NONE else str(s.action(posted))
    assert found == expected


def test_canary_a_changed_order_is_noticed() -> None:
    expected = [cells(order) for order in orders("interleaved_1f1b", 2, 4, 2).values()]
    expected[0][0], expected[0][1] = expected[0][1], expected[0][0]
    lines = [line.split(",") for line in text(schedule("interleaved_1f1b", 2, 4)).splitlines()]
    assert lines != expected
