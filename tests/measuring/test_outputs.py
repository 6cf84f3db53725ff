"""Output of network benchmarks as measurements, and as clusters fitted to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel import InputError
from perfmodel.calibration.network import fit_network, read
from perfmodel.catalogue import catalogue
from perfmodel.cli import cli
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
        (printed("abcd", 0.75, redop="none", first="# alltoall_perf"), "all_to_all"),
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
        (printed(first="# gather_perf"), "gather_perf of nccl-tests is not a collective"),
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


# -- OSU micro-benchmarks --------------------------------------------------------------------------


def osu(test: str, header: str, rows: dict[int, float], first: str = "") -> str:
    """The output of an OSU benchmark: a value for each size."""
    lines = [first, f"# OSU MPI {test} Test v7.3", "# Datatype: MPI_CHAR.", f"# Size {header}"]
    return "\n".join([*lines, *(f"{size:<12}{value:>16.2f}" for size, value in rows.items()), ""])


def linear(rate: float = 1e10, latency_s: float = 2e-6) -> str:
    """The latency and the bandwidth of a link of ``rate`` bytes per second."""
    sizes = [4**i for i in range(1, 12)]
    late = {0: 2.0} | {size: (latency_s + size / rate) * 1e6 for size in sizes}
    moved = {n: 64 * n / (latency_s + 63e-7 + 64 * n / rate) / 1e6 for n in sizes}
    fast = {n: moved[n] if n < 4**8 else 64 * n / (latency_s + 64 * n / rate) / 1e6 for n in sizes}
    return osu("Latency", "Latency (us)", late) + osu("Bandwidth", "Bandwidth (MB/s)", fast)


def test_a_link_is_fitted_to_latency_and_bandwidth_of_osu(tmp_path: Path) -> None:
    """100 ns for each further message: 63 of the 64 of a window."""
    fit = fit_network([read(given(tmp_path, linear()))])
    assert fit.cluster.nic.latency_s == pytest.approx(2e-6, rel=0.01)
    assert fit.cluster.nic.bandwidth_bytes_per_s == pytest.approx(1e10, rel=0.01)
    assert fit.link is not None
    assert fit.link.per_message_s is not None
    assert fit.link.per_message_s.value == pytest.approx(1e-7, rel=0.05)


def test_canary_another_rate_of_osu_is_noticed(tmp_path: Path) -> None:
    fit = fit_network([read(given(tmp_path, linear(0.9e10)))])
    assert fit.cluster.nic.bandwidth_bytes_per_s != pytest.approx(1e10, rel=0.05)


@pytest.mark.parametrize(
    "first",
    [
        "# ranks: 4",
        "$ mpirun -np 4 -hostfile hosts ./osu_allreduce",
        "srun --ntasks=4 /opt/osu/osu_allreduce -f",
    ],
)
@pytest.mark.parametrize(
    ("test", "operation", "size"),
    [
        ("Allreduce Latency", "all_reduce", 1024),
        ("Broadcast Latency", "broadcast", 1024),
        ("Reduce_scatter Latency", "reduce_scatter", 1024),
        ("Allgather Latency", "all_gather", 4 * 1024),
    ],
)
def test_collectives_of_osu(
    tmp_path: Path, test: str, operation: str, size: int, first: str
) -> None:
    text = osu(test, "Avg Latency(us)   Min Latency(us)", {1024: 12.5}, first)
    found = outputs.read(given(tmp_path, text))
    (one,) = found.measurements
    assert (one.operation, one.ranks, one.bytes) == (operation, 4, size)
    assert one.seconds == pytest.approx((12.5e-6,))
    assert found.nodes == ()


def test_a_line_says_how_many_nodes_the_ranks_of_osu_share(tmp_path: Path) -> None:
    text = osu("Allreduce Latency", "Avg Latency(us)", {8: 1.0}, "# ranks: 4\n# nodes: 2")
    assert outputs.read(given(tmp_path, text)).nodes == (0, 0, 1, 1)
    text = osu("Latency", "Latency (us)", {8: 1.0}, "# nodes: 1")
    assert outputs.read(given(tmp_path, text, "inside.txt")).nodes == (0, 0)


def test_both_ways_at_once_share_the_rate_that_osu_prints(tmp_path: Path) -> None:
    text = osu("Bi-Directional Bandwidth", "Bandwidth (MB/s)", {4: 10.0, MIB: 2000.0})
    (one,) = outputs.read(given(tmp_path, text)).measurements
    assert (one.operation, one.bytes) == ("duplex", 64 * MIB)
    assert one.bytes / one.seconds[0] == pytest.approx(1e9)


LATE = osu("Latency", "Latency (us)", {4: 1.0, 1024: 1.5})
REDUCED = osu("Allreduce Latency", "Avg Latency(us)", {4: 1.0})


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (LATE.replace("1.50", ""), 6, "expected a size and a value in us, got '1024'"),
        (LATE.replace("1.50", "fast"), 6, "expected a size and a value in us"),
        (LATE.partition("# Size")[0], 2, "expected lines of size and value below"),
        (LATE.replace("# Size", "# Sizes"), 5, "expected a header '# Size ... (us)'"),
        (LATE.replace("Latency (us)", "Bandwidth (MB/s)"), 5, "expected a header '# Size"),
        (REDUCED, 2, "expected the number of ranks, at least 2, above the title"),
        (REDUCED.replace("Allreduce", "Alltoall"), 2, "expected a test of OSU in Latency"),
    ],
)
def test_output_of_osu_that_does_not_tell_says_where(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    path = given(tmp_path, text)
    with pytest.raises(InputError) as error:
        outputs.read(path)
    assert str(error.value).startswith(f"{path}: line {line}: {said}")
    assert "\n" not in str(error.value)


# -- perftest --------------------------------------------------------------------------------------

RULE = "-" * 87


def perftest(title: str, header: str, *rows: str) -> str:
    about = [RULE, f"                    {title}", " Number of qps   : 1", " Mtu : 4096[B]", RULE]
    return "\n".join([*about, " local address: LID 0x01 QPN 0x0215", RULE, header, *rows, RULE, ""])


MEGABYTES = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
ROW = " 65536      5000             2758.40            2000.00            0.044134"
NOTE = "Conflicting CPU frequency values detected: 800.0 != 2000.0. CPU Frequency is not max."


@pytest.mark.parametrize("title", ["RDMA_Write BW Test", "RDMA_Read BW Test", "Send BW Test"])
@pytest.mark.parametrize(
    ("header", "rate"),
    [
        (MEGABYTES, 2000 * 2**20),
        (MEGABYTES.replace("MB", "MiB"), 2000 * 2**20),
        (MEGABYTES.replace("MB", "Gb"), 2000 * 1e9 / 8),
    ],
)
def test_perftest_gives_the_bandwidth_of_the_link(
    tmp_path: Path, title: str, header: str, rate: float
) -> None:
    path = given(tmp_path, perftest(title, header, NOTE, ROW))
    (one,) = outputs.read(path).measurements
    assert (one.operation, one.bytes, one.ranks) == ("stream", 5000 * 65536, 2)
    assert one.bytes / one.seconds[0] == pytest.approx(rate)
    fitted = fit_network([read(path)]).cluster.nic.bandwidth_bytes_per_s
    assert fitted == pytest.approx(rate, rel=1e-4)


def test_both_ways_at_once_share_the_rate_that_perftest_prints(tmp_path: Path) -> None:
    text = perftest("RDMA_Write Bidirectional BW Test", MEGABYTES, ROW)
    (one,) = outputs.read(given(tmp_path, text)).measurements
    assert one.operation == "duplex"
    assert one.bytes / one.seconds[0] == pytest.approx(1000 * 2**20)


TIMES = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"


def test_latencies_of_perftest(tmp_path: Path) -> None:
    text = perftest("RDMA_Write Latency Test", TIMES, " 2       1000    1.85    28.4   2.05   2.11")
    (one,) = outputs.read(given(tmp_path, text)).measurements
    assert (one.operation, one.bytes) == ("ping_pong", 2)
    assert one.seconds == pytest.approx((2.05e-6,))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (perftest("Send BW Test", MEGABYTES), 8, "expected lines of size, iterations and values"),
        (perftest("Send BW Test", MEGABYTES, ROW[:40]), 9, "expected size, iterations, peak and"),
        (perftest("Send BW Test", "", ROW), 9, "expected a header '#bytes #iterations ...'"),
        (perftest("Send BW Test", MEGABYTES.replace("MB", "GB"), ROW), 8, "expected a bandwidth"),
        (f"{MEGABYTES}\n{ROW}\n", 2, "expected a title such as 'RDMA_Write BW Test'"),
        (
            perftest("RDMA_Read Latency Test", TIMES, " 2  1000  1.8  28.4  2.0  2.1"), 2,
            "expected a BW test, or a Latency test of RDMA_Write or Send",
        ),
    ],
)  # fmt: skip
def test_output_of_perftest_that_does_not_tell_says_where(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    path = given(tmp_path, text)
    with pytest.raises(InputError) as error:
        outputs.read(path)
    assert str(error.value).startswith(f"{path}: line {line}: {said}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["out.csv", "out", "out.json"])
def test_content_decides_and_not_the_name(tmp_path: Path, name: str) -> None:
    assert read(given(tmp_path, printed(), name)).backend == "nccl"
    assert read(given(tmp_path, json.dumps(iperf3()), name)).backend == "tcp"
    assert read(given(tmp_path, LATE, name)).backend == "mpi"
    assert read(given(tmp_path, perftest("Send BW Test", MEGABYTES, ROW), name)).backend == "verbs"


def test_output_is_read_from_standard_input() -> None:
    arguments = ["calibrate", "network", "-", "--nominal", "10Gbps"]
    done = CliRunner().invoke(cli, arguments, input=printed(), catch_exceptions=False)
    assert "all_reduce: measured" in done.stdout


def test_a_file_of_another_kind_is_refused_with_the_kinds_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step,loss\n1,2.5\n")
    with pytest.raises(InputError, match=r"not known what it is; read are measurement files, the"):
        outputs.read(path)
