"""Reads command lines: of torchrun, deepspeed, accelerate, horovodrun, mpirun and srun, and the
flags of training scripts, also as Megatron-LM prints them at the start of its log."""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfmodel.launchers.configurations import OPTIMIZERS
from perfmodel.launchers.hosts import hostfile
from perfmodel.launchers.launch import Launch

NODES = ("nnodes", "num_nodes", "num_machines", "nodes")
PER_NODE = ("nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node", "npernode", "devices")
DEVICES = ("num_processes", "world_size", "ntasks")
"""Flags that count devices, with underscores."""

BATCHES = ("per_device_train_batch_size", "micro_batch_size", "local_batch_size")
PASSES = ("gradient_accumulation_steps", "accumulate_grad_batches")

VALUES: Mapping[str, str] = {
    "global_batch_size": "global_batch_size",
    "tensor_model_parallel_size": "tensor",
    "pipeline_model_parallel_size": "pipeline",
    "context_parallel_size": "context",
    "expert_model_parallel_size": "expert",
    "seq_length": "sequence_length",
}
"""Arguments of a job that are whole numbers, by flag."""

_FLAG = re.compile(r"(?<!\S)--?([A-Za-z][\w-]*)(?:[ \t=]+(?!-)(\"[^\"]*\"|'[^']*'|\S+))?")
_PRINTED = re.compile(r"^[ \t]*(?:\[?[\w:]+\]?:)?[ \t]*(\w+) \.{3,} (\S+)[ \t]*$", re.M)
_BOOLEAN = {"True": True, "False": False}
_HOROVOD = re.compile(r"\b(?:horovodrun|mpirun|mpiexec)\b(?:[^\n]|\\\n)*?[ \t]-(?:np|n)[ \t]+(\d+)")


def command(text: str, name: str) -> Launch:
    """Read the last command line of a text, with the flags of the script that it runs."""
    words = text.replace("\\\n", " ")
    flags: dict[str, str | bool] = {}
    for line in words.splitlines():
        if line.lstrip().startswith("#") and not line.lstrip().startswith("#SBATCH"):
            continue
        for key, value in _FLAG.findall(line):
            flags[key.replace("-", "_")] = value.strip("\"'") if value else True
    devices = re.findall(_HOROVOD, words)
    launch = _of_flags(flags, "a command line")
    if devices:
        launch = launch._replace(devices=int(devices[-1]))
    listed = flags.get("H", flags.get("host"))
    if isinstance(listed, str):
        hosts = hostfile(listed.replace(",", "\n"), name)
        launch = launch._replace(nodes=hosts.nodes, devices_per_node=hosts.devices_per_node)
    if "horovodrun" in words:
        launch = launch._replace(arguments={"arch": "horovod", **launch.arguments})
    elif re.search(r"\b(?:torchrun|torch\.distributed)", words):
        launch = launch._replace(arguments={"arch": "ddp", **launch.arguments})
    return launch


def megatron(text: str, name: str) -> Launch:
    """Read the arguments that Megatron-LM prints."""
    printed = {key: _BOOLEAN.get(value, value) for key, value in _PRINTED.findall(text)}
    return _of_flags(printed, "arguments of Megatron-LM")


def _of_flags(flags: Mapping[str, str | bool], what: str) -> Launch:
    counts = {key: n for key, value in flags.items() if (n := _count(value)) is not None}

    def first(names: tuple[str, ...]) -> int | None:
        return next((counts[key] for key in names if key in counts), None)

    micro, passes = first(BATCHES), first(PASSES)
    sizes = {
        argument: counts[flag]
        for flag, argument in VALUES.items()
        if counts.get(flag, 1) > 1 or (flag.endswith("batch_size") and flag in counts)
    }
    values: dict[str, object] = {**sizes}
    if "global_batch_size" not in sizes and micro is not None:
        values["batch_size"] = micro * (passes or 1)
    if passes is not None and passes > 1:
        values["accumulation"] = passes
    if flags.get("bf16") is True or flags.get("fp16") is True:
        values["precision"] = "mixed"
    if flags.get("use_distributed_optimizer") is True:
        values["arch"] = "zero1"
    elif "tensor_model_parallel_size" in flags:
        values["arch"] = "ddp"
    if flags.get("sequence_parallel") is True and sizes.get("tensor", 1) > 1:
        values["sequence_parallel"] = True
    optimizer = OPTIMIZERS.get(str(flags.get("optimizer")).lower())
    if optimizer is not None:
        values["optimizer"] = optimizer
    micro_batches = _micro_batches(sizes, micro, first(DEVICES), first(NODES), first(PER_NODE))
    if micro_batches is not None:
        values["micro_batches"] = micro_batches
    nodes = first(NODES)
    if nodes is None and first(PER_NODE) is not None and first(DEVICES) is None:
        nodes = 1
    return Launch(what, nodes, first(PER_NODE), first(DEVICES), values)


def _micro_batches(
    sizes: Mapping[str, int],
    micro: int | None,
    devices: int | None,
    nodes: int | None,
    per_node: int | None,
) -> int | None:
    """Passes of a replica, from the batch of all and the number of replicas."""
    if devices is None and nodes is not None and per_node is not None:
        devices = nodes * per_node
    if "global_batch_size" not in sizes or micro is None or devices is None:
        return None
    divided = sizes.get("tensor", 1) * sizes.get("pipeline", 1) * sizes.get("context", 1)
    replicas = max(devices // divided, 1)
    passes = sizes["global_batch_size"] // (micro * replicas)
    return passes if passes > 1 else None


def _count(value: str | bool) -> int | None:
    if not isinstance(value, str):
        return None
    value = value.rpartition(":")[2]  # torchrun's MIN:MAX
    return int(value) if value.isascii() and value.isdigit() and 0 < len(value) < 10 else None
