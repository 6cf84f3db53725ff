"""The adapter of DiLoCo runs behind shaped links, on a synthetic table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy import diloco_measured
from perfmodel import InputError

HEAD = (
    "algorithm,period,link_bits_per_s,repeat,workers,parameters,micro_batch,seq_len,steps,periods,"
    "step_s,compute_s,blocked_at_exchange_s,optimizer_s\n"
)
SLOW = 8 * 1e6


def written(folder: Path, *rows: str) -> Path:
    (folder / diloco_measured.TABLE).write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    return folder


def row(algorithm: str, period: int = 4, rate: float = SLOW, step_s: float = 1.0) -> str:
    return f"{algorithm},{period},{rate},0,2,1000000,4,8,90,9,{step_s},0.3,2.0,0.01"


def test_rows_become_steps(tmp_path: Path) -> None:
    """4 MB between two workers at 1 MB/s minus headers and losses, every fourth step."""
    link = diloco_measured.shaped(1e6, 2).nic.goodput_bytes_per_s
    latencies_s = 2 * diloco_measured.TENSORS * diloco_measured.LATENCY_S
    exchange_s = latencies_s + 4e6 / link
    found = diloco_measured.cases(written(tmp_path, row("diloco"), row("localsgd"), row("ddp", 1)))
    compute_s = 0.31 * (1.0 + 0.01 * 0.589)  # at the pace of the slower of two devices
    handover_s = (1e-5 * diloco_measured.TENSORS + 25.0 / 864e9 * 4e6) / 4
    expected = compute_s + handover_s + exchange_s / 4
    assert [case.predicted for case in found[:2]] == pytest.approx([expected] * 2, rel=1e-4)
    buffers_s = diloco_measured.LATENCY_S + 6 * 131072 * 64 / link
    assert 0.31 + exchange_s - 0.2 < found[2].predicted - buffers_s < 0.31 + exchange_s
    assert [case.measured for case in found] == [1.0] * 3
    assert {case.pools for case in found} == {
        ("diloco_measured/shaped/diloco",),
        ("diloco_measured/shaped/localsgd",),
        ("diloco_measured/shaped/ddp",),
    }


def test_canary_headers_and_losses_matter(tmp_path: Path) -> None:
    (case,) = diloco_measured.cases(written(tmp_path, row("diloco")))
    assert case.predicted > 0.31 + 4.0 / 4 * 1.005


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (row("dilico"), "line 2: .*did you mean 'diloco'"),
        (row("diloco", 0), "line 2: period"),
        (row("diloco", rate=-1.0), "line 2: bandwidth_bytes_per_s"),
    ],
)
def test_unreadable_rows_are_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        diloco_measured.cases(written(tmp_path, line))


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        diloco_measured.cases(tmp_path)
