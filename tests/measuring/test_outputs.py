"""Output of nccl-tests and iperf3 as measurements, and as clusters fitted to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import InputError
from perfmodel.calibration.network import fit_network, read
from perfmodel.cli import cli
from perfmodel.inputs import catalogue
from perfmodel.inputs.cluster import read_cluster
from perfmodel.inputs.measured_collectives import measured_collective_s
from perfmodel.measuring import outputs
from perfmodel.measuring.measurements import Measurements

MIB = 2**20
US = 1e-6

BEGIN = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20"
COLUMNS = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong"
)
OLD_COLUMNS = (
    "#       size         count      type   redop     time   algbw   busbw  error"
    "     time   algbw   busbw  error"
)


def ranks(hosts: str) -> list[str]:
    return [
        f"#  Rank {rank:2} Group  0 Pid {100 + rank} on {host} device  0 [0x07] NVIDIA A100"
        for rank, host in enumerate(hosts)
    ]


def row(size: int, us: float, factor: float, redop: str = "sum", root: str = "-1") -> str:
    """A row out of place; in place it takes 2 us longer."""
    both = []
    for time in (us, us + 2.0):
        algbw = size / time / 1e3  # GB/s
        both.append(f"{time:8.1f} {algbw:7.2f} {factor * algbw:7.2f}      0")
    return f"{size:12} {size // 4:13} float {redop} {root} {' '.join(both)}"


def printed(
    hosts: str = "ab",
    factor: float | None = None,
    columns: str = COLUMNS,
    first: str = "",
    **cells: str,
) -> str:
    """Three sizes in 1, 2 and 4 ms, by default of an all-reduce."""
    n = len(hosts)
    times = {MIB: 1000.0, 4 * MIB: 2000.0, 16 * MIB: 4000.0}
    share = 2 * (n - 1) / n if factor is None else factor
    rows = [row(size, us, share, **cells) for size, us in times.items()]
    lines = [first, BEGIN, "# Using devices", *ranks(hosts), "#", columns, *rows]
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth : 1.1", ""])


def given(folder: Path, text: str, name: str = "out.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def times_of(found: Measurements) -> dict[float, tuple[float, ...]]:
    return {m.bytes: m.seconds for m in found.measurements}


# -- nccl-tests ------------------------------------------------------------------------------------


def test_rows_of_nccl_tests_are_measurements(tmp_path: Path) -> None:
    found = outputs.read(given(tmp_path, printed("aabb"), "lab.txt"))
    assert (found.name, found.backend, found.nodes) == ("lab", "nccl", (0, 0, 1, 1))
    assert {(m.operation, m.ranks, m.at_once) for m in found.measurements} == {("all_reduce", 4, 1)}
    expected = {MIB: 1000.0, 4 * MIB: 2000.0, 16 * MIB: 4000.0}
    assert list(times_of(found)) == list(expected)
    for size, us in expected.items():
        assert times_of(found)[size] == pytest.approx((us * US, (us + 2.0) * US))


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        (printed("abcd"), "all_reduce"),
        (printed("ab"), "all_reduce"),
        (printed("abcd", 0.75), "reduce_scatter"),
        (printed("abcd", 1.0, redop="none", root="0"), "broadcast"),
        (printed("abcd", 0.75, redop="none", first="$ ./all_gather_perf -b 1M"), "all_gather"),
        (printed("abcd", first="# Collective test starting: all_reduce_perf"), "all_reduce"),
        (printed("ab", 0.5), "reduce_scatter"),
    ],
)
def test_the_operation_follows_from_the_name_or_the_columns(
    tmp_path: Path, text: str, operation: str
) -> None:
    found = outputs.read(given(tmp_path, text))
    assert {m.operation for m in found.measurements} == {operation}


def test_the_name_of_the_file_may_name_the_operation(tmp_path: Path) -> None:
    text = printed("abcd", 0.75, redop="none")
    found = outputs.read(given(tmp_path, text, "all_gather_perf.txt"))
    assert {m.operation for m in found.measurements} == {"all_gather"}


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "0: "])
def test_older_columns_and_tags_of_launchers(tmp_path: Path, tag: str) -> None:
    text = printed("abcd", columns=OLD_COLUMNS).replace(" -1 ", " ")
    tagged = "\n".join(tag + line for line in text.splitlines())
    assert times_of(outputs.read(given(tmp_path, tagged))) == times_of(
        outputs.read(given(tmp_path, printed("abcd"), "new.txt"))
    )


def test_times_that_were_not_measured_are_left_out(tmp_path: Path) -> None:
    lines = printed("abcd", 1.0, redop="none", root="0").splitlines()
    cut = [" ".join([*line.split()[:9], "N/A N/A N/A N/A"]) if "float" in line else line
           for line in lines]  # fmt: skip
    found = outputs.read(given(tmp_path, "\n".join(cut)))
    assert times_of(found)[MIB] == pytest.approx((1000.0 * US,))


def test_several_runs_in_a_file_keep_their_ranks(tmp_path: Path) -> None:
    found = outputs.read(given(tmp_path, printed("ab") + printed("abcd")))
    assert [m.ranks for m in found.measurements] == [2, 2, 2, 4, 4, 4]
    assert found.nodes == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n".join([BEGIN, COLUMNS]), "has no times"),
        (printed().replace("Rank", "rank"), "names 0 ranks"),
        (printed("a", 1.0), "names 1 ranks"),
        (printed().replace(COLUMNS, ""), "has no header"),
        (printed().replace("algbw", "rate", 1), "has no header"),
        (printed() + f"{64 * MIB}  {16 * MIB}  float\n", "expected 13 columns, got '67108864"),
        (printed("abcd", 0.75, redop="none"), "do not tell which test"),
        (printed("abcd", 1.3), "do not tell which test"),
        (printed("abcd", 1.0, root="2"), "reduce_perf of nccl-tests is not a collective"),
        (printed(first="# alltoall_perf"), "alltoall_perf of nccl-tests is not a collective"),
        (printed().replace("1000.0 ", "N/A ").replace("1002.0 ", "N/A "), "a time in microsec"),
    ],
)
def test_output_that_cannot_be_used_says_why(tmp_path: Path, text: str, said: str) -> None:
    path = given(tmp_path, text)
    with pytest.raises(InputError, match=said) as error:
        outputs.read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_cluster_is_fitted_to_nccl_tests(tmp_path: Path) -> None:
    """1 ms, and 1 ms per MiB. In place it takes 2 us longer, so the median is 1 us more."""
    times = {MIB: 2000.0, 4 * MIB: 5000.0, 16 * MIB: 17000.0}
    rows = [row(size, us, 1.0) for size, us in times.items()]
    text = "\n".join([BEGIN, *ranks("ab"), COLUMNS, *rows])
    output = tmp_path / "lab.json"
    arguments = ["calibrate", "network", str(given(tmp_path, text)), "--nominal", "10Gbps"]
    done = CliRunner().invoke(cli, [*arguments, "--output", str(output)], catch_exceptions=False)
    assert done.exit_code == 0
    (collective,) = read_cluster(output).collectives
    assert collective.operation == "all_reduce"
    assert (collective.ranks, collective.bytes) == ((2, 2), (MIB, 16 * MIB))
    for size, us in times.items():
        assert measured_collective_s(collective, 2, size) == pytest.approx((us + 1) * US, rel=1e-4)
    assert measured_collective_s(collective, 2, 8 * MIB) == pytest.approx(9001 * US, rel=1e-4)


# -- iperf3 ----------------------------------------------------------------------------------------


def iperf3(**changes: Any) -> dict[str, Any]:
    """10 s in which 11.75 GB arrive: 9.4 Gbps."""
    test = {"protocol": "TCP", "num_streams": 1, "duration": 10, **changes}
    received = {"start": 0, "end": 10, "seconds": 10, "bytes": 11.75e9, "bits_per_second": 9.4e9}
    sent = {**received, "bytes": 11.8e9, "retransmits": 12}
    return {
        "start": {"version": "iperf 3.9", "test_start": test},
        "intervals": [],
        "end": {"sum_sent": sent, "sum_received": received},
    }


def test_iperf3_gives_the_bandwidth_of_the_link(tmp_path: Path) -> None:
    path = given(tmp_path, json.dumps(iperf3()), "iperf3.json")
    fit = fit_network([read(path)], nominal_bytes_per_s=1.25e9)
    assert fit.cluster.nic.bandwidth_bytes_per_s == 1.25e9
    assert fit.cluster.nic.efficiency == pytest.approx(0.94)
    assert fit.cluster.nic.latency_s == 0.0
    assert any("latency: not measured, so 0" in note for note in fit.notes)
    assert not any("link: latency" in line for line in fit.lines())


def test_the_latency_of_the_base_cluster_stays(tmp_path: Path) -> None:
    path = given(tmp_path, json.dumps(iperf3()), "iperf3.json")
    base = catalogue.cluster("ethernet-10g")
    fit = fit_network([read(path)], base=base)
    assert fit.cluster.nic.latency_s == base.nic.latency_s > 0.0
    assert fit.cluster.nic.bandwidth_bytes_per_s == pytest.approx(1.175e9)
    assert any(f"that of cluster {base.name}" in note for note in fit.notes)


def test_repeated_transfers_give_one_bandwidth(tmp_path: Path) -> None:
    """Of three runs with 1, 1.1 and 1.3 GB/s the middle one counts."""
    measured = []
    for i, size in enumerate((10e9, 11e9, 13e9)):
        content = iperf3()
        content["end"]["sum_received"]["bytes"] = size
        measured.append(read(given(tmp_path, json.dumps(content), f"run{i}.json")))
    fit = fit_network(measured)
    assert fit.cluster.nic.bandwidth_bytes_per_s == pytest.approx(1.1e9, rel=1e-4)
    assert fit.cluster.nic.latency_s == 0.0


def test_parallel_connections_count_together(tmp_path: Path) -> None:
    found = outputs.read(given(tmp_path, json.dumps(iperf3(num_streams=4)), "iperf3.json"))
    assert found.measurements[0].bytes == 11.75e9
    assert "4 connections together" in found.source.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (iperf3(protocol="UDP"), "without --udp"),
        (iperf3(bidir=1), "without --bidir"),
        (iperf3() | {"end": {}}, "no end.sum_received"),
        (iperf3() | {"error": "unable to connect"}, "iperf3 failed: unable to connect"),
        (iperf3() | {"end": {"sum_received": {"bytes": 1, "seconds": 0}}}, "seconds: must be more"),
        (iperf3() | {"end": 3}, "cannot read the output of iperf3"),
    ],
)
def test_iperf3_that_does_not_tell_says_why(tmp_path: Path, content: Any, said: str) -> None:
    path = given(tmp_path, json.dumps(content), "iperf3.json")
    with pytest.raises(InputError, match=said) as error:
        outputs.read(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_cut_output_of_iperf3_is_refused(tmp_path: Path) -> None:
    text = json.dumps(iperf3())
    with pytest.raises(InputError, match="cannot read the output of iperf3"):
        outputs.read(given(tmp_path, text[: len(text) // 2], "iperf3.json"))


@pytest.mark.parametrize("name", ["out.csv", "out", "out.json"])
def test_content_decides_and_not_the_name(tmp_path: Path, name: str) -> None:
    assert read(given(tmp_path, printed(), name)).backend == "nccl"
    assert read(given(tmp_path, json.dumps(iperf3()), name)).backend == "tcp"


def test_output_is_read_from_standard_input() -> None:
    arguments = ["calibrate", "network", "-", "--nominal", "10Gbps"]
    done = CliRunner().invoke(cli, arguments, input=printed(), catch_exceptions=False)
    assert "all_reduce: measured" in done.stdout
