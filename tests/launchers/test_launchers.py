"""Files of launchers are recognised, and become the arguments of a job that they describe."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import perfmodel as pm
from perfmodel import InputError
from perfmodel.base import formats
from perfmodel.cli import cli
from perfmodel.inputs.job_files import read_job
from perfmodel.launchers import hosts, trees
from perfmodel.launchers.launch import arguments_of, joined
from perfmodel.launchers.readers import READERS, launch_of
from perfmodel.measuring.outputs import horovod, training_logs
from tests.mutations import ODD, places, texts

DEEPSPEED = json.dumps(
    {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": 50_000_000,
            "offload_optimizer": {"device": "cpu"},
        },
    }
)
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_offload_params: false
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
LIGHTNING = """\
seed_everything: 7
trainer:
  accelerator: gpu  # or auto
  devices: [0, 1, 2, 3]
  num_nodes: 2
  strategy: deepspeed_stage_2_offload
  precision: bf16-mixed
  accumulate_grad_batches: 4
data:
  class_path: ours.Data
  init_args:
    batch_size: 16
"""
NANOTRON = """\
parallelism:
  dp: 2
  pp: 1
  tp: 4
tokens:
  micro_batch_size: 2
  batch_accumulation_per_replica: 4
  sequence_length: 2048
model:
  dtype: bfloat16
optimizer:
  zero_stage: 1
"""
TORCHTITAN = """\
[training]
local_batch_size = 8
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
"""
TORCHRUN = (
    "export NCCL_DEBUG=INFO\ntorchrun --nnodes=4 --nproc-per-node 8 \\\n  train.py "
    "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --bf16 --output_dir out\n"
)
SBATCH = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun python train.py\n"
HOROVODRUN = "horovodrun -np 16 -H a:8,b:8 python train.py\n"
MEGATRON = """\
using world size: 32, data-parallel size: 4
------------------------ arguments ------------------------
  bf16 ............................................ True
  global_batch_size ............................... 256
  micro_batch_size ................................ 2
  pipeline_model_parallel_size .................... 4
  seq_length ...................................... 2048
  tensor_model_parallel_size ...................... 2
  use_distributed_optimizer ....................... True
  world_size ...................................... 32
