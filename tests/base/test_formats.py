"""Files of other programs are recognised by their content, and each reader says what they are."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
import zipfile
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from perfmodel import InputError
from perfmodel.base import formats
from perfmodel.cli import cli
from tests.mutations import texts

NCCL_TESTS = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20
#       size         count      type   redop    root     time   algbw   busbw #wrong
"""
IPERF3 = '{"start": {"version": "iperf 3.9", "test_start": {"protocol": "TCP"}}, "end": {}}'
IPERF3_TEXT = "[ ID] Interval           Transfer     Bitrate         Retr\n"
OSU = "# OSU MPI Allreduce Latency Test v7.0\n"
PERFTEST = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]\n"
DEEPSPEED = "---- DeepSpeed Flops Profiler ----\nfwd latency:    1.00 ms\n"
TIMELINE = '[\n{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 1},\n'
CHAKRA = '{"schema": "1.1.0-chakra.0.0.4", "nodes": []}'
TRACE = '{"traceEvents": []}'
TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\t0-31\t0
GPU1\tNV4\t X \tNV2\t0-31\t0
GPU2\tSYS\tNV2\t X \t0-31\t0
"""
SUMMARY = """\
====================
Layer (type:depth-idx)          Output Shape     Param #
====================
Total params: 1,250
Trainable params: 1,000
"""
HOSTFILE = "# ours\n\nnode1 slots=4\nnode2.lab slots=8 max_slots=16\n"
TASK = "name: train\nnum_nodes: 3\nresources:\n  cloud: aws\n  accelerators: V100:8\n"

NCCL_LOG = "n1:7:9 [0] NCCL INFO Using network Socket\n"

TEXTS = {
    "nccl-log": (NCCL_LOG, "over what its channels go"),
    "nccl-tests": (NCCL_TESTS, "perfmodel calibrate network reads it"),
    "iperf3": (IPERF3, "perfmodel calibrate network reads it"),
    "iperf3-text": (IPERF3_TEXT, "iperf3 with --json"),
    "osu": (OSU, "perfmodel calibrate network reads it"),
    "perftest": (PERFTEST, "perfmodel calibrate network reads it"),
    "deepspeed": (DEEPSPEED, "perfmodel import reads it"),
    "horovod-timeline": (TIMELINE, "none of computing"),
    "chakra-json": (CHAKRA, "it has no times"),
    "trace": (TRACE, "perfmodel import"),
    "topology": (TOPOLOGY, "3 GPUs, NVLink (NV2, NV4)"),
    "model-summary": (SUMMARY, "--gradient-bytes 4000B"),
    "hostfile": (HOSTFILE, "2 nodes with 12 slots: give --workers 12"),
    "skypilot": (TASK, "--device v100 --workers 24"),
    "perfmodel": ('schema = "perfmodel.cluster/1"', "--cluster"),
}


@pytest.mark.parametrize(
    ("accelerators", "said"),
    [
        ("accelerators: V100", "2 x 1 V100"),
        ("accelerators: {A100: 8}", "2 x 8 A100"),
        ("accelerators: ['L4:4', 'A10G:4']", "2 x 4 L4"),
        ("any_of:\n    - accelerators: H100:8", "2 x 8 H100"),
        ("cpus: 8+", "perfmodel plan --model NAME"),
    ],
)
def test_machines_of_a_task(accelerators: str, said: str) -> None:
    found = formats.recognise(f"resources:\n  {accelerators}\nnum_nodes: 2\n".encode())
    assert found is not None
    assert found.name == "skypilot"
    assert said in found.advice


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_is_recognised_with_what_to_do(name: str, encoding: str, end: str) -> None:
    text, said = TEXTS[name]
    found = formats.recognise(text.replace("\n", end).encode(encoding))
    assert found is not None
    assert found.name == name
    assert said in found.advice


@pytest.mark.parametrize(
    "text",
    [
        "",
        "operation,ranks,bytes,seconds\nall_reduce,2,4,0.1\n",
        '{"name": "size count time"}',
        "node\nhost\n",
        "node1\n",
        "host1 host2\n" * 2,
        "slots=4\n",
        "GPU0 is ours\n",
        "name = 'resources:'\n",
        "caf\xe9",
        "\n" * 60_000 + "x",
        "# \n" * 20_000 + "node slots",
        "resources:\n" + " a\n" * 20_000,
        "fwd latency: 1\n" * 4_000,
        "resources:\n" * 5_000,
        "trainer:\n" * 5_000,
        "parallelism:\n" + " a\n" * 20_000,
        "node" + "1" * 60_000,
        "n1\n" * 10_000 + "the end",
        "node[" + "1" * 60_000,
        "A=1 " * 10_000 + "torchrun",
    ],
)
def test_other_text_is_not_recognised(text: str) -> None:
    assert formats.recognise(text.encode("latin-1")) is None


def torch_file() -> bytes:
    """The beginning of what torch.save writes: a zip archive with a pickle."""
    from io import BytesIO

    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02}q\x00.")
    return made.getvalue()


def database(folder: Path) -> bytes:
    path = folder / "made.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (x)")
    connection.close()
    return path.read_bytes()


SAFETENSORS = (64).to_bytes(8, "little") + b'{"weight": {"dtype": "F32", "shape": [1]}}'
PROTOBUF = b"\x07\n\x050.0.4\x8d\x01\x08\x00\x12\x0caten::linear"


BINARY = {
    "torch": ("model.pt", torch_file()),
    "pickle": ("model.pt", pickle.dumps({"a": 1}, protocol=2)),
    "safetensors": ("model.safetensors", SAFETENSORS),
    "chakra": ("rank0.et", PROTOBUF),
    "gzip": ("x.gz", gzip.compress(b"x")),
    "zip": ("x.zip", b"PK\x03\x04\0\0"),
    "compressed": ("x.bz2", b"BZh91AY\0"),
    "nsight": ("profile.nsys-rep", b"\x7fNVR\0\0\x01"),
    "binary": ("a.out", b"\x7fELF\0\0\x01"),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_files_are_recognised(name: str) -> None:
    file, data = BINARY[name]
    found = formats.recognise(data, file)
    assert found is not None
    assert found.name == name


def test_a_database_is_recognised(tmp_path: Path) -> None:
    found = formats.recognise(database(tmp_path))
    assert found is not None
    assert found.name == "sqlite"


@pytest.mark.parametrize("name", TEXTS)
def test_text_with_mistakes_never_ends_in_a_traceback(name: str) -> None:
    r = Random(name)
    for _ in range(200):
        formats.recognise(texts(r, TEXTS[name][0].encode()))


@pytest.mark.parametrize(
    "text",
    [
        "Layer (type)\nTrainable params: ,\n",
        f"Layer (type)\nTrainable params: {'9' * 5000}\n",
        f"node slots={'9' * 5000}\n",
        f"num_nodes: {'9' * 5000}\nresources:\n  accelerators: V100:{'9' * 5000}\n",
    ],
)
def test_figures_that_make_no_sense_are_left_out(text: str) -> None:
    found = formats.recognise(text.encode())
    assert found is not None
    assert "9" * 10 not in found.advice


def test_yaml_is_known_by_its_name_alone() -> None:
    assert formats.recognise(b"a: 1\n") is None
    assert formats.recognise(b"a: 1\n", "job.yaml") == formats.YAML


FILES: dict[str, bytes] = {name: text.encode() for name, (text, _) in TEXTS.items()}
FILES |= {name: BINARY[name][1] for name in ("torch", "chakra", "gzip")}

READERS = {
    "workload": "predict --arch ring --workload",
    "cluster": "predict --model resnet50 --device v100 --cluster",
    "job": "predict --job",
    "cases": "validate",
    "measurement": "calibrate network",
    "table": "calibrate runs",
    "trace": "import",
}
READ = {
    *(
        ("measurement", name) for name in ("nccl-tests", "iperf3", "osu", "perftest")
    ),  # but these are cut: see below
    *(("trace", name) for name in ("deepspeed", "trace", "chakra-json", "gzip")),
    *(("job", name) for name in ("chakra-json", "chakra")),  # but they have no process groups
    *((reader, "perfmodel") for reader in READERS if reader not in ("table", "trace")),
}
"""What a reader knows itself."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", FILES)
def test_each_reader_says_in_one_line_what_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "given"
    file.write_bytes(FILES[name])
    done = CliRunner().invoke(cli, [*READERS[reader].split(), "given"])
    assert isinstance(done.exception, InputError)
    said = str(done.exception)
    assert "\n" not in said
    if (reader, name) == ("job", "hostfile"):  # it is one, without a model
        assert said.startswith("model")
        return
    if (reader, name) in READ:
        assert said.startswith("given: ")
        return
    found = formats.recognise(FILES[name])
    assert found is not None
    assert said.startswith("given: not a ")
    assert said.endswith(f"but {found.what}: {found.advice}")


def test_compressed_content_of_a_trace_is_what_counts(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(HOSTFILE.encode()))
    done = CliRunner().invoke(cli, ["import", str(path)])
    assert "a hostfile of mpirun or DeepSpeed" in str(done.exception)


def test_a_finished_horovod_timeline_is_recognised_too(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    events = [{"ph": "X", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]
    path.write_text(json.dumps(events))
    done = CliRunner().invoke(cli, ["import", str(path)])
    assert "a Horovod timeline" in str(done.exception)


def test_canary_files_of_unknown_formats_have_the_error_of_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text("plain words\n")
    done = CliRunner().invoke(cli, ["import", str(path)])
    assert "not valid JSON" in str(done.exception)