"""
MLPERF = """\
:::MLLOG {"namespace": "", "time_ms": 10, "key": "global_batch_size", "value": 2048, "metadata": {}}
:::MLLOG {"time_ms": 11, "key": "gradient_accumulation_steps", "value": 1}
:::MLLOG {"time_ms": 20, "key": "tracked_stats", "value": {"throughput": 3000.0}}
:::MLLOG {"time_ms": 30, "key": "tracked_stats", "value": {"throughput": 5000.0}}
:::MLLOG {"time_ms": 40, "key": "tracked_stats", "value": {"throughput": 5200.0}}
"""
CHAKRA = json.dumps(
    {
        "schema": "1.1.0-chakra.0.0.4",
        "nodes": [
            {
                "name": "## process_group:init ##",
                "inputs": {"values": ['[{"pg_name": "0", "ranks": [], "group_size": 16}]']},
            }
        ],
    }
)

FILES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "MPI": ("hostfile", "node1 slots=4\nnode2 slots=4\n", {"workers": 8, "devices_per_node": 4}),
    "hosts with colons": ("hostfile", "a1:8\na2:8\n", {"workers": 16, "devices_per_node": 8}),
    "a host per rank": ("hosts", "n1\nn1\nn2\nn2\n", {"workers": 4, "devices_per_node": 2}),
    "Slurm": (
        "slurm",
        "SLURM_JOB_NODELIST=node[001-004,7]\nSLURM_GPUS_ON_NODE=8\n",
        {"workers": 40, "devices_per_node": 8},
    ),
    "DeepSpeed": (
        "deepspeed-json",
        DEEPSPEED,
        {
            "batch_size": 32,
            "accumulation": 8,
            "arch": "zero2",
            "precision": "mixed",
            "optimizer": "adamw",
            "offload_optimizer": True,
            "options": {"unit_bytes": 1e8},  # 50 million elements of 2 bytes
        },
    ),
    "Accelerate": (
        "accelerate",
        ACCELERATE,
        {"workers": 16, "devices_per_node": 8, "precision": "mixed", "arch": "shard_grad_op"},
    ),
    "Lightning": (
        "lightning",
        LIGHTNING,
        {
            "workers": 8,
            "devices_per_node": 4,
            "batch_size": 64,
            "accumulation": 4,
            "arch": "zero2",
            "precision": "mixed",
            "offload_optimizer": True,
        },
    ),
    "nanotron": (
        "nanotron",
        NANOTRON,
        {
            "devices": 8,
            "tensor": 4,
            "batch_size": 8,
            "accumulation": 4,
            "sequence_length": 2048,
            "precision": "mixed",
            "arch": "zero1",
        },
    ),
    "torchtitan": (
        "torchtitan",
        TORCHTITAN,
        {
            "batch_size": 8,
            "sequence_length": 2048,
            "tensor": 2,
            "arch": "fsdp",
            "precision": "mixed",
        },
    ),
    "torchrun": (
        "command",
        TORCHRUN,
        {
            "workers": 32,
            "devices_per_node": 8,
            "batch_size": 8,
            "accumulation": 2,
            "precision": "mixed",
            "arch": "ddp",
        },
    ),
    "sbatch": ("command", SBATCH, {"workers": 32, "devices_per_node": 8}),
    "horovodrun": (
        "command",
        HOROVODRUN,
        {"workers": 16, "devices_per_node": 8, "arch": "horovod"},
    ),
    "Megatron-LM": (
        "megatron",
        MEGATRON,
        {
            "devices": 32,
            "tensor": 2,
            "pipeline": 4,
            "global_batch_size": 256,
            "micro_batches": 32,  # 256 samples in passes of 2 on 4 replicas
            "sequence_length": 2048,
            "precision": "mixed",
            "arch": "zero1",
        },
    ),
    "MLPerf": ("mlperf", MLPERF, {"global_batch_size": 2048}),
    "Chakra": ("chakra-json", CHAKRA, {"workers": 16}),
}
"""A file of each kind, the name of its format, and what it says."""


def files_of(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name.replace(" ", "-") for name in names]
    for path, name in zip(paths, names, strict=True):
        path.write_text(FILES[name][1])
    return paths


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_is_recognised_and_says_what_it_does(name: str, end: str) -> None:
    kind, text, says = FILES[name]
    data = text.replace("\n", end).encode()
    recognised = formats.recognise(data)
    assert recognised is not None
    assert recognised.name == kind
    launch = launch_of(data, "file")
    assert launch is not None
    assert arguments_of(joined([launch]), "file") == says


def test_every_reader_has_a_format() -> None:
    assert set(READERS) <= {rule.name for rule in formats.TEXT}


def test_job_of_a_file_is_possible(tmp_path: Path) -> None:
    """Their arguments are those of make_job; a global batch is split among workers."""
    for name in FILES:
        path = files_of(tmp_path, name)[0]
        given = read_job(path)
        given.pop("global_batch_size", None)
        assert pm.make_job(**{"model": "llama-7b", "device": "a100", **given}).workers >= 1


def test_several_files_describe_a_job_together(tmp_path: Path) -> None:
    paths = files_of(tmp_path, "DeepSpeed", "MPI")
    given = read_job(*paths)
    assert given["workers"] == 8
    assert given["arch"] == "zero2"
    answer = CliRunner().invoke(
        cli,
        [
            "predict",
            "--job",
            str(paths[0]),
            "--job",
            str(paths[1]),
            "--model",
            "gpt2-medium",
            "--device",
            "a100",
            "--arch",
            "zero3",
            "--fidelity",
            "coarse",
            "--json",
        ],
    )
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    assert told["workers"] == 8
    assert told["global_batch_size"] == 8 * 32


def test_a_global_batch_is_split_among_the_workers(tmp_path: Path) -> None:
    paths = files_of(tmp_path, "MLPerf", "MPI")
    assert read_job(*paths)["batch_size"] == 2048 // 8


def test_a_list_of_nodes_needs_the_number_of_workers(tmp_path: Path) -> None:
    path = tmp_path / "nodes.txt"
    path.write_text("node[001-004,7]\n")
    with pytest.raises(InputError, match="5 nodes, but not how many devices each: give --workers"):
        read_job(path)
    answer = CliRunner().invoke(
        cli,
        [
            "predict",
            "--job",
            str(path),
            "--workers",
            "20",
            "--model",
            "resnet50",
            "--device",
            "v100",
            "--arch",
            "ring",
            "--fidelity",
            "coarse",
        ],
    )
    assert answer.exit_code == 0, answer.output
    assert "(5 nodes of 4)" in answer.stdout


@pytest.mark.parametrize(
    ("listed", "count", "last"),
    [
        ("node[001-004,7]", 5, "node7"),
        ("a1,b[1-3]", 4, "b3"),
        ("r[1-2]n[01-03]", 6, "r2n03"),
        ("login", 1, "login"),
    ],
)
def test_node_lists_by_hand(listed: str, count: int, last: str) -> None:
    names = hosts.expanded(listed, "nodes")
    assert len(names) == len(set(names)) == count
    assert names[-1] == last


@pytest.mark.parametrize(
    ("listed", "text"),
    [("a[1-", "bracket"), ("a[4-1]", "no range"), ("a[x]", "expected numbers"),
     ("a[1-999999999]", "no range")],
)  # fmt: skip
def test_wrong_node_lists_are_one_line(listed: str, text: str) -> None:
    with pytest.raises(InputError, match=text) as raised:
        hosts.expanded(listed, "nodes")
    assert "\n" not in str(raised.value)


def test_what_is_no_job_says_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("the run was slow\n")
    with pytest.raises(
        InputError, match=r"expected a job file .* or one of a launcher: a hostfile"
    ):
        read_job(path)
    path.write_text(DEEPSPEED[:40])
    with pytest.raises(InputError, match="not valid JSON"):
        read_job(path)


def test_trees_of_yaml_have_what_the_documents_say() -> None:
    text = "a: {b: [1, 2.5]}\nc:\n- d: 'x: y'  # why\n  e: off\n- &f 7\ng: *f\nh: |\n  k: 1\n"
    expected = {"a": {"b": [1, 2.5]}, "c": [{"d": "x: y", "e": False}, 7], "g": 7, "h": "k: 1\n"}
    assert trees.read(text, "file") == expected


# libyaml 0.2.6 has a limit of its own
DEEP = "(?:nested in more than 100 levels|while increasing flow level exceeded)"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1, 2", "not valid YAML: while parsing a flow sequence"),
        ("a: 1\n\tb: 2", "not valid YAML: while scanning"),
        ("- 1\n- 2", "expected a mapping of YAML, got list"),
        ("a: " + "[" * 5000, f"not valid YAML: {DEEP}"),
        ("a: " + "[" * 100_000 + "]" * 100_000, f"not valid YAML: {DEEP}"),
        ("- " * 101 + "1", "not valid YAML: nested in more than 100 levels"),
        ("- " * 100 + "1", "expected a mapping of YAML, got list"),
        ("a: !!python/object/apply:os.system [ls]", "not valid YAML: could not determine"),
    ],
)
def test_what_is_not_yaml_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"run.yaml: {problem}") as refused:
        trees.read(text, "run.yaml")
    assert "\n" not in str(refused.value)


def test_files_with_mistakes_never_end_in_a_traceback() -> None:
    for name, (kind, text, _) in FILES.items():
        random = Random(name)
        for _ in range(100):
            mutated = texts(random, text.encode()).decode("utf-8", "replace")
            with contextlib.suppress(InputError):
                arguments_of(joined([READERS[kind](mutated, "file")]), "file")


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_odd_values_are_refused_or_left_out(value: object) -> None:
    """In a configuration, a timeline and a log, one after the other."""
    tree = json.loads(DEEPSPEED)
    for path in places(tree):
        odd = copy.deepcopy(tree)
        inside = odd
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = value
        with contextlib.suppress(InputError, ValueError):  # text that JSON cannot have
            arguments_of(joined([READERS["deepspeed-json"](json.dumps(odd), "file")]), "file")
    for key in ("ts", "pid", "name", "ph"):
        event = {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 1, key: value}
        with contextlib.suppress(InputError, ValueError):
            horovod.parse(timeline(2).rstrip(",\n") + f",{json.dumps(event)}]", "file")
    for key in ("tracked_stats", "train_samples", "epoch_start", "epoch_stop"):
        with contextlib.suppress(ValueError):
            line = json.dumps({"time_ms": value, "key": key, "value": value})
            training_logs.is_log(f":::MLLOG {line}\n" * 2)


# -- measured --------------------------------------------------------------------------------------


def timeline(steps: int) -> str:
    """Two tensors per step of 100 ms; reduced for 10 and 20 ms, of which 5 together."""
    events: list[dict[str, object]] = []
    for step in range(steps):
        at = 100_000 * step
        for tensor, begin, end in ((1, 50_000, 60_000), (2, 55_000, 75_000)):
            events += [
                {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at + 40_000, "pid": tensor},
                {"ph": "E", "ts": at + 45_000, "pid": tensor},
                {"ph": "B", "name": "ALLREDUCE", "ts": at + 46_000, "pid": tensor},
                {"ph": "B", "name": "NCCL_ALLREDUCE", "ts": at + begin, "pid": tensor},
                {"ph": "E", "ts": at + end, "pid": tensor},
                {"ph": "E", "ts": at + 80_000, "pid": tensor},
            ]
    return "[\n" + "".join(json.dumps(event) + ",\n" for event in events)  # without its end


def test_a_horovod_timeline_by_hand() -> None:
    read = horovod.parse(timeline(3), "t.json")
    assert read.step_s == pytest.approx(0.1)
    assert read.communication_s == pytest.approx(0.025)
    assert horovod.parse(timeline(1), "t.json").step_s is None
    with pytest.raises(InputError, match="without collectives"):
        horovod.parse("[\n", "t.json")


def test_an_mlperf_log_by_hand() -> None:
    """The median without the first; epochs count where no throughput is stated."""
    assert training_logs.parse(MLPERF, "log").value == pytest.approx(5100.0)
    epochs = "".join(
        f':::MLLOG {{"time_ms": {at}, "key": "{key}", "value": {value}}}\n'
        for at, key, value in (
            (0, "train_samples", 1000), (100, "epoch_start", 0), (4100, "epoch_stop", 0),
            (5000, "epoch_start", 0), (7000, "epoch_stop", 0),
        )
    )  # fmt: skip
    assert training_logs.parse(epochs, "log").value == pytest.approx(500.0)


@pytest.mark.slow
def test_diagnose_takes_its_job_and_its_step_from_files(tmp_path: Path) -> None:
    """16 workers with 128 samples each at 5100 samples/s: 402 ms."""
    paths = files_of(tmp_path, "MLPerf", "horovodrun")
    (tmp_path / "timeline.json").write_text(timeline(3))
    flags = ["--model", "resnet50", "--device", "v100", "--bandwidth", "25Gbps", "--json"]
    answer = CliRunner().invoke(cli, ["diagnose", *map(str, paths), *flags])
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    assert "16 x v100" in told["job"]
    assert told["measured"]["step_s"] == pytest.approx(2048 / 5100)
    answer = CliRunner().invoke(
        cli, ["diagnose", str(tmp_path / "timeline.json"), str(paths[1]), *flags]
    )
    measured = json.loads(answer.stdout)["measured"]
    assert measured["step_s"] == pytest.approx(0.1)
    assert measured["communication_s"] == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing of use\n", "not known what it is"),
        ("Layer (type:depth-idx)\nTrainable params: 1,000\n", "a summary of a model's layers"),
    ],
)
def test_diagnose_says_what_it_reads(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    arguments = ["diagnose", str(path), "--model", "resnet50", "--measured-step", "1s"]
    with pytest.raises(InputError, match=said) as raised:
        CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False)
    assert "\n" not in str(raised.value)
